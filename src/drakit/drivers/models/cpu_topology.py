"""Online CPUs of a machine as a tree of bitmasks, for :mod:`~drakit.drivers.models.cpu_choice`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from drakit.machine.model import Cpu, Machine


class TopologyLevel(enum.IntEnum):
    """Kinds of parts of a machine, in the order of preference."""

    NUMA = 0
    SOCKET = 1
    LLC = 2


@dataclass(frozen=True, slots=True)
class TopologyLeaf:
    """CPUs that share node, socket and last-level cache."""

    mask: int
    cores: tuple[tuple[int, tuple[int, ...]], ...]
    """CPUs of each core, and the core's code by number of free threads (:func:`codes_of`)."""


@dataclass(frozen=True, slots=True)
class TopologyPart:
    """A NUMA node, socket or last-level cache and the parts inside."""

    level: TopologyLevel
    mask: int
    inner: tuple[TopologyPart | TopologyLeaf, ...]


class CpuTopology:
    """Online CPUs of a machine, indexed for choosing. Build one per machine and keep it."""

    def __init__(self, machine: Machine) -> None:
        cpus = [cpu for cpu in machine.cpus if cpu.online]
        self.online: int = sum(1 << cpu.id for cpu in cpus)
        # A CPU whose core is not known is a core of its own.
        keys = (("cpu", cpu.id) if cpu.core is None else ("core", cpu.core) for cpu in cpus)
        self.cores: list[int] = _masks(zip(keys, cpus, strict=True))
        """The online threads of every core, by lowest CPU."""
        parts = [
            (level, mask) for level, key in _KEYS.items() for mask in _masks((key(cpu), cpu) for cpu in cpus)
        ]
        self.tree: tuple[TopologyPart | TopologyLeaf, ...] = self._nest(self.online, parts)
        self.parts: dict[TopologyLevel, list[int]] = {level: [] for level in TopologyLevel}
        self.leaves: list[TopologyLeaf] = []
        self._index(self.tree)

    def _nest(
        self, region: int, parts: Iterable[tuple[TopologyLevel, int]]
    ) -> tuple[TopologyPart | TopologyLeaf, ...]:
        """The parts within *region* by inclusion, largest outside.

        Either kind can include the other (sub-NUMA clustering puts nodes into a cache, chiplets
        caches into a node). Where broken firmware makes parts overlap without inclusion, the smaller
        one is split at the larger one's border.
        """
        ordered = _largest_first(parts)
        if not ordered:
            return (self._leaf(region),)
        if ordered[0][1] == region:
            return (TopologyPart(ordered[0][0], region, self._nest(region, ordered[1:])),)
        found: list[TopologyPart | TopologyLeaf] = []
        while region:
            border = ordered[0][1]
            found += self._nest(border, [(lv, m & border) for lv, m in ordered if m & border])
            ordered = _largest_first((lv, m & ~border) for lv, m in ordered if m & ~border)
            region &= ~border
        return tuple(sorted(found, key=lambda part: lowest(part.mask)))

    def _leaf(self, region: int) -> TopologyLeaf:
        cores = [core for core in self.cores if core & region]
        return TopologyLeaf(region, tuple((core & region, codes_of(core.bit_count())) for core in cores))

    def _index(self, inner: tuple[TopologyPart | TopologyLeaf, ...]) -> None:
        for part in inner:
            if isinstance(part, TopologyLeaf):
                self.leaves.append(part)
            else:
                self.parts[part.level].append(part.mask)
                self._index(part.inner)


_KEYS: Final[dict[TopologyLevel, Callable[[Cpu], int | None]]] = {
    TopologyLevel.NUMA: lambda cpu: cpu.numa_node,
    TopologyLevel.SOCKET: lambda cpu: cpu.socket,
    TopologyLevel.LLC: lambda cpu: cpu.llc,
}
"""The part of each level that a CPU is in; CPUs where it is not known share one."""


def _masks(keyed: Iterable[tuple[object, Cpu]]) -> list[int]:
    """CPUs with equal keys as masks, by lowest CPU."""
    masks: dict[object, int] = {}
    for key, cpu in keyed:
        masks[key] = masks.get(key, 0) | 1 << cpu.id
    return sorted(masks.values(), key=lowest)


def _largest_first(parts: Iterable[tuple[TopologyLevel, int]]) -> list[tuple[TopologyLevel, int]]:
    return sorted(parts, key=lambda part: (-part[1].bit_count(), part[0], lowest(part[1])))


def lowest(mask: int) -> int:
    """Position of the lowest bit, counted from 1; 0 without bits."""
    return (mask & -mask).bit_length()


CODE_BITS: Final = 18


@lru_cache(maxsize=64)
def codes_of(threads: int) -> tuple[int, ...]:
    """The code of a core with 0, 1, … free threads. The sum of a leaf's codes counts its cores.

    Each pair (threads, free) is counted in its own digit: (1,1), (2,1), (2,2), (3,1), …
    """
    first = threads * (threads - 1) // 2
    return (0, *(1 << CODE_BITS * (first + free) for free in range(threads)))
