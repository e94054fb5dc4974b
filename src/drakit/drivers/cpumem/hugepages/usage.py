"""How many hugepages the containers with claims have in use, from their cgroups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drakit.cgroups.tree import CgroupTree, relative_path
from drakit.drivers.cpumem.hugepages.pools import UsedPages
from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.drivers.cpumem.hugepages.sizes import kernel_size_name
from drakit.kit.reconciler import PodView


def used_from_cgroups(cgroup_root: str, sizes: Iterable[int]) -> UsedPages:
    """Reads ``hugetlb.<size>.numa_stat`` (Linux 5.18) of every container that uses a claim.

    What cannot be read counts as not used, so its pages are kept for it.
    """
    wanted = tuple(sizes)

    def used(pods: Sequence[PodView]) -> dict[PoolKey, int]:
        tree = CgroupTree(cgroup_root)
        found: dict[PoolKey, int] = {}
        for pod in pods:
            for container in pod.containers:
                path = relative_path(container.cgroup_path) if container.uses else None
                for size in wanted if path else ():
                    file = f"hugetlb.{kernel_size_name(size)}.numa_stat"
                    text = tree.read("hugetlb", path or "", file)
                    for node, amount in parse_numa_stat(text or "").items():
                        key = PoolKey(node, size)
                        found[key] = found.get(key, 0) + amount // size
        return found

    return used


def parse_numa_stat(text: str) -> dict[int, int]:
    """Bytes by node from ``total=0 N0=0 N1=0``; words that are something else are passed over."""
    found = {}
    for word in text.split():
        name, _, amount = word.partition("=")
        if name[:1] == "N" and name[1:].isdigit() and amount.isascii() and amount.isdigit():
            found[int(name[1:])] = int(amount)
    return found
