from __future__ import annotations

import pytest

from drakit.core.kubernetes_releases import GATED_FIELDS
from drakit.core.objects import (
    Attribute,
    Capacity,
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    RequestPolicy,
    Taint,
    from_builtins,
    to_builtins,
)
from drakit.core.quantity import Quantity
from drakit.kit.slices.dropped_fields import find_dropped, hint_for_rejected
from drakit.kit.slices.layout import Content
from drakit.testing.apiserver_admission import drop_disabled

ONE = Quantity(1)
CONSUMES = CounterConsumption(
    counter_set="s", counters={"c": Counter(value=ONE)}, compatibility_groups=("g",)
)
RICH = Content(
    devices=(
        Device(
            name="d",
            taints=(Taint(key="t", effect="NoSchedule"),),
            consumes_counters=(CONSUMES,),
            binds_to_node=True,
            binding_conditions=("b",),
            binding_failure_conditions=("f",),
            allow_multiple_allocations=True,
            capacity={"c": Capacity(value=ONE, request_policy=RequestPolicy(default=ONE))},
            node_allocatable_resources={"cpu": {"mapping": {"deviceMultiplier": "1"}}},
        ),
        Device(name="plain"),
    )
)
COUNTERS = Content(shared_counters=(CounterSet(name="s", counters={"c": Counter(value=ONE)}),))


def through_server(content: Content, **gates: bool) -> Content:
    """What a server with these gates on and all others off keeps of a slice."""
    spec = to_builtins(content)
    spec = {key: list(value) for key, value in spec.items()}
    drop_disabled(spec, None, dict.fromkeys(GATED_FIELDS, True) | gates)
    return from_builtins(spec, Content)


@pytest.mark.parametrize(
    ("gate", "fields"),
    [
        ("DRADeviceTaints", {"taints"}),
        ("DRAPartitionableDevices", {"consumesCounters"}),
        ("DRADeviceBindingConditions", {"bindingConditions"}),
        ("DRAConsumableCapacity", {"allowMultipleAllocations", "requestPolicy"}),
        ("DRADeviceCompatibilityGroups", {"compatibilityGroups"}),
        ("DRANodeAllocatableResources", {"nodeAllocatableResources"}),
    ],
)
def test_each_gate_is_recognized(gate: str, fields: set[str]) -> None:
    dropped = find_dropped("p", RICH, through_server(RICH, **{gate: False}))
    assert {(item.field, item.gate, item.devices) for item in dropped} == {
        (field, gate, ("d",)) for field in fields
    }
    for item in dropped:
        assert gate in item.reason
        assert item.pool == "p"


def test_all_gates_at_once() -> None:
    got = through_server(RICH, **dict.fromkeys(GATED_FIELDS, False))
    assert len(find_dropped("p", RICH, got)) == 6


def test_counter_sets() -> None:
    (item,) = find_dropped("p", COUNTERS, through_server(COUNTERS, DRAPartitionableDevices=False))
    assert (item.field, item.gate, item.devices) == ("sharedCounters", "DRAPartitionableDevices", ())


def test_nothing_dropped() -> None:
    assert find_dropped("p", RICH, through_server(RICH)) == ()
    assert find_dropped("p", COUNTERS, through_server(COUNTERS)) == ()


def test_a_change_that_no_gate_explains_is_reported() -> None:
    got = Content(devices=(Device(name="d", attributes={"x": Attribute(int_=2)}),))
    sent = Content(devices=(Device(name="d", attributes={"x": Attribute(int_=1)}),))
    (item,) = find_dropped("p", sent, got)
    assert item.gate is None
    assert "webhook" in item.reason


def test_hints_for_rejected_slices() -> None:
    lists = Content(devices=(Device(name="d", attributes={"x": Attribute(ints=(1,))}),))
    assert "DRAListTypeAttributes" in hint_for_rejected(lists)
    assert "offers" in hint_for_rejected(RICH)
