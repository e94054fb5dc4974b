"""A machine's online CPUs as a tree of bitmasks: what :mod:`~drakit.drivers.models.cpu_choice` walks over."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from drakit.machine.model import Cpu, Machine


class Level(enum.IntEnum):
    """The parts a machine is made of, in the order of preference."""

    NUMA = 0
    SOCKET = 1
    LLC = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """CPUs that share node, socket and cache: the leaves of the tree."""

    mask: int
    cores: tuple[tuple[int, tuple[int, ...]], ...]
    """For each core its CPUs here, and for each number of free ones the core's code (:func:`codes_of`)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A NUMA node, socket or last-level cache and what lies inside."""

    level: Level
    mask: int
    inner: tuple[Part | Cell, ...]


class Topology:
    """A machine's online CPUs, indexed for choosing. Build one per machine and keep it."""

    def __init__(self, machine: Machine) -> None:
        cpus = [cpu for cpu in machine.cpus if cpu.online]
        self.online: int = _mask(cpus)
        self.cores: list[int] = _masks((_core_key(cpu), cpu) for cpu in cpus)
        """The online threads of every core, by lowest CPU."""
        parts = [
            (level, mask)
            for level, key in _KEYS.items()
            for mask in _masks((key(cpu), cpu) for cpu in cpus)
        ]
        self.tree: tuple[Part | Cell, ...] = self._nest(self.online, parts)
        self.parts: dict[Level, list[int]] = {level: [] for level in Level}
        self.cells: list[Cell] = []
        self._index(self.tree)

    def _nest(self, region: int, parts: Iterable[tuple[Level, int]]) -> tuple[Part | Cell, ...]:
        """The parts within *region* by inclusion, largest outside.

        Parts may include each other either way round (sub-NUMA clustering puts nodes into a cache,
        chiplets caches into a node). Where broken firmware makes them overlap without inclusion, the
        smaller one is cut at the larger one's border and its pieces count as parts of their own.
        """
        ordered = _largest_first(parts)
        if not ordered:
            return (self._cell(region),)
        if ordered[0][1] == region:
            return (Part(ordered[0][0], region, self._nest(region, ordered[1:])),)
        found: list[Part | Cell] = []
        while region:
            border = ordered[0][1]
            found += self._nest(border, [(lv, m & border) for lv, m in ordered if m & border])
            ordered = _largest_first((lv, m & ~border) for lv, m in ordered if m & ~border)
            region &= ~border
        return tuple(sorted(found, key=lambda part: lowest(part.mask)))

    def _cell(self, region: int) -> Cell:
        cores = [core for core in self.cores if core & region]
        return Cell(region, tuple((core & region, codes_of(core.bit_count())) for core in cores))

    def _index(self, inner: tuple[Part | Cell, ...]) -> None:
        for part in inner:
            if isinstance(part, Cell):
                self.cells.append(part)
            else:
                self.parts[part.level].append(part.mask)
                self._index(part.inner)


_KEYS: Final[dict[Level, Callable[[Cpu], int | None]]] = {
    Level.NUMA: lambda cpu: cpu.numa_node,
    Level.SOCKET: lambda cpu: cpu.socket,
    Level.LLC: lambda cpu: cpu.llc,
}
"""Which part of each level a CPU is in; all CPUs that do not know are together in one."""


def _core_key(cpu: Cpu) -> tuple[str, int]:
    """What a CPU's core is called; a CPU that does not know its core is one."""
    return ("cpu", cpu.id) if cpu.core is None else ("core", cpu.core)


def _masks(keyed: Iterable[tuple[object, Cpu]]) -> list[int]:
    """CPUs with equal keys as masks, by lowest CPU."""
    masks: dict[object, int] = {}
    for key, cpu in keyed:
        masks[key] = masks.get(key, 0) | 1 << cpu.id
    return sorted(masks.values(), key=lowest)


def _largest_first(parts: Iterable[tuple[Level, int]]) -> list[tuple[Level, int]]:
    return sorted(parts, key=lambda part: (-part[1].bit_count(), part[0], lowest(part[1])))


def _mask(cpus: Iterable[Cpu]) -> int:
    return sum(1 << cpu.id for cpu in cpus)


def lowest(mask: int) -> int:
    """The place of the lowest bit, counted from 1; 0 for no bit at all."""
    return (mask & -mask).bit_length()


CODE_BITS: Final = 18


@lru_cache(maxsize=64)
def codes_of(threads: int) -> tuple[int, ...]:
    """The code of a core with 0, 1, … free threads. Codes of a cell's cores add up to its stock.

    Every kind (threads, free) counts in a digit of its own: (1,1), (2,1), (2,2), (3,1), …
    """
    first = threads * (threads - 1) // 2
    return (0, *(1 << CODE_BITS * (first + free) for free in range(threads)))
