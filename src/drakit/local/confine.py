"""Confinement of a process to CPUs and memory nodes: by cgroup v2 if permitted, else by affinity.

A cgroup covers everything the command starts, and the command cannot leave it; affinity and memory policy
are inherited, but a command may change its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drakit.cgroups.files import Cgroup, opened
from drakit.cgroups.values import parse_list
from drakit.core.cpuset import CpuSet

_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "s390x": 270, "riscv64": 237}
_MPOL_BIND: Final = 2


@dataclass(frozen=True, slots=True)
class CommandCgroup:
    """A cgroup created for one command, below the mount *root*."""

    root: str
    parent: str
    name: str
    left_out: tuple[str, ...] = ()
    """Files that could not be set: their controller is not delegated, or not in this kernel."""

    @property
    def path(self) -> str:
        """The directory of the cgroup."""
        return os.path.join(self.root, self.parent, self.name)

    def enter(self) -> None:
        """Move the calling process into the cgroup; its children inherit it. Raises ``OSError``."""
        with opened(self.root, f"{self.parent}/{self.name}".strip("/")) as cgroup:
            cgroup.set("cgroup.procs", "0")

    def remove(self) -> None:
        """Remove the cgroup; one that still has processes is kept."""
        with contextlib.suppress(OSError), opened(self.root, self.parent) as parent:
            parent.remove_child(self.name)


def own_cgroup(proc: str = "/proc") -> str | None:
    """The path of this process in the v2 hierarchy (``/user.slice/…``); None without one."""
    try:
        with open(f"{proc}/self/cgroup", encoding="utf-8") as file:
            for line in file:
                number, controllers, path = line.rstrip("\n").split(":", 2)
                if number == "0" and controllers == "":
                    return path
    except (OSError, ValueError):
        return None
    return None


def make_group(
    root: str, name: str, cpus: CpuSet, mems: CpuSet | None, limits: Mapping[str, str] | None = None
) -> CommandCgroup | None:
    """Create a sibling of the caller's cgroup, limited to *cpus* and *mems*; None if not permitted.

    Requires cgroup v2 at *root* with the cpuset controller delegated to the parent of our cgroup, and
    permission to create a directory there (root, or a delegated subtree). *limits* are further files;
    those whose controller is not delegated are in :attr:`CommandCgroup.left_out`.
    """
    own = own_cgroup()
    if own is None or not os.path.exists(os.path.join(root, "cgroup.controllers")):
        return None
    made = CommandCgroup(root, os.path.dirname(own.strip("/")), f"drakit-{name}")
    try:
        with opened(root, made.parent) as parent:
            controllers = (parent.read("cgroup.subtree_control") or "").split()
            if "cpuset" not in controllers:
                return None
            parent.create_child(made.name)
    except OSError:
        return None
    try:
        with opened(root, f"{made.parent}/{made.name}".strip("/")) as cgroup:
            cgroup.set("cpuset.cpus", str(cpus))
            if mems is not None:
                cgroup.set("cpuset.mems", str(mems))
            if parse_list(cgroup.value("cpuset.cpus.effective")) != cpus:
                raise OSError("the parent cgroup does not have these CPUs")  # affinity is as good
            left_out = tuple(_set_limits(cgroup, limits or {}, controllers))
        return replace(made, left_out=left_out)
    except OSError:
        made.remove()
        return None


def _set_limits(cgroup: Cgroup, limits: Mapping[str, str], controllers: Sequence[str]) -> Iterator[str]:
    """Set the files that exist; yields the others."""
    for file, value in limits.items():
        try:
            if file.partition(".")[0] not in controllers:
                raise FileNotFoundError
            cgroup.set(file, value)
        except FileNotFoundError:  # hugetlb.*.rsvd.max before Linux 5.7
            yield file


def memory_limits(memory: int, pages: Mapping[str, int], *, charged: int = 0) -> dict[str, str]:
    """The files for a claim's memory and hugepages (by size as the kernel spells it), in bytes.

    Memory is protected (``memory.min``) and limited to the claim (``memory.max``): nothing else here
    limits a command to its claim. *charged* bytes of hugepages count as memory. Pages are limited when
    reserved (``rsvd.max``: mmap fails) and when touched.
    """
    files: dict[str, str] = {}
    if memory:
        files["memory.min"] = files["memory.max"] = str(memory + charged)
    for size, limit in pages.items():
        files[f"hugetlb.{size}.rsvd.max"] = files[f"hugetlb.{size}.max"] = str(limit)
    return files


def set_affinity(cpus: CpuSet, mems: CpuSet | None) -> None:
    """Confine the calling process by affinity, and its memory by policy if *mems* is given.

    Raises ``OSError`` if the kernel rejects the CPUs (they are outside this process's cgroup). A
    kernel without NUMA has no memory policy; that is not an error, as there is only one node.
    """
    os.sched_setaffinity(0, set(cpus))
    if mems:
        _bind_memory(mems)


def _bind_memory(nodes: CpuSet) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return
    bits = max(64, -(-(nodes.max() + 1) // 64) * 64)
    words = (ctypes.c_ulong * (bits // 64))(
        *(nodes.mask >> 64 * word & (1 << 64) - 1 for word in range(bits // 64))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    # maxnode counts one more than the bits used, as get_nodes() in mm/mempolicy.c subtracts one
    libc.syscall(number, _MPOL_BIND, ctypes.byref(words), ctypes.c_ulong(bits + 1))
