"""Cores, sockets, dies and clusters.

Each is identified by the set of its CPUs (``core_cpus``, ``package_cpus``, ``die_cpus``,
``cluster_cpus``; before Linux 5.3 ``thread_siblings`` and ``core_siblings``). Firmware ids repeat across
sockets and only break ties. The core is read for every CPU; everything above a core only for its lowest
CPU, because all threads of a core are in the same die, cluster and socket.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from drakit.core.cpuset import CpuSet
from drakit.machine.cpu_states import CPU
from drakit.machine.kernel import CpuInfo
from drakit.machine.partition import agree, agree_on_cores
from drakit.machine.sysfs import Reader

_UNKNOWN_CLUSTER = 65535
"""arm64 reports this for "no cluster" (-1 cut to 16 bits)."""

Names = tuple[tuple[str, str], ...]
_CORE: Names = (("core_cpus_list", "core_cpus"), ("thread_siblings_list", "thread_siblings"))
_SOCKET: Names = (("package_cpus_list", "package_cpus"), ("core_siblings_list", "core_siblings"))
_DIE: Names = (("die_cpus_list", "die_cpus"),)
_CLUSTER: Names = (("cluster_cpus_list", "cluster_cpus"),)


@dataclass(frozen=True, slots=True)
class RawIds:
    """Firmware ids of the parts a core belongs to; ``None`` if unknown."""

    socket: int | None = None
    die: int | None = None
    cluster: int | None = None
    core: int | None = None


@dataclass(frozen=True, slots=True)
class MachineTopology:
    """Groups of online CPUs, each tuple ordered by lowest CPU; raw ids by the core's lowest CPU."""

    cores: tuple[CpuSet, ...] = ()
    sockets: tuple[CpuSet, ...] = ()
    dies: tuple[CpuSet, ...] = ()
    clusters: tuple[CpuSet, ...] = ()
    raw: Mapping[int, RawIds] = field(default_factory=dict)
    leaders: Mapping[int, CpuSet] = field(default_factory=dict)
    """Cores by their lowest CPU."""


def ranked(groups: Iterable[CpuSet]) -> tuple[CpuSet, ...]:
    """Distinct non-empty groups by lowest CPU; the position is the group's number on the machine."""
    distinct = {group.mask: group for group in groups if group}
    return tuple(sorted(distinct.values(), key=lambda group: (group.min(), group.mask)))


def index_by_cpu(groups: Iterable[CpuSet]) -> dict[int, int]:
    """The position of each CPU's group among the disjoint *groups*."""
    return {cpu: index for index, group in enumerate(groups) for cpu in group}


def read_topology(reader: Reader, online: CpuSet, cpuinfo: CpuInfo) -> MachineTopology:
    """The parts of the machine; every online CPU gets a core and a socket."""
    survey = _TopologyReader(reader, online, cpuinfo)
    cores = survey.cores()
    leaders = {core.min(): core for core in cores}
    raw = {leader: survey.raw_ids(leader) for leader in leaders}
    sockets = survey.sockets(leaders, raw)
    socket_of = {cpu: socket for socket in sockets for cpu in socket}
    dies = survey.inner("die", _DIE, leaders, {k: r.die for k, r in raw.items()}, socket_of)
    clusters = survey.inner("cluster", _CLUSTER, leaders, {k: r.cluster for k, r in raw.items()}, socket_of)
    return MachineTopology(cores, sockets, dies, clusters, raw, leaders)


class _TopologyReader:
    """Reads the files of CPUs, and remembers the file names that this kernel has."""

    def __init__(self, reader: Reader, online: CpuSet, cpuinfo: CpuInfo) -> None:
        self._reader = reader
        self._online = online
        self._info = cpuinfo
        self._first_choice: dict[Names, int] = {}

    def _claim(self, cpu: int, names: Names) -> CpuSet | None:
        """The set of online CPUs that *cpu* lists, itself included, from the first file that has it."""
        place = f"{CPU}/cpu{cpu}/topology/"
        start = self._first_choice.get(names, 0)
        wrong: list[str] = []
        for step in range(2 * len(names)):
            choice = (start + step) % (2 * len(names))
            name = names[choice // 2][choice % 2]
            found = (self._reader.cpu_mask if choice % 2 else self._reader.cpu_list)(place + name)
            if found is None:
                continue
            if cpu in found:
                self._first_choice.setdefault(names, choice)
                self._warn_about(cpu, wrong, f"{name} is used")
                return found if found <= self._online else found & self._online
            wrong.append(name)
        self._warn_about(cpu, wrong[:1], "ignored")
        return None

    def _warn_about(self, cpu: int, wrong: Iterable[str], outcome: str) -> None:
        for name in wrong:
            self._reader.warn_cpu(cpu, f"/topology/{name}", f"does not contain the CPU itself; {outcome}")

    def _claims(self, names: Names, ids: Mapping[int, Hashable | None]) -> dict[int, CpuSet | None]:
        """The part that each core reports to belong to.

        A core is not read if an earlier one with the same id listed it: two sources agree already.
        """
        claims: dict[int, CpuSet | None] = {}
        heard: dict[Hashable, CpuSet] = {}
        for cpu, name in ids.items():
            claim = None if name is None else heard.get(name)
            if claim is None or cpu not in claim:
                claim = self._claim(cpu, names)
                if name is not None and claim is not None:
                    heard[name] = claim
            claims[cpu] = claim
        return claims

    def raw_ids(self, cpu: int) -> RawIds:
        """Ids of one CPU, from its topology directory or else from ``/proc/cpuinfo``."""
        place = f"{CPU}/cpu{cpu}/topology/"
        socket, core = self._id(place + "physical_package_id"), self._id(place + "core_id")
        cluster = _known(self._reader.optional_number(place, "cluster_id"))
        if socket is None or core is None:
            info = self._info.ids(cpu)
            socket = info.socket if socket is None else socket
            core = info.core if core is None else core
        die = _known(self._reader.optional_number(place, "die_id"))
        return RawIds(socket, die, None if cluster == _UNKNOWN_CLUSTER else cluster, core)

    def _id(self, path: str) -> int | None:
        return _known(self._reader.number(path))

    def cores(self) -> tuple[CpuSet, ...]:
        """Threads of each core."""
        claims = {cpu: self._claim(cpu, _CORE) for cpu in self._online}
        unclear = [cpu for cpu, claim in claims.items() if claim is None]
        result = agree(claims, {}) if not unclear else None
        if result is None or result.disputed:
            result = agree(claims, {cpu: self._core_name(cpu) for cpu in self._online})
        for cpu in unclear:
            reason = "does not identify its core; derived from its siblings and ids"
            self._reader.warn_cpu(cpu, "/topology", reason)
        self._dispute(result.disputed, _CORE, "core")
        cores = result.groups
        if self._info.has_compute_units:
            cores = tuple(part for core in cores for part in self._split_unit(core))
        return ranked(cores)

    def _core_name(self, cpu: int) -> Hashable | None:
        ids = self.raw_ids(cpu)
        return None if ids.core is None else (ids.socket, ids.die, ids.core)

    def _split_unit(self, core: CpuSet) -> Iterable[CpuSet]:
        """The cores of an AMD compute unit (families 15h and 16h).

        They are listed as threads of one core but have different ``core_id``; they share the front end
        and L2, not the integer core.
        """
        by_id: dict[int | None, list[int]] = {}
        for cpu in core:
            by_id.setdefault(self._id(f"{CPU}/cpu{cpu}/topology/core_id"), []).append(cpu)
        return (CpuSet(cpus) for cpus in by_id.values())

    def sockets(self, leaders: Mapping[int, CpuSet], raw: Mapping[int, RawIds]) -> tuple[CpuSet, ...]:
        """Sockets; CPUs without this file are all in one socket, unless their ids differ."""
        ids = {leader: raw[leader].socket for leader in leaders}
        claims = self._claims(_SOCKET, ids)
        unclear = [leader for leader, claim in claims.items() if claim is None]
        known = [name for name in ids.values() if name is not None]
        for leader in unclear:
            reason = "does not identify its socket; derived from ids and neighbors"
            self._reader.warn_cpu(leader, "/topology", reason)
            if ids[leader] is None:
                ids[leader] = min(known, default=0)
        result = agree_on_cores(claims, leaders, ids)
        self._dispute(result.disputed, _SOCKET, "socket")
        self._warn_about_equal_sockets(result.groups, raw)
        return ranked(result.groups)

    def _warn_about_equal_sockets(self, sockets: Iterable[CpuSet], raw: Mapping[int, RawIds]) -> None:
        """Two sockets with one id: seen where ``core_siblings`` stops at a NUMA node (Linux 3.10)."""
        seen: dict[int, CpuSet] = {}
        for socket in sockets if self._info.is_x86 else ():
            name = raw[socket.min()].socket
            if name is not None and seen.setdefault(name, socket) is not socket:
                self._reader.warn(
                    f"{CPU}/cpu{socket.min()}/topology/physical_package_id",
                    f"CPUs {seen[name]} and {socket} both report socket {name}, but do not list each "
                    "other; kept apart",
                )

    def inner(
        self,
        what: str,
        names: Names,
        leaders: Mapping[int, CpuSet],
        ids: Mapping[int, int | None],
        socket_of: Mapping[int, CpuSet],
    ) -> tuple[CpuSet, ...]:
        """Dies or clusters: parts of a socket that exist only if they have an id."""
        known = {leader: (socket_of[leader].min(), n) for leader, n in ids.items() if n is not None}
        claims = self._claims(names, known)
        for leader, claim in claims.items():
            home = socket_of[leader]
            if claim is not None and not claim <= home:
                claims[leader] = claim & home
        result = agree_on_cores(claims, leaders, known)
        self._dispute(result.disputed, names, what)
        return ranked(result.groups)

    def _dispute(self, cpus: CpuSet, names: Names, what: str) -> None:
        choice = self._first_choice.get(names, 0)
        for cpu in cpus:
            file = f"/topology/{names[choice // 2][choice % 2]}"
            reason = f"contradicts other CPUs of this {what}; decided by majority and ids"
            self._reader.warn_cpu(cpu, file, reason)


def _known(value: int | None) -> int | None:
    """An id; negative ones mean "unknown"."""
    return None if value is None or value < 0 else value
