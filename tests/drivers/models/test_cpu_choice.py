"""The choice of CPUs: valid on any machine, the best possible by its stated order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.drivers.models.cpu_choice import choose
from drakit.drivers.models.cpu_policy import CorePlacement, CpuPolicy, Distribute, SameL3
from drakit.drivers.models.cpu_topology import CpuTopology
from drakit.kit.driver import RejectedError
from drakit.machine.model import Machine
from drakit.testing.synthetic import CoreSpec, Numbering, Surroundings, assemble, build
from tests.drivers.cpu.machines import CROSSED, NESTED, large_machines, machines, subset
from tests.machine.shapes import power_server

PLAIN = CpuPolicy()
SPREAD = CpuPolicy(placement=CorePlacement.SPREAD)
WHOLE = CpuPolicy(whole_cores=True)
ONE_CACHE = CpuPolicy(same_l3=SameL3.REQUIRED)
EVEN = CpuPolicy(distribute=Distribute.NUMA)
EVEN_WHOLE = CpuPolicy(distribute=Distribute.NUMA, whole_cores=True)
POLICIES = [PLAIN, SPREAD, WHOLE, ONE_CACHE, EVEN, EVEN_WHOLE]


# -- the order of preference, once more, straight from the module's words ---------------------------


class Judge:
    """Counts what the order of preference speaks of."""

    def __init__(self, machine: Machine, free: CpuSet) -> None:
        self.free = free
        nodes = [cpus for cpus in machine.node_cpus.values() if cpus]
        self.parts = [nodes, list(machine.sockets), list(machine.llc_cpus)]
        self.cores = machine.cores

    def counts(self, chosen: CpuSet) -> list[int]:
        return [sum(1 for part in level if part & chosen) for level in self.parts]

    def left(self, chosen: CpuSet) -> list[int]:
        return [
            sum(len(part & self.free - chosen) for part in level if part & chosen) for level in self.parts
        ]

    def touched(self, chosen: CpuSet) -> list[CpuSet]:
        return [core for core in self.cores if core & chosen]

    def packed(self, chosen: CpuSet) -> list[int]:
        in_part = [core for core in self.touched(chosen) if not core <= chosen]
        broken = [core for core in in_part if core <= self.free]
        left_on_cores = sum(len(core & self.free - chosen) for core in self.touched(chosen))
        return [*self.counts(chosen), len(in_part), len(broken), *self.left(chosen), left_on_cores]

    def spread(self, chosen: CpuSet) -> list[int]:
        cores = self.touched(chosen)
        shared = sum(len(core - self.free) for core in cores)
        return [*self.counts(chosen), -len(cores), shared, *self.left(chosen)]

    def one_cache(self, chosen: CpuSet) -> list[int]:
        nodes, sockets, caches, in_part, broken, *left, on_cores = self.packed(chosen)
        return [caches, nodes, sockets, in_part, broken, left[2], left[0], left[1], on_cores]


def _subsets(cpus: CpuSet, size: int) -> Iterable[CpuSet]:
    return (CpuSet(numbers) for numbers in itertools.combinations(cpus, size))


@given(st.data(), machines(), st.integers(1, 12))
def test_never_worse_than_trying_everything(data: st.DataObject, machine: Machine, count: int):
    free = data.draw(subset(machine.online))
    assume(count <= len(free))
    judge = Judge(machine, free)
    topology = CpuTopology(machine)
    packed = choose(topology, machine.online, free, count)
    assert judge.packed(packed) == min(map(judge.packed, _subsets(free, count)))
    spread = choose(topology, machine.online, free, count, SPREAD)
    assert judge.spread(spread) == min(map(judge.spread, _subsets(free, count)))


@given(st.data(), machines(), st.integers(1, 12))
def test_one_cache_is_the_best_one(data: st.DataObject, machine: Machine, count: int):
    free = data.draw(subset(machine.online))
    assume(count <= len(free))
    judge = Judge(machine, free)
    able = [judge.one_cache(c) for c in _subsets(free, count) if judge.counts(c)[2] == 1]
    try:
        chosen = choose(CpuTopology(machine), machine.online, free, count, ONE_CACHE)
    except RejectedError as no:
        assert not able
        assert "sameL3" in str(no)
    else:
        assert judge.one_cache(chosen) == min(able)


@given(st.data(), machines(), st.integers(1, 12))
def test_whole_cores_are_the_best_ones(data: st.DataObject, machine: Machine, count: int):
    free = data.draw(subset(machine.online))
    assume(count <= len(free))
    judge = Judge(machine, free)
    whole = [core for core in machine.cores if core and core <= free]
    able = [
        CpuSet.union(cores)
        for number in range(len(whole) + 1)
        for cores in itertools.combinations(whole, number)
        if sum(map(len, cores)) >= count
    ]
    try:
        chosen = choose(CpuTopology(machine), machine.online, free, count, WHOLE)
    except RejectedError as no:
        assert not able
        assert "wholeCores" in str(no)
    else:
        least = min(map(len, able))
        assert len(chosen) == least
        assert judge.packed(chosen) == min(judge.packed(c) for c in able if len(c) == least)


# -- valid on every machine -------------------------------------------------------------------------


def _check(machine: Machine, group: CpuSet, free: CpuSet, count: int, policy: CpuPolicy) -> None:
    topology = CpuTopology(machine)
    try:
        chosen = choose(topology, group, free, count, policy)
    except RejectedError as no:
        assert no.reason in ("capacity", "policy")
        assert policy in (WHOLE, ONE_CACHE, EVEN_WHOLE) or len(group & free & machine.online) < count
        return
    assert chosen <= group & free & machine.online
    assert len(chosen) == count or (policy.whole_cores and len(chosen) > count)
    if policy.whole_cores:
        assert CpuSet.union(core for core in machine.cores if core & chosen) == chosen
    assert choose(CpuTopology(machine), group, free, count, policy) == chosen


@given(
    st.data(),
    st.one_of(machines(cpus=40), machines(cpus=40, nestings=(*NESTED, CROSSED)), large_machines()),
    st.integers(1, 64),
    st.sampled_from(POLICIES),
)
def test_right_count_inside_the_group(data: st.DataObject, machine: Machine, count: int, policy: CpuPolicy):
    group = data.draw(subset(machine.present))
    free = data.draw(subset(machine.present))
    _check(machine, group, free, count, policy)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_thousand_and_twenty_four_cpus(policy: CpuPolicy):
    machine = build(sockets=4, nodes=4, llcs=4, cores=8, threads=2)
    rng = random.Random(7)
    free = CpuSet(cpu for cpu in machine.online if rng.random() < 0.5)
    assert len(machine.online) == 1024
    for count in (1, 7, 40, 400):
        _check(machine, machine.online, free, count, policy)


@given(machines(cpus=40), st.integers(0, 2**32))
def test_assigned_and_released_at_random_nobody_shares(machine: Machine, seed: int):
    rng = random.Random(seed)
    topology, free = CpuTopology(machine), machine.online
    held: list[CpuSet] = []
    for _ in range(30):
        if held and rng.random() < 0.4:
            free |= held.pop(rng.randrange(len(held)))
            continue
        try:
            chosen = choose(topology, machine.online, free, rng.randint(1, 9), rng.choice(POLICIES))
        except RejectedError:
            continue
        assert chosen <= free
        assert all(chosen.isdisjoint(other) for other in held)
        held.append(chosen)
        free -= chosen
    assert CpuSet.union([free, *held]) == machine.online


# -- evenly -----------------------------------------------------------------------------------------------


@given(st.data(), machines(cpus=40), st.integers(1, 40))
def test_distributed_is_as_even_as_the_nodes_allow(data: st.DataObject, machine: Machine, count: int):
    free = data.draw(subset(machine.online))
    assume(count <= len(free))
    chosen = choose(CpuTopology(machine), machine.online, free, count, EVEN)
    nodes = [cpus & free for cpus in machine.node_cpus.values() if cpus & free]
    shares = [len(chosen & node) for node in nodes]
    for share, node in zip(shares, nodes, strict=True):
        assert share >= max(shares) - 1 or share == len(node)


def test_distributed_over_sixty_four_nodes_is_quick():
    """kubelet tries subsets of nodes here and would not come back (kubernetes#140730)."""
    machine = build(sockets=8, nodes=8, cores=8, threads=2)
    chosen = choose(CpuTopology(machine), machine.online, machine.online, 500, EVEN)
    shares = [len(chosen & cpus) for cpus in machine.node_cpus.values()]
    assert len(chosen) == 500
    assert (min(shares), max(shares)) == (7, 8)


def test_distributed_whole_cores():
    machine = build(sockets=2, nodes=2, cores=4, threads=2)
    chosen = choose(CpuTopology(machine), machine.online, machine.online, 7, EVEN_WHOLE)
    assert [len(chosen & cpus) for cpus in machine.node_cpus.values()] == [2, 2, 2, 2]


# -- examples a reader can follow ----------------------------------------------------------------------------


def _chosen(machine: Machine, free: str, count: int, policy: CpuPolicy = PLAIN) -> str:
    return str(choose(CpuTopology(machine), machine.online, CpuSet.parse(free), count, policy))


ADJACENT = Surroundings(numbering=Numbering.ADJACENT)


def test_w01_the_whole_core_is_taken_although_the_first_is_half_reserved():
    """The Go driver, CPU 0 reserved, gives 1-2: halves of two cores."""
    machine = build(cores=4, threads=2, surroundings=ADJACENT)
    assert _chosen(machine, "1-7", 2) == "2-3"


@pytest.mark.parametrize("count", range(1, 16))
def test_w01_equal_core_numbers_of_two_sockets_are_different_cores(count: int):
    """Raw core ids repeat per socket: a node's claim must never get the other socket's cores."""
    machine = build(sockets=2, cores=8, threads=2)
    assert machine.by_id[1].raw_core == machine.by_id[9].raw_core
    node = machine.node_cpus[0]
    chosen = choose(CpuTopology(machine), node, machine.online - CpuSet([0]), count)
    assert len(chosen) == count
    assert chosen <= node - CpuSet([0])
    broken = [core for core in machine.cores if core & chosen and not core <= chosen]
    assert len(broken) == count % 2
    if count <= 14:
        whole = choose(CpuTopology(machine), node, machine.online - CpuSet([0]), count, WHOLE)
        assert whole <= node
        assert len(whole) == count + count % 2


def test_a_single_cpu_takes_the_other_half_of_a_half_taken_core():
    machine = build(nodes=2, cores=4, threads=2, surroundings=ADJACENT)
    assert _chosen(machine, "0-7,9-15", 1) == "9"


def test_a_small_claim_goes_where_it_fits_best():
    machine = build(nodes=2, cores=4, threads=2, surroundings=ADJACENT)
    assert _chosen(machine, "0-7,12-15", 4) == "12-15"


def test_the_cache_that_holds_all_wins_although_its_first_core_is_half_used():
    """kubernetes#137315: the kubelet gives up on such a cache."""
    machine = build(llcs=2, cores=4, threads=2, surroundings=ADJACENT)
    assert _chosen(machine, "1-7,12-15", 6) == "2-7"


def test_fewest_caches_go_before_the_tightest_node():
    machine = build(nodes=2, llcs=2, cores=2, threads=2, surroundings=ADJACENT)
    # Node 0 has 2 + 2 free behind two caches, node 1 has 4 + 4.
    assert _chosen(machine, "0-1,4-5,8-15", 4) == "8-11"


def test_two_nodes_of_one_socket_go_before_the_two_largest():
    machine = build(sockets=2, nodes=2, cores=4, threads=1)
    # Nodes have 2, 4, 2, 3 free: 5 CPUs fit into several pairs, in one socket into 0+1 and 2+3.
    assert _chosen(machine, "0-1,4-7,8-9,12-14", 5) == "8-9,12-14"


def test_spread_takes_one_thread_of_each_core():
    machine = build(cores=4, threads=2, surroundings=ADJACENT)
    assert _chosen(machine, "0-7", 4, SPREAD) == "0,2,4,6"
    assert _chosen(machine, "0-7", 6, SPREAD) == "0-4,6"


def test_spread_prefers_cores_to_itself():
    machine = build(cores=4, threads=2, surroundings=ADJACENT)
    assert _chosen(machine, "1,2-7", 2, SPREAD) == "2,4"


def test_whole_cores_round_up_or_say_no():
    machine = build(cores=4, threads=2, surroundings=ADJACENT)
    assert _chosen(machine, "1-7", 3, WHOLE) == "2-5"
    with pytest.raises(RejectedError, match=r"7 CPUs in whole cores .* only 6 are on entirely free cores"):
        _chosen(machine, "1-7", 7, WHOLE)


def test_whole_cores_of_different_sizes_may_need_a_second_node():
    specs = [CoreSpec(node=0, threads=2), CoreSpec(node=0, threads=2), CoreSpec(node=1, llc=1)]
    machine = assemble(specs, surroundings=ADJACENT)
    assert _chosen(machine, "0-4", 3, WHOLE) == "0-1,4"


def test_eight_threads_per_core():
    machine = power_server()
    chosen = choose(CpuTopology(machine), machine.online, machine.online - CpuSet([0]), 16)
    assert str(chosen) == "8-23"


def test_no_caches_no_nodes_known_still_works():
    machine = build(cores=4, threads=2, surroundings=ADJACENT)
    bare = replace(
        machine,
        cpus=tuple(replace(c, llc=None, numa_node=None, socket=None, core=None) for c in machine.cpus),
    )
    assert str(choose(CpuTopology(bare), bare.online, bare.online, 3)) == "0-2"


@pytest.mark.parametrize("count", [0, -1])
def test_less_than_one_cpu_is_rejected(count: int):
    machine = build()
    with pytest.raises(RejectedError, match="not a valid number"):
        choose(CpuTopology(machine), machine.online, machine.online, count)


def test_too_many_cpus_say_how_many_there_are():
    machine = build(cores=4, threads=1)
    with pytest.raises(RejectedError, match=r"3 CPUs are requested, but only 2 of 4 are free \(1-2\)") as no:
        choose(CpuTopology(machine), machine.online, CpuSet([1, 2]), 3)
    assert no.value.reason == "capacity"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"whole_cores": True, "placement": CorePlacement.SPREAD}, "wholeCores"),
        ({"distribute": Distribute.NUMA, "same_l3": SameL3.REQUIRED}, "contradict"),
    ],
)
def test_fields_that_contradict_each_other(fields: dict[str, object], text: str):
    with pytest.raises(ValueError, match=text):
        CpuPolicy(**fields)  # type: ignore[arg-type]
