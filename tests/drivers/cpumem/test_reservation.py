"""What the system keeps for itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.drivers.cpumem.kinds import MEMORY, hugepages
from drakit.drivers.cpumem.reservation import Reservation
from drakit.testing.synthetic import NumaSpec, assemble, build, grid
from tests.drivers.cpumem.amounts import GI, MI, SERVER, pool

SMALL = hugepages(2 * MI)


def test_the_kubelet_s_syntax():
    found = Reservation.parse("0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=512Mi")
    assert found.by_node == {0: {MEMORY: GI, SMALL: 64 * MI}, 1: {MEMORY: 512 * MI}}
    assert found.on(SERVER)[2] == {}


def test_nothing_is_reserved_by_an_empty_text():
    assert Reservation.parse("") == Reservation()


@pytest.mark.parametrize("text", ["2Gi", "memory=2Gi", " memory = 2Gi "])
def test_a_total_is_shared_evenly_by_the_nodes_with_cpus(text: str):
    reserved = Reservation.parse(text).on(SERVER)
    assert [reserved[node].get(MEMORY, 0) for node in range(5)] == [512 * MI] * 4 + [0]


def test_a_total_of_hugepages_is_shared_in_whole_pages():
    reserved = Reservation.parse("hugepages-1Gi=3Gi").on(SERVER)
    assert [reserved[node].get(hugepages(GI), 0) for node in range(4)] == [GI, GI, GI, 0]


def test_a_small_node_passes_its_share_on():
    nodes = {0: NumaSpec(memory_bytes=256 * MI), 1: NumaSpec(memory_bytes=8 * GI)}
    machine = assemble(grid(sockets=2, cores=1), nodes=nodes)
    reserved = Reservation.parse("2Gi").on(machine)
    assert reserved == {0: {MEMORY: 256 * MI}, 1: {MEMORY: 1792 * MI}}


@given(st.integers(0, 40 * GI), st.integers(1, 5))
def test_totals_are_kept_to_the_step(total: int, nodes: int):
    machine = build(sockets=nodes, cores=1, hugepages=[pool("2Mi", 7)])
    reserved = Reservation(total={MEMORY: total}).on(machine)
    shares = [amounts.get(MEMORY, 0) for amounts in reserved.values()]
    assert total <= sum(shares) < total + MEMORY.step
    if sum(shares) <= sum(node.usable_bytes for node in machine.numa_nodes) - nodes * MEMORY.step:
        assert max(shares) - min(shares) <= MEMORY.step


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0:memory", "not KIND=AMOUNT"),
        ("0:memory=x", "memory: unknown suffix"),
        ("0:memory=-1", "not a valid amount of memory"),
        ("0:cpu=1", "neither memory nor hugepages-<size>"),
        ("0:hugepages-3Mi=0", "power of two"),
        ("0:memory=1,memory=1", "duplicate"),
        ("0:memory=1;0:memory=1", "duplicate"),
        ("x:memory=1", "does not name a NUMA node"),
        ("1Gi;2Gi", "does not name a NUMA node"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        Reservation.parse(text)


def test_reservations_of_more_than_the_machine_has_cause_warnings():
    warnings = list(Reservation.parse("9:memory=1Gi;0:memory=99Gi,hugepages-2Mi=2Gi").warnings(SERVER))
    assert warnings[0].startswith("reservedMemory names NUMA node 9")
    assert "takes 99Gi of memory on NUMA node 0, which has 13Gi" in warnings[1]
    assert "hugepages2Mi" in warnings[2]
    assert list(Reservation.parse("100Mi").warnings(SERVER)) == []
