"""Devices in both layouts and all groupings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.core.objects import to_builtins
from drakit.drivers.cpumem.driver import cpumem_driver
from drakit.drivers.cpumem.kinds import CPU
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.slices.limits import check_offer
from drakit.machine.model import Machine
from drakit.testing.synthetic import build
from tests.drivers.cpu.machines import CROSSED, NESTED, machines
from tests.drivers.cpumem.amounts import GI, NODE, SERVER, capacities, driver, pool
from tests.machine.shapes import power_server

GROUPINGS = ("numanode", "socket", "machine")
LAYOUTS = ("combined", "split")
every_shape = pytest.mark.parametrize(
    ("layout", "group_by"), [(layout, group) for layout in LAYOUTS for group in GROUPINGS]
)


def test_a_numa_node_is_a_device():
    device = driver().offer().pools[0].devices[1]
    policy = {"default": "0", "validRange": {"min": "0"}}
    assert to_builtins(device) == {
        "name": "numa1",
        "allowMultipleAllocations": True,
        "attributes": {
            "resource.kubernetes.io/numaNode": {"int": 1},
            "dra.net/numaNode": {"int": 1},
            "dra.cpumem/numaNodeID": {"int": 1},
            "dra.cpumem/socketID": {"int": 0},
            "dra.cpumem/kind": {"string": "combined"},
            "dra.cpumem/memoryOnly": {"bool": False},
            "dra.cpumem/smtEnabled": {"bool": True},
            "dra.cpumem/numCPUs": {"int": 8},
            "dra.cpumem/numIsolatedCPUs": {"int": 0},
            "dra.cpumem/hugetlbAccounting": {"string": "separate"},
            "dra.cpumem/provisioning": {"string": "none"},
            "dra.cpumem/distance0": {"int": 12},
            "dra.cpumem/distance1": {"int": 10},
            "dra.cpumem/distance2": {"int": 21},
            "dra.cpumem/distance3": {"int": 21},
            "dra.cpumem/distance4": {"int": 17},
        },
        "capacity": {
            f"dra.cpumem/{kind}": {
                "value": value,
                "requestPolicy": {**policy, "validRange": {"min": "0", "step": step}},
            }
            for kind, value, step in (
                ("cpu", "8", "1"),
                ("memory", "13Gi", "2Mi"),
                ("hugepages2Mi", "1Gi", "2Mi"),
                ("hugepages1Gi", "2Gi", "1Gi"),
            )
        },
    }


def test_memory_without_cpus_comes_last_and_says_so():
    devices = driver(power_server()).offer().pools[0].devices
    assert [device.name for device in devices] == ["numa0", "numa8", "numa255"]
    told = [to_builtins(device.attributes["dra.cpumem/memoryOnly"]) for device in devices]
    assert told == [{"bool": False}, {"bool": False}, {"bool": True}]


@pytest.mark.parametrize(
    ("group_by", "names"),
    [
        ("numanode", ["numa0", "numa1", "numa2", "numa3", "numa4"]),
        ("socket", ["socket0", "socket1", "numa4"]),
        ("machine", ["machine", "numa4"]),
    ],
)
def test_groups_are_named_for_ever(group_by: str, names: list[str]):
    found = capacities(driver(group_by=group_by))
    assert list(found) == names
    assert sum(int(kinds.get("cpu", 0)) for kinds in found.values()) == 32
    assert sum(int(kinds["memory"].removesuffix("Gi")) for kinds in found.values()) == 5 * 13


def test_split_has_a_device_per_kind():
    found = capacities(driver(layout="split"))
    assert list(found)[:5] == [
        "cpu-numa0",
        "memory-numa0",
        "hugepages-2mi-numa0",
        "hugepages-1gi-numa0",
        "cpu-numa1",
    ]
    assert found["memory-numa4"] == {"memory": "13Gi"}
    assert "cpu-numa4" not in found


def test_a_socket_has_no_numa_node_to_match_by():
    device = driver(group_by="socket").offer().pools[0].devices[0]
    assert "dra.cpumem/socketID" in device.attributes
    assert not [key for key in device.attributes if "umaNode" in key or "distance" in key]


def test_mappings_are_published_when_wanted():
    one = driver(publish_node_allocatable_resource_mapping=True)
    assert one.offer().pools[0].devices[0].node_allocatable_resources == {
        resource: {"mapping": {"capacityKey": f"dra.cpumem/{key}", "capacityMultiplier": "1"}}
        for resource, key in (
            ("cpu", "cpu"),
            ("memory", "memory"),
            ("hugepages-2Mi", "hugepages2Mi"),
            ("hugepages-1Gi", "hugepages1Gi"),
        )
    }


def test_how_pages_come_and_are_charged_is_told():
    charged = replace(SERVER, cgroups=replace(SERVER.cgroups, memory_hugetlb_accounting=True))
    one = driver(charged, hugepage_pools="0:2Mi=512", hugepage_growth="1:2Mi=5")
    told = [device.attributes for device in one.offer().pools[0].devices]
    assert [each["dra.cpumem/provisioning"].string for each in told[:3]] == ["static", "onDemand", "none"]
    assert told[0]["dra.cpumem/hugetlbAccounting"].string == "memory"


def test_distances_are_left_out_where_there_are_too_many():
    attributes = driver(build(sockets=9, cores=1)).offer().pools[0].devices[0].attributes
    assert not [key for key in attributes if "distance" in key]


@every_shape
def test_vector_7_a_restart_changes_nothing(layout: str, group_by: str):
    """Names and slices are byte-identical, so claims of before are still found."""
    one, again = (driver(layout=layout, group_by=group_by).offer() for _ in range(2))
    assert repr(to_builtins(one.pools[0].devices)) == repr(to_builtins(again.pools[0].devices))
    assert one == again


@given(
    machines(cpus=24, nestings=(*NESTED, CROSSED)),
    st.sampled_from(LAYOUTS),
    st.sampled_from(GROUPINGS),
    st.integers(0, 3),
)
def test_every_offer_is_within_the_api_s_limits_and_complete(
    machine: Machine, layout: str, group_by: str, reserved: int
):
    one = driver(machine, layout=layout, group_by=group_by, reserved_memory=f"{reserved}Gi")
    check_offer(one.name, one.offer().named(NODE))
    for kind in one.memory.kinds:
        published = sum(device.amounts.get(kind, 0) for device in one.devices)
        assert published == sum(node.get(kind, 0) for node in one.memory.offered.values())
    published = sum(device.amounts.get(CPU, 0) for device in one.devices)
    assert published == len(one.cpus.offered & CpuSet.union(machine.node_cpus.values()))


def test_the_largest_device_is_within_the_api_s_limits():
    sizes = ("64Ki", "1Mi", "2Mi", "16Mi", "32Mi", "512Mi", "1Gi", "2Gi", "16Gi")
    machine = build(
        sockets=7,
        cores=2,
        memory_per_node=99 * GI,
        hugepages=[pool(size, 1) for size in sizes],
        memory_only_nodes=1,
    )
    one = driver(machine, publish_node_allocatable_resource_mapping=True)
    check_offer(one.name, one.offer().named(NODE))


GROWING = {"hugepage_growth": "0:2Mi=64"}


def waiting(**settings: object) -> list[str]:
    """The devices whose pods are bound only when their pages are there."""
    devices = driver(**settings).offer().pools[0].devices
    for device in devices:
        conditions = (device.binding_conditions, device.binding_failure_conditions)
        assert conditions == (
            (("dra.cpumem/HugepagesReady",), ("dra.cpumem/HugepagesUnavailable",))
            if device.binds_to_node
            else ((), ())
        )
    return [device.name for device in devices if device.binding_conditions]


def test_only_devices_whose_pages_grow_wait_for_them():
    assert waiting() == []
    assert waiting(**GROWING) == ["numa0"]
    assert waiting(**GROWING, hugepage_binding=False) == []
    assert waiting(hugepage_growth="*:1Gi=1") == ["numa0", "numa1", "numa2", "numa3", "numa4"]
    assert waiting(**GROWING, group_by="socket") == ["socket0"]
    check_offer("dra.cpumem", driver(**GROWING).offer().named(NODE))


def test_in_the_split_layout_only_the_pages_wait():
    (name,) = waiting(**GROWING, layout="split")
    assert "hugepages-2mi" in name


def test_pages_that_the_kernel_does_not_give_are_offered_neither_way():
    config = CpuMemConfig(reserved_memory="", hugepage_growth="0:2Mi=64")
    growth = {0: {2 << 20: 64}}
    whole = cpumem_driver(config, SERVER, growth=growth)
    doubted = cpumem_driver(config, SERVER, growth=growth, possible_growth={0: {2 << 20: 10}})
    before, after = (capacities(each)["numa0"] for each in (whole, doubted))
    assert (before["hugepages2Mi"], after["hugepages2Mi"]) == ("1152Mi", "1044Mi")
    assert before["memory"] == after["memory"], "it comes back as pages"
