"""Synthetic machines of any shape.

A machine is described by counts (:func:`build`) or, if its shape is irregular, by a list of cores
(:func:`assemble`). :func:`drakit.testing.sysfs_writer.write_tree` writes any machine as files, and
``discover`` of these files returns an equal machine.

>>> build(sockets=2, cores=4, threads=2).sockets
(CpuSet('0-3,8-11'), CpuSet('4-7,12-15'))
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.machine.model import (
    Cache,
    CgroupMode,
    Cgroups,
    CoreType,
    Cpu,
    HugepagePool,
    Machine,
    NumaNode,
    PciRoot,
)
from drakit.machine.topology import index_by_cpu, ranked

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
CGROUP2: Final = Cgroups(
    CgroupMode.V2,
    v2_mount="/sys/fs/cgroup",
    controllers=frozenset({"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}),
)
MAX_CPUS: Final = 4096
K = TypeVar("K", bound=Hashable)


class Numbering(enum.Enum):
    """The order in which firmware numbers CPUs."""

    ADJACENT = "siblings adjacent"
    """0 and 1 are the two threads of one core (AMD desktop, POWER, Intel hybrid)."""
    SPREAD = "siblings offset"
    """First one thread of every core, then the second threads: 0 and n/2 (Intel and AMD servers)."""
    INTERLEAVED = "sockets interleaved"
    """As ``SPREAD``, but consecutive numbers alternate between the sockets (some two-socket BIOSes)."""


@dataclass(frozen=True, slots=True)
class CoreSpec:
    """One core and the parts it belongs to; their numbers are arbitrary keys."""

    socket: int = 0
    die: int | None = 0
    """Within the socket; ``None`` as on kernels that do not report dies."""
    node: int = 0
    """The NUMA node id, on the machine."""
    llc: int = 0
    """The last-level cache, within the socket."""
    llc_level: int = 3
    """2 or more: the first level is private to a core."""
    cluster: int | None = None
    """Within the socket: cores of one cluster share their L2."""
    threads: int = 1
    kind: CoreType = CoreType.STANDARD
    capacity: int | None = None
    max_frequency_khz: int | None = None


@dataclass(frozen=True, slots=True)
class NumaSpec:
    """Memory and hugepages of a NUMA node."""

    memory_bytes: int = 16 * GIB
    memory_free_bytes: int | None = None
    """Default: three quarters of the memory that is not in hugepages."""
    hugepages: tuple[HugepagePool, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything except topology: numbering, states of CPUs, kernel."""

    numbering: Numbering = Numbering.SPREAD
    holes: CpuSet = EMPTY
    """CPU numbers that do not exist."""
    offline: CpuSet = EMPTY
    """Present, but offline: without topology."""
    isolated: CpuSet = EMPTY
    nohz_full: CpuSet = EMPTY
    possible_beyond: int = 0
    """How many CPU numbers above the highest are possible, for hotplug."""
    pci_roots_per_node: int = 0
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Overrides of single NUMA distances, by (from, to)."""
    llc_bytes: int = 32 * MIB
    architecture: str = "x86_64"
    kernel_release: str = "6.12.9"
    cgroups: Cgroups = CGROUP2


def grid(
    *,
    sockets: int = 1,
    dies: int = 1,
    nodes: int = 1,
    llcs: int = 1,
    cores: int = 4,
    threads: int = 2,
    cluster_cores: int = 0,
) -> list[CoreSpec]:
    """Cores of a regular machine: *dies* per socket, *nodes* per die, *llcs* per node, and so on.

    *cluster_cores* neighboring cores of one cache form a cluster with its own L2.
    """
    specs = []
    for place in range(sockets * dies * nodes * llcs * cores):
        llc, core = divmod(place, cores)
        node = llc // llcs
        die = node // nodes
        socket = die // dies
        clusters_per_llc = -(-cores // cluster_cores) if cluster_cores else 0
        llc_in_socket = llc % (dies * nodes * llcs)
        specs.append(
            CoreSpec(
                socket=socket,
                die=die % dies,
                node=node,
                llc=llc_in_socket,
                cluster=llc_in_socket * clusters_per_llc + core // cluster_cores if cluster_cores else None,
                threads=threads,
            )
        )
    return specs


def build(
    *,
    memory_per_node: int = 16 * GIB,
    hugepages: Sequence[HugepagePool] = (),
    memory_only_nodes: int = 0,
    surroundings: Surroundings | None = None,
    offline: CpuSet = EMPTY,
    isolated: CpuSet = EMPTY,
    **counts: int,
) -> Machine:
    """A regular machine with the *counts* of :func:`grid`.

    Every node has *memory_per_node* and the same *hugepages*. Memory-only nodes get the next ids.
    *offline* and *isolated* are shorthands for those of *surroundings*.
    """
    specs = grid(**counts)
    node_count = 1 + specs[-1].node + memory_only_nodes
    plain = NumaSpec(memory_bytes=memory_per_node, hugepages=tuple(hugepages))
    around = surroundings or Surroundings(offline=offline, isolated=isolated)
    return assemble(specs, nodes=dict.fromkeys(range(node_count), plain), surroundings=around)


def assemble(
    cores: Sequence[CoreSpec],
    *,
    nodes: Mapping[int, NumaSpec] | None = None,
    surroundings: Surroundings | None = None,
) -> Machine:
    """The machine made of *cores*; nodes that are not in *nodes* have 16 GiB and no hugepages.

    A node in *nodes* without cores has memory only. Raises ``ValueError`` for a machine of no CPU or of
    more than 4096, and for offline CPUs that do not exist or are all CPUs.
    """
    around = surroundings or Surroundings()
    numbers = _number_threads(cores, around)
    present = CpuSet(cpu for threads in numbers for cpu in threads)
    online = present - around.offline
    if not online or not around.offline <= present:
        raise ValueError(f"offline {around.offline} must leave some of the CPUs {present}")
    threads_of = [CpuSet(threads) & online for threads in numbers]
    caches = _caches(cores, threads_of, around.llc_bytes)
    llcs = _last_levels(cores, threads_of, caches)
    described = dict(nodes or {})
    for core in cores:
        described.setdefault(core.node, NumaSpec())
    placed = {cpu: index for index, threads in enumerate(numbers) for cpu in threads}
    numa_nodes = _numa_nodes(cores, numbers, described, around)
    return Machine(
        cpus=tuple(_cpus(cores, threads_of, placed=placed, llcs=llcs, around=around)),
        numa_nodes=numa_nodes,
        caches=caches,
        llcs=llcs,
        pci_roots=_pci_roots(numa_nodes, online, around.pci_roots_per_node),
        possible=CpuSet.range(0, present.max() + around.possible_beyond + 1),
        present=present,
        online=online,
        isolated=around.isolated & present,
        nohz_full=around.nohz_full & present,
        smt_active=any(len(threads) > 1 for threads in threads_of),
        architecture=around.architecture,
        kernel_release=around.kernel_release,
        cgroups=around.cgroups,
    )


def _number_threads(cores: Sequence[CoreSpec], around: Surroundings) -> list[list[int]]:
    """The CPU numbers of each core's threads."""
    total = sum(core.threads for core in cores)
    if not 0 < total <= MAX_CPUS:
        raise ValueError(f"a synthetic machine has 1 to {MAX_CPUS} CPUs, not {total}")
    slots = [(index, t) for index, core in enumerate(cores) for t in range(core.threads)]
    if around.numbering is Numbering.SPREAD:
        slots.sort(key=lambda slot: (slot[1], slot[0]))
    elif around.numbering is Numbering.INTERLEAVED:
        seat = _seats(core.socket for core in cores)
        slots.sort(key=lambda slot: (slot[1], seat[slot[0]], cores[slot[0]].socket))
    numbers: list[list[int]] = [[] for _ in cores]
    cpu = 0
    for index, _thread in slots:
        while cpu in around.holes:
            cpu += 1
        numbers[index].append(cpu)
        cpu += 1
    return numbers


def _seats(keys: Iterable[Hashable]) -> list[int]:
    """For each item, how many earlier items have the same key."""
    seen: dict[Hashable, int] = {}
    seats = []
    for key in keys:
        seats.append(seen.get(key, 0))
        seen[key] = seats[-1] + 1
    return seats


def _groups(
    cores: Sequence[CoreSpec], threads_of: Sequence[CpuSet], key: Callable[[CoreSpec], K | None]
) -> dict[K, CpuSet]:
    """Online CPUs of the cores with an equal key; cores with key ``None`` are in no group."""
    masks: dict[K, int] = {}
    for core, threads in zip(cores, threads_of, strict=True):
        name = key(core)
        if name is not None and threads:
            masks[name] = masks.get(name, 0) | threads.mask
    return {name: CpuSet.from_mask(mask) for name, mask in masks.items()}


def _cluster_key(core: CoreSpec) -> tuple[int, int] | None:
    return None if core.cluster is None else (core.socket, core.cluster)


def _llc_key(core: CoreSpec) -> tuple[int, int, int]:
    return (core.socket, core.llc, core.llc_level)


def _caches(cores: Sequence[CoreSpec], threads_of: Sequence[CpuSet], llc_bytes: int) -> tuple[Cache, ...]:
    """L1 per core, L2 per cluster (or core), one last-level cache per key; ids repeat per socket."""
    socket_of = {cpu: core.socket for core, cpus in zip(cores, threads_of, strict=True) for cpu in cpus}
    shared: list[tuple[int, str, int, CpuSet]] = []
    clusters = _groups(cores, threads_of, _cluster_key)
    for core, threads in zip(cores, threads_of, strict=True):
        if threads:
            shared.append((1, "Data", 32 * KIB, threads))
            shared.append((1, "Instruction", 32 * KIB, threads))
            if core.llc_level > 2:
                cluster = _cluster_key(core)
                shared.append((2, "Unified", MIB, threads if cluster is None else clusters[cluster]))
    for (_, _, level), cpus in _groups(cores, threads_of, _llc_key).items():
        shared.append((level, "Unified", llc_bytes, cpus))
    ordered = sorted(dict.fromkeys(shared), key=lambda c: (c[0], c[3].min(), c[1]))
    ids = _seats((level, kind, socket_of[cpus.min()]) for level, kind, _size, cpus in ordered)
    return tuple(
        Cache(level, kind, size, cpus, raw_id if level > 1 else None)
        for (level, kind, size, cpus), raw_id in zip(ordered, ids, strict=True)
    )


def _last_levels(
    cores: Sequence[CoreSpec], threads_of: Sequence[CpuSet], caches: Sequence[Cache]
) -> tuple[Cache, ...]:
    by_place = {(cache.level, cache.cpus): cache for cache in caches if cache.kind == "Unified"}
    groups = _groups(cores, threads_of, _llc_key).items()
    found = [by_place[level, cpus] for (_, _, level), cpus in groups]
    return tuple(sorted(found, key=lambda cache: cache.cpus.min()))


def _cpus(
    cores: Sequence[CoreSpec],
    threads_of: Sequence[CpuSet],
    *,
    placed: Mapping[int, int],
    llcs: Sequence[Cache],
    around: Surroundings,
) -> Iterable[Cpu]:
    sockets = index_by_cpu(ranked(_groups(cores, threads_of, lambda c: c.socket).values()))
    dies = index_by_cpu(
        ranked(_groups(cores, threads_of, lambda c: None if c.die is None else (c.socket, c.die)).values())
    )
    clusters = index_by_cpu(ranked(_groups(cores, threads_of, _cluster_key).values()))
    llc_of = index_by_cpu([llc.cpus for llc in llcs])
    core_sets = ranked(threads_of)
    core_of = index_by_cpu(core_sets)
    raw_core = _seats(core.socket for core in cores)
    for cpu in sorted(placed):
        spec = cores[placed[cpu]]
        offline = Cpu(
            cpu, False, None, None, None, None, None, spec.node, CpuSet([cpu]),
            isolated=cpu in around.isolated, nohz_full=cpu in around.nohz_full,
        )  # fmt: skip
        if cpu in around.offline:
            yield offline
            continue
        yield replace(
            offline,
            online=True,
            socket=sockets[cpu],
            die=dies.get(cpu),
            cluster=clusters.get(cpu),
            core=core_of[cpu],
            llc=llc_of[cpu],
            siblings=core_sets[core_of[cpu]],
            core_type=spec.kind,
            capacity=spec.capacity,
            max_frequency_khz=spec.max_frequency_khz,
            raw_socket=spec.socket,
            raw_die=spec.die,
            raw_cluster=spec.cluster,
            raw_core=raw_core[placed[cpu]],
            raw_llc=llcs[llc_of[cpu]].raw_id,
        )


def _numa_nodes(
    cores: Sequence[CoreSpec],
    numbers: Sequence[Sequence[int]],
    described: Mapping[int, NumaSpec],
    around: Surroundings,
) -> tuple[NumaNode, ...]:
    members: dict[int, list[int]] = {node: [] for node in described}
    sockets: dict[int, set[int]] = {node: set() for node in described}
    for core, threads in zip(cores, numbers, strict=True):
        members[core.node].extend(threads)
        sockets[core.node].add(core.socket)
    ids = sorted(described)
    return tuple(
        NumaNode(
            id=node,
            cpus=CpuSet(members[node]),
            memory_bytes=described[node].memory_bytes,
            memory_free_bytes=_free_bytes(described[node]),
            distances={
                to: around.distances.get((node, to), _distance(node, to, sockets[node], sockets[to]))
                for to in ids
            },
            hugepages=tuple(sorted(described[node].hugepages, key=lambda pool: pool.size_bytes)),
        )
        for node in ids
    )


def _distance(node: int, other: int, sockets: set[int], others: set[int]) -> int:
    """Distances as in real firmware: 12 within a socket, 21 across, 17 to memory-only nodes."""
    if node == other:
        return 10
    return 17 if not sockets or not others else 12 if sockets & others else 21


def _free_bytes(spec: NumaSpec) -> int:
    if spec.memory_free_bytes is not None:
        return spec.memory_free_bytes
    held = sum(pool.size_bytes * pool.total for pool in spec.hugepages)
    return max(0, spec.memory_bytes - held) * 3 // 4 // KIB * KIB


def _pci_roots(nodes: Sequence[NumaNode], online: CpuSet, per_node: int) -> tuple[PciRoot, ...]:
    with_cpus = [node for node in nodes if node.cpus & online]
    return tuple(
        PciRoot(f"pci0000:{place * 16:02x}", node.id, node.cpus & online)
        for place, node in enumerate(node for node in with_cpus for _ in range(per_node))
    )


def two_socket_server() -> Machine:
    """Two sockets of 16 SMT cores, sub-NUMA pairs, hugepages, PCI roots: 64 CPUs."""
    pools = (HugepagePool(2 * MIB, 1024, 512), HugepagePool(GIB, 4, 4))
    around = Surroundings(pci_roots_per_node=1)
    return build(sockets=2, nodes=2, cores=8, memory_per_node=64 * GIB, hugepages=pools, surroundings=around)
