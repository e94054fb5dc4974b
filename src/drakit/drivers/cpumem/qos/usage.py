"""Memory and hugepages in use by NUMA node, and throttling, from the kernel's accounting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from drakit.cgroups.files import Cgroup, open_cgroup
from drakit.cgroups.values import parse_numa_stat
from drakit.drivers.cpumem.hugepages.sizes import parse_size, size_name

_MEMORY_ROWS: Final = frozenset(
    {"anon", "file", "kernel_stack", "pagetables", "slab_reclaimable", "slab_unreclaimable"}
)
"""Rows of ``memory.numa_stat`` that add up to a cgroup's memory; the others are parts of these."""


@dataclass(slots=True)
class Usage:
    """Bytes in use by (NUMA node, kind), and throttle events (``high`` in ``memory.events``) by path."""

    used: Counter[tuple[int, str]] = field(default_factory=Counter)
    throttled: Counter[str] = field(default_factory=Counter)


def read_usage(root: str, paths: Iterable[str], page_sizes: Iterable[str]) -> Usage:
    """The usage of the cgroups *paths* and below; *page_sizes* as the kernel spells them (``2MB``)."""
    usage, sizes = Usage(), tuple(page_sizes)
    for path in paths:
        with open_cgroup(root, path) as cgroup:
            if cgroup is not None:
                _add(usage, path, cgroup, sizes)
    return usage


def _add(usage: Usage, path: str, cgroup: Cgroup, sizes: tuple[str, ...]) -> None:
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
            usage.throttled[path] += int(count)


def _count(usage: Usage, kind: str, nodes: str) -> None:
    for node, amount in parse_numa_stat(nodes).items():
        usage.used[node, kind] += amount
