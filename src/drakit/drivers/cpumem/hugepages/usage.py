"""Hugepages that containers with claims have in use, from their cgroups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from drakit.cgroups.paths import relative_path
from drakit.cgroups.tree import CgroupTree
from drakit.cgroups.values import parse_numa_stat
from drakit.drivers.cpumem.hugepages.pools import UsedPages
from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.drivers.cpumem.hugepages.sizes import kernel_size_name
from drakit.kit.reconciler import PodView


def used_from_cgroups(cgroup_root: str, sizes: Iterable[int]) -> UsedPages:
    """A counter of pages in use by containers with claims; unreadable ones count as unused, so are kept."""
    wanted = tuple(sizes)

    def used(pods: Sequence[PodView]) -> Counter[PoolKey]:
        tree = CgroupTree(cgroup_root)
        found: Counter[PoolKey] = Counter()
        for container in (each for pod in pods for each in pod.containers if each.uses):
            path = relative_path(container.cgroup_path)
            for size in wanted if path else ():
                found.update(pages_in_use(tree, path or "", (size,)) or {})
        return found

    return used


def pages_in_use(tree: CgroupTree, path: str, sizes: Iterable[int]) -> Counter[PoolKey] | None:
    """Pages in use in a cgroup (``hugetlb.<size>.numa_stat``, Linux 5.18); None if any is unknown."""
    found: Counter[PoolKey] = Counter()
    for size in sizes:
        text = tree.read("hugetlb", path, f"hugetlb.{kernel_size_name(size)}.numa_stat")
        if text is None:
            return None
        for node, amount in parse_numa_stat(text).items():
            found[PoolKey(node, size)] = amount // size
    return found
