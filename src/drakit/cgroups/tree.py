"""The mounted cgroup hierarchies of a node: one under cgroup v2, one per controller under v1.

Reads and writes go through :mod:`drakit.cgroups.files`, so no path leads outside a hierarchy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from drakit.cgroups.files import DIRECTORY, MISSING, open_beneath, opened, read_file, write_file
from drakit.cgroups.paths import pod_uid
from drakit.cgroups.values import parse_list
from drakit.core.cpuset import CpuSet

_DEEPEST_POD: Final = 7
"""Levels from the mount down to a pod: three, and more with the kubelet's ``cgroupRoot``."""
_MOST_NESTED: Final = 4096
"""How many cgroups below a container's are searched for processes under cgroup v1."""


@dataclass(frozen=True, slots=True)
class CpusetFiles:
    """The cpuset files of a container's cgroup; None for a file that is missing, empty or not valid."""

    cpus: CpuSet | None
    effective_cpus: CpuSet | None
    mems: CpuSet | None


class PodDirectory(NamedTuple):
    """The cgroup of a pod, found in the tree."""

    uid: str
    path: str


class CgroupTree:
    """The cgroup file systems below *root* (``/sys/fs/cgroup``): v2, v1 or hybrid."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.unified = os.path.exists(os.path.join(root, "cgroup.controllers"))
        self._mounts = {} if self.unified else _joint_mounts(root)

    def mount(self, controller: str) -> str:
        """The mount point of the hierarchy of *controller*."""
        if self.unified:
            return self.root
        return f"{self.root}/{self._mounts.get(controller, controller)}"

    def read(self, controller: str, path: str, file: str) -> str | None:
        """The content of a cgroup's file without the final newline; None if it cannot be read."""
        try:
            return read_file(self.mount(controller), f"{path}/{file}" if path else file)
        except OSError:
            return None

    def look(self, path: str, file: str) -> str | None:
        """The content of a cgroup's file, for comparison with its desired value.

        None if the cgroup or the file does not exist: the container ended, or the controller is not
        enabled for it. Empty if the file cannot be read: that never equals a desired value.
        """
        try:
            return read_file(self.mount(file.partition(".")[0]), f"{path}/{file}")
        except OSError as error:
            return None if error.errno in MISSING else ""

    def write(self, controller: str, path: str, file: str, value: str) -> None:
        """Set a cgroup's file in one write. Raises ``OSError``.

        Never creates anything: a removed cgroup is a ``FileNotFoundError``.
        """
        write_file(self.mount(controller), f"{path}/{file}", value)

    def pods(self) -> Iterator[PodDirectory]:
        """The cgroups of all pods, by path, wherever the kubelet has created them."""
        return self._pods_below("")

    def _pods_below(self, above: str) -> Iterator[PodDirectory]:
        for name in self.children(above):
            path = f"{above}/{name}" if above else name
            uid = pod_uid(name)
            if uid is not None:
                yield PodDirectory(uid, path)
            elif path.count("/") < _DEEPEST_POD - 1:
                yield from self._pods_below(path)

    def children(self, path: str) -> list[str]:
        """The names of the cgroups directly below *path*; empty if it cannot be read."""
        try:
            with opened(self.mount("cpuset"), path) as cgroup:
                return cgroup.children()
        except OSError:
            return []

    def all_containers(self) -> Iterator[str]:
        """The cgroups directly below the cgroup of every pod."""
        for pod in self.pods():
            yield from (f"{pod.path}/{name}" for name in self.children(pod.path))

    def populated(self, path: str) -> bool:
        """Whether a container's cgroup has processes, in itself or below.

        False only if the kernel shows that there are none, or that the cgroup was removed. Anything
        that cannot be read counts as populated, because the result decides whether the container's
        resources can be given to others.
        """
        if not self.unified:
            return self._populated_v1(path)
        try:
            events = read_file(self.root, f"{path}/cgroup.events")
        except OSError as error:
            return not (error.errno in MISSING and self._is_gone("", path))
        return "populated 0" not in events.splitlines()

    def _populated_v1(self, path: str) -> bool:
        """The same under cgroup v1, whose kernel has no such flag.

        The pids controller counts the tasks of a cgroup and of all below. Without it, the processes
        of every cgroup below must be listed, and that is possible in the host's PID namespace only:
        elsewhere the kernel omits the processes of other containers.
        """
        tasks = self.look(path, "pids.current")
        if tasks is None and not self._is_gone("pids", path) and not _sees_every_process():
            return not self._is_gone("cpuset", path)
        return tasks not in (None, "0") or self._lists_processes(path)

    def _lists_processes(self, path: str) -> bool:
        """Whether any cgroup of the cpuset hierarchy from *path* down lists a process, or may."""
        mount = self.mount("cpuset")
        waiting, searched = [path], 0
        while waiting:
            place = waiting.pop()
            searched += 1
            if searched > _MOST_NESTED:
                return True
            try:
                if read_file(mount, f"{place}/cgroup.procs"):
                    return True
                with opened(mount, place) as cgroup:
                    waiting += [f"{place}/{name}" for name in cgroup.children()]
            except OSError as error:
                if error.errno not in MISSING or not self._is_gone("cpuset", place):
                    return True
        return False

    def _is_gone(self, controller: str, path: str) -> bool:
        """Whether a cgroup does not exist although its hierarchy is mounted here."""
        mount = self.mount(controller)
        return _is_directory(mount, "") and not _is_directory(mount, path)

    def cpuset(self, path: str) -> CpusetFiles | None:
        """The cpuset of a container's cgroup; None if the cgroup does not exist."""
        if not _is_directory(self.mount("cpuset"), path):
            return None
        effective = "cpuset.cpus.effective" if self.unified else "cpuset.effective_cpus"
        return CpusetFiles(
            cpus=parse_list(self.read("cpuset", path, "cpuset.cpus")),
            effective_cpus=parse_list(self.read("cpuset", path, effective)),
            mems=parse_list(self.read("cpuset", path, "cpuset.mems")),
        )


def _is_directory(mount: str, path: str) -> bool:
    try:
        os.close(open_beneath(mount, path, DIRECTORY))
    except OSError:
        return False
    return True


def _sees_every_process() -> bool:
    """Whether this process is in the host's PID namespace, whose inode is the same everywhere."""
    try:
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return False


def _joint_mounts(root: str) -> dict[str, str]:
    """The mounts that several cgroup v1 controllers share (``cpu,cpuacct``), by controller."""
    try:
        names = os.listdir(root)
    except OSError:
        return {}
    return {part: name for name in names if "," in name for part in name.split(",")}
