"""Amounts of memory and hugepages that a machine offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpumem.driver import cpumem_driver
from drakit.drivers.cpumem.kinds import CPU, MEMORY, hugepages
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.machine.discover import discover
from drakit.machine.model import Machine
from drakit.testing.synthetic import CoreSpec, NumaSpec, Surroundings, assemble, build
from drakit.testing.sysfs_writer import write_tree
from tests.drivers.cpumem.amounts import GI, MI, SERVER, capacities, driver, pool


def nodes(*numbers: int) -> Machine:
    """A machine with NUMA nodes of these numbers."""
    return assemble([CoreSpec(socket=0, node=node) for node in numbers])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("rw,relatime shared:2 - cgroup2 cgroup2 rw,nsdelegate,memory_hugetlb_accounting", "memory"),
        ("rw,memory_hugetlb_accounting shared:2 - cgroup2 cgroup2 rw,nsdelegate", "separate"),
    ],
)
def test_vector_1_accounting_is_an_option_of_the_file_system(line: str, told: str, tmp_path: Path):
    """After the dash; before it stand the options of the mount, where the kernel never has it."""
    write_tree(SERVER, str(tmp_path))
    table = tmp_path / "proc/1/mountinfo"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(f"30 22 0:26 / /sys/fs/cgroup {line}\n")
    device = driver(discover(str(tmp_path))).offer().pools[0].devices[0]
    assert device.attributes["dra.cpumem/hugetlbAccounting"].string == told


@pytest.mark.parametrize("numbers", [(0, 1, 2, 10), (0, 2)])
def test_vector_2_nodes_have_the_kernel_s_numbers(numbers: tuple[int, ...], tmp_path: Path):
    """Not their position among the directories, which sort node10 before node2."""
    write_tree(nodes(*numbers), str(tmp_path))
    read = driver(discover(str(tmp_path)))
    assert list(read.memory.offered) == list(numbers)
    assert list(capacities(read)) == [f"numa{number}" for number in numbers]


def test_vector_3_memory_is_what_pools_and_system_leave():
    machine = build(cores=2, memory_per_node=64 * GI, hugepages=[pool("1Gi", 8)])
    one = driver(machine, reserved_memory="0:memory=2Gi")
    assert one.memory.offered[0][MEMORY] == 54 * GI
    assert capacities(one)["numa0"]["memory"] == "54Gi"


def test_every_page_size_is_a_kind():
    """arm64 has four of them, and more with larger base pages."""
    sizes = ("64Ki", "2Mi", "32Mi", "512Mi", "1Gi", "16Gi")
    machine = build(cores=2, memory_per_node=64 * GI, hugepages=[pool(size, 1) for size in sizes])
    assert list(capacities(driver(machine))["numa0"]) == [
        "cpu",
        "memory",
        *(f"hugepages{size}" for size in sizes),
    ]


def test_memory_only_nodes_offer_memory_only():
    (device,) = (device for device in driver().devices if device.name == "numa4")
    assert device.group.memory_only
    assert CPU not in device.amounts
    assert device.amounts[MEMORY] == 13 * GI


def test_a_node_whose_cpus_are_all_reserved_is_not_memory_only():
    device = driver(build(sockets=2, cores=1, threads=1), reserved_cpus="0").devices[0]
    assert not device.group.memory_only
    assert list(device.amounts) == [MEMORY]
    assert device.group.socket == 0


def test_a_node_whose_cpus_are_all_offline_is_memory_only():
    around = Surroundings(offline=CpuSet([1]))
    cores = [CoreSpec(socket=socket, node=socket, threads=1) for socket in (0, 1)]
    one = driver(assemble(cores, surroundings=around), group_by="socket")
    assert capacities(one) == {"socket0": {"cpu": "1", "memory": "16Gi"}, "numa1": {"memory": "16Gi"}}


def test_less_than_one_step_is_left_out():
    machine = assemble([CoreSpec()], nodes={0: NumaSpec(memory_bytes=MI, hugepages=(pool("2Mi", 0),))})
    assert driver(machine).devices[0].amounts == {CPU: 1}


def test_surplus_pages_are_not_offered():
    machine = build(cores=1, hugepages=[pool("2Mi", 100, 20, surplus=30)])
    offered = driver(machine).memory.offered[0]
    assert offered[hugepages(2 * MI)] == 70 * 2 * MI
    assert offered[MEMORY] == 16 * GI - 100 * 2 * MI


@pytest.mark.parametrize(("reserved", "others", "left"), [(10, 25, 75), (40, 25, 60), (0, 200, 0)])
def test_pages_held_by_others_are_not_offered(reserved: int, others: int, left: int):
    machine = build(cores=1, hugepages=[pool("2Mi", 100)])
    config = CpuMemConfig(reserved_memory=f"0:hugepages-2Mi={reserved * 2}Mi")
    one = cpumem_driver(config, machine, held_by_others={0: {2 * MI: others}})
    assert one.memory.offered[0].get(hugepages(2 * MI), 0) == left * 2 * MI
    assert one.memory.withheld(0, 2 * MI) == max(reserved, others)


def test_growth_is_offered_as_pages_and_not_as_memory():
    machine = build(cores=1, hugepages=[pool("2Mi", 100)])
    plain = driver(machine).memory.offered[0]
    grown = cpumem_driver(CpuMemConfig(reserved_memory=""), machine, growth={0: {2 * MI: 50}}).memory.offered[
        0
    ]
    assert grown[hugepages(2 * MI)] == plain[hugepages(2 * MI)] + 100 * MI
    assert grown[MEMORY] == plain[MEMORY] - 100 * MI


def test_cpus_can_be_left_to_another_driver():
    one = driver(manage_cpus=False, reserved_cpus="0-99")
    assert all("cpu" not in kinds for kinds in capacities(one).values())
    assert one.warnings == ()


def test_limits_are_by_node_and_kind():
    assert driver(group_by="machine").offer().limits["numa3/hugepages1Gi"] == 2 * GI
    assert set(driver().offer().limits) == {
        f"numa{node}/{kind}" for node in range(5) for kind in ("memory", "hugepages2Mi", "hugepages1Gi")
    }


def test_settings_that_do_not_fit_cause_warnings():
    one = driver(SERVER, reserved_cpus="99", reserved_memory="9:memory=1Gi")
    assert len(one.warnings) == 2
