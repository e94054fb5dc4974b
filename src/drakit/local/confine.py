"""Putting a process on its CPUs and memory nodes: by cgroup v2 where permitted, else by affinity.

A cgroup holds for everything the command starts and cannot be left by it; affinity and memory policy
are inherited, and a command may change its own. Which of the two it became is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from drakit.core.cpuset import CpuSet

_SET_MEMPOLICY: Final = {
    "x86_64": 238,
    "aarch64": 237,
    "ppc64le": 261,
    "s390x": 270,
    "riscv64": 237,
}
_MPOL_BIND: Final = 2


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup made for one command."""

    path: str
    left_out: tuple[str, ...] = ()
    """Files that could not be set: their controller is not handed down, or the kernel has none."""

    def enter(self) -> None:
        """Move the calling process in; its children follow."""
        with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write("0")

    def remove(self) -> None:
        """Remove the cgroup; one that still has processes stays."""
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def own_cgroup(proc: str = "/proc") -> str | None:
    """The path of this process in the v2 hierarchy (``/user.slice/…``), None where there is none."""
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
    root: str,
    name: str,
    cpus: CpuSet,
    mems: CpuSet | None,
    limits: Mapping[str, str] | None = None,
) -> Group | None:
    """A cgroup beside the caller's, limited to *cpus* and *mems*; None where that is not permitted.

    Needs cgroup v2 at *root* with the cpuset controller handed down to the parent of our cgroup,
    and the right to make a directory there (root, or a delegated subtree). *limits* are further
    files; those whose controller is not handed down are left out, and the group says which.
    """
    own = own_cgroup()
    if own is None or not os.path.exists(os.path.join(root, "cgroup.controllers")):
        return None
    parent = os.path.join(root, os.path.dirname(own.strip("/")))
    path = os.path.join(parent, f"drakit-{name}")
    try:
        with open(os.path.join(parent, "cgroup.subtree_control"), encoding="ascii") as file:
            controllers = file.read().split()
        if "cpuset" not in controllers:
            return None
        os.mkdir(path)
    except OSError:
        return None
    try:
        for file_name, value in (("cpuset.cpus", cpus), ("cpuset.mems", mems)):
            if value is not None:
                _set(path, file_name, str(value))
        with open(os.path.join(path, "cpuset.cpus.effective"), encoding="ascii") as file:
            if CpuSet.parse(file.read()) != cpus:  # the parent has less: affinity is no worse
                raise OSError("the parent cgroup does not have these CPUs")
        return Group(path, tuple(_limit(path, limits or {}, controllers)))
    except (OSError, ValueError):
        Group(path).remove()
        return None


def _limit(path: str, limits: Mapping[str, str], controllers: Sequence[str]) -> Iterator[str]:
    """Set the files that can be; yields the others."""
    for file_name, value in limits.items():
        if file_name.partition(".")[0] not in controllers:
            yield file_name
            continue
        try:
            _set(path, file_name, value)
        except FileNotFoundError:  # hugetlb.*.rsvd.max before Linux 5.7
            yield file_name


def _set(path: str, file_name: str, value: str) -> None:
    descriptor = os.open(os.path.join(path, file_name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode("ascii"))
    finally:
        os.close(descriptor)


def memory_limits(memory: int, pages: Mapping[str, int], *, charged: int = 0) -> dict[str, str]:
    """The files for a claim's memory and hugepages (by size as the kernel spells it), in bytes.

    Memory is kept for the command (``memory.min``) and limited to the claim (``memory.max``): here
    nothing else keeps commands from using more than was shared out. *charged* bytes of hugepages
    count as memory. Pages are limited when reserved (``rsvd.max``: mmap fails) and when touched.
    """
    files: dict[str, str] = {}
    if memory:
        files["memory.min"] = files["memory.max"] = str(memory + charged)
    for size, limit in pages.items():
        files[f"hugetlb.{size}.rsvd.max"] = files[f"hugetlb.{size}.max"] = str(limit)
    return files


def set_affinity(cpus: CpuSet, mems: CpuSet | None) -> None:
    """Confine the calling process by affinity, and its memory by policy where *mems* is given.

    Raises ``OSError`` when the kernel rejects the CPUs (they are outside this process's cgroup).
    A kernel without NUMA has no memory policy: that is no error, there is only one node.
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
