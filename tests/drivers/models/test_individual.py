"""One device per CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Device, to_builtins
from drakit.drivers.models.individual import IndividualCpus
from drakit.kit.driver import PreparedClaims, RejectedError
from drakit.machine.model import Machine
from drakit.testing.synthetic import CoreSpec, Numbering, Surroundings, assemble, build
from tests.drivers.cpu.claims import (
    Node,
    claim,
    device_names,
    driver,
    policy_config,
    prepared_claims_of,
    single,
)
from tests.drivers.cpu.machines import machines, subset
from tests.machine.shapes import hybrid_laptop

ADJACENT = Surroundings(numbering=Numbering.ADJACENT)


def _devices(machine: Machine, **settings: object) -> dict[str, Device]:
    offer = driver(machine, cpu_device_mode="individual", **settings).offer()
    return {device.name: device for device in offer.pools[0].devices}


def _value(device: Device, name: str) -> object:
    attribute = to_builtins(device.attributes[name])
    return next(iter(attribute.values()))


# -- offer --------------------------------------------------------------------------------------


def test_a_device_says_all_about_its_cpu():
    machine = build(sockets=2, cores=4, threads=2, isolated=CpuSet([5]))
    device = _devices(machine)["cpudev005"]
    assert {name: _value(device, name) for name in device.attributes} == {
        "dra.cpu/cpuID": 5,
        "dra.cpu/coreID": 5,
        "dra.cpu/rawCoreID": 1,
        "dra.cpu/socketID": 1,
        "dra.cpu/cacheL3ID": 1,
        "dra.cpu/coreType": "standard",
        "dra.cpu/isolated": True,
        "dra.cpu/smtEnabled": True,
        "dra.cpu/numaNodeID": 1,
        "dra.net/numaNode": 1,
        "resource.kubernetes.io/numaNode": 1,
    }
    assert device.allow_multiple_allocations is None
    assert not device.capacity
    assert not device.node_allocatable_resources


def test_core_types():
    kinds = {str(_value(d, "dra.cpu/coreType")) for d in _devices(hybrid_laptop()).values()}
    assert kinds == {"p-core", "e-core"}


def test_first_fit_takes_siblings_and_one_cache_together():
    machine = build(llcs=2, cores=2, threads=2)  # CPUs 0-3 are first threads, 4-7 second
    assert device_names(driver(machine, cpu_device_mode="individual")) == [
        f"cpudev{cpu:03d}" for cpu in (0, 4, 1, 5, 2, 6, 3, 7)
    ]


def test_w01_first_fit_takes_a_whole_core_although_cpu_0_is_reserved():
    machine = build(cores=3, threads=2, surroundings=ADJACENT)
    names = device_names(driver(machine, cpu_device_mode="individual", reserved_cpus="0"))
    assert names == ["cpudev002", "cpudev003", "cpudev004", "cpudev005", "cpudev001"]


@given(st.data(), machines(cpus=40))
def test_every_allocatable_cpu_is_one_device_named_after_it(data: st.DataObject, machine: Machine):
    reserved = data.draw(subset(machine.present))
    devices = _devices(machine, reserved_cpus=str(reserved))
    good = {name for name, device in devices.items() if not device.taints}
    assert good == {f"cpudev{cpu:03d}" for cpu in machine.online - reserved}
    for name, device in devices.items():
        assert name == f"cpudev{_value(device, 'dra.cpu/cpuID'):03d}"
        assert len(device.attributes) <= 32


@given(st.data(), machines(cpus=40))
def test_w20_core_and_cache_ids_mean_one_core_and_one_cache(data: st.DataObject, machine: Machine):
    devices = _devices(machine).values()
    online = [d for d in devices if not d.taints]
    for name, part_of in (
        ("dra.cpu/coreID", lambda cpu: machine.by_id[cpu].core),
        ("dra.cpu/cacheL3ID", lambda cpu: machine.by_id[cpu].llc),
        ("dra.cpu/socketID", lambda cpu: machine.by_id[cpu].socket),
    ):
        pairs = {(_value(d, name), part_of(_value(d, "dra.cpu/cpuID"))) for d in online}
        assert len(pairs) == len({pair[0] for pair in pairs}) == len({pair[1] for pair in pairs})


def test_w20_firmwares_own_core_numbers_stay_where_they_are_unique():
    machine = build(cores=4, threads=2)
    sparse = assemble([CoreSpec(threads=2)] * 4, surroundings=ADJACENT)
    for one in (machine, sparse):
        for device in _devices(one).values():
            assert _value(device, "dra.cpu/coreID") == _value(device, "dra.cpu/rawCoreID")


def test_w20_a_changed_reservation_renames_nothing():
    machine = build(cores=4, threads=2)
    before, after = _devices(machine), _devices(machine, reserved_cpus="0-1")
    assert set(before) - set(after) == {"cpudev000", "cpudev001"}
    assert all(before[name] == device for name, device in after.items())


def test_an_offlined_cpu_is_tainted_unhealthy_and_last():
    machine = build(cores=4, threads=2, offline=CpuSet([2]))
    one = driver(machine, cpu_device_mode="individual")
    offer = one.offer()
    last = offer.pools[0].devices[-1]
    assert last.name == "cpudev002"
    assert (last.taints[0].key, last.taints[0].effect) == ("dra.cpu/offline", "NoSchedule")
    # A selector must not fail for want of an attribute: that would fail every pod's scheduling.
    assert set(last.attributes) == set(offer.pools[0].devices[0].attributes)
    assert [each.device for each in offer.unhealthy] == ["cpudev002"]


def test_threads_switched_off_as_a_whole_are_not_offered():
    machine = build(cores=4, threads=2, offline=CpuSet.parse("4-7"))
    assert not machine.smt_active
    offer = driver(machine, cpu_device_mode="individual").offer()
    assert [d.name for d in offer.pools[0].devices] == [f"cpudev00{cpu}" for cpu in range(4)]
    assert not offer.unhealthy


def test_node_allocatable_mapping():
    devices = _devices(build(), publish_node_allocatable_resource_mapping=True)
    assert devices["cpudev000"].node_allocatable_resources == {"cpu": {"mapping": {"deviceMultiplier": "1"}}}


def test_pcie_roots_near_the_cpu():
    machine = build(nodes=2, surroundings=Surroundings(pci_roots_per_node=2))
    device = _devices(machine, expose_pcie_roots=True)["cpudev000"]
    assert device.attributes["resource.kubernetes.io/pcieRoot"].strings == ("pci0000:00", "pci0000:10")
    assert "resource.kubernetes.io/pcieRoot" not in _devices(machine)["cpudev000"].attributes


def test_more_pcie_roots_than_a_device_may_list_are_left_out():
    machine = build(surroundings=Surroundings(pci_roots_per_node=40))
    device = _devices(machine, expose_pcie_roots=True)["cpudev000"]
    assert "resource.kubernetes.io/pcieRoot" not in device.attributes


# -- assign -------------------------------------------------------------------------------------


def _node(**settings: object) -> Node:
    machine = build(cores=4, threads=2, surroundings=ADJACENT)
    return Node(driver(machine, cpu_device_mode="individual", **settings))


def test_exactly_the_schedulers_cpus():
    entry = _node().prepare(claim(single(2), single(3), single(6)))
    assert [str(prepared.exclusive["cpu"]) for prepared in entry.devices] == ["2", "3", "6"]


def test_w11_a_request_tells_its_own_cpus_only():
    entry = _node().prepare(claim(single(2, request="a"), single(3, request="a"), single(6, request="b")))
    assert [prepared.env["DRA_CPUSET_uid-1"] for prepared in entry.devices] == ["2-3", "2-3", "6"]
    assert [prepared.env["DRA_CPUSET"] for prepared in entry.devices] == ["2-3", "2-3", "6"]


def test_another_claims_cpu_is_rejected_and_the_holder_named():
    node = _node()
    node.prepare(claim(single(2), uid="first"))
    with pytest.raises(RejectedError, match=r"CPU 2 .* held by claim default/mine \(first\)") as no:
        node.prepare(claim(single(2), uid="second"))
    assert no.value.reason == "conflict"


@pytest.mark.parametrize("device", ["cpudevnuma000", "cpudev2", "cpudev099", "cpudev", "gpu-0"])
def test_an_unknown_device_is_rejected(device: str):
    with pytest.raises(RejectedError, match=f"no device {device}") as no:
        _node().prepare(claim(replace(single(0), device=device)))
    assert no.value.reason == "unknown-device"


def test_cpus_reserved_or_offlined_since_the_allocation():
    with pytest.raises(RejectedError, match=r"CPU 0 .* reserved for the system") as no:
        _node(reserved_cpus="0").prepare(claim(single(0)))
    assert no.value.reason == "reserved"
    offline = Node(driver(build(offline=CpuSet([3])), cpu_device_mode="individual"))
    with pytest.raises(RejectedError, match=r"CPU 3 .* offline") as no:
        offline.prepare(claim(single(3)))
    assert no.value.reason == "offline"


def test_admin_access_looks_on_without_owning():
    node = _node()
    node.prepare(claim(single(2), uid="owner"))
    entry = node.prepare(claim(single(2, admin_access=True), uid="monitor"))
    assert not entry.exclusive("cpu")
    assert node.driver.enforce is not None
    assert str(node.prepared_claims.exclusive("cpu")) == "2"


@pytest.mark.parametrize(
    ("cpus", "fields", "text"),
    [
        ((2, 4), {"wholeCores": True}, "wholeCores"),
        ((2, 3), {"placement": "spread"}, "distinctAttribute: dra.cpu/coreID"),
        ((2, 3), {"distribute": "numa"}, "distribute"),
        ((2, 3), {"cpuset": "2-4"}, "cpuset 2-4"),
    ],
)
def test_a_policy_that_the_scheduler_did_not_satisfy_is_rejected(
    cpus: tuple[int, ...], fields: dict[str, object], text: str
):
    with pytest.raises(RejectedError, match=text) as no:
        _node().prepare(claim(*(single(cpu, policy_config(**fields)) for cpu in cpus)))
    assert no.value.reason == "policy"


def test_a_policy_that_the_scheduler_satisfied_is_accepted():
    for fields in ({"wholeCores": True}, {"sameL3": "required"}, {"cpuset": "2-3"}):
        _node().prepare(claim(*(single(cpu, policy_config(**fields)) for cpu in (2, 3))))


def test_one_cache_is_checked():
    machine = build(llcs=2, cores=2, threads=1)
    node = Node(driver(machine, cpu_device_mode="individual"))
    with pytest.raises(RejectedError, match="sameL3"):
        node.prepare(claim(*(single(cpu, policy_config(sameL3="required")) for cpu in (1, 2))))


def test_w06_the_last_shared_cpu_is_not_given_away():
    node = Node(driver(build(cores=2, threads=1), cpu_device_mode="individual"))
    with pytest.raises(RejectedError, match=r"1 must stay .* \(minSharedCPUs\)") as no:
        node.prepare(claim(single(0), single(1)))
    assert no.value.reason == "shared-pool"


def test_held_back_cpus_are_not_offered():
    machine = build(cores=3, threads=2, surroundings=ADJACENT)
    one = driver(machine, cpu_device_mode="individual", reserved_cpus="0", hold_back_shared=True)
    assert device_names(one) == ["cpudev002", "cpudev003", "cpudev004", "cpudev005"]


def test_claims_from_before_a_changed_reservation_stay():
    one = driver(build(cores=4, threads=1), cpu_device_mode="individual", reserved_cpus="0")
    assert isinstance(one, IndividualCpus)
    held = prepared_claims_of({"old": "0"})
    assert str(one.cpus.shared(held)) == "1-3"
    assert one.assign(claim(single(1)), held).devices[0].exclusive["cpu"] == CpuSet([1])
    assert one.assign(claim(single(1)), PreparedClaims()).devices
