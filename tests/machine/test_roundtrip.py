"""A built machine, written as files and discovered again, is the same machine."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drakit.machine import discover
from drakit.machine.model import Machine
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import KernelEra, write_tree
from tests.machine import invariants
from tests.machine.places import scratch
from tests.machine.shapes import SHAPES
from tests.machine.strategies import machines


def rediscover(machine: Machine, era: KernelEra = KernelEra.CURRENT) -> Machine:
    with scratch() as root:
        write_tree(machine, root, era)
        return discover(root)


def assert_same(found: Machine, expected: Machine) -> None:
    for field in dataclasses.fields(Machine):
        assert getattr(found, field.name) == getattr(expected, field.name), field.name


@given(machines())
def test_a_written_machine_is_discovered_as_it_was_built(machine: Machine) -> None:
    found = rediscover(machine)
    assert_same(found, machine)
    assert found.warnings == ()


@given(machines())
def test_every_built_machine_is_consistent(machine: Machine) -> None:
    invariants.check(machine)


@settings(max_examples=20)
@given(machines())
def test_old_kernels_tell_the_same_cores_sockets_caches_and_nodes(machine: Machine) -> None:
    found = rediscover(machine, KernelEra.OLD)
    invariants.check(found)
    assert found.online == machine.online
    assert found.cores == machine.cores
    assert found.sockets == machine.sockets
    assert found.llc_cpus == machine.llc_cpus
    assert found.node_cpus == machine.node_cpus
    assert {cpu.die for cpu in found.cpus} == {None}
    assert any(warning.file.endswith("/online") for warning in found.warnings)


@pytest.mark.parametrize("name", SHAPES)
def test_known_shapes_survive(name: str) -> None:
    machine = SHAPES[name]()
    invariants.check(machine)
    found = rediscover(machine)
    assert_same(found, machine)


@settings(max_examples=10)
@given(
    sockets=st.integers(1, 2),
    dies=st.integers(1, 2),
    nodes=st.integers(1, 2),
    llcs=st.integers(1, 2),
    cores=st.integers(1, 2),
    threads=st.sampled_from([1, 2, 4, 8]),
)
def test_regular_machines_have_the_counts_asked_for(
    sockets: int, dies: int, nodes: int, llcs: int, cores: int, threads: int
) -> None:
    machine = build(sockets=sockets, dies=dies, nodes=nodes, llcs=llcs, cores=cores, threads=threads)
    invariants.check(machine)
    assert len(machine.sockets) == sockets
    assert len({cpu.die for cpu in machine.cpus}) == sockets * dies
    assert len(machine.numa_nodes) == sockets * dies * nodes
    assert len(machine.llcs) == sockets * dies * nodes * llcs
    assert len(machine.cores) == sockets * dies * nodes * llcs * cores
    assert {len(core) for core in machine.cores} == {threads}
    # Raw core ids repeat per socket, as firmware's do.
    assert {cpu.raw_core for cpu in machine.cpus} == set(range(dies * nodes * llcs * cores))
    found = rediscover(machine)
    assert_same(found, machine)
