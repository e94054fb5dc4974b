"""Nested boxes of a machine, shared by the terminal drawing and the SVG.

Nesting differs between machines: a NUMA node may be a part of a socket or contain several, a last-level
cache may span a socket or belong to one core. The order of levels is therefore found by size: the parts
that are largest on average are outermost. A box with a single child becomes one box with both names, and
a level in which every part is one core becomes a note. A CPU of unknown location gets a box of its own.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.core.text import count, human_bytes
from drakit.machine.model import Cache, CoreType, Cpu, Machine, NumaNode


class BoxLevel(enum.Enum):
    """The part of a machine that a box shows."""

    SOCKET = "socket"
    NUMA = "NUMA node"
    DIE = "die"
    CACHE = "last-level cache"
    KIND = "core kind"
    CLUSTER = "cluster"
    UNPLACED = "place unknown"

    @property
    def framed(self) -> bool:
        """Whether the box has a border; core types and clusters are only separated by space."""
        return self not in (BoxLevel.KIND, BoxLevel.CLUSTER)


KIND_NAMES: Final = {
    CoreType.PERFORMANCE: "P-cores",
    CoreType.EFFICIENCY: "E-cores",
    CoreType.STANDARD: "standard cores",
}

_FEW_SOCKETS: Final = 4
"""Up to this many one-core sockets (a small virtual machine) are drawn; more become a note."""


@dataclass(frozen=True, slots=True)
class Core:
    """The threads of one core within one box, in ascending order."""

    cpus: tuple[Cpu, ...]

    @property
    def kind(self) -> CoreType:
        """The core type."""
        return self.cpus[0].core_type


@dataclass(frozen=True, slots=True)
class Box:
    """A part of the machine: its title, notes, and either inner boxes or cores."""

    level: BoxLevel
    title: tuple[str, ...]
    notes: tuple[str, ...] = ()
    children: tuple[Box, ...] = ()
    cores: tuple[Core, ...] = ()

    def walk(self) -> Iterator[Box]:
        """Yield the box and all boxes within, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def cpus(self) -> CpuSet:
        """Return all CPUs within the box."""
        return CpuSet(cpu.id for box in self.walk() for core in box.cores for cpu in core.cpus)


def machine_boxes(machine: Machine) -> tuple[Box, ...]:
    """Return the outermost boxes of *machine*; every CPU is in exactly one core of one box."""
    boxes = _BoxBuilder(machine).boxes() if machine.cpus else ()
    with_cpus = {cpu.numa_node for cpu in machine.cpus}
    bare = [
        Box(
            BoxLevel.NUMA,
            (f"NUMA node {node.id}", "memory only" if node.memory_bytes else "empty"),
            memory_notes(node),
        )
        for node in machine.numa_nodes
        if node.id not in with_cpus
    ]
    return (*boxes, *bare)


_Key = Callable[[Cpu], int | None]
_KEYS: Final[dict[BoxLevel, _Key]] = {
    BoxLevel.SOCKET: lambda cpu: cpu.socket,
    BoxLevel.NUMA: lambda cpu: cpu.numa_node,
    BoxLevel.DIE: lambda cpu: cpu.die,
    BoxLevel.CACHE: lambda cpu: cpu.llc,
    BoxLevel.CLUSTER: lambda cpu: cpu.cluster,
}


class _BoxBuilder:
    """Boxes for the CPUs of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.nodes = {node.id: node for node in machine.numa_nodes}
        self.kinds = {cpu.core_type for cpu in machine.cpus}
        self.places = {level: _places(machine.cpus, level) for level in _KEYS}
        self.sizes = {level: Counter(places.values()) for level, places in self.places.items()}
        self.described_nodes: set[int] = set()

    def boxes(self) -> tuple[Box, ...]:
        found = self._split(self.machine.cpus, self._levels())
        return found or (Box(BoxLevel.UNPLACED, ("place unknown",), cores=_cores(self.machine.cpus)),)

    def _levels(self) -> list[BoxLevel]:
        """Return the useful levels, largest parts first, core types just before clusters."""
        sizes = self.sizes
        useful = [level for level in _KEYS if sizes[level]]
        if len(sizes[BoxLevel.DIE]) <= len(sizes[BoxLevel.SOCKET]):
            useful = [level for level in useful if level is not BoxLevel.DIE]
        by_size = sorted(useful, key=lambda level: len(sizes[level]) / sum(sizes[level].values()))
        if len(self.kinds) > 1:
            inner_cluster = by_size[-1:] == [BoxLevel.CLUSTER]
            by_size.insert(len(by_size) - inner_cluster, BoxLevel.KIND)
        return by_size

    def _split(self, cpus: Sequence[Cpu], levels: Sequence[BoxLevel]) -> tuple[Box, ...]:
        if not levels:
            return ()
        level, inner = levels[0], levels[1:]
        groups: dict[int | None, list[Cpu]] = {}
        for cpu in cpus:
            groups.setdefault(self._key(cpu, level), []).append(cpu)
        if set(groups) == {None}:  # unknown for all of them
            return self._split(cpus, inner)
        ordered = sorted(groups.items(), key=lambda item: (item[0] is None, item[1][0].id))
        boxes = [self._box(level, part, members, inner) for part, members in ordered]
        return _in_words(self.machine, level, boxes)

    def _key(self, cpu: Cpu, level: BoxLevel) -> int | None:
        if level is BoxLevel.KIND:
            return list(CoreType).index(cpu.core_type)
        return self.places[level].get(cpu.id)

    def _box(
        self, level: BoxLevel, part: int | None, members: Sequence[Cpu], inner: Sequence[BoxLevel]
    ) -> Box:
        title = self._title(level, part, members)
        notes = self._notes(level, part)
        level = BoxLevel.UNPLACED if part is None else level
        children = self._split(members, inner)
        if len(children) == 1:
            only = children[0]
            outer = level if level.framed or not only.level.framed else only.level
            return replace(only, level=outer, title=title + only.title, notes=notes + only.notes)
        if children:
            return Box(level, title, notes, children)
        return Box(level, title, notes, cores=_cores(members))

    def _title(self, level: BoxLevel, part: int | None, members: Sequence[Cpu]) -> tuple[str, ...]:
        if part is None:
            unknown = f"{level.value} unknown"
            return ("offline",) if not any(c.online for c in members) else (unknown,)
        if level is BoxLevel.KIND:
            return _kind_title(members)
        if level is BoxLevel.CLUSTER:
            return ()
        piece = "" if len(members) == self.sizes[level][part] else " (part)"
        if level is BoxLevel.CACHE:
            return _cache_title(self.machine, part, piece)
        return (f"{_NAMES[level]} {part}{piece}",)

    def _notes(self, level: BoxLevel, part: int | None) -> tuple[str, ...]:
        """Describe the memory of a NUMA node in its first box."""
        if level is not BoxLevel.NUMA or part not in self.nodes or part in self.described_nodes:
            return ()
        self.described_nodes.add(part)
        return memory_notes(self.nodes[part])


_NAMES: Final = {BoxLevel.SOCKET: "Socket", BoxLevel.NUMA: "NUMA node", BoxLevel.DIE: "Die"}


def _places(cpus: Sequence[Cpu], level: BoxLevel) -> dict[int, int]:
    """Return the part of *level* for every CPU; a CPU of unknown location is absent.

    The kernel shows no topology of an offline CPU. If all other CPUs of its NUMA node (or of another
    part it is known to be in) are in one part of *level*, it is drawn there too.
    """
    key = _KEYS[level]
    places = {cpu.id: part for cpu in cpus if (part := key(cpu)) is not None}
    lost = [cpu for cpu in cpus if cpu.id not in places]
    for other in _KEYS.values():
        if not lost:
            break
        seen: dict[int, set[int]] = {}
        for cpu in cpus:
            if cpu.id in places and (companion := other(cpu)) is not None:
                seen.setdefault(companion, set()).add(places[cpu.id])
        for cpu in lost:
            companion = other(cpu)
            parts = seen.get(companion, set()) if companion is not None else set()
            if len(parts) == 1:
                places[cpu.id] = next(iter(parts))
        lost = [cpu for cpu in lost if cpu.id not in places]
    return places


def _cores(members: Sequence[Cpu]) -> tuple[Core, ...]:
    """Group the threads of each core; a CPU of unknown core is a core of its own."""
    groups: dict[tuple[str, int], list[Cpu]] = {}
    for cpu in members:
        key = ("cpu", cpu.id) if cpu.core is None else ("core", cpu.core)
        groups.setdefault(key, []).append(cpu)
    return tuple(Core(tuple(threads)) for threads in groups.values())


def memory_notes(node: NumaNode) -> tuple[str, ...]:
    """Describe the memory of a NUMA node, then each pool of hugepages."""
    if node.memory_bytes:
        free = f", {human_bytes(node.memory_free_bytes)} free" if node.memory_free_bytes else ""
        memory = f"{human_bytes(node.memory_bytes)} memory{free}"
    else:
        memory = "no memory"
    pools = [pool for pool in node.hugepages if pool.total]
    return (
        memory,
        *(f"{pool.total} × {human_bytes(pool.size_bytes)} hugepages, {pool.free} free" for pool in pools),
    )


def _cache_title(machine: Machine, part: int, piece: str) -> tuple[str, ...]:
    cache = machine.llcs[part] if part < len(machine.llcs) else None
    if cache is None:
        return (f"last-level cache #{part}{piece}",)
    if not cache.level:  # no file describes it: discovery assumes one per socket
        return (f"cache #{part} assumed{piece}",)
    size = () if cache.size_bytes is None else (human_bytes(cache.size_bytes),)
    return (f"L{cache.level} #{part}{piece}", *size)


def _kind_title(members: Sequence[Cpu]) -> tuple[str, ...]:
    fastest = max((cpu.max_frequency_khz or 0 for cpu in members), default=0)
    speed = (f"up to {fastest / 1e6:.1f} GHz",) if fastest else ()
    return (KIND_NAMES[members[0].core_type], *speed)


def _in_words(machine: Machine, level: BoxLevel, boxes: Sequence[Box]) -> tuple[Box, ...]:
    """Replace the boxes with one box and a note if every part of *level* is a single core."""
    single = all(len(box.cores) == 1 and not box.notes for box in boxes)
    few = len(boxes) <= (_FEW_SOCKETS if level is BoxLevel.SOCKET else 1)
    if level in (BoxLevel.NUMA, BoxLevel.KIND) or few or not single:
        return tuple(boxes)
    cores = tuple(core for box in boxes for core in box.cores)
    own = _own_caches(machine, cores)
    notes = (f"each core has its own {own}",) if own and level is not BoxLevel.CLUSTER else ()
    if level is BoxLevel.SOCKET:
        title = f"{count(len(boxes), 'socket')} of one core"
        return (Box(BoxLevel.SOCKET, (title,), notes, cores=cores),)
    return (Box(BoxLevel.CLUSTER, (), notes, cores=cores),)


def _own_caches(machine: Machine, cores: Sequence[Core]) -> str:
    """Return ``L2 of 1 MiB`` if every core has its own last-level cache, else an empty text."""
    parts = [core.cpus[0].llc for core in cores]
    known = [part for part in parts if part is not None and part < len(machine.llcs)]
    if len(set(known)) < len(parts):
        return ""
    kinds = dict.fromkeys(_cache_words(machine.llcs[part]) for part in known)
    return " or ".join(kinds)


def _cache_words(cache: Cache) -> str:
    if not cache.level:
        return "last-level cache, assumed"
    size = "" if cache.size_bytes is None else f" of {human_bytes(cache.size_bytes)}"
    return f"L{cache.level}{size}"
