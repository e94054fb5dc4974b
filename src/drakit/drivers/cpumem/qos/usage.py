"""What pods use, by NUMA node, and how often they were throttled: from the kernel's own accounts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from drakit.drivers.cpumem.hugepages.sizes import parse_size, size_name
from drakit.drivers.cpumem.qos.files import Cgroup, open_cgroup

_PER_NODE: Final = re.compile(r"N(\d+)=(\d+)")
_MEMORY_ROWS: Final = frozenset(
    {"anon", "file", "kernel_stack", "pagetables", "slab_reclaimable", "slab_unreclaimable"}
)
"""Rows of ``memory.numa_stat`` that add up to a cgroup's memory; the others are parts of these."""


@dataclass(slots=True)
class Usage:
    """Bytes in use by (NUMA node, kind), and throttlings (``high`` in ``memory.events``)."""

    used: Counter[tuple[int, str]] = field(default_factory=Counter)
    throttled: int = 0


def read_usage(root: str, paths: Iterable[str], page_sizes: Iterable[str]) -> Usage:
    """The usage of the cgroups *paths* together; *page_sizes* as the kernel spells them (``2MB``).

    The files of a cgroup count everything below it.
    """
    usage, sizes = Usage(), tuple(page_sizes)
    for path in paths:
        with open_cgroup(root, path) as cgroup:
            if cgroup is not None:
                _add(usage, cgroup, sizes)
    return usage


def _add(usage: Usage, cgroup: Cgroup, sizes: tuple[str, ...]) -> None:
    for row in (cgroup.read("memory.numa_stat") or "").splitlines():
        name, _, nodes = row.partition(" ")
        if name in _MEMORY_ROWS:
            _count(usage, "memory", nodes)
    for size in sizes:
        kind = f"hugepages{size_name(parse_size(size))}"
        for row in (cgroup.read(f"hugetlb.{size}.numa_stat") or "").splitlines():
            if row.startswith("total="):
                _count(usage, kind, row)
    for row in (cgroup.read("memory.events") or "").splitlines():
        name, _, count = row.partition(" ")
        if name == "high" and count.isdigit():
            usage.throttled += int(count)


def _count(usage: Usage, kind: str, nodes: str) -> None:
    for node, amount in _PER_NODE.findall(nodes):
        usage.used[int(node), kind] += int(amount)
