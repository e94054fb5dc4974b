"""One device per NUMA node, socket or machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Device, to_builtins
from drakit.kit.driver import AllocatedDevice, PreparedClaims, RejectedError
from drakit.machine.model import Machine
from drakit.testing.synthetic import CoreSpec, Numbering, Surroundings, assemble, build
from tests.drivers.cpu.claims import (
    NODE,
    Node,
    amount,
    claim,
    device_names,
    driver,
    policy_config,
    prepared_claims_of,
)
from tests.drivers.cpu.machines import CROSSED, NESTED, machines, subset
from tests.machine.shapes import power_server

ADJACENT = Surroundings(numbering=Numbering.ADJACENT)
SERVER = build(sockets=2, nodes=2, cores=4, threads=2, surroundings=ADJACENT)  # 4 nodes of 8 CPUs


def _devices(machine: Machine, **settings: object) -> list[Device]:
    return list(driver(machine, **settings).offer().pools[0].devices)


# -- offer --------------------------------------------------------------------------------------


def test_a_numa_node_is_a_device():
    devices = _devices(SERVER, reserved_cpus="0,9")
    assert [device.name for device in devices] == [f"cpudevnuma00{node}" for node in range(4)]
    assert to_builtins(devices[1]) == {
        "name": "cpudevnuma001",
        "allowMultipleAllocations": True,
        "attributes": {
            "resource.kubernetes.io/numaNode": {"int": 1},
            "dra.cpu/numaNodeID": {"int": 1},
            "dra.net/numaNode": {"int": 1},
            "dra.cpu/socketID": {"int": 0},
            "dra.cpu/smtEnabled": {"bool": True},
            "dra.cpu/numCPUs": {"int": 7},
            "dra.cpu/numIsolatedCPUs": {"int": 0},
        },
        "capacity": {
            "dra.cpu/cpu": {
                "value": "7",
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "7", "step": "1"}},
            }
        },
    }


def test_a_socket_is_a_device():
    devices = _devices(SERVER, group_by="socket")
    assert [device.name for device in devices] == ["cpudevsocket000", "cpudevsocket001"]
    assert to_builtins(devices[1].attributes) == {
        "dra.cpu/socketID": {"int": 1},
        "dra.cpu/smtEnabled": {"bool": True},
        "dra.cpu/numCPUs": {"int": 16},
        "dra.cpu/numIsolatedCPUs": {"int": 0},
    }


def test_the_machine_is_a_device():
    (device,) = _devices(SERVER, group_by="machine", reserved_cpus="0-3")
    assert device.name == "cpudevmachine"
    assert str(device.capacity["dra.cpu/cpu"].value) == "28"
    assert "dra.cpu/socketID" not in device.attributes


def test_sparse_node_numbers_and_memory_only_nodes():
    assert device_names(driver(power_server())) == ["cpudevnuma000", "cpudevnuma008"]


def test_a_node_that_spans_sockets_still_has_a_socket_number():
    cores = [CoreSpec(socket=socket, node=0) for socket in (0, 1) for _ in range(2)]
    (device,) = _devices(assemble(cores))
    assert to_builtins(device.attributes["dra.cpu/socketID"]) == {"int": 0}


def test_isolated_cpus_are_counted():
    (device,) = _devices(build(isolated=CpuSet([1, 2])), group_by="machine")
    assert to_builtins(device.attributes["dra.cpu/numIsolatedCPUs"]) == {"int": 2}


@given(
    st.data(),
    machines(cpus=40, nestings=(*NESTED, CROSSED)),
    st.sampled_from(["numanode", "socket", "machine"]),
)
def test_w16_every_allocatable_cpu_is_in_exactly_one_device(
    data: st.DataObject, machine: Machine, group_by: str
):
    reserved = data.draw(subset(machine.present))
    one = driver(machine, group_by=group_by, reserved_cpus=str(reserved))
    groups = [device.group.cpus for device in one.devices]  # type: ignore[attr-defined]
    assert CpuSet.union(groups) == machine.online - reserved
    assert sum(map(len, groups)) == len(machine.online - reserved)
    for device, group in zip(one.offer().pools[0].devices, groups, strict=True):
        assert device.capacity["dra.cpu/cpu"].value.ceil() == len(group) > 0


def test_w16_a_reservation_of_everything_offers_nothing_and_says_so():
    one = driver(build(cores=2, threads=1), reserved_cpus="0-1")
    assert one.offer().pools[0].devices == ()
    assert "leaves no CPU for pods" in one.cpus.warnings[0]


def test_unknown_reserved_cpus_are_a_warning():
    one = driver(build(cores=4, threads=1), reserved_cpus="0,99")
    assert one.cpus.warnings == ("reservedCPUs names CPUs 99, which this machine does not have",)
    assert len(one.cpus.reserved) == 1


def test_a_minimum_that_leaves_nothing_is_a_warning():
    one = driver(build(cores=2, threads=1), min_shared_cpus=2, hold_back_shared=True)
    assert one.offer().pools[0].devices == ()
    assert "minSharedCPUs 2 leaves none" in one.cpus.warnings[0]


def test_held_back_cpus_reduce_the_capacity_beside_the_reserved_core():
    one = driver(SERVER, reserved_cpus="0", hold_back_shared=True)
    assert str(one.cpus.held_back) == "1"
    assert str(one.offer().pools[0].devices[0].capacity["dra.cpu/cpu"].value) == "6"


def test_node_allocatable_mapping():
    (device,) = _devices(build(), group_by="machine", publish_node_allocatable_resource_mapping=True)
    assert device.node_allocatable_resources == {
        "cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}
    }


def test_pcie_roots_of_all_cpus():
    machine = build(nodes=2, surroundings=Surroundings(pci_roots_per_node=1))
    (device,) = _devices(machine, group_by="machine", expose_pcie_roots=True)
    assert device.attributes["resource.kubernetes.io/pcieRoot"].strings == ("pci0000:00", "pci0000:10")


def test_w19_the_request_policy_gives_one_whole_cpu_by_default():
    policy = _devices(SERVER)[0].capacity["dra.cpu/cpu"].request_policy
    assert policy is not None
    assert policy.valid_range is not None
    assert [str(q) for q in (policy.default, policy.valid_range.min, policy.valid_range.step)] == [
        "1",
        "1",
        "1",
    ]


def test_w19_a_device_of_one_cpu_has_no_step_the_server_would_reject():
    (device,) = _devices(build(cores=1, threads=1))
    assert to_builtins(device.capacity["dra.cpu/cpu"].request_policy) == {
        "default": "1",
        "validRange": {"min": "1", "max": "1"},
    }


# -- assign -------------------------------------------------------------------------------------


def _node(**settings: object) -> Node:
    return Node(driver(SERVER, **settings))


def test_w01_a_claim_of_two_gets_a_core_beside_the_reserved_cpu():
    node = _node(reserved_cpus="0")
    assert str(node.prepare(claim(amount("cpudevnuma000", 2))).exclusive("cpu")) == "2-3"


def test_requests_are_told_apart():
    entry = _node().prepare(
        claim(amount("cpudevnuma000", 2, request="a"), amount("cpudevnuma001", 2, request="b"))
    )
    assert [str(g.exclusive["cpu"]) for g in entry.devices] == ["0-1", "8-9"]
    assert [g.env for g in entry.devices] == [
        {"DRA_CPUSET": "0-1", "DRA_CPUSET_uid-1": "0-1"},
        {"DRA_CPUSET": "8-9", "DRA_CPUSET_uid-1": "8-9"},
    ]


def test_w11_share_ids_and_consumed_capacity_are_kept():
    prepared = _node().prepare(claim(amount("cpudevnuma000", 2, share_id="s1"))).devices[0]
    assert prepared.share_id == "s1"
    assert str(prepared.consumed_capacity["dra.cpu/cpu"]) == "2"


def test_the_metadata_tells_which_cpus():
    prepared = _node().prepare(claim(amount("cpudevnuma001", 3))).devices[0]
    told = to_builtins(prepared.attributes)
    assert told["dra.cpu/allocatedNumCPUs"] == {"int": 3}
    assert told["dra.cpu/cpuset"] == {"string": "8-10"}
    assert told["dra.cpu/numaNodes"] == {"string": "1"}
    assert told["dra.cpu/numaNodeID"] == {"int": 1}


def test_w19_a_fraction_rounds_up_instead_of_failing_for_ever():
    assert len(_node().prepare(claim(amount("cpudevnuma000", "1500m"))).exclusive("cpu")) == 2


def test_an_allocation_without_an_amount_says_which_gate_is_off():
    with pytest.raises(RejectedError, match="DRAConsumableCapacity") as no:
        _node().prepare(claim(AllocatedDevice("cpus", NODE, "cpudevnuma000")))
    assert no.value.reason == "capacity"


@pytest.mark.parametrize("count", [0, -2])
def test_no_amount_is_rejected(count: int):
    with pytest.raises(RejectedError, match="not a valid amount"):
        _node().prepare(claim(amount("cpudevnuma000", count)))


@pytest.mark.parametrize("device", ["cpudevnuma004", "cpudevsocket000", "cpudev000"])
def test_an_unknown_device_is_rejected(device: str):
    with pytest.raises(RejectedError, match=f"no device {device}.*it has: cpudevnuma000, ") as no:
        _node().prepare(claim(amount(device, 1)))
    assert no.value.reason == "unknown-device"


def test_more_than_is_free_says_who_where_and_how_many():
    node = _node()
    node.prepare(claim(amount("cpudevnuma000", 6), uid="first"))
    one, held = node.driver, node.prepared_claims
    text = r"claim default/mine \(second\), request cpus, device cpudevnuma000: 4 CPUs .* only 2"
    with pytest.raises(RejectedError, match=text) as no:
        one.assign(claim(amount("cpudevnuma000", 4), uid="second"), held)
    assert no.value.reason == "capacity"


def test_policies_reach_the_choice():
    node = _node()
    spread = node.prepare(claim(amount("cpudevnuma000", 2, policy_config(placement="spread")), uid="spread"))
    whole = node.prepare(claim(amount("cpudevnuma000", 3, policy_config(wholeCores=True)), uid="whole"))
    assert str(spread.exclusive("cpu")) == "0,2"
    assert str(whole.exclusive("cpu")) == "4-7"


def test_distribute_over_the_nodes_of_a_machine_device():
    node = _node(group_by="machine")
    entry = node.prepare(claim(amount("cpudevmachine", 8, policy_config(distribute="numa"))))
    cpus = entry.exclusive("cpu")
    assert [len(cpus & node) for node in SERVER.node_cpus.values()] == [2, 2, 2, 2]


# -- named CPUs -------------------------------------------------------------------------------------


def test_named_cpus_are_given_exactly_in_any_grouping():
    for settings, device in (
        ({}, "cpudevnuma001"),
        ({"group_by": "socket"}, "cpudevsocket000"),
        ({"group_by": "machine"}, "cpudevmachine"),
    ):
        entry = _node(**settings).prepare(claim(amount(device, 3, policy_config(cpuset="9,11,13"))))
        assert str(entry.exclusive("cpu")) == "9,11,13"


def test_named_cpus_go_before_chosen_ones():
    entry = _node().prepare(
        claim(
            amount("cpudevnuma000", 2, request="any"),
            amount("cpudevnuma000", 2, policy_config(cpuset="0-1"), request="named"),
        )
    )
    assert [str(g.exclusive["cpu"]) for g in entry.devices] == ["2-3", "0-1"]


@pytest.mark.parametrize(
    ("cpuset", "count", "text"),
    [
        ("8-9", 3, "has 2 CPUs, but 3 were allocated"),
        ("8,99", 2, "offline or do not exist: 99"),
        ("8,15", 2, "reserved for the system: 15"),
        ("7-8", 2, "the device does not have: 7"),
        ("10-11", 2, r"held by claim default/claim-other \(other\)"),
    ],
)
def test_named_cpus_that_cannot_be(cpuset: str, count: int, text: str):
    one = driver(SERVER, reserved_cpus="15")
    wanted = claim(amount("cpudevnuma001", count, policy_config(cpuset=cpuset)))
    with pytest.raises(RejectedError, match=text):
        one.assign(wanted, prepared_claims_of({"other": "11-12"}))


def test_two_requests_cannot_name_the_same_cpu():
    with pytest.raises(RejectedError, match="another request of the claim has: 1"):
        _node().prepare(
            claim(
                amount("cpudevnuma000", 2, policy_config(cpuset="0-1"), request="a"),
                amount("cpudevnuma000", 2, policy_config(cpuset="1-2"), request="b"),
            )
        )


# -- the shared pool -------------------------------------------------------------------------------


def test_w06_the_last_shared_cpu_is_not_given_away():
    node = Node(driver(build(cores=4, threads=1)))
    node.prepare(claim(amount("cpudevnuma000", 3), uid="most"))
    with pytest.raises(RejectedError, match=r"minSharedCPUs.*holdBackShared") as no:
        node.prepare(claim(amount("cpudevnuma000", 1), uid="last"))
    assert no.value.reason == "shared-pool"
    node.unprepare("most")
    node.prepare(claim(amount("cpudevnuma000", 1), uid="last"))


def test_w06_held_back_the_scheduler_never_gets_there():
    node = Node(driver(build(cores=4, threads=1), hold_back_shared=True))
    capacity = node.offer.pools[0].devices[0].capacity["dra.cpu/cpu"].value
    node.prepare(claim(amount("cpudevnuma000", capacity.ceil())))
    assert len(node.driver.cpus.shared(node.prepared_claims)) == 1


def test_admin_access_owns_nothing_and_needs_no_room():
    node = Node(driver(build(cores=4, threads=1)))
    node.prepare(claim(amount("cpudevnuma000", 3), uid="owner"))
    entry = node.prepare(claim(amount("cpudevnuma000", 4, admin_access=True), uid="monitor"))
    assert not entry.exclusive("cpu")
    assert str(entry.devices[0].exclusive["cpu"]) == "0-3"


def test_a_damaged_record_keeps_its_cpus():
    held = PreparedClaims((), orphaned={"lost": {"cpu": CpuSet.parse("0-1")}})
    given_cpus = driver(SERVER).assign(claim(amount("cpudevnuma000", 2)), held)
    assert str(given_cpus.devices[0].exclusive["cpu"]) == "2-3"
