from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given

from drakit.core.cpuset import CpuSet
from drakit.draw.folding import fold
from drakit.draw.machine_tree import Box, BoxLevel, machine_boxes
from drakit.machine.model import Cache, Machine
from drakit.testing.synthetic import CoreSpec, assemble, build
from tests.cli.machines import any_machine, hybrid


def boxes_of(machine: Machine) -> list[Box]:
    return [box for top in machine_boxes(machine) for box in top.walk()]


@given(any_machine)
def test_every_cpu_is_in_exactly_one_core(machine: Machine) -> None:
    drawn = [cpu.id for box in boxes_of(machine) for core in box.cores for cpu in core.cpus]
    assert sorted(drawn) == [cpu.id for cpu in machine.cpus]


@given(any_machine)
def test_threads_in_a_cell_share_a_core_and_boxes_hold_either_boxes_or_cores(machine: Machine) -> None:
    for box in boxes_of(machine):
        assert not (box.children and box.cores)
        for core in box.cores:
            assert len({cpu.core for cpu in core.cpus}) == 1
            assert len(core.cpus) == 1 or core.cpus[0].core is not None


@given(any_machine)
def test_memory_of_every_node_is_shown_once(machine: Machine) -> None:
    notes = [note for box in boxes_of(machine) for note in box.notes]
    assert sum("memory" in note.split(",")[0] for note in notes) == len(machine.numa_nodes)


def test_parts_with_the_same_cpus_are_one_box() -> None:
    (box,) = machine_boxes(build(cores=4, threads=2))
    assert box.title == ("Socket 0", "NUMA node 0", "L3 #0", "32 MiB")
    assert len(box.cores) == 4


def test_numa_nodes_larger_than_sockets_are_outside() -> None:
    cores = [CoreSpec(socket=index // 2, node=index // 4) for index in range(8)]
    top = machine_boxes(assemble(cores))
    assert [box.title[0] for box in top] == ["NUMA node 0", "NUMA node 1"]
    assert [child.title[0] for child in top[0].children] == ["Socket 0", "Socket 1"]


def test_parts_that_cross_are_drawn_in_marked_pieces() -> None:
    cores = [CoreSpec(socket=index // 2, node=index % 2) for index in range(4)]
    pieces = [child for box in machine_boxes(assemble(cores)) for child in box.children]
    titles = [piece.title[0] for piece in pieces]
    assert titles == ["NUMA node 0 (part)", "NUMA node 1 (part)"] * 2
    assert [bool(piece.notes) for piece in pieces] == [True, True, False, False]


def test_kinds_stand_apart_and_clusters_within_them() -> None:
    (box,) = machine_boxes(hybrid())
    fast, small = box.children
    assert fast.title == ("P-cores", "up to 5.0 GHz")
    assert len(fast.cores) == 6
    assert small.title == ("E-cores", "up to 3.8 GHz")
    assert [len(cluster.cores) for cluster in small.children] == [4, 4]


def test_caches_of_single_cores_become_a_note() -> None:
    cores = [CoreSpec(llc=index) for index in range(6)]
    (box,) = machine_boxes(assemble(cores))
    assert "each core has its own L3 of 32 MiB" in box.notes
    assert len(box.cores) == 6


def test_assumed_caches_are_marked() -> None:
    machine = build(sockets=2, cores=2)
    bare = tuple(Cache(0, "Unified", None, cache.cpus) for cache in machine.llcs)
    top = machine_boxes(replace(machine, llcs=bare))
    assert [box.title[-1] for box in top] == ["cache #0 assumed", "cache #1 assumed"]
    single = assemble([CoreSpec(llc=index) for index in range(3)])
    bare = tuple(Cache(0, "Unified", None, cache.cpus) for cache in single.llcs)
    (box,) = machine_boxes(replace(single, llcs=bare))
    assert "each core has its own last-level cache, assumed" in box.notes


def test_many_one_core_sockets_become_a_note_and_few_are_drawn() -> None:
    many = machine_boxes(assemble([CoreSpec(socket=index) for index in range(16)]))
    assert [box.title[:2] for box in many] == [("NUMA node 0", "16 sockets of one core")]
    assert "each core has its own L3 of 32 MiB" in many[0].notes
    (few,) = machine_boxes(assemble([CoreSpec(socket=index) for index in range(2)]))
    assert [child.title[0] for child in few.children] == ["Socket 0", "Socket 1"]


def test_an_offline_cpu_stays_with_its_numa_node() -> None:
    machine = build(sockets=2, llcs=2, cores=2, threads=1, offline=CpuSet([1]))
    first, second = machine_boxes(machine)
    assert first.cpus() == CpuSet.parse("0-3")
    assert second.cpus() == CpuSet.parse("4-7")
    assert [(child.level, child.title) for child in first.children][-1] == (BoxLevel.UNPLACED, ("offline",))


def test_an_offline_cpu_of_a_node_with_one_cache_is_drawn_in_it() -> None:
    (box,) = machine_boxes(build(cores=4, threads=1, offline=CpuSet([2])))
    assert box.cpus() == CpuSet.parse("0-3")
    assert not box.children


def test_nodes_without_cpus_have_a_box_of_their_own() -> None:
    *_rest, bare = machine_boxes(build(memory_only_nodes=1))
    assert bare.title == ("NUMA node 1", "memory only")
    assert bare.notes[0].startswith("16 GiB memory")


@given(any_machine)
def test_folded_boxes_have_no_cores_and_still_name_every_cpu(machine: Machine) -> None:
    folded = [fold(box, lambda _cpus: ()) for box in machine_boxes(machine)]
    notes = [note for top in folded for box in top.walk() for note in box.notes]
    assert not any(box.cores for top in folded for box in top.walk())
    lists = [re.search(r"CPUs? (\S+)$", note) for note in notes]
    named = [CpuSet.parse(found[1]) for found in lists if found]
    assert CpuSet.union(named) == CpuSet(cpu.id for cpu in machine.cpus)
    assert sum(map(len, named)) == len(machine.cpus)


def test_alike_caches_fold_into_one_line() -> None:
    (box,) = (fold(top, lambda _cpus: ()) for top in machine_boxes(build(llcs=64, cores=8)))
    assert box.notes[-1] == ("L3 #0 32 MiB … L3 #63: 64 alike, each 8 cores × 2 threads, CPUs 0-1023")
