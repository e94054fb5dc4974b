"""Caches of all levels, and the last-level cache of every CPU.

A cache is its set of CPUs (``shared_cpu_list``, or ``shared_cpu_map`` on old kernels and where the list
is damaged) at one level and of one kind. Only the lowest CPU of each core is asked; a cache that was
described by an earlier CPU is not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drakit.core.cpuset import CpuSet
from drakit.machine.cpu_states import CPU
from drakit.machine.model import Cache
from drakit.machine.partition import agree_on_cores
from drakit.machine.sysfs import Reader, parse_number
from drakit.machine.topology import MachineTopology

_MOST_INDEXES = 64
_KINDS = {"Data": "Data", "Instruction": "Instruction", "Unified": "Unified"}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
ASSUMED_LEVEL = 0
"""The level of a last-level cache that no file describes."""


@dataclass(frozen=True, slots=True)
class Caches:
    """All described caches, and the last-level ones (described or assumed)."""

    all: tuple[Cache, ...]
    last: tuple[Cache, ...]


@dataclass(frozen=True, slots=True)
class _Description:
    """What ``indexI`` of one CPU says, its sharing aside."""

    level: int
    kind: str
    size_bytes: int | None
    raw_id: int | None


def read_caches(reader: Reader, topology: MachineTopology, online: CpuSet) -> Caches:
    """Read all caches; CPUs without any share an assumed last-level cache per socket."""
    survey = _Survey(reader, topology, online)
    for leader, core in topology.leaders.items():
        survey.ask(leader, core)
    found = survey.caches()
    return Caches(found, _last_levels(reader, found, topology))


class _Survey:
    def __init__(self, reader: Reader, topology: MachineTopology, online: CpuSet) -> None:
        self._reader = reader
        self._online = online
        self._cores = topology.leaders
        self._indexes: Sequence[int] = ()
        self._level_of_index: dict[int, int] = {}
        self._kinds: dict[tuple[int, int, int | None], str] = {}
        self._described: dict[tuple[int, int], _Description] = {}
        self._claims: dict[tuple[int, str], dict[int, CpuSet]] = {}
        self._first: dict[tuple[int, str, int], _Description] = {}

    def ask(self, leader: int, core: CpuSet) -> None:
        """Take in all caches of a core: from its lowest CPU or, if that tells none, a sibling."""
        if self._ask_cpu(leader, leader, core) or len(core) == 1:
            return
        for cpu in core:
            if cpu != leader and self._ask_cpu(cpu, leader, core):
                self._reader.warnings.note_cpu(
                    leader, "/cache", "missing; a sibling's taken instead"
                )
                return

    def _ask_cpu(self, cpu: int, leader: int, core: CpuSet) -> bool:
        """Take in what *cpu* tells about the caches of its core; false if that is nothing."""
        if not self._indexes:
            self._indexes = self._list_indexes(cpu)
        taken = [index for index in self._indexes if self._take(cpu, leader, core, index)]
        if len(taken) < len(self._indexes):  # other indexes than its predecessor: see what it has
            others = [i for i in self._list_indexes(cpu) if i not in self._indexes]
            taken += [index for index in others if self._take(cpu, leader, core, index)]
            return bool(taken)
        if taken:  # perhaps more than its predecessor
            index = taken[-1] + 1
            while index < _MOST_INDEXES and self._take(cpu, leader, core, index):
                index += 1
        return bool(taken)

    def _list_indexes(self, cpu: int) -> Sequence[int]:
        return self._reader.numbered(f"{CPU}/cpu{cpu}/cache", "index", _MOST_INDEXES)

    def _take(self, cpu: int, leader: int, core: CpuSet, index: int) -> bool:
        """Note the cache of *core* that *cpu* has at *index*; false if there is none."""
        place = f"{CPU}/cpu{cpu}/cache/index{index}/"
        shared = self._reader.cpus_around(
            cpu, f"/cache/index{index}", "shared_cpu_list", "shared_cpu_map"
        )
        if shared is None or (shared and cpu not in shared):
            if shared is None and not self._reader.exists(place):
                return False
            said = (
                "does not tell who shares it" if shared is None else "is not shared by its own CPU"
            )
            self._reader.warnings.note_cpu(
                cpu, f"/cache/index{index}", f"{said}; taken as the core's own"
            )
            shared = core
        if not shared:  # ia64 leaves the sharing of some caches empty
            shared = core
        if not shared <= self._online:
            shared &= self._online
        known = self._described.get((index, shared.mask))
        if known is None:
            known = self._describe(cpu, index, place)
            if known is None:
                return True
            self._described[index, shared.mask] = known
        key = (known.level, known.kind)
        self._claims.setdefault(key, {})[leader] = shared
        self._first.setdefault((*key, leader), known)
        return True

    def _describe(self, cpu: int, index: int, place: str) -> _Description | None:
        """Describe a cache first met at *cpu*; ``None`` if it cannot be told what it is."""
        level = self._reader.number(place + "level")
        if level is None or not 0 < level < 16:
            level = self._level_of_index.get(index)
            outcome = "taken as on other CPUs" if level else "ignored this cache"
            self._reader.warnings.note_cpu(
                cpu, f"/cache/index{index}/level", f"no level; {outcome}"
            )
            if level is None:
                return None
        self._level_of_index.setdefault(index, level)
        size = parse_size(self._reader.text(place + "size") or "")
        # The ids of first-level caches name nothing that core ids do not.
        raw_id = self._reader.optional_number(place, "id") if level > 1 else None
        kind = self._kind(cpu, index, place, (index, level, size))
        return _Description(level, kind, size, None if raw_id is None or raw_id < 0 else raw_id)

    def _kind(self, cpu: int, index: int, place: str, like: tuple[int, int, int | None]) -> str:
        """Read once per index, level and size: cores of one design number their caches alike."""
        kind = self._kinds.get(like)
        if kind is None:
            kind = _KINDS.get((self._reader.text(place + "type") or "").strip(" \r\n\0"))
            if kind is None:
                kind = "Unified"
                self._reader.warnings.note_cpu(
                    cpu, f"/cache/index{index}/type", "no type; taken as Unified"
                )
            elif like[2] is not None:
                self._kinds[like] = kind
        return kind

    def caches(self) -> tuple[Cache, ...]:
        """Everything taken in, as disjoint caches per level and kind."""
        result: list[Cache] = []
        for (level, kind), claims in self._claims.items():
            ids = {cpu: self._first[level, kind, cpu].raw_id for cpu in claims}
            agreement = agree_on_cores(self._with_silent(claims), self._cores, ids)
            for cpu in agreement.disputed:
                self._reader.warnings.note_cpu(
                    cpu,
                    "/cache",
                    f"contradicts what other CPUs say about sharing L{level} {kind}; settled by "
                    "who names each other and by ids",
                )
            for shared in agreement.groups:
                # A CPU that only others name described nothing itself: take the first that did.
                said = next(cpu for cpu in shared if cpu in claims)
                first = self._first[level, kind, said]
                result.append(Cache(level, kind, first.size_bytes, shared, first.raw_id))
        return tuple(sorted(result, key=lambda c: (c.level, c.cpus.min(), c.kind)))

    def _with_silent(self, claims: Mapping[int, CpuSet]) -> dict[int, CpuSet | None]:
        """The claims, with the cores that others name but that say nothing themselves."""
        asked: dict[int, CpuSet | None] = dict(claims)
        named = CpuSet.union(claims.values())
        for cpu in (named & CpuSet(self._cores)) - CpuSet(claims):
            asked[cpu] = None
            self._reader.warnings.note_cpu(
                cpu, "/cache", "does not describe a cache that other CPUs share with it"
            )
        return asked


def parse_size(text: str) -> int | None:
    """A cache size as the kernel writes it (``32K``), in bytes."""
    stripped = text.strip(" \t\r\n\0")
    unit = _UNITS.get(stripped[-1:], 1)
    value = parse_number(stripped[:-1] if unit > 1 else stripped)
    return None if value is None or value <= 0 else value * unit


def _last_levels(
    reader: Reader, caches: Iterable[Cache], topology: MachineTopology
) -> tuple[Cache, ...]:
    """The highest data or unified cache of every CPU, assumed per socket where there is none."""
    last: dict[int, Cache] = {}
    for cache in caches:  # ordered by level: later ones are higher
        if cache.kind != "Instruction":
            last.update(dict.fromkeys(cache.cpus, cache))
    # A higher cache may cover part of a lower one only where files contradict each other: what is
    # left of the lower one is then still the last level of its CPUs.
    groups: dict[int, tuple[Cache, int]] = {}
    for cpu, cache in last.items():
        groups[id(cache)] = (cache, groups.get(id(cache), (cache, 0))[1] | 1 << cpu)
    found = [
        cache
        if mask == cache.cpus.mask
        else Cache(cache.level, cache.kind, cache.size_bytes, CpuSet.from_mask(mask), cache.raw_id)
        for cache, mask in groups.values()
    ]
    described = CpuSet.union(cache.cpus for cache in found)
    for socket in topology.sockets:
        bare = socket - described
        if bare:
            found.append(Cache(ASSUMED_LEVEL, "Unified", None, bare))
    bare = CpuSet.union(topology.sockets) - described
    if bare:
        reader.warnings.note(
            f"{CPU}/cpu*/cache" if described else f"{CPU}/cpu{bare.min()}/cache",
            f"no cache is described for CPUs {bare}; one last-level cache per socket assumed",
        )
    return tuple(sorted(found, key=lambda cache: cache.cpus.min()))
