"""Hugepage settings, and their meaning for a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from drakit.core.cpuset import CpuSet, CpuSetError
from drakit.drivers.cpumem.hugepages.sizes import parse_size, size_name
from drakit.machine.model import Machine, NumaNode

_MOST_PAGES = 1 << 32
SYNTAX = "0:2Mi=512,1Gi=4;1:2Mi=512 (NUMA nodes, or * for all others; page size; pages)"


class PoolKey(NamedTuple):
    """One pool: the pages of one size (in bytes) on one NUMA node."""

    node: int
    size: int

    def __str__(self) -> str:
        return f"{size_name(self.size)} pages on NUMA node {self.node}"


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Numbers of pages by node and size. Nodes that are not named have ``elsewhere``."""

    by_node: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    elsewhere: Mapping[int, int] = field(default_factory=dict)

    def of(self, node: int) -> Mapping[int, int]:
        """Pages by size on *node*."""
        return self.by_node.get(node, self.elsewhere)

    def __bool__(self) -> bool:
        return bool(self.by_node or self.elsewhere)

    @classmethod
    def parse(cls, text: str) -> PageCounts:
        """Read ``0:2Mi=512,1Gi=4;1-3:2Mi=512;*:2Mi=64``; empty for none. Raises ``ValueError``."""
        by_node: dict[int, Mapping[int, int]] = {}
        elsewhere: Mapping[int, int] = {}
        for part in filter(None, (piece.strip() for piece in text.split(";"))):
            nodes, colon, pools = part.partition(":")
            if not colon:
                raise ValueError(f"{part!r} names no NUMA node; write {SYNTAX}")
            sizes = _sizes(part, pools)
            if nodes.strip() == "*":
                if elsewhere:
                    raise ValueError(f"* is given twice in {text!r}")
                elsewhere = sizes
                continue
            for node in _nodes(part, nodes):
                if node in by_node:
                    raise ValueError(f"NUMA node {node} is given twice in {text!r}")
                by_node[node] = sizes
        return cls(by_node, elsewhere)


def _nodes(part: str, text: str) -> CpuSet:
    try:
        nodes = CpuSet.parse(text.strip())
    except CpuSetError as error:
        raise ValueError(f"{part!r}: {error}; write {SYNTAX}") from error
    if not nodes:
        raise ValueError(f"{part!r} names no NUMA node; write {SYNTAX}")
    return nodes


def _sizes(part: str, text: str) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for pool in text.split(","):
        name, equals, count = (piece.strip() for piece in pool.partition("="))
        if not equals or not (count.isascii() and count.isdigit()):
            raise ValueError(f"{part!r}: {pool.strip()!r} is not SIZE=PAGES; write {SYNTAX}")
        size = parse_size(name.removeprefix("hugepages-"))
        if size in sizes:
            raise ValueError(f"{part!r} names {size_name(size)} twice")
        if len(count) > 10 or int(count) >= _MOST_PAGES:
            raise ValueError(f"{part!r}: {count} pages are more than any machine has")
        sizes[size] = int(count)
    return sizes


@dataclass(frozen=True, slots=True)
class HugepageSettings:
    """Pool sizes, growth budgets, and how soon spare pages are returned."""

    pools: PageCounts = PageCounts()
    """Static: the size of each pool."""
    growth: PageCounts = PageCounts()
    """On demand: how many pages may be added while claims need them."""
    shrink_after: float = 300.0
    """Seconds that grown pages are unused before they are returned."""

    def __bool__(self) -> bool:
        return bool(self.pools or self.growth)


def static_pools(settings: HugepageSettings, machine: Machine) -> dict[PoolKey, int]:
    """The configured size of every pool that is configured and that *machine* can have."""
    return {
        PoolKey(node.id, size): pages
        for node in machine.numa_nodes
        for size, pages in settings.pools.of(node.id).items()
        if _has_pool(node, size)
    }


def budget(
    settings: HugepageSettings, machine: Machine, grown: Mapping[PoolKey, int] | None = None
) -> dict[int, dict[int, int]]:
    """Pages that may still be added to the pools of *machine*, by node and size.

    *grown* pages were added already and are part of the machine's pools. So the pool's pages plus this
    (offered as hugepages) and ``usable_bytes`` minus this in bytes (offered as memory) do not change
    when pages are grown and returned: a page is offered only once. A budget beyond the node's memory
    is cut. Pools with an exhausted budget are listed with 0.
    """
    found: dict[int, dict[int, int]] = {}
    for node in machine.numa_nodes:
        left = node.usable_bytes
        for size, pages in sorted(settings.growth.of(node.id).items()):
            if not _has_pool(node, size):
                continue
            remaining = max(0, pages - (grown or {}).get(PoolKey(node.id, size), 0))
            remaining = min(remaining, left // size)
            left -= remaining * size
            found.setdefault(node.id, {})[size] = remaining
    return found


def configuration_warnings(settings: HugepageSettings, machine: Machine) -> Iterator[str]:
    """Settings that do not fit *machine*, one message each."""
    nodes = {node.id: node for node in machine.numa_nodes}
    for key, counts in (("hugepagePools", settings.pools), ("hugepageGrowth", settings.growth)):
        for number, sizes in counts.by_node.items():
            node = nodes.get(number)
            if node is None:
                yield f"{key} names NUMA node {number}, which this machine does not have; ignored"
                continue
            known = ", ".join(size_name(pool.size_bytes) for pool in node.hugepages) or "none"
            for size in sizes:
                if not _has_pool(node, size):
                    yield (
                        f"{key} names {PoolKey(number, size)}, which the kernel does not support (it "
                        f"supports {known}); ignored"
                    )
            wanted = sum(size * pages for size, pages in sizes.items())
            if wanted > node.memory_bytes:
                yield (
                    f"{key} wants {size_name(wanted)} on NUMA node {number}, which has "
                    f"{node.memory_bytes >> 20}Mi of memory: lower it"
                )


def _has_pool(node: NumaNode, size: int) -> bool:
    return bool(node.memory_bytes) and any(pool.size_bytes == size for pool in node.hugepages)
