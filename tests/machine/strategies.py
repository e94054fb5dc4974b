"""Random machines: every shape the builder can make, small enough to write as files."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.machine.model import CgroupMode, Cgroups, CoreType, HugepagePool, Machine
from drakit.testing.synthetic import (
    CGROUP2,
    GIB,
    KIB,
    MIB,
    CoreSpec,
    NumaSpec,
    Numbering,
    Surroundings,
    assemble,
)

CGROUPS = [
    CGROUP2,
    Cgroups(CgroupMode.NONE),
    Cgroups(
        CgroupMode.V2,
        v2_mount="/sys/fs/cgroup",
        controllers=frozenset({"cpuset", "memory"}),
        memory_hugetlb_accounting=True,
    ),
    Cgroups(
        CgroupMode.V1,
        v1_mounts={"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct"},
    ),
    Cgroups(
        CgroupMode.HYBRID, v2_mount="/sys/fs/cgroup/unified", v1_mounts={"cpuset": "/sys/fs/cgroup/cpuset"}
    ),
]


@st.composite
def cores(draw: st.DrawFn) -> list[CoreSpec]:
    """Irregular cores: nodes across dies, caches across nodes, differing thread counts."""
    kinds = draw(st.sampled_from(["standard", "hybrid", "capacity"]))
    with_dies, with_clusters = draw(st.booleans()), draw(st.booleans())
    specs = []
    for place in range(draw(st.integers(1, 8))):
        kind, capacity = CoreType.STANDARD, None
        if kinds != "standard":
            # The first core is strong: a machine of weak cores only has one kind.
            strong = place == 0 or draw(st.booleans())
            kind = CoreType.PERFORMANCE if strong else CoreType.EFFICIENCY
            if kinds == "capacity":
                capacity = 1024 if strong else 400
        level = draw(st.sampled_from([3, 3, 3, 2, 4]))
        specs.append(
            CoreSpec(
                socket=draw(st.integers(0, 2)),
                die=draw(st.integers(0, 1)) if with_dies else None,
                node=draw(st.sampled_from([0, 1, 8, 300])),
                llc=draw(st.integers(0, 2)) * 10 + level,
                llc_level=level,
                threads=draw(st.sampled_from([1, 1, 2, 2, 4, 8])),
                kind=kind,
                capacity=capacity,
                max_frequency_khz=draw(st.sampled_from([None, 2_000_000, 3_500_000])),
            )
        )
    if kinds != "standard" and all(spec.kind is specs[0].kind for spec in specs):
        specs = [_plain(spec) for spec in specs]
    return [_clustered(draw, spec) for spec in specs] if with_clusters else specs


def _plain(spec: CoreSpec) -> CoreSpec:
    return replace(spec, kind=CoreType.STANDARD)


def _clustered(draw: st.DrawFn, spec: CoreSpec) -> CoreSpec:
    """A cluster lies within a last-level cache and a die."""
    die = spec.die or 0
    return replace(spec, cluster=spec.llc * 100 + die * 10 + draw(st.integers(0, 1)))


@st.composite
def node_specs(draw: st.DrawFn) -> dict[int, NumaSpec]:
    pools = st.builds(
        HugepagePool,
        size_bytes=st.sampled_from([64 * KIB, 2 * MIB, GIB]),
        total=st.integers(5, 9),
        free=st.integers(0, 5),
        surplus=st.integers(0, 2),
    )
    spec = st.builds(
        NumaSpec,
        memory_bytes=st.integers(0, 1 << 30).map(lambda kib: kib * KIB),
        hugepages=st.lists(pools, max_size=3, unique_by=lambda pool: pool.size_bytes).map(tuple),
    )
    return draw(st.dictionaries(st.sampled_from([0, 1, 2, 8, 511]), spec, max_size=3))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    specs = draw(cores())
    total = sum(spec.threads for spec in specs)
    holes = CpuSet(draw(st.sets(st.integers(0, 70), max_size=4)))
    numbers = [cpu for cpu in range(total + 100) if cpu not in holes][:total]
    subset = st.sets(st.sampled_from(numbers), max_size=max(0, total - 1)).map(CpuSet)
    offline = draw(st.one_of(st.just(CpuSet()), subset))
    around = Surroundings(
        numbering=draw(st.sampled_from(Numbering)),
        holes=holes,
        offline=offline,
        isolated=draw(subset),
        nohz_full=draw(subset),
        possible_beyond=draw(st.sampled_from([0, 0, 64])),
        pci_roots_per_node=draw(st.integers(0, 2)),
        distances={(0, 8): 31},
        architecture=draw(st.sampled_from(["x86_64", "aarch64", "ppc64le", "s390x"])),
        cgroups=draw(st.sampled_from(CGROUPS)),
    )
    nodes = draw(node_specs())
    machine = assemble(specs, nodes=nodes, surroundings=around)
    kinds = {cpu.core_type for cpu in machine.cpus if cpu.online}
    if len(kinds) == 1 and any(spec.capacity for spec in specs):
        # Capacities are relative: with one kind left online nobody can tell which it is.
        return assemble(specs, nodes=nodes, surroundings=replace(around, offline=CpuSet()))
    return machine
