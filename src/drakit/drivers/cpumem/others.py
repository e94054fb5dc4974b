"""Hugepages that others than our claims have in use: nobody can be promised them.

Asked once, when the driver starts: database servers and virtual machines outside Kubernetes take their
pages at boot and keep them. Later movements are the kubelet's accounting of classic requests, or are
kept apart by ``reservedMemory``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

from drakit.drivers.cpumem.hugepages.pools import pages_by_amount
from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.drivers.cpumem.hugepages.sizes import kernel_size_name
from drakit.drivers.cpumem.hugepages.usage import parse_numa_stat
from drakit.kit.driver import PreparedClaim
from drakit.machine.model import Machine

_POD: Final = re.compile(r"(?:.*-)?pod(?P<uid>[0-9A-Za-z._-]+?)(?:\.slice)?")
"""``pod<uid>``, or ``kubepods-burstable-pod<uid with _ for ->.slice``."""
_DEEPEST: Final = 6
"""Levels between the cgroup mount and a pod's cgroup: cgroupRoot, kubepods and QoS class at most."""


def held_by_others(
    machine: Machine, entries: Iterable[PreparedClaim], cgroup_root: str
) -> dict[int, dict[int, int]]:
    """Pages in use that are not our claims', by NUMA node and page size in bytes.

    A claim's pages are counted in the cgroups of its pods (``hugetlb.<size>.numa_stat``, Linux 5.18).
    Where that cannot be read, all that the claim holds is taken as in use by it.
    """
    ours = _own_pages(machine, list(entries), cgroup_root)
    return {
        node.id: {
            pool.size_bytes: max(
                0, pool.total - pool.free - ours.get(PoolKey(node.id, pool.size_bytes), 0)
            )
            for pool in node.hugepages
        }
        for node in machine.numa_nodes
        if node.hugepages
    }


def _own_pages(
    machine: Machine, entries: list[PreparedClaim], cgroup_root: str
) -> dict[PoolKey, int]:
    sizes = {pool.size_bytes for node in machine.numa_nodes for pool in node.hugepages}
    counted: set[str] = set()
    found: dict[PoolKey, int] = {}
    cgroups = dict(_pod_cgroups(cgroup_root)) if entries and cgroup_root else {}
    for entry in entries:
        pods = [uid for uid in entry.consumers if _plain(uid) in cgroups and uid not in counted]
        used = [(uid, _used(cgroups[_plain(uid)], sizes)) for uid in pods]
        told = {uid: pages for uid, pages in used if pages is not None}
        counted |= told.keys()
        if not told and not counted.intersection(entry.consumers):
            told = {"": _claimed(entry)}
        for pages in told.values():
            for key, count in pages.items():
                found[key] = found.get(key, 0) + count
    return found


def _claimed(entry: PreparedClaim) -> dict[PoolKey, int]:
    found: dict[PoolKey, int] = {}
    for prepared in entry.devices:
        for key, pages in pages_by_amount(prepared).items() if not prepared.admin_access else ():
            found[key] = found.get(key, 0) + pages
    return found


def _pod_cgroups(root: str) -> Iterator[tuple[str, str]]:
    """The cgroups of all pods, by UID in plain spelling."""
    depth_of_root = root.rstrip("/").count("/")
    for directory, inner, _files in os.walk(root):
        pods = {name: found["uid"] for name in inner if (found := _POD.fullmatch(name))}
        for name, uid in pods.items():
            yield _plain(uid), os.path.join(directory, name)
        deeper = directory.rstrip("/").count("/") - depth_of_root < _DEEPEST
        inner[:] = [name for name in inner if name not in pods] if deeper else []


def _plain(uid: str) -> str:
    return uid.replace("_", "-")


def _used(cgroup: str, sizes: Iterable[int]) -> dict[PoolKey, int] | None:
    """Pages that a pod has in use, or None where the kernel does not tell by node."""
    found: dict[PoolKey, int] = {}
    for size in sizes:
        try:
            with open(f"{cgroup}/hugetlb.{kernel_size_name(size)}.numa_stat") as file:
                text = file.read(1 << 16)
        except OSError:
            return None
        for node, amount in parse_numa_stat(text).items():
            found[PoolKey(node, size)] = amount // size
    return found
