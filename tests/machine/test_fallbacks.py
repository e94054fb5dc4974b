"""Every documented fallback, one by one: what is derived, and which doubt is told."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from drakit.core.cpuset import CpuSet
from drakit.machine import discover
from drakit.machine.caches import ASSUMED_LEVEL
from drakit.machine.model import CgroupMode, CoreType, HugepagePool, Machine
from drakit.testing.synthetic import GIB, MIB, Surroundings, build
from drakit.testing.sysfs_writer import write_tree
from tests.machine import invariants
from tests.machine.places import scratch
from tests.machine.shapes import arm_big_little, hybrid_laptop

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


@dataclass
class Tree:
    """A tree to damage by hand."""

    root: str

    def put(self, path: str, text: str) -> None:
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as out:
            out.write(text)

    def drop(self, path: str) -> None:
        full = os.path.join(self.root, path)
        if os.path.isdir(full) and not os.path.islink(full):
            shutil.rmtree(full)
        else:
            os.unlink(full)

    def topology(self, cpu: int, name: str, cpus: str) -> None:
        self.put(f"{CPU}/cpu{cpu}/topology/{name}", CpuSet.parse(cpus).to_mask_text())
        self.put(f"{CPU}/cpu{cpu}/topology/{name}_list", cpus)

    def look(self) -> Machine:
        machine = discover(self.root)
        invariants.check(machine)
        return machine


@pytest.fixture
def empty() -> Iterator[Tree]:
    with scratch() as root:
        yield Tree(root)


@pytest.fixture
def server(empty: Tree) -> Tree:
    """2 sockets of 2 SMT cores, a node each: 0,4 1,5 | 2,6 3,7."""
    write_tree(build(sockets=2, cores=2, threads=2), empty.root)
    return empty


def reasons(machine: Machine, file: str) -> str:
    """Reasons of the warnings about *file*."""
    return " / ".join(w.reason for w in machine.warnings if w.file == file)


def names(groups: tuple[CpuSet, ...]) -> list[str]:
    return [str(group) for group in groups]


# -- nothing at all -------------------------------------------------------------------------------


def test_an_empty_root_has_no_cpu_and_a_warning(empty: Tree) -> None:
    machine = empty.look()
    assert machine.cpus == ()
    assert "has no CPU" in reasons(machine, f"/{CPU}")


def test_a_root_that_does_not_exist_is_an_empty_one() -> None:
    machine = discover("/nonexistent/place")
    assert machine.cpus == ()
    assert machine.warnings


def test_this_very_machine_is_consistent() -> None:
    machine = discover()
    invariants.check(machine)
    assert len(machine.online) >= 1
    assert machine.architecture == os.uname().machine
    assert machine.kernel_release == os.uname().release
    assert sum(node.memory_bytes for node in machine.numa_nodes) > 0


# -- which CPUs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["stat", "cpuinfo"])
def test_without_sysfs_cpus_come_from_proc(empty: Tree, source: str) -> None:
    text = {
        "stat": "cpu  1 2 3\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n",
        "cpuinfo": "processor\t: 0\nphysical id\t: 0\ncore id\t: 0\n\n"
        "processor\t: 1\nphysical id\t: 0\ncore id\t: 0\n\n",
    }
    empty.put(f"proc/{source}", text[source])
    machine = empty.look()
    assert str(machine.online) == "0-1"
    assert "2 taken from /proc" in reasons(machine, f"/{CPU}")
    # The ids of cpuinfo, where there are some, tell cores apart.
    assert names(machine.cores) == (["0-1"] if source == "cpuinfo" else ["0", "1"])
    assert len(machine.sockets) == 1


def test_without_an_online_list_every_cpu_is_read(server: Tree) -> None:
    server.drop(f"{CPU}/online")
    server.put(f"{CPU}/cpu5/online", "0\n")
    server.drop(f"{CPU}/cpu5/topology")
    machine = server.look()
    assert str(machine.online) == "0-4,6-7"
    assert "for each CPU" in reasons(machine, f"/{CPU}/online")


def test_without_an_online_file_a_cpu_that_shows_no_topology_is_offline(server: Tree) -> None:
    server.drop(f"{CPU}/online")
    for cpu in range(8):
        server.drop(f"{CPU}/cpu{cpu}/online")
    server.drop(f"{CPU}/cpu3/topology")
    machine = server.look()
    assert str(machine.online) == "0-2,4-7"
    assert "taken as offline" in reasons(machine, f"/{CPU}/cpu3/online")


def test_an_online_list_that_names_nobody_is_ignored(server: Tree) -> None:
    server.put(f"{CPU}/online", "\n")
    assert str(server.look().online) == "0-7"


def test_cpus_that_all_say_offline_are_online(server: Tree) -> None:
    server.drop(f"{CPU}/online")
    for cpu in range(8):
        server.put(f"{CPU}/cpu{cpu}/online", "0\n")
    assert str(server.look().online) == "0-7"


def test_a_cpu_outside_the_online_list_that_looks_online_is_doubtful(server: Tree) -> None:
    server.put(f"{CPU}/online", "0-5,7\n")
    machine = server.look()
    assert str(machine.online) == "0-5,7"
    assert not machine.by_id[6].online
    assert "taken as offline" in reasons(machine, f"/{CPU}/cpu6/online")


def test_an_online_cpu_without_a_directory_is_kept(server: Tree) -> None:
    server.drop(f"{CPU}/cpu6")
    machine = server.look()
    cpu = machine.by_id[6]
    assert cpu.online
    assert str(cpu.siblings) == "2,6"  # CPU 2 names it
    assert cpu.socket == machine.by_id[2].socket
    assert "no directory" in reasons(machine, f"/{CPU}/cpu6")


def test_absurd_cpu_numbers_are_rejected(server: Tree) -> None:
    server.put(f"{CPU}/present", "0-7,100000\n")
    server.put(f"{CPU}/cpu2147483648/online", "1\n")
    machine = server.look()
    assert str(machine.present) == "0-7"
    assert "100000" in reasons(machine, f"/{CPU}/present")
    assert reasons(machine, f"/{CPU}/cpu2147483648")


def test_a_hotpluggable_cpu_with_a_directory_is_known_but_not_present(server: Tree) -> None:
    """ppc64 shows directories of all possible CPUs."""
    server.put(f"{CPU}/possible", "0-15\n")
    server.put(f"{CPU}/cpu9/online", "0\n")
    machine = server.look()
    assert 9 in machine.by_id
    assert 9 not in machine.present
    assert not machine.by_id[9].online
    assert machine.warnings == ()


@pytest.mark.parametrize(
    ("cmdline", "expected"),
    [
        ("quiet isolcpus=2-3 nohz_full=2-3\n", "2-3"),
        ("isolcpus=nohz,domain,managed_irq,4,6-7\n", "4,6-7"),
        ("isolcpus=3-1\n", ""),
        ("quiet\n", ""),
    ],
)
def test_without_an_isolated_list_the_command_line_tells(server: Tree, cmdline: str, expected: str) -> None:
    server.drop(f"{CPU}/isolated")
    server.put("proc/cmdline", cmdline)
    assert str(server.look().isolated) == expected


# -- cores, sockets, dies ---------------------------------------------------------------------------


def test_a_cpu_without_topology_is_placed_by_its_siblings(server: Tree) -> None:
    server.drop(f"{CPU}/cpu5/topology")
    machine = server.look()
    assert names(machine.cores) == ["0,4", "1,5", "2,6", "3,7"]
    assert "does not identify its core" in reasons(machine, f"/{CPU}/cpu5/topology")


def test_without_any_topology_a_cpu_is_a_core_and_the_machine_a_socket(server: Tree) -> None:
    for cpu in range(8):
        server.drop(f"{CPU}/cpu{cpu}/topology")
    machine = server.look()
    assert names(machine.cores) == [str(cpu) for cpu in range(8)]
    assert names(machine.sockets) == ["0-7"]
    # One warning about all CPUs, not one each.
    assert "CPUs 0-7" in reasons(machine, f"/{CPU}/cpu*/topology")


def test_without_any_topology_cpuinfo_tells(server: Tree) -> None:
    paragraphs = []
    for cpu in range(8):
        server.drop(f"{CPU}/cpu{cpu}/topology")
        paragraphs.append(f"processor\t: {cpu}\nphysical id\t: {cpu % 4 // 2}\ncore id\t\t: {cpu % 2}\n")
    server.put("proc/cpuinfo", "\n".join(paragraphs))
    machine = server.look()
    assert names(machine.cores) == ["0,4", "1,5", "2,6", "3,7"]
    assert names(machine.sockets) == ["0-1,4-5", "2-3,6-7"]


def test_one_sided_claims_are_settled_by_ids(server: Tree) -> None:
    server.topology(4, "core_cpus", "4")  # CPU 0 says 0,4; both say core 0 of socket 0
    server.topology(5, "core_cpus", "5")
    server.put(f"{CPU}/cpu5/topology/core_id", "77")  # while CPU 5 denies CPU 1 in ids as well
    machine = server.look()
    assert names(machine.cores) == ["0,4", "1", "2,6", "3,7", "5"]
    assert "contradicts" in "".join(warning.reason for warning in machine.warnings)


def test_one_wild_claim_does_not_swallow_the_machine(server: Tree) -> None:
    server.topology(5, "core_cpus", "0-7")
    machine = server.look()
    assert names(machine.cores) == ["0,4", "1,5", "2,6", "3,7"]
    assert "contradicts" in reasons(machine, f"/{CPU}/cpu5/topology/core_cpus_list")


def test_a_claim_without_its_own_cpu_is_ignored(server: Tree) -> None:
    server.topology(0, "package_cpus", "2-3,6-7")
    machine = server.look()
    assert names(machine.sockets) == ["0-1,4-5", "2-3,6-7"]
    assert "does not contain the CPU itself" in reasons(machine, f"/{CPU}/cpu0/topology/package_cpus_list")


def test_sockets_with_one_id_stay_apart_and_are_doubtful(server: Tree) -> None:
    server.put("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n")
    for cpu in range(8):
        server.put(f"{CPU}/cpu{cpu}/topology/physical_package_id", "0\n")
    machine = server.look()
    assert names(machine.sockets) == ["0-1,4-5", "2-3,6-7"]
    assert "kept apart" in reasons(machine, f"/{CPU}/cpu2/topology/physical_package_id")


def test_negative_ids_are_unknown(server: Tree) -> None:
    for cpu in range(8):
        for name in ("physical_package_id", "die_id", "core_id"):
            server.put(f"{CPU}/cpu{cpu}/topology/{name}", "-1\n")
        server.put(f"{CPU}/cpu{cpu}/topology/cluster_id", "65535\n")
    machine = server.look()
    assert len(machine.sockets) == 2
    first = machine.cpus[0]
    assert (first.raw_socket, first.raw_die, first.raw_core, first.raw_cluster) == (None,) * 4
    assert first.die is None
    assert first.cluster is None


def test_the_two_cores_of_an_amd_compute_unit_are_two(empty: Tree) -> None:
    write_tree(build(cores=2, threads=2), empty.root)
    empty.put("proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 21\n")
    for cpu in range(4):
        empty.put(f"{CPU}/cpu{cpu}/topology/core_id", f"{cpu}\n")
    machine = empty.look()
    assert names(machine.cores) == ["0", "1", "2", "3"]
    assert not machine.smt_active


# -- caches -----------------------------------------------------------------------------------------


def test_without_caches_a_socket_shares_the_last_level(server: Tree) -> None:
    for cpu in range(8):
        server.drop(f"{CPU}/cpu{cpu}/cache")
    machine = server.look()
    assert [str(llc.cpus) for llc in machine.llcs] == ["0-1,4-5", "2-3,6-7"]
    assert {llc.level for llc in machine.llcs} == {ASSUMED_LEVEL}
    assert machine.caches == ()
    told = [w for w in machine.warnings if "one last-level cache per socket" in w.reason]
    assert len(told) == 1


def test_a_core_whose_lowest_cpu_tells_no_cache_asks_the_sibling(server: Tree) -> None:
    whole = server.look()
    server.drop(f"{CPU}/cpu1/cache")
    machine = server.look()
    assert machine.caches == whole.caches
    assert "sibling" in reasons(machine, f"/{CPU}/cpu1/cache")


def test_a_core_without_caches_is_in_those_that_others_share_with_it(server: Tree) -> None:
    for cpu in (1, 5):
        server.drop(f"{CPU}/cpu{cpu}/cache")
    machine = server.look()
    assert [str(llc.cpus) for llc in machine.llcs] == ["0-1,4-5", "2-3,6-7"]
    assert "does not describe" in reasons(machine, f"/{CPU}/cpu1/cache")


def test_holes_in_the_numbering_of_caches_do_not_matter(server: Tree) -> None:
    server.drop(f"{CPU}/cpu0/cache/index1")
    for cpu in (2, 6):
        old = os.path.join(server.root, CPU, f"cpu{cpu}/cache")
        os.rename(f"{old}/index3", f"{old}/index9")
    machine = server.look()
    assert [str(llc.cpus) for llc in machine.llcs] == ["0-1,4-5", "2-3,6-7"]


def test_sharing_left_empty_means_the_core_itself(server: Tree) -> None:
    """ia64 kernels leave it empty for caches that are not shared."""
    for cpu in range(8):
        server.put(f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_map", "00000000\n")
        server.put(f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list", "\n")
    assert [str(llc.cpus) for llc in server.look().llcs] == ["0,4", "1,5", "2,6", "3,7"]


def test_a_level_that_cannot_be_read_is_taken_from_other_cpus(server: Tree) -> None:
    server.put(f"{CPU}/cpu2/cache/index3/level", "third\n")
    machine = server.look()
    assert [llc.level for llc in machine.llcs] == [3, 3]
    assert "taken as on other CPUs" in reasons(machine, f"/{CPU}/cpu2/cache/index3/level")


@pytest.mark.parametrize("sharing", ["nothing", "others"])
def test_a_cache_that_does_not_tell_who_shares_it_is_the_cores_own(server: Tree, sharing: str) -> None:
    for cpu in (2, 3, 6, 7):
        place = f"{CPU}/cpu{cpu}/cache/index3"
        if sharing == "nothing":
            server.drop(f"{place}/shared_cpu_list")
            server.drop(f"{place}/shared_cpu_map")
        else:
            server.put(f"{place}/shared_cpu_list", "0-1,4-5\n")
            server.put(f"{place}/shared_cpu_map", "00000033\n")
    machine = server.look()
    assert [str(llc.cpus) for llc in machine.llcs] == ["0-1,4-5", "2,6", "3,7"]
    assert "CPUs 2-3" in reasons(machine, f"/{CPU}/cpu*/cache/index3")


def test_caches_of_no_readable_level_are_ignored(server: Tree) -> None:
    for cpu in range(8):
        server.drop(f"{CPU}/cpu{cpu}/cache/index3/level")
        server.put(f"{CPU}/cpu{cpu}/cache/index2/type", "?\n")
    machine = server.look()
    assert {(llc.level, llc.kind) for llc in machine.llcs} == {(2, "Unified")}
    assert "ignored" in reasons(machine, f"/{CPU}/cpu*/cache/index3/level")
    assert "taken as Unified" in reasons(machine, f"/{CPU}/cpu*/cache/index2/type")


def test_cpus_that_contradict_each_other_about_a_cache_are_reported(server: Tree) -> None:
    server.put(f"{CPU}/cpu1/cache/index3/shared_cpu_list", "1,5\n")
    machine = server.look()
    assert machine.by_id[0].llc == machine.by_id[1].llc  # their cache has the same id
    assert "of this L3" in reasons(machine, f"/{CPU}/cpu1/cache")
    server.put(f"{CPU}/cpu1/cache/index3/id", "7\n")
    machine = server.look()
    assert machine.by_id[0].llc != machine.by_id[1].llc
    assert "of this L3" in reasons(machine, f"/{CPU}/cpu0/cache")


def test_instruction_caches_are_never_the_last_level(server: Tree) -> None:
    for cpu in range(8):
        for index in (2, 3):
            server.drop(f"{CPU}/cpu{cpu}/cache/index{index}")
    assert {llc.kind for llc in server.look().llcs} == {"Data"}


# -- NUMA and memory ----------------------------------------------------------------------------------


def test_without_a_node_directory_the_machine_is_one_node(server: Tree) -> None:
    server.drop(NODE)
    for cpu in range(8):
        server.drop(f"{CPU}/cpu{cpu}/node{cpu % 4 // 2}")
    server.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "5\n")
    server.put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "4\n")
    server.put("sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages", "0\n")
    machine = server.look()
    (node,) = machine.numa_nodes
    assert (node.id, str(node.cpus), node.distances) == (0, "0-7", {0: 10})
    assert node.memory_bytes == 32 * GIB
    assert node.hugepages == (HugepagePool(2 * MIB, 5, 4),)
    assert node.usable_bytes == 32 * GIB - 10 * MIB
    assert len(machine.warnings) == 1
    assert "one NUMA node" in reasons(machine, f"/{NODE}")


def test_a_cpu_in_no_node_is_where_its_neighbors_are(server: Tree) -> None:
    server.put(f"{NODE}/node1/cpulist", "2-3,6\n")
    server.put(f"{NODE}/node1/cpumap", "0000004c\n")
    server.drop(f"{CPU}/cpu7/node1")
    machine = server.look()
    assert machine.by_id[7].numa_node == 1
    assert "no NUMA node" in reasons(machine, f"/{CPU}/cpu7")


def test_a_link_of_the_cpu_tells_its_node(server: Tree) -> None:
    server.put(f"{NODE}/node1/cpulist", "2-3,6\n")
    server.put(f"{NODE}/node1/cpumap", "0000004c\n")
    machine = server.look()
    assert machine.by_id[7].numa_node == 1
    assert "does not list" in reasons(machine, f"/{CPU}/cpu7/node1")


def test_a_node_without_a_directory_is_known_by_its_cpus(server: Tree) -> None:
    """A node that went offline with part of its CPUs still linked to it."""
    server.drop(f"{NODE}/node0")
    machine = server.look()
    assert {node.id: str(node.cpus) for node in machine.numa_nodes} == {0: "0-1,4-5", 1: "2-3,6-7"}
    assert machine.numa_nodes[0].memory_bytes == 0


def test_of_two_nodes_that_claim_a_cpu_the_lower_has_it(server: Tree) -> None:
    server.put(f"{NODE}/node1/cpulist", "0-7\n")
    machine = server.look()
    assert str(machine.numa_nodes[0].cpus) == "0-1,4-5"
    assert "lower node" in reasons(machine, f"/{NODE}/node1/cpulist")


def test_a_node_without_a_list_has_the_cpus_that_link_to_it(server: Tree) -> None:
    server.drop(f"{NODE}/node1/cpulist")
    server.drop(f"{NODE}/node1/cpumap")
    machine = server.look()
    assert str(machine.numa_nodes[1].cpus) == "2-3,6-7"
    assert "CPUs are read instead" in reasons(machine, f"/{NODE}/node1/cpulist")


def test_a_node_does_not_bring_cpus_into_being(server: Tree) -> None:
    server.put(f"{NODE}/node1/cpulist", "2-3,6-7,40\n")
    machine = server.look()
    assert 40 not in machine.by_id
    assert "CPUs 40 do not exist" in reasons(machine, f"/{NODE}/node1/cpulist")


@pytest.mark.parametrize("damage", ["words", "missing"])
def test_pools_that_do_not_tell_their_size_or_count(server: Tree, damage: str) -> None:
    place = f"{NODE}/node0/hugepages"
    server.put(f"{place}/hugepages-hugekB/nr_hugepages", "5\n")
    server.put(f"{place}/hugepages-2048kB/nr_hugepages", "9\n")
    server.put(f"{place}/hugepages-2048kB/surplus_hugepages", "0\n")
    if damage == "words":
        server.put(f"{place}/hugepages-2048kB/free_hugepages", "many\n")
    machine = server.look()
    assert machine.numa_nodes[0].hugepages == (HugepagePool(2 * MIB, 9, 0),)
    assert "taken as 0" in reasons(machine, f"/{place}/hugepages-2048kB/free_hugepages")


def test_offline_cpus_keep_their_node_silently(empty: Tree) -> None:
    write_tree(build(sockets=2, cores=2, offline=CpuSet([3, 7])), empty.root)
    machine = empty.look()
    assert machine.by_id[3].numa_node == 1
    assert machine.by_id[3].core is None
    assert machine.warnings == ()


def test_missing_distances_are_assumed(server: Tree) -> None:
    server.drop(f"{NODE}/node1/distance")
    server.put(f"{NODE}/node0/distance", "10 20 30\n")
    machine = server.look()
    assert [node.distances for node in machine.numa_nodes] == [{0: 10, 1: 20}, {0: 20, 1: 10}]
    assert reasons(machine, f"/{NODE}/node0/distance")
    assert reasons(machine, f"/{NODE}/node1/distance")


def test_a_node_that_does_not_tell_its_memory_has_none(server: Tree) -> None:
    server.drop(f"{NODE}/node0/meminfo")
    server.put(f"{NODE}/node1/meminfo", "Node 1 Active: 5 kB\n")
    machine = server.look()
    assert [node.memory_bytes for node in machine.numa_nodes] == [0, 0]
    assert reasons(machine, f"/{NODE}/node0/meminfo")
    assert reasons(machine, f"/{NODE}/node1/meminfo")


# -- kinds of core ------------------------------------------------------------------------------------


def kinds(machine: Machine) -> dict[str, str]:
    found: dict[str, list[int]] = {}
    for cpu in machine.cpus:
        found.setdefault(cpu.core_type.value, []).append(cpu.id)
    return {kind: str(CpuSet(cpus)) for kind, cpus in found.items()}


def test_pmu_devices_tell_hybrid_cores(empty: Tree) -> None:
    write_tree(hybrid_laptop(), empty.root)
    assert kinds(empty.look()) == {"p-core": "0-11", "e-core": "12-21"}
    empty.put("sys/devices/cpu_atom/cpus", "12-19\n")
    empty.put("sys/devices/cpu_lowpower/cpus", "20-21\n")
    assert kinds(empty.look()) == {"p-core": "0-11", "e-core": "12-21"}


def test_pmu_devices_may_be_found_by_their_bus(empty: Tree) -> None:
    write_tree(build(cores=4, threads=1), empty.root)
    empty.put("sys/bus/event_source/devices/cpu_core/cpus", "0-1\n")
    empty.put("sys/bus/event_source/devices/cpu_atom/cpus", "1-2\n")
    machine = empty.look()
    assert kinds(machine) == {"p-core": "0-1", "e-core": "2", "standard": "3"}
    assert len(machine.warnings) == 2


def test_differing_designs_tell_hybrid_cores(empty: Tree) -> None:
    machine = build(cores=4, threads=1)
    write_tree(machine, empty.root)
    for cpu, (size, frequency) in enumerate([("48K", 5_000_000)] * 2 + [("32K", 3_000_000)] * 2):
        empty.put(f"{CPU}/cpu{cpu}/cache/index0/size", size)
        empty.put(f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq", str(frequency))
    found = empty.look()
    assert kinds(found) == {"p-core": "0-1", "e-core": "2-3"}
    assert "first-level caches" in reasons(found, "/sys/devices/cpu_core/cpus")


def test_frequencies_alone_make_no_kinds(empty: Tree) -> None:
    """Preferred cores of otherwise equal ones run faster."""
    write_tree(build(cores=4, threads=1), empty.root)
    for cpu in range(4):
        empty.put(f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq", str(4_000_000 + cpu * 100_000))
        empty.put(f"{CPU}/cpu{cpu}/acpi_cppc/highest_perf", str(150 + 20 * cpu))
    assert kinds(empty.look()) == {"standard": "0-3"}


@pytest.mark.parametrize(
    ("strong", "weak", "expected"),
    [
        (1024, 446, {"p-core": "4-7", "e-core": "0-3"}),
        (1024, 1024, {"standard": "0-7"}),
        (1024, 960, {"standard": "0-7"}),
        (718, 200, {"p-core": "4-7", "e-core": "0-3"}),
    ],
)
def test_capacities_tell_arm_cores(empty: Tree, strong: int, weak: int, expected: dict[str, str]) -> None:
    write_tree(arm_big_little(), empty.root)
    for cpu in range(8):
        empty.put(f"{CPU}/cpu{cpu}/cpu_capacity", str(strong if cpu >= 4 else weak))
    machine = empty.look()
    assert kinds(machine) == expected
    assert machine.by_id[5].capacity == strong


def test_a_cpu_without_capacity_among_two_kinds_is_standard(empty: Tree) -> None:
    write_tree(arm_big_little(), empty.root)
    empty.drop(f"{CPU}/cpu6/cpu_capacity")
    machine = empty.look()
    assert machine.by_id[6].core_type is CoreType.STANDARD
    assert reasons(machine, f"/{CPU}/cpu6/cpu_capacity")


# -- PCI, cgroups, kernel -------------------------------------------------------------------------


def test_pci_roots_are_found_wherever_firmware_puts_them(server: Tree) -> None:
    below = "sys/devices/platform/soc/1f.pcie/pci0002:00"
    server.put(f"{below}/pci_bus/0002:00/cpulistaffinity", "2-3,6-7\n")
    server.put("sys/devices/pci0000:00/pci_bus/0000:00/cpuaffinity", "000000ff\n")
    server.put("sys/devices/pci0000:00/0000:00:1f.0/numa_node", "-1\n")
    server.put("sys/devices/pci0000:80/0000:80:01.0/numa_node", "1\n")
    server.put("sys/devices/pcispeaker/nothing", "")
    os.makedirs(os.path.join(server.root, "sys/class/pci_bus"))
    link = os.path.join(server.root, "sys/class/pci_bus/0002:00")
    os.symlink("../../devices/platform/soc/1f.pcie/pci0002:00/pci_bus/0002:00", link)
    machine = server.look()
    assert [(r.name, r.numa_node, str(r.local_cpus)) for r in machine.pci_roots] == [
        ("pci0000:00", None, "0-7"),
        ("pci0000:80", 1, "2-3,6-7"),
        ("pci0002:00", 1, "2-3,6-7"),
    ]
    assert reasons(machine, "/sys/devices/pci0000:80/pci_bus/0000:80/cpulistaffinity")


MOUNTS = {
    "v2": ("cgroup2 /sys/fs/cgroup cgroup2 rw,memory_hugetlb_accounting 0 0", CgroupMode.V2),
    "v1": ("cgroup /sys/fs/cgroup/cpuset cgroup rw,nosuid,cpuset 0 0", CgroupMode.V1),
    "hybrid": (
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup /x\\040y cgroup rw,cpuset 0 0",
        CgroupMode.HYBRID,
    ),
    "named only": ("cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0", CgroupMode.NONE),
    "v1 elsewhere": (
        "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\ncgroup /net cgroup rw,net_cls 0 0",
        CgroupMode.V2,
    ),
}


@pytest.mark.parametrize("name", MOUNTS)
def test_the_mount_table_tells_the_cgroup_version(server: Tree, name: str) -> None:
    text, mode = MOUNTS[name]
    server.drop("proc/self/mountinfo")
    server.put("proc/mounts", f"proc /proc proc rw 0 0\nshort\n{text}\n")
    cgroups = server.look().cgroups
    assert cgroups.mode is mode
    assert cgroups.memory_hugetlb_accounting == ("accounting" in text)
    if name == "hybrid":
        assert cgroups.v1_mounts == {"cpuset": "/x y"}


def test_init_tells_the_mounts_of_another_root(server: Tree) -> None:
    line = "30 22 0:26 / /sys/fs/cgroup rw shared:2 - cgroup2 cgroup2 rw,memory_hugetlb_accounting"
    server.put("proc/1/mountinfo", f"broken\n{line}\n")
    assert server.look().cgroups.memory_hugetlb_accounting


def test_without_a_mount_table_there_is_no_cgroup(server: Tree) -> None:
    server.drop("proc/self/mountinfo")
    machine = server.look()
    assert machine.cgroups.mode is CgroupMode.NONE
    assert reasons(machine, "/proc/self/mountinfo")


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu lm sse\n", "x86_64"),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu sse\n", "i686"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "aarch64"),
        ("vendor_id       : IBM/S390\n", "s390x"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "ppc64le"),
        ("processor\t: 0\nisa\t\t: rv64imafdc\n", "riscv64"),
    ],
)
def test_cpuinfo_tells_the_architecture_of_a_dump(server: Tree, cpuinfo: str, expected: str) -> None:
    server.drop("proc/sys/kernel/arch")
    server.put("proc/cpuinfo", cpuinfo)
    machine = server.look()
    assert machine.architecture == expected
    assert machine.warnings == ()


def test_an_unknown_architecture_is_assumed_to_be_this_one(server: Tree) -> None:
    server.drop("proc/sys/kernel/arch")
    machine = server.look()
    assert machine.architecture == os.uname().machine
    assert "assumed" in reasons(machine, "/proc/cpuinfo")


def test_the_release_comes_from_the_version_or_the_gathering_tool(server: Tree) -> None:
    server.drop("proc/sys/kernel/osrelease")
    server.put("proc/version", "Linux version 5.3.0-rc7 (someone@somewhere)\n")
    assert server.look().kernel_release == "5.3.0-rc7"
    server.drop("proc/version")
    server.put("proc/hwloc-nofile-info", "OSName: Linux\nOSRelease: 3.10.0\nArchitecture: ppc64\n")
    server.drop("proc/sys/kernel/arch")
    machine = server.look()
    assert (machine.kernel_release, machine.architecture) == ("3.10.0", "ppc64")
    server.drop("proc/hwloc-nofile-info")
    assert reasons(server.look(), "/proc/sys/kernel/osrelease")


def test_isolated_cpus_and_pools_survive_on_a_server(empty: Tree) -> None:
    write_tree(
        build(
            cores=2,
            hugepages=[HugepagePool(2 * MIB, 10, 3, 1)],
            surroundings=Surroundings(isolated=CpuSet([1, 3]), nohz_full=CpuSet([3])),
        ),
        empty.root,
    )
    machine = empty.look()
    assert str(machine.isolated) == "1,3"
    assert [cpu.id for cpu in machine.cpus if cpu.nohz_full] == [3]
    (node,) = machine.numa_nodes
    assert node.hugetlb_bytes == 20 * MIB
