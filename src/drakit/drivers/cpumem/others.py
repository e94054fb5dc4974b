"""Hugepages in use by processes without a claim, which cannot be offered.

Determined once, when the driver starts: database servers and virtual machines allocate their pages at boot
and keep them. Later changes are covered by the kubelet's accounting, or by ``reservedMemory``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from drakit.cgroups.paths import normalized_uid
from drakit.cgroups.tree import CgroupTree
from drakit.drivers.cpumem.hugepages.pools import pages_of_claims
from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.drivers.cpumem.hugepages.usage import pages_in_use
from drakit.kit.driver import PreparedClaim
from drakit.machine.model import Machine


def held_by_others(
    machine: Machine, entries: Iterable[PreparedClaim], cgroup_root: str
) -> dict[int, dict[int, int]]:
    """Pages in use that do not belong to claims, by NUMA node and page size in bytes.

    A claim's pages are counted in the cgroups of its pods. Where these cannot be read, all pages of
    the claim count as in use by it.
    """
    ours = _own_pages(machine, list(entries), cgroup_root)
    return {
        node.id: {
            pool.size_bytes: max(0, pool.total - pool.free - ours[PoolKey(node.id, pool.size_bytes)])
            for pool in node.hugepages
        }
        for node in machine.numa_nodes
        if node.hugepages
    }


def _own_pages(machine: Machine, entries: list[PreparedClaim], cgroup_root: str) -> Counter[PoolKey]:
    sizes = {pool.size_bytes for node in machine.numa_nodes for pool in node.hugepages}
    tree = CgroupTree(cgroup_root) if entries and cgroup_root else None
    cgroups = {} if tree is None else {pod.uid: pod.path for pod in tree.pods()}
    counted: set[str] = set()
    found: Counter[PoolKey] = Counter()
    for entry in entries:
        for uid in entry.consumers:
            path = cgroups.get(normalized_uid(uid))
            if tree is None or path is None or uid in counted:
                continue
            used = pages_in_use(tree, path, sizes)
            if used is not None:
                counted.add(uid)
                found.update(used)
        if not counted.intersection(entry.consumers):
            found.update(pages_of_claims([entry]))
    return found
