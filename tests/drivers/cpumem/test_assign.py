"""What exactly a claim gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drakit.core.cpuset import CpuSet
from drakit.kit.claims.conflicts import ClaimConflictError
from drakit.kit.driver import AllocatedDevice, OpaqueConfig, RejectedError
from drakit.testing.synthetic import build
from tests.drivers.cpu import claims as cpu_claims
from tests.drivers.cpumem.amounts import GI, MI, SERVER, Node, claim, driver, pool, share

POLICIES = [{}, {"wholeCores": True}, {"placement": "spread"}, {"sameL3": "required"}]


def policy_config(source: str = "FromClaim", /, **fields: object) -> tuple[OpaqueConfig, ...]:
    return (OpaqueConfig(source, {"apiVersion": "v1alpha1", "cpuConfig": fields}),)


def test_one_request_gets_everything_from_one_node():
    entry = Node(driver()).prepare(share("numa1", cpu=2, memory="256Mi", hugepages2Mi="32Mi"))
    (prepared,) = entry.devices
    assert len(entry.exclusive("cpu")) == 2
    assert entry.exclusive("cpu") <= SERVER.node_cpus[1]
    assert prepared.amounts == {"numa1/memory": 256 * MI, "numa1/hugepages2Mi": 32 * MI}


@pytest.mark.parametrize("fields", POLICIES, ids=str)
def test_cpus_are_those_that_the_cpu_driver_would_choose(fields: dict[str, object]):
    """One model, one code: equal questions to both drivers get equal answers."""
    held = cpu_claims.prepared_claims_of({"other": "1,5"})
    mine = claim(replace(share("numa0", cpu=3), config=policy_config(**fields)))
    theirs = cpu_claims.claim(cpu_claims.amount("cpudevnuma000", 3, policy_config(**fields)))
    cpu_driver = cpu_claims.driver(SERVER)
    assert (
        driver().assign(mine, held).devices[0].exclusive
        == cpu_driver.assign(theirs, held).devices[0].exclusive
    )


def test_named_cpus_are_given_exactly():
    wanted = replace(share("numa0", cpu=2), config=policy_config(cpuset="2-3"))
    assert Node(driver()).prepare(wanted).exclusive("cpu") == CpuSet.parse("2-3")


def test_a_policy_that_is_not_understood_names_this_driver():
    with pytest.raises(RejectedError, match=r"configuration for dra\.cpumem .* did you mean 'wholeCores'"):
        Node(driver()).prepare(replace(share("numa0", cpu=2), config=policy_config(wholecores=True)))


def test_vector_11_only_cpus_consume_no_memory():
    entry = Node(driver()).prepare(share("numa0", cpu=2, memory=0, hugepages2Mi=0, hugepages1Gi=0))
    assert entry.devices[0].amounts == {}


def test_vector_11_a_request_for_nothing_is_rejected_with_the_keys():
    with pytest.raises(RejectedError) as rejected:
        Node(driver()).prepare(share("numa0", cpu=0, memory=0, hugepages2Mi=0, hugepages1Gi=0))
    for key in ("cpu", "memory", "hugepages2Mi", "hugepages1Gi"):
        assert f"dra.cpumem/{key}" in str(rejected.value)
    assert rejected.value.reason == "capacity"


def test_vector_11_an_unknown_key_gets_a_hint():
    wanted = share("numa0", cpu=1, hugepages2mi="2Mi")
    with pytest.raises(RejectedError, match=r"hugepages2mi.* did you mean 'dra\.cpumem/hugepages2Mi'"):
        Node(driver()).prepare(wanted)


def test_zeros_of_a_kind_that_has_gone_do_no_harm():
    machine = build(cores=4)
    entry = Node(driver(machine)).prepare(share("numa0", cpu=1, hugepages1Gi=0))
    assert len(entry.exclusive("cpu")) == 1


def test_without_consumable_capacity_the_gate_is_named():
    with pytest.raises(RejectedError, match="DRAConsumableCapacity"):
        Node(driver()).prepare(share("numa0"))


def test_an_unknown_device_is_rejected():
    with pytest.raises(RejectedError, match="no device socket0"):
        Node(driver()).prepare(share("socket0", cpu=1))


def test_vector_4_pages_of_two_nodes_add_up():
    entry = Node(driver()).prepare(
        share("numa0", "a", hugepages2Mi="64Mi"), share("numa1", "b", hugepages2Mi="32Mi")
    )
    drawn = [prepared.amounts for prepared in entry.devices]
    assert drawn == [{"numa0/hugepages2Mi": 64 * MI}, {"numa1/hugepages2Mi": 32 * MI}]


def test_a_device_can_be_given_twice_to_a_claim():
    entry = Node(driver()).prepare(
        share("numa0", "a", cpu=2, memory="1Gi", share_id="1"),
        share("numa0", "a", cpu=2, memory="2Gi", share_id="2"),
    )
    assert len(entry.exclusive("cpu")) == 4
    assert [prepared.amounts["numa0/memory"] for prepared in entry.devices] == [GI, 2 * GI]
    both = entry.devices[0].env["DRA_CPUSET"]
    assert CpuSet.parse(both) == entry.exclusive("cpu")


def test_memory_is_not_given_twice():
    node = Node(driver())
    node.prepare(share("numa0", memory="10Gi"), uid="first")
    with pytest.raises(RejectedError, match=r"needs 4Gi of dra\.cpumem/memory, but only 3Gi are free"):
        node.prepare(share("numa0", memory="4Gi"), uid="second")
    node.prepare(share("numa0", memory="3Gi"), uid="third")


def test_the_kit_s_guard_knows_the_limits():
    """Should the driver err, or the machine have shrunk, the checkpoint says no."""
    large, small = Node(driver()), Node(driver(reserved_memory="0:memory=13Gi"))
    small.driver = large.driver
    small.offer = driver(reserved_memory="0:memory=12Gi").offer().named("worker")
    with pytest.raises(ClaimConflictError, match="needs"):
        small.prepare(share("numa0", memory="4Gi"))


# -- groups of several nodes -----------------------------------------------------------------------


def test_a_socket_s_memory_comes_from_the_node_of_the_cpus():
    node = Node(driver(group_by="socket"))
    node.prepare(share("socket0", cpu=6), uid="first")
    entry = node.prepare(share("socket0", cpu=8, memory="1Gi", hugepages1Gi="2Gi"), uid="second")
    assert entry.exclusive("cpu") == SERVER.node_cpus[1]
    assert entry.devices[0].amounts == {"numa1/memory": GI, "numa1/hugepages1Gi": 2 * GI}


def test_what_one_node_has_not_comes_from_the_nearest():
    node = Node(driver(group_by="machine"))
    entry = node.prepare(share("machine", cpu=2, memory="30Gi"))
    assert entry.exclusive("cpu") <= SERVER.node_cpus[0]
    assert entry.devices[0].amounts == {
        "numa0/memory": 13 * GI,
        "numa1/memory": 13 * GI,  # in the same socket
        "numa2/memory": 4 * GI,
    }


def test_a_node_that_has_all_is_preferred_to_two_that_have_parts():
    node = Node(driver(group_by="machine"))
    node.prepare(share("machine", memory="12Gi"), uid="first")
    entry = node.prepare(share("machine", memory="2Gi", hugepages2Mi="2Mi"), uid="second")
    assert entry.devices[0].amounts == {"numa1/memory": 2 * GI, "numa1/hugepages2Mi": 2 * MI}


def test_split_draws_each_kind_from_its_own_device():
    entry = Node(driver(layout="split")).prepare(
        share("cpu-numa2", "cpus", cpu=4),
        share("memory-numa2", "memory", memory="1Gi"),
        share("hugepages-1gi-numa2", "pages", hugepages1Gi="1Gi"),
    )
    cpus, memory, pages = entry.devices
    assert cpus.exclusive["cpu"] <= SERVER.node_cpus[2]
    assert (cpus.amounts, memory.exclusive, pages.exclusive) == ({}, {}, {})
    assert memory.amounts == {"numa2/memory": GI}
    assert pages.amounts == {"numa2/hugepages1Gi": GI}


def test_split_by_machine_takes_memory_near_the_claim_s_cpus():
    node = Node(driver(layout="split", group_by="machine"))
    node.prepare(share("cpu-machine", cpu=8), uid="first")
    entry = node.prepare(
        share("memory-machine", "memory", memory="1Gi"), share("cpu-machine", "cpus", cpu=8), uid="2nd"
    )
    assert entry.exclusive("cpu") == SERVER.node_cpus[1]
    assert entry.devices[0].amounts == {"numa1/memory": GI}


# -- administrator's access --------------------------------------------------------------------------


def test_administrators_look_on_and_hold_nothing():
    node = Node(driver())
    node.prepare(share("numa0", cpu=7, memory="13Gi"), uid="first")
    admin = AllocatedDevice("r", "worker", "numa0", "share-admin", admin_access=True)
    entry = node.prepare(admin, uid="second")
    assert entry.devices[0].exclusive["cpu"] == SERVER.node_cpus[0]
    assert entry.devices[0].amounts == {}
    assert node.prepared_claims.amount("numa0/memory") == 13 * GI


def test_the_metadata_tell_what_was_given():
    entry = Node(driver()).prepare(share("numa1", cpu=2, memory="2Mi", hugepages2Mi="4Mi"))
    told = entry.devices[0].attributes
    assert told["dra.cpumem/allocatedNumCPUs"].int_ == 2
    assert told["dra.cpumem/allocated_memory"].int_ == 2 * MI
    assert told["dra.cpumem/allocated_hugepages2Mi"].int_ == 4 * MI
    assert told["dra.cpumem/memoryNodes"].string == "1"


def test_the_shared_pool_keeps_its_last_cpus():
    with pytest.raises(RejectedError, match="minSharedCPUs"):
        Node(driver(build(cores=2, threads=1))).prepare(share("numa0", cpu=2))


def test_pages_beyond_the_machine_s_are_rejected():
    machine = build(cores=2, hugepages=[pool("2Mi", 4)])
    with pytest.raises(RejectedError, match="only 8Mi are free"):
        Node(driver(machine)).prepare(share("numa0", hugepages2Mi="10Mi"))
