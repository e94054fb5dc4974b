"""A machine as nested boxes: the shape that the terminal drawing and the SVG share.

Firmware nests its parts differently from machine to machine – a NUMA node may be a part of a socket
or hold several, a last-level cache may span a socket or belong to one core – so the order of levels
is found by size: the parts that are largest on average are outermost. Boxes with a single child
become one box with both names, and a level where every part is one core is said in words instead of
being drawn. No CPU is ever left out: one that no part claims gets a box that says so.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.machine.model import Cache, CoreType, Cpu, Machine, NumaNode


class Level(enum.Enum):
    """What a box stands for."""

    SOCKET = "socket"
    NUMA = "NUMA node"
    DIE = "die"
    CACHE = "last-level cache"
    KIND = "core kind"
    CLUSTER = "cluster"
    UNPLACED = "place unknown"

    @property
    def framed(self) -> bool:
        """Whether the box has a border; kinds and clusters only stand apart from each other."""
        return self not in (Level.KIND, Level.CLUSTER)


KIND_NAMES: Final = {
    CoreType.PERFORMANCE: "P-cores",
    CoreType.EFFICIENCY: "E-cores",
    CoreType.STANDARD: "standard cores",
}

_FEW_SOCKETS: Final = 4
"""Up to this many one-core sockets (a small virtual machine) are drawn, more are said in words."""


@dataclass(frozen=True, slots=True)
class Core:
    """The threads of one core that lie in one box, by ascending number."""

    cpus: tuple[Cpu, ...]

    @property
    def kind(self) -> CoreType:
        """The kind of the core."""
        return self.cpus[0].core_type


@dataclass(frozen=True, slots=True)
class Box:
    """A part of the machine: its names, lines of text, and either inner boxes or cores."""

    level: Level
    title: tuple[str, ...]
    notes: tuple[str, ...] = ()
    children: tuple[Box, ...] = ()
    cores: tuple[Core, ...] = ()

    def walk(self) -> Iterator[Box]:
        """The box itself and all within, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def cpus(self) -> CpuSet:
        """All CPUs drawn within."""
        return CpuSet(cpu.id for box in self.walk() for core in box.cores for cpu in core.cpus)


def machine_boxes(machine: Machine) -> tuple[Box, ...]:
    """The outermost boxes of *machine*; every one of its CPUs is in exactly one core of one box."""
    boxes = _Builder(machine).boxes() if machine.cpus else ()
    bare = [node for node in machine.numa_nodes if not _has_cpu(machine, node)]
    return (*boxes, *(_bare_node(node) for node in bare))


def human_bytes(count: int) -> str:
    """Bytes for people: ``31.3 GiB``, ``2 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(count.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{count / 1024**power:.1f}".removesuffix(".0") + f" {units[power]}"


def counted(count: int, noun: str) -> str:
    """``1 core``, ``2 cores``."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


# -- the levels ---------------------------------------------------------------------------------

_Key = Callable[[Cpu], int | None]
_KEYS: Final[dict[Level, _Key]] = {
    Level.SOCKET: lambda cpu: cpu.socket,
    Level.NUMA: lambda cpu: cpu.numa_node,
    Level.DIE: lambda cpu: cpu.die,
    Level.CACHE: lambda cpu: cpu.llc,
    Level.CLUSTER: lambda cpu: cpu.cluster,
}


class _Builder:
    """Sorts the CPUs of one machine into boxes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.nodes = {node.id: node for node in machine.numa_nodes}
        self.kinds = {cpu.core_type for cpu in machine.cpus}
        self.places = {level: _places(machine.cpus, level) for level in _KEYS}
        self.sizes = {level: _sizes(places.values()) for level, places in self.places.items()}
        self.described_nodes: set[int] = set()

    def boxes(self) -> tuple[Box, ...]:
        found = self._split(self.machine.cpus, self._levels())
        return found or (Box(Level.UNPLACED, ("place unknown",), cores=_cores(self.machine.cpus)),)

    def _levels(self) -> list[Level]:
        """The levels that tell something here, largest parts first, kinds just before clusters."""
        sizes = self.sizes
        useful = [level for level in _KEYS if sizes[level]]
        if len(sizes[Level.DIE]) <= len(sizes[Level.SOCKET]):
            useful = [level for level in useful if level is not Level.DIE]
        by_size = sorted(useful, key=lambda level: len(sizes[level]) / sum(sizes[level].values()))
        if len(self.kinds) > 1:
            inner_cluster = by_size[-1:] == [Level.CLUSTER]
            by_size.insert(len(by_size) - inner_cluster, Level.KIND)
        return by_size

    def _split(self, cpus: Sequence[Cpu], levels: Sequence[Level]) -> tuple[Box, ...]:
        if not levels:
            return ()
        level, inner = levels[0], levels[1:]
        groups: dict[int | None, list[Cpu]] = {}
        for cpu in cpus:
            groups.setdefault(self._key(cpu, level), []).append(cpu)
        if set(groups) == {None}:  # nobody here knows: the level says nothing
            return self._split(cpus, inner)
        ordered = sorted(groups.items(), key=lambda item: (item[0] is None, item[1][0].id))
        boxes = [self._box(level, part, members, inner) for part, members in ordered]
        return _in_words(self.machine, level, boxes)

    def _key(self, cpu: Cpu, level: Level) -> int | None:
        if level is Level.KIND:
            return list(CoreType).index(cpu.core_type)
        return self.places[level].get(cpu.id)

    def _box(
        self, level: Level, part: int | None, members: Sequence[Cpu], inner: Sequence[Level]
    ) -> Box:
        title = self._title(level, part, members)
        notes = self._notes(level, part)
        level = Level.UNPLACED if part is None else level
        children = self._split(members, inner)
        if len(children) == 1:
            only = children[0]
            outer = level if level.framed or not only.level.framed else only.level
            return replace(only, level=outer, title=title + only.title, notes=notes + only.notes)
        if children:
            return Box(level, title, notes, children)
        return Box(level, title, notes, cores=_cores(members))

    def _title(self, level: Level, part: int | None, members: Sequence[Cpu]) -> tuple[str, ...]:
        if part is None:
            unknown = f"{level.value} unknown"
            return ("offline",) if not any(c.online for c in members) else (unknown,)
        if level is Level.KIND:
            return _kind_title(members)
        if level is Level.CLUSTER:
            return ()
        piece = "" if len(members) == self.sizes[level][part] else " (part)"
        if level is Level.CACHE:
            return _cache_title(self.machine, part, piece)
        return (f"{_NAMES[level]} {part}{piece}",)

    def _notes(self, level: Level, part: int | None) -> tuple[str, ...]:
        """Memory of a NUMA node, said where the node is first drawn."""
        if level is not Level.NUMA or part not in self.nodes or part in self.described_nodes:
            return ()
        self.described_nodes.add(part)
        return memory_notes(self.nodes[part])


_NAMES: Final = {Level.SOCKET: "Socket", Level.NUMA: "NUMA node", Level.DIE: "Die"}


def _places(cpus: Sequence[Cpu], level: Level) -> dict[int, int]:
    """Which part of *level* every CPU is drawn in; CPUs that nothing places are absent.

    The kernel shows no topology of an offline CPU. It is drawn with the companions it is known to
    have: if all CPUs of its NUMA node (or any other part it has) lie in one part, it does too.
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


def _sizes(parts: Iterable[int]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for part in parts:
        sizes[part] = sizes.get(part, 0) + 1
    return sizes


def _cores(members: Sequence[Cpu]) -> tuple[Core, ...]:
    """Threads of one core together, cores by lowest CPU; a CPU of unknown core stands alone."""
    groups: dict[tuple[str, int], list[Cpu]] = {}
    for cpu in members:
        key = ("cpu", cpu.id) if cpu.core is None else ("core", cpu.core)
        groups.setdefault(key, []).append(cpu)
    return tuple(Core(tuple(threads)) for threads in groups.values())


# -- words ----------------------------------------------------------------------------------------


def memory_notes(node: NumaNode) -> tuple[str, ...]:
    """What a NUMA node offers except CPUs, one line each for memory and hugepages."""
    if node.memory_bytes:
        free = f", {human_bytes(node.memory_free_bytes)} free" if node.memory_free_bytes else ""
        memory = f"{human_bytes(node.memory_bytes)} memory{free}"
    else:
        memory = "no memory"
    pools = [pool for pool in node.hugepages if pool.total]
    return (
        memory,
        *(
            f"{pool.total} × {human_bytes(pool.size_bytes)} hugepages, {pool.free} free"
            for pool in pools
        ),
    )


def _bare_node(node: NumaNode) -> Box:
    title = (f"NUMA node {node.id}", "memory only" if node.memory_bytes else "empty")
    return Box(Level.NUMA, title, memory_notes(node))


def _has_cpu(machine: Machine, node: NumaNode) -> bool:
    return any(cpu.numa_node == node.id for cpu in machine.cpus)


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


def _in_words(machine: Machine, level: Level, boxes: Sequence[Box]) -> tuple[Box, ...]:
    """Say in words, instead of drawing, that every part of *level* is a single core."""
    single = all(len(box.cores) == 1 and not box.notes for box in boxes)
    few = len(boxes) <= (_FEW_SOCKETS if level is Level.SOCKET else 1)
    if level in (Level.NUMA, Level.KIND) or few or not single:
        return tuple(boxes)
    cores = tuple(core for box in boxes for core in box.cores)
    own = _own_caches(machine, cores)
    notes = (f"each core has its own {own}",) if own and level is not Level.CLUSTER else ()
    if level is Level.SOCKET:
        title = f"{counted(len(boxes), 'socket')} of one core"
        return (Box(Level.SOCKET, (title,), notes, cores=cores),)
    return (Box(Level.CLUSTER, (), notes, cores=cores),)


def _own_caches(machine: Machine, cores: Sequence[Core]) -> str:
    """``L2 of 1 MiB`` when every core has a last-level cache to itself; empty if not."""
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
