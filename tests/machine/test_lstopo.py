"""Parity with hwloc's ``lstopo``: real machines' dumps, and trees of our own.

The dumps are not part of the project. Where they or ``lstopo`` are absent these tests say so and skip;
the generated trees need ``lstopo`` only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings

from drakit.core.cpuset import CpuSet
from drakit.machine import discover
from drakit.machine.caches import ASSUMED_LEVEL
from drakit.machine.model import Machine
from drakit.testing.sysfs_writer import write_tree
from tests.machine import invariants
from tests.machine.places import scratch
from tests.machine.shapes import SHAPES
from tests.machine.strategies import machines

LSTOPO = "lstopo-no-graphics"
DUMPS = Path(os.environ.get("DRAKIT_SYSFS_DUMPS") or Path(__file__).parents[3] / "shared" / "sysfs")
ARCHIVES = sorted(DUMPS.glob("*.tar.bz2")) if DUMPS.is_dir() else []

pytestmark = pytest.mark.skipif(
    shutil.which(LSTOPO) is None, reason=f"{LSTOPO} is absent; on Debian: apt-get install hwloc-nox"
)


@dataclass
class Seen:
    """What lstopo reports, as sets of CPUs."""

    cpus: CpuSet = CpuSet()
    cores: set[CpuSet] = field(default_factory=set)
    packages: set[CpuSet] = field(default_factory=set)
    nodes: dict[int, CpuSet] = field(default_factory=dict)
    last_caches: set[CpuSet] = field(default_factory=set)


def ask_lstopo(root: str) -> Seen:
    command = [LSTOPO, "--disallowed", "--of", "xml", "--if", "fsroot", "-i", root]
    done = subprocess.run(command, capture_output=True, check=True)
    seen = Seen()
    for top in ET.fromstring(done.stdout).findall("object"):
        _walk(top, None, seen)
    return seen


def _walk(thing: ET.Element, last_cache: CpuSet | None, seen: Seen) -> None:
    kind, text = thing.get("type", ""), thing.get("cpuset")
    cpus = _mask(text) if text else CpuSet()
    if kind == "Core":
        seen.cores.add(cpus)
    elif kind == "Package":
        seen.packages.add(cpus)
    elif kind == "NUMANode":
        seen.nodes[int(thing.get("os_index", "0"))] = cpus
    elif kind in ("L1Cache", "L2Cache", "L3Cache", "L4Cache", "L5Cache") and last_cache is None:
        last_cache = cpus  # the outermost is the last level
    elif kind == "PU":
        seen.cpus |= cpus
        if last_cache is not None:
            seen.last_caches.add(last_cache)
    for child in thing.findall("object"):
        _walk(child, last_cache, seen)


def _mask(text: str) -> CpuSet:
    """hwloc's masks: words ``0x…``, empty ones for zero."""
    mask = 0
    for word in text.split(","):
        mask = mask << 32 | (int(word, 16) if word else 0)
    return CpuSet.from_mask(mask)


@pytest.fixture
def dump(request: pytest.FixtureRequest) -> Iterator[str]:
    with scratch() as place:
        # The tar command: tarfile resolves every parent of every member, thousands of times.
        subprocess.run(["tar", "--extract", "--file", request.param], cwd=place, check=True)
        (root,) = os.listdir(place)
        yield os.path.join(place, root)


OVERLAPPING = "fakeheterocpunuma.tar.bz2"
"""Nodes 4 and 5 repeat CPUs of node 3, CPUs 4-7 are in no node (see docs/machine.md)."""


@pytest.mark.skipif(not ARCHIVES, reason=f"no dumps of real machines in {DUMPS}")
@pytest.mark.parametrize("dump", ARCHIVES, indirect=True, ids=lambda path: path.name[:-8])
def test_a_real_machine_is_seen_as_lstopo_sees_it(dump: str, request: pytest.FixtureRequest) -> None:
    machine, seen = discover(dump), ask_lstopo(dump)
    invariants.check(machine)
    assert machine.online == seen.cpus
    assert set(machine.cores) == seen.cores
    assert set(machine.sockets) == seen.packages
    _check_last_caches(machine, seen)
    if request.node.callspec.params["dump"].name == OVERLAPPING:
        _check_documented_difference(machine, seen)
    else:
        assert _nodes_with_cpus(machine) == seen.nodes


def _check_last_caches(machine: Machine, seen: Seen) -> None:
    described = {llc.cpus for llc in machine.llcs if llc.level != ASSUMED_LEVEL}
    assert described == seen.last_caches
    if described != {llc.cpus for llc in machine.llcs}:
        assert any("last-level cache" in warning.reason for warning in machine.warnings)
        assert described | set(machine.sockets) >= {llc.cpus for llc in machine.llcs}


def _nodes_with_cpus(machine: Machine) -> dict[int, CpuSet]:
    return {node: cpus for node, cpus in machine.node_cpus.items() if cpus}


def _check_documented_difference(machine: Machine, seen: Seen) -> None:
    """lstopo drops nodes that overlap and gives the CPU-less node 2 the CPUs nearest to it; we keep
    every node, give a CPU to the lowest node that lists it, and place CPUs that none lists."""
    ours = _nodes_with_cpus(machine)
    assert {node: str(cpus) for node, cpus in seen.nodes.items()} == {
        0: "0-3",
        1: "8-11",
        2: "0-3,8-11",
        3: "20-23",
    }
    assert {node: str(cpus) for node, cpus in ours.items()} == {
        0: "0-7",
        1: "8-11",
        3: "20-23",
        4: "16-19",
        5: "12-15",
    }
    reasons = " ".join(warning.reason for warning in machine.warnings)
    assert "CPUs 20-23 are in a lower node too" in reasons
    assert "CPUs 4-7: is in no NUMA node" in reasons


# -- our own trees --------------------------------------------------------------------------------


def compare_tree(machine: Machine) -> None:
    with scratch() as root:
        write_tree(machine, root)
        seen = ask_lstopo(root)
    assert machine.online == seen.cpus
    assert set(machine.cores) == seen.cores
    assert set(machine.sockets) == seen.packages
    assert {llc.cpus for llc in machine.llcs} == seen.last_caches
    # To a node without CPUs lstopo assigns those nearest to it.
    ours = _nodes_with_cpus(machine)
    assert {node: cpus for node, cpus in seen.nodes.items() if node in ours} == ours


@pytest.mark.parametrize("name", SHAPES)
def test_a_known_shape_is_seen_as_lstopo_sees_it(name: str) -> None:
    compare_tree(SHAPES[name]())


def _nests(machine: Machine) -> bool:
    """hwloc drops what does not nest: caches, dies, clusters and nodes must not cross."""
    groups = [
        *machine.sockets,
        *(cache.cpus for cache in machine.caches),
        *(node.cpus & machine.online for node in machine.numa_nodes),
        *_groups(machine, "die"),
        *_groups(machine, "cluster"),
    ]
    return all(a <= b or b <= a or a.isdisjoint(b) for a in groups for b in groups)


def _groups(machine: Machine, level: str) -> list[CpuSet]:
    found: dict[int, list[int]] = {}
    for cpu in machine.cpus:
        index = getattr(cpu, level)
        if index is not None:
            found.setdefault(index, []).append(cpu.id)
    return [CpuSet(cpus) for cpus in found.values()]


@settings(max_examples=15)
@given(machines().filter(_nests))
def test_a_random_machine_is_seen_as_lstopo_sees_it(machine: Machine) -> None:
    compare_tree(machine)
