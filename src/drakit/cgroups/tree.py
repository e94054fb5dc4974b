"""Looking at (and, where asked, setting) what the kernel really has in a container's cgroup.

The runtime reports a container's cgroup in one of two spellings (NRI ``cgroups_path``):

* cgroupfs driver: a path, ``/kubepods/burstable/pod<uid>/<container id>``;
* systemd driver: ``<slice>:<prefix>:<container id>``, which systemd lays out as
  ``/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/<prefix>-<id>.scope``.

Under cgroup v2 everything is below one mount; under v1 (or hybrid) each controller has its own.
Nothing here trusts a path: it is taken apart, and ``..`` is rejected.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drakit.core.cpuset import CpuSet

_LARGEST_FILE: Final = 1 << 16
_POD: Final = re.compile(r"(?:^|-)pod[0-9A-Za-z_.-]+$")
_DEEPEST_POD: Final = 6
"""How far below the mount a pod's cgroup can be: three levels, and more with the kubelet's cgroupRoot."""
_MOST_NESTED: Final = 4096
"""How many cgroups below a container's are searched for processes under cgroup v1."""
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE: Final = os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
"""Truncation matters for trees of plain files only; the kernel ignores it for cgroup files."""
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
"""Errors that say that a cgroup or its file does not exist; ENODEV: it was removed after the open."""
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED: Final = (1 << 63) - (1 << 34)
"""Amounts from here on mean "no limit": the greatest number, rounded down to any page size."""
_HUGE_SIZE: Final = re.compile(r"hugetlb\.(\d+)([KMG])B\.")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def expand_slice(name: str) -> str:
    """``a-b-c.slice`` → ``a.slice/a-b.slice/a-b-c.slice``: where systemd puts a slice."""
    stem = name.removesuffix(".slice")
    if stem in ("", "-"):
        return ""
    path, name = "", ""
    for part in stem.split("-"):
        name = f"{name}-{part}" if path else part
        path = f"{path}/{name}.slice" if path else f"{name}.slice"
    return path


def relative_path(cgroups_path: str) -> str | None:
    """The path of a container's cgroup below the mount, from what the runtime reports.

    None for a spelling that is not understood: better no look than a look at the wrong place.
    """
    if cgroups_path.count(":") == 2:
        parent, prefix, name = cgroups_path.split(":")
        unit = name if name.endswith(".scope") else f"{prefix}-{name}.scope" if prefix else name
        where = parent_path(parent)
        path = None if where is None else f"{where}/{unit}"
    else:
        path = cgroups_path.strip("/")
    return path if path and _is_plain(path) else None


def parent_path(cgroup_parent: str) -> str | None:
    """The path of a pod's cgroup below the mount.

    containerd reports the kubelet's whole path with either driver; CRI-O with systemd reports only
    the last slice, which is expanded. None when it is not understood.
    """
    path = cgroup_parent.strip("/")
    if path.endswith(".slice") and "/" not in path:
        path = expand_slice(path)
    return path if path and _is_plain(path) else None


def _is_plain(path: str) -> bool:
    whole = f"/{path}/"
    return not ("\0" in path or "//" in whole or "/./" in whole or "/../" in whole)


@dataclass(frozen=True, slots=True)
class CpusetFiles:
    """What a container's cgroup says about CPUs and memory nodes; None where it says nothing."""

    cpus: CpuSet | None
    effective_cpus: CpuSet | None
    mems: CpuSet | None


class CgroupTree:
    """The cgroup file systems below *root* (``/sys/fs/cgroup``), v2, v1 or hybrid."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.unified = os.path.exists(os.path.join(root, "cgroup.controllers"))
        self._mounts = {} if self.unified else _joint_mounts(root)

    def directory(self, controller: str, path: str) -> str:
        """Where the cgroup *path* is for *controller*."""
        if self.unified:
            return f"{self.root}/{path}"
        return f"{self.root}/{self._mounts.get(controller, controller)}/{path}"

    def read(self, controller: str, path: str, file: str) -> str | None:
        """The content of a cgroup's file without the newline; None when it cannot be read."""
        try:
            return _read(f"{self.directory(controller, path)}/{file}")
        except OSError:
            return None

    def look(self, path: str, file: str) -> str | None:
        """What a cgroup's file says, for comparison with what it should say.

        None when the cgroup or the file does not exist: the container ended, or the controller is not
        enabled for it. A file that exists and cannot be read says nothing (an empty text): that is
        never what it should say.
        """
        try:
            return _read(f"{self.directory(file.partition('.')[0], path)}/{file}")
        except OSError as error:
            return None if error.errno in _GONE else ""

    def write(self, controller: str, path: str, file: str, value: str) -> None:
        """Set a cgroup's file in one write, as the kernel wants it; raises ``OSError``.

        Never creates anything: a cgroup that is gone stays gone (``FileNotFoundError``).
        """
        descriptor = os.open(f"{self.directory(controller, path)}/{file}", _WRITE)
        try:
            os.write(descriptor, value.encode("ascii"))
        finally:
            os.close(descriptor)

    def all_containers(self) -> Iterator[str]:
        """The cgroups directly below every pod's cgroup, wherever the kubelet has put them.

        With the cgroupfs driver a pod's cgroup is ``pod<uid>``, with systemd ``…-pod<uid>.slice`` with
        underscores for dashes.
        """
        top = self.directory("cpuset", "").rstrip("/")
        for directory, names, _ in os.walk(top):
            path = os.path.relpath(directory, top)
            if _POD.search(os.path.basename(path)):
                yield from (f"{path}/{name}" for name in sorted(names))
                names.clear()
            elif path.count("/") >= _DEEPEST_POD:
                names.clear()

    def populated(self, path: str) -> bool:
        """Whether a container's cgroup has processes, in itself or below.

        False only when the kernel shows that there are none, or that the cgroup is gone. Whatever
        cannot be read may have processes, so it counts as populated: the answer decides whether the
        container's resources can be given to others.
        """
        if self.unified:
            try:
                events = _read(f"{self.root}/{path}/cgroup.events")
            except OSError as error:
                return not (error.errno in _GONE and self._is_gone("", path))
            return "populated 0" not in events.splitlines()
        return self._populated_v1(path)

    def _populated_v1(self, path: str) -> bool:
        """The same under cgroup v1, whose kernel keeps no such flag.

        The pids controller counts the tasks of a cgroup and of all below. Where it is missing, the
        processes of every cgroup below must be listed, and that is possible in the host's PID
        namespace only: elsewhere the kernel leaves out the processes of other containers.
        """
        tasks = self.look(path, "pids.current")
        if tasks is None and not self._is_gone("pids", path) and not _sees_every_process():
            return not self._is_gone("cpuset", path)
        return tasks not in (None, "0") or self._lists_processes(path)

    def _lists_processes(self, path: str) -> bool:
        """Whether any cgroup of the cpuset hierarchy from *path* down lists a process, or may."""
        top = self.directory("cpuset", path)
        waiting, searched = [top], 0
        while waiting:
            place = waiting.pop()
            searched += 1
            if searched > _MOST_NESTED:
                return True
            try:
                if _read(f"{place}/cgroup.procs"):
                    return True
                with os.scandir(place) as entries:
                    waiting += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
            except OSError as error:
                gone = error.errno in _GONE and not os.path.isdir(place)
                if not gone or (place == top and not self._is_gone("cpuset", path)):
                    return True
        return False

    def _is_gone(self, controller: str, path: str) -> bool:
        """Whether a cgroup does not exist although its hierarchy is mounted here."""
        mounted = os.path.isdir(self.directory(controller, ""))
        return mounted and not os.path.isdir(self.directory(controller, path))

    def cpuset(self, path: str) -> CpusetFiles | None:
        """The cpuset of a container's cgroup; None when the cgroup is not there."""
        if not os.path.isdir(self.directory("cpuset", path)):
            return None
        effective = "cpuset.cpus.effective" if self.unified else "cpuset.effective_cpus"
        return CpusetFiles(
            cpus=_parsed(self.read("cpuset", path, "cpuset.cpus")),
            effective_cpus=_parsed(self.read("cpuset", path, effective)),
            mems=_parsed(self.read("cpuset", path, "cpuset.mems")),
        )


def _parsed(text: str | None) -> CpuSet | None:
    if not text:
        return None
    try:
        return CpuSet.parse(text)
    except ValueError:
        return None


def _read(path: str) -> str:
    """A file's content without the newline; raises ``OSError``."""
    descriptor = os.open(path, _READ)
    try:
        return os.read(descriptor, _LARGEST_FILE).decode("ascii", "replace").rstrip("\n")
    finally:
        os.close(descriptor)


def _sees_every_process() -> bool:
    """Whether this process is in the host's PID namespace, whose number is the same everywhere."""
    try:
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return False


def _joint_mounts(root: str) -> dict[str, str]:
    """Where controllers are that share a cgroup v1 mount (``cpu,cpuacct``), by controller."""
    try:
        names = os.listdir(root)
    except OSError:
        return {}
    return {part: name for name in names if "," in name for part in name.split(",")}


# -- what a file says ------------------------------------------------------------------------------


def same_value(file: str, found: str, meant: str) -> bool:
    """Whether a cgroup file that reads *found* has the value *meant*.

    The kernel does not keep the text it is given: it sorts CPU lists, rounds amounts of memory down
    to whole pages and hugepage limits down to whole hugepages, spells a very large amount ``max``,
    and completes ``cpu.max`` with the period and keyed files with the keys that were not named.
    """
    if found == meant:
        return True
    if file.startswith("cpuset.") and ".partition" not in file:
        cpus = _parsed(found)
        return cpus is not None and cpus == _parsed(meant)
    there, wanted = amount(found), amount(meant)
    if there is not None and wanted is not None:
        return there == wanted or (wanted < math.inf and there == _rounded(file, wanted))
    return bool(meant.strip()) and all(
        any(set(line.split()) <= set(other.split()) for other in found.splitlines())
        for line in meant.splitlines()
    )


def amount(text: str) -> float | None:
    """A file's value as a number, unlimited ones as infinity; None when it is something else."""
    text = text.strip()
    if text in ("max", "-1"):
        return math.inf
    if not (text.isascii() and text.isdigit()) or len(text) > 20:
        return None
    number = int(text)
    return number if number < _UNLIMITED else math.inf


def _rounded(file: str, wanted: float) -> int:
    """An amount as the kernel keeps it in *file*."""
    unit = _PAGE_SIZE if file.startswith("memory.") else hugepage_size(file) or 1
    return int(wanted) // unit * unit


def hugepage_size(file: str) -> int | None:
    """The page size in bytes that a hugetlb file is about; None for other files."""
    found = _HUGE_SIZE.match(file)
    return None if found is None else int(found[1]) * _UNITS[found[2]]
