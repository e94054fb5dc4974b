"""Caches of all levels, and the last-level cache of every CPU.

A cache is identified by its set of CPUs (``shared_cpu_list``, or ``shared_cpu_map`` on old kernels and if
the list is damaged), level and kind. Only the lowest CPU of each core is read; a cache that an earlier
CPU described is not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drakit.core.cpuset import CpuSet
from drakit.machine.cpu_states import CPU
from drakit.machine.model import Cache
from drakit.machine.partition import agree_on_cores
from drakit.machine.sysfs import Reader, parse_number
from drakit.machine.topology import MachineTopology

_MOST_INDEXES = 64
_KINDS = ("Data", "Instruction", "Unified")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
ASSUMED_LEVEL = 0
"""The level of a last-level cache that is not described."""


@dataclass(frozen=True, slots=True)
class Caches:
    """All described caches, and the last-level ones (described or assumed)."""

    all: tuple[Cache, ...]
    last: tuple[Cache, ...]


@dataclass(frozen=True, slots=True)
class _Description:
    """The content of ``indexI`` of one CPU, without its sharing."""

    level: int
    kind: str
    size_bytes: int | None
    raw_id: int | None


def read_caches(reader: Reader, topology: MachineTopology, online: CpuSet) -> Caches:
    """Read all caches; CPUs without any share an assumed last-level cache per socket."""
    survey = _CacheReader(reader, topology, online)
    for leader, core in topology.leaders.items():
        survey.read(leader, core)
    found = survey.caches()
    return Caches(found, _last_levels(reader, found, topology))


class _CacheReader:
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

    def read(self, leader: int, core: CpuSet) -> None:
        """Read all caches of a core: from its lowest CPU or, if that has none, a sibling."""
        if self._read_cpu(leader, leader, core) or len(core) == 1:
            return
        for cpu in core:
            if cpu != leader and self._read_cpu(cpu, leader, core):
                self._reader.warn_cpu(leader, "/cache", "missing; those of a sibling are used")
                return

    def _read_cpu(self, cpu: int, leader: int, core: CpuSet) -> bool:
        """Read the caches of a core from *cpu*; false if it has none."""
        if not self._indexes:
            self._indexes = self._list_indexes(cpu)
        taken = [index for index in self._indexes if self._take(cpu, leader, core, index)]
        if len(taken) < len(self._indexes):  # other indexes than the CPU before it
            others = [i for i in self._list_indexes(cpu) if i not in self._indexes]
            taken += [index for index in others if self._take(cpu, leader, core, index)]
            return bool(taken)
        if taken:  # it may have more than the CPU before it
            index = taken[-1] + 1
            while index < _MOST_INDEXES and self._take(cpu, leader, core, index):
                index += 1
        return bool(taken)

    def _list_indexes(self, cpu: int) -> Sequence[int]:
        return self._reader.numbered(f"{CPU}/cpu{cpu}/cache", "index", _MOST_INDEXES)

    def _take(self, cpu: int, leader: int, core: CpuSet, index: int) -> bool:
        """Read the cache of *core* that *cpu* has at *index*; false if there is none."""
        place = f"{CPU}/cpu{cpu}/cache/index{index}/"
        shared = self._reader.cpus_around(cpu, f"/cache/index{index}", "shared_cpu_list", "shared_cpu_map")
        if shared is None or (shared and cpu not in shared):
            if shared is None and not self._reader.exists(place):
                return False
            problem = "does not list its CPUs" if shared is None else "does not list its own CPU"
            reason = f"{problem}; taken as the core's own"
            self._reader.warn_cpu(cpu, f"/cache/index{index}", reason)
            shared = core
        shared = (shared or core) & self._online  # ia64 leaves the sharing of some caches empty
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
        """Describe a cache first found at *cpu*; ``None`` if its level is unknown."""
        level = self._reader.number(place + "level")
        if level is None or not 0 < level < 16:
            level = self._level_of_index.get(index)
            outcome = "taken as on other CPUs" if level else "ignored this cache"
            self._reader.warn_cpu(cpu, f"/cache/index{index}/level", f"no level; {outcome}")
            if level is None:
                return None
        self._level_of_index.setdefault(index, level)
        size = parse_size(self._reader.text(place + "size") or "")
        # The ids of first-level caches add nothing to core ids.
        raw_id = self._reader.optional_number(place, "id") if level > 1 else None
        kind = self._kind(cpu, index, place, (index, level, size))
        return _Description(level, kind, size, None if raw_id is None or raw_id < 0 else raw_id)

    def _kind(self, cpu: int, index: int, place: str, like: tuple[int, int, int | None]) -> str:
        """The kind, read once per index, level and size: equal cores number their caches equally."""
        kind = self._kinds.get(like)
        if kind is None:
            kind = (self._reader.text(place + "type") or "").strip(" \r\n\0")
            if kind not in _KINDS:
                kind = "Unified"
                self._reader.warn_cpu(cpu, f"/cache/index{index}/type", "no type; taken as Unified")
            elif like[2] is not None:
                self._kinds[like] = kind
        return kind

    def caches(self) -> tuple[Cache, ...]:
        """All caches, disjoint per level and kind."""
        result: list[Cache] = []
        for (level, kind), claims in self._claims.items():
            ids = {cpu: self._first[level, kind, cpu].raw_id for cpu in claims}
            agreement = agree_on_cores(self._with_unreported(claims), self._cores, ids)
            for cpu in agreement.disputed:
                reason = f"contradicts other CPUs of this L{level} {kind} cache; decided by majority and ids"
                self._reader.warn_cpu(cpu, "/cache", reason)
            for shared in agreement.groups:
                # A CPU that only others list described nothing itself: use the first that did.
                first = self._first[level, kind, next(cpu for cpu in shared if cpu in claims)]
                result.append(Cache(level, kind, first.size_bytes, shared, first.raw_id))
        return tuple(sorted(result, key=lambda c: (c.level, c.cpus.min(), c.kind)))

    def _with_unreported(self, claims: Mapping[int, CpuSet]) -> dict[int, CpuSet | None]:
        """The reported sets, with the cores that others list but that report none themselves."""
        asked: dict[int, CpuSet | None] = dict(claims)
        named = CpuSet.union(claims.values())
        for cpu in (named & CpuSet(self._cores)) - CpuSet(claims):
            asked[cpu] = None
            self._reader.warn_cpu(cpu, "/cache", "does not describe a cache that other CPUs share with it")
        return asked


def parse_size(text: str) -> int | None:
    """A cache size as the kernel writes it (``32K``), in bytes."""
    stripped = text.strip(" \t\r\n\0")
    unit = _UNITS.get(stripped[-1:], 1)
    value = parse_number(stripped[:-1] if unit > 1 else stripped)
    return None if value is None or value <= 0 else value * unit


def _last_levels(reader: Reader, caches: Iterable[Cache], topology: MachineTopology) -> tuple[Cache, ...]:
    """The highest data or unified cache of every CPU, assumed per socket where there is none."""
    last: dict[int, Cache] = {}
    for cache in caches:  # ordered by level: later ones are higher
        if cache.kind != "Instruction":
            last.update(dict.fromkeys(cache.cpus, cache))
    # If files contradict each other, a higher cache may cover part of a lower one: the rest of the
    # lower one is still the last level of its CPUs.
    groups: dict[int, tuple[Cache, int]] = {}
    for cpu, cache in last.items():
        groups[id(cache)] = (cache, groups.get(id(cache), (cache, 0))[1] | 1 << cpu)
    found = [
        cache if mask == cache.cpus.mask else replace(cache, cpus=CpuSet.from_mask(mask))
        for cache, mask in groups.values()
    ]
    described = CpuSet.union(cache.cpus for cache in found)
    lacking = (socket - described for socket in topology.sockets)
    found += [Cache(ASSUMED_LEVEL, "Unified", None, cpus) for cpus in lacking if cpus]
    if bare := CpuSet.union(topology.sockets) - described:
        reader.warn(
            f"{CPU}/cpu*/cache" if described else f"{CPU}/cpu{bare.min()}/cache",
            f"no cache is described for CPUs {bare}; one last-level cache per socket assumed",
        )
    return tuple(sorted(found, key=lambda cache: cache.cpus.min()))
