"""Machines for tests of the drawings: regular, irregular and contradictory ones."""

from __future__ import annotations

from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.machine.model import Cache, CoreType, Cpu, HugepagePool, Machine, NumaNode
from drakit.machine.model import Warning as Doubt
from drakit.testing.synthetic import GIB, MIB, CoreSpec, NumaSpec, Numbering, Surroundings, assemble, build


def hybrid() -> Machine:
    """A laptop: six P-cores of two threads, two clusters of four E-cores."""
    fast = [
        CoreSpec(threads=2, kind=CoreType.PERFORMANCE, cluster=index, max_frequency_khz=5_000_000)
        for index in range(6)
    ]
    small = [
        CoreSpec(kind=CoreType.EFFICIENCY, cluster=10 + index // 4, max_frequency_khz=3_800_000)
        for index in range(8)
    ]
    return assemble(fast + small, surroundings=Surroundings(numbering=Numbering.ADJACENT))


def server() -> Machine:
    """Two sockets of 32 cores with hugepages."""
    pools = [HugepagePool(2 * MIB, 1024, 512), HugepagePool(GIB, 4, 4)]
    return build(sockets=2, cores=32, threads=2, memory_per_node=128 * GIB, hugepages=pools)


_core_specs = st.builds(
    CoreSpec,
    socket=st.integers(0, 2),
    die=st.none() | st.integers(0, 1),
    node=st.integers(0, 3),
    llc=st.integers(0, 2),
    llc_level=st.sampled_from([2, 3]),
    cluster=st.none() | st.integers(0, 3),
    threads=st.sampled_from([1, 2, 2, 4, 8]),
    kind=st.sampled_from(list(CoreType)),
    max_frequency_khz=st.none() | st.just(4_200_000),
)
_nodes = st.builds(
    NumaSpec,
    memory_bytes=st.sampled_from([0, 512 * MIB, 96 * GIB, 6 * 1024 * GIB]),
    hugepages=st.lists(
        st.builds(
            HugepagePool,
            size_bytes=st.sampled_from([64 * 1024, 2 * MIB, GIB]),
            total=st.integers(0, 100_000),
            free=st.integers(0, 10),
        ),
        max_size=2,
        unique_by=lambda pool: pool.size_bytes,
    ).map(tuple),
)


@st.composite
def irregular(draw: st.DrawFn) -> Machine:
    """Cores thrown anywhere, so that sockets, NUMA nodes and caches cross each other."""
    cores = draw(st.lists(_core_specs, min_size=1, max_size=24))
    total = sum(core.threads for core in cores)
    some = st.sets(st.integers(0, total - 1), max_size=4)
    offline = draw(some) - {0}
    around = Surroundings(
        numbering=draw(st.sampled_from(list(Numbering))), offline=CpuSet(offline), isolated=CpuSet(draw(some))
    )
    nodes = draw(st.dictionaries(st.integers(0, 6), _nodes, max_size=5))
    return assemble(cores, nodes=nodes, surroundings=around)


regular = st.builds(
    build,
    sockets=st.integers(1, 3),
    dies=st.integers(1, 2),
    nodes=st.integers(1, 2),
    llcs=st.integers(1, 3),
    cores=st.integers(1, 6),
    threads=st.sampled_from([1, 2, 4]),
    cluster_cores=st.sampled_from([0, 2, 4]),
    memory_only_nodes=st.integers(0, 2),
)

_maybe = st.none() | st.integers(0, 3)


@st.composite
def nonsense(draw: st.DrawFn) -> Machine:
    """What no kernel says: any fact may be missing or contradict any other."""
    ids = sorted(draw(st.sets(st.integers(0, 5000), min_size=1, max_size=20)))
    cpus = tuple(
        Cpu(
            id=number,
            online=draw(st.booleans()),
            socket=draw(_maybe),
            die=draw(_maybe),
            cluster=draw(_maybe),
            core=draw(_maybe),
            llc=draw(_maybe),
            numa_node=draw(_maybe),
            siblings=CpuSet([number]),
            core_type=draw(st.sampled_from(list(CoreType))),
            isolated=draw(st.booleans()),
        )
        for number in ids
    )
    llcs = tuple(
        Cache(draw(st.integers(1, 4)), "Unified", draw(st.none() | st.just(MIB)), CpuSet())
        for _ in range(draw(st.integers(0, 4)))
    )
    nodes = tuple(
        NumaNode(index, CpuSet(), draw(st.sampled_from([0, GIB])), 0, draw(st.sampled_from([{}, {0: 10}])))
        for index in range(draw(st.integers(0, 3)))
    )
    doubts = (Doubt("sys/devices/system/cpu/online", "missing & <odd>"),)
    return Machine(cpus=cpus, numa_nodes=nodes, caches=llcs, llcs=llcs, warnings=doubts)


any_machine = st.one_of(regular, irregular(), nonsense())
