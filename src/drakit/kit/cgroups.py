"""Looking at (and, where asked, setting) what the kernel really has in a container's cgroup.

The runtime reports a container's cgroup in one of two spellings (NRI ``cgroups_path``):

* cgroupfs driver: a path, ``/kubepods/burstable/pod<uid>/<container id>``;
* systemd driver: ``<slice>:<prefix>:<container id>``, which systemd lays out as
  ``/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/<prefix>-<id>.scope``.

Under cgroup v2 everything is below one mount; under v1 (or hybrid) each controller has its own.
Nothing here trusts a path: it is taken apart, and ``..`` is refused.
"""

from __future__ import annotations

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


def expand_slice(name: str) -> str:
    """``a-b-c.slice`` → ``a.slice/a-b.slice/a-b-c.slice``: where systemd puts a slice."""
    stem = name.removesuffix(".slice")
    if stem in ("", "-"):
        return ""
    parts = stem.split("-")
    return "/".join("-".join(parts[: i + 1]) + ".slice" for i in range(len(parts)))


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
    return "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


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

    def directory(self, controller: str, path: str) -> str:
        """Where the cgroup *path* is for *controller*."""
        return os.path.join(self.root, path if self.unified else f"{controller}/{path}")

    def read(self, controller: str, path: str, file: str) -> str | None:
        """The content of a cgroup's file without the newline; None when there is none."""
        try:
            with open(os.path.join(self.directory(controller, path), file), "rb") as opened:
                return opened.read(_LARGEST_FILE).decode("ascii", "replace").rstrip("\n")
        except OSError:
            return None

    def write(self, controller: str, path: str, file: str, value: str) -> None:
        """Set a cgroup's file in one write, as the kernel wants it; raises ``OSError``.

        Never creates anything: a cgroup that is gone stays gone (``FileNotFoundError``).
        """
        where = os.path.join(self.directory(controller, path), file)
        descriptor = os.open(where, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(descriptor, value.encode("ascii"))
        finally:
            os.close(descriptor)

    def containers_of(self, pod_uid: str) -> list[str]:
        """The cgroups below a pod's, wherever the kubelet has put it; none if there is no such pod.

        With the cgroupfs driver a pod's cgroup is ``pod<uid>``, with systemd ``…-pod<uid>.slice`` with
        underscores for dashes.
        """
        if not pod_uid or not _is_plain(pod_uid):
            return []
        ends = (f"pod{pod_uid}", f"-pod{pod_uid.replace('-', '_')}.slice")
        top = self.directory("cpuset", "").rstrip("/")
        found = []
        for directory, names, _ in os.walk(top):
            path = os.path.relpath(directory, top)
            if os.path.basename(path).endswith(ends):
                found += [f"{path}/{name}" for name in sorted(names)]
            if path.count("/") >= _DEEPEST_POD or found:
                names.clear()
        return found

    def all_containers(self) -> Iterator[str]:
        """The cgroups directly below every pod's cgroup, wherever the kubelet has put them."""
        top = self.directory("cpuset", "").rstrip("/")
        for directory, names, _ in os.walk(top):
            path = os.path.relpath(directory, top)
            if _POD.search(os.path.basename(path)):
                yield from (f"{path}/{name}" for name in sorted(names))
                names.clear()
            elif path.count("/") >= _DEEPEST_POD:
                names.clear()

    def populated(self, path: str) -> bool:
        """Whether a container's cgroup has processes, in itself or below."""
        if self.unified:
            events = self.read("", path, "cgroup.events") or ""
            return "populated 1" in events.splitlines()
        return bool(self.read("cpuset", path, "cgroup.procs"))

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
