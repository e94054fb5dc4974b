from __future__ import annotations

import pytest

from drakit.core.kubernetes_releases import V1_35, V1_36, V1_37
from drakit.core.objects import Taint, Toleration
from drakit.scheduler.allocator.capacity import CapacityShortage
from drakit.scheduler.allocator.node_devices import (
    EvaluationFailure,
    InUse,
    NotSelected,
    Suitable,
    Tainted,
    Unusable,
)
from drakit.scheduler.errors import FatalError
from drakit.scheduler.nodes import untolerated_taint
from drakit.scheduler.pools import DeviceId
from tests.scheduler.factories import allocated, claim, device, exactly, node_devices, plans, resource_slice
from tests.scheduler.problems import Json

SHARED = {"allowMultipleAllocations": True, "capacity": {"k": {"value": "8"}}}
TAINT = {"key": "broken", "effect": "NoSchedule"}


def verdict(plain: Json, request: Json | None = None, **more: object) -> object:
    found = node_devices(resource_slice(plain), **more)  # type: ignore[arg-type]
    return found.verdict(plans(claim(request or exactly()))[0].requests[0].variants[0], 0)


def test_a_device_gets_the_first_reason_that_excludes_it() -> None:
    assert verdict(device("a")) == Suitable({})
    assert verdict(device("a"), exactly("r", "true", "false")) == NotSelected(False, 1, "false")
    tainted = verdict(device("a", taints=[TAINT]))
    assert isinstance(tainted, Tainted)
    assert tainted.taint.key == "broken"
    short = verdict(device("a", **SHARED), exactly(capacity={"requests": {"k": "9"}}))
    assert short == CapacityShortage("8 of 8 k is free, but 9 is needed")


def test_an_evaluation_failure_has_the_message_of_kube_scheduler_and_a_summary() -> None:
    failed = verdict(device("a"), exactly("r", 'device.attributes["d.io"].model == "x"'))
    assert isinstance(failed, EvaluationFailure)
    assert str(failed.error).startswith(
        "claim default/x: selector #0 on device d.io/p/a: CEL runtime error: no such key: model"
    )
    assert failed.error.summary == "selector 1 of the request fails: no such key: model"


def test_what_a_release_does_not_support_makes_a_device_unusable() -> None:
    bound = device("a", bindingConditions=["ready"])
    assert isinstance(verdict(bound, release=V1_35), Unusable)
    assert verdict(bound, release=V1_36) == Suitable({})


def test_includes_is_an_unknown_function_before_1_37() -> None:
    request = exactly("r", 'device.driver.includes("d.io")')
    assert verdict(device("a"), request, release=V1_37) == Suitable({})
    assert isinstance(verdict(device("a"), request, release=V1_36), EvaluationFailure)


def test_admin_access_does_not_use_devices_and_shares_need_the_gate() -> None:
    held = (
        allocated("a", adminAccess=True),
        allocated("b", name="two", shareID="1", consumedCapacity={"k": "2"}),
        allocated("b", name="three", shareID="2", consumedCapacity={"k": "3"}),
    )
    b = DeviceId("d.io", "p", "b")
    new, old = InUse.of(held, V1_37), InUse.of(held, V1_35)
    assert new.capacity == {b: {"k": 5 * 10**9}}
    assert [c.metadata.name for c in new.shared[b]] == ["two", "three"]
    assert not new.exclusive
    assert set(old.exclusive) == {b}
    assert not old.holds(DeviceId("d.io", "p", "a"))


@pytest.mark.parametrize(("release", "expected"), [(V1_36, (0,)), (V1_37, (0, 1))], ids=["1.36", "1.37"])
def test_all_includes_full_devices_since_1_37(release: object, expected: tuple[int, ...]) -> None:
    held = (allocated("b", shareID="1", consumedCapacity={"k": "8"}),)
    shared = resource_slice(device("a", **SHARED), device("b", **SHARED))
    found = node_devices(shared, held=held, release=release)  # type: ignore[arg-type]
    variant = plans(claim(exactly(allocationMode="All")))[0].requests[0].variants[0]
    assert found.all_devices(variant) == expected


def test_all_fails_while_a_pool_is_incomplete() -> None:
    found = node_devices(resource_slice(device("a"), pool={"resourceSliceCount": 2}))
    variant = plans(claim(exactly(allocationMode="All")))[0].requests[0].variants[0]
    with pytest.raises(FatalError, match=r"resource pool d\.io/p is currently being updated"):
        found.all_devices(variant)


def test_allocated_devices_reduce_the_counters_of_their_pool() -> None:
    uses = [{"counterSet": "m", "counters": {"gb": {"value": "3"}}}]
    counters = resource_slice(
        name="counters", pool={"resourceSliceCount": 2},
        sharedCounters=[{"name": "m", "counters": {"gb": {"value": "8"}}}],
    )  # fmt: skip
    parts = resource_slice(
        device("a", consumesCounters=uses), device("b", consumesCounters=uses), pool={"resourceSliceCount": 2}
    )  # fmt: skip
    found = node_devices(counters, parts, held=(allocated("a"),))
    assert found.available_counters(found.pools[0]) == {("m", "gb"): 5 * 10**9}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({}, False),
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "operator": "Equal", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_tolerations(toleration: Json, tolerated: bool) -> None:
    taint = Taint(key="k", value="v", effect="NoSchedule")
    found = untolerated_taint([taint], (Toleration(**toleration),))
    assert (found is None) == tolerated
    assert untolerated_taint([Taint(key="k", effect="None")], ()) is None
