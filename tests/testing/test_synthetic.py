"""The builder of machines."""

from __future__ import annotations

import pytest

from drakit.core.cpuset import CpuSet
from drakit.machine.model import CoreType
from drakit.testing.synthetic import GIB, CoreSpec, NumaSpec, Numbering, Surroundings, assemble, build
from tests.machine import invariants
from tests.machine.shapes import (
    arm_big_little,
    chiplet_server,
    hybrid_laptop,
    power_server,
    two_socket_server,
)


def names(groups: tuple[CpuSet, ...]) -> list[str]:
    return [str(group) for group in groups]


@pytest.mark.parametrize(
    ("numbering", "cores", "sockets"),
    [
        (Numbering.ADJACENT, ["0-1", "2-3", "4-5", "6-7"], ["0-3", "4-7"]),
        (Numbering.SPREAD, ["0,4", "1,5", "2,6", "3,7"], ["0-1,4-5", "2-3,6-7"]),
        (Numbering.INTERLEAVED, ["0,4", "1,5", "2,6", "3,7"], ["0,2,4,6", "1,3,5,7"]),
    ],
)
def test_numberings(numbering: Numbering, cores: list[str], sockets: list[str]) -> None:
    machine = build(sockets=2, cores=2, surroundings=Surroundings(numbering=numbering))
    assert names(machine.cores) == cores
    assert names(machine.sockets) == sockets


def test_holes_make_numbers_sparse() -> None:
    machine = build(cores=2, threads=2, surroundings=Surroundings(holes=CpuSet([0, 2, 3])))
    assert str(machine.online) == "1,4-6"
    assert str(machine.possible) == "0-6"
    invariants.check(machine)


def test_offline_cpus_have_a_node_and_nothing_else() -> None:
    machine = build(cores=2, threads=2, offline=CpuSet([3]))
    cpu = machine.by_id[3]
    assert (cpu.online, cpu.core, cpu.socket, cpu.llc, cpu.numa_node) == (False, None, None, None, 0)
    assert str(machine.by_id[1].siblings) == "1"
    assert machine.smt_active


def test_asymmetric_machines() -> None:
    machine = assemble(
        [CoreSpec(threads=8), CoreSpec(socket=5, node=3, threads=1), CoreSpec(socket=5, node=3)],
        nodes={7: NumaSpec(memory_bytes=GIB)},
        surroundings=Surroundings(numbering=Numbering.ADJACENT),
    )
    invariants.check(machine)
    assert names(machine.sockets) == ["0-7", "8-9"]
    assert [node.id for node in machine.numa_nodes] == [0, 3, 7]
    assert machine.by_id[8].raw_socket == 5
    assert machine.numa_nodes[2].cpus == CpuSet()
    assert machine.numa_nodes[0].distances == {0: 10, 3: 21, 7: 17}


def test_one_description_may_stand_for_many_cores() -> None:
    machine = assemble([CoreSpec(threads=2)] * 3)
    assert len(machine.cores) == 3
    assert [cpu.raw_core for cpu in machine.cpus] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("count", [0, 4097])
def test_impossible_sizes_are_rejected(count: int) -> None:
    with pytest.raises(ValueError, match=str(count)):
        assemble([CoreSpec()] * count)


@pytest.mark.parametrize("offline", ["0-3", "9"])
def test_impossible_offline_cpus_are_rejected(offline: str) -> None:
    with pytest.raises(ValueError, match="offline"):
        build(cores=2, threads=2, offline=CpuSet.parse(offline))


def test_the_largest_machine() -> None:
    machine = build(sockets=8, nodes=2, llcs=4, cores=32, threads=2)
    assert len(machine.cpus) == 4096
    assert len(machine.llcs) == 64
    assert len(machine.cores) == 2048


def test_known_shapes_are_what_their_names_say() -> None:
    hybrid = hybrid_laptop()
    assert {cpu.core_type for cpu in hybrid.cpus} == {CoreType.PERFORMANCE, CoreType.EFFICIENCY}
    assert [str(llc.cpus) for llc in hybrid.llcs] == ["0-19", "20-21"]
    assert len(chiplet_server().llcs) == 16
    assert {len(core) for core in power_server().cores} == {8}
    assert {cpu.die for cpu in arm_big_little().cpus} == {None}
    server = two_socket_server()
    assert len(server.pci_roots) == 4
    assert server.numa_nodes[0].usable_bytes == 58 * GIB
    assert str(server.nodes_of(CpuSet([0, 20]))) == "0,2"
