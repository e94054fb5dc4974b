from __future__ import annotations

from typing import Any

import pytest

from drakit.core.objects import ResourceClaim
from drakit.scheduler.explain import NodeReport, report, with_remedies
from drakit.scheduler.placement import prepare
from tests.scheduler.factories import allocated, claim, device, exactly, node, pod, resource_slice, snapshot
from tests.scheduler.problems import Json

TAINT = {"key": "k", "effect": "NoSchedule"}


def explained(
    wanted: ResourceClaim, *devices: Json, held: tuple[ResourceClaim, ...] = (), **slices: Any
) -> NodeReport:
    cluster = snapshot(resource_slice(*devices, **slices), claims=(wanted, *held))
    return report(prepare(cluster, pod("x")), node())


def test_rejected_devices_are_grouped_by_reason_and_counted_in_words() -> None:
    found = explained(
        claim(exactly("r", 'device.attributes["d.io"].m == 1', count=2)),
        device("a", attributes={"m": {"int": 0}}),
        device("b", attributes={"m": {"int": 0}}),
        device("c", attributes={"m": {"int": 1}}, taints=[TAINT]),
        device("d", attributes={"m": {"int": 1}}),
    )
    (request,) = found.requests
    assert request.suitable == ("p/d",)
    assert [(g.kind, g.devices) for g in request.rejections] == [
        ("selector", ("p/a", "p/b")),
        ("taint", ("p/c",)),
    ]
    assert request.rejections[0].text.endswith("– it has m = 0")
    assert found.findings == (
        (
            "request r wants 2 devices, only 1 on this node qualifies: 2 devices do not match the "
            "selectors, 1 device is tainted"
        ),
    )


@pytest.mark.parametrize(
    ("expression", "seen"),
    [
        ('device.attributes["d.io"].?m.orValue(0) == 1', "it has no attribute m"),
        ('device.capacity["d.io"].?k.hasValue()', "it has no capacity k"),
        ('device.driver == "e.io"', "it has driver = d.io"),
    ],
)
def test_missing_values_are_named(expression: str, seen: str) -> None:
    found = explained(claim(exactly("r", expression)), device("a"))
    assert found.requests[0].rejections[0].text.endswith(seen)


def test_a_cel_error_fails_scheduling_on_all_nodes() -> None:
    found = explained(claim(exactly("r", 'device.attributes["d.io"].m == 1')), device("a"))
    assert found.findings == (
        (
            "CEL error: scheduling fails on all nodes: selector 1 of the request fails: "
            "no such key: m (on p/a)"
        ),
    )


def test_too_many_devices_are_explained_in_plain_words() -> None:
    found = explained(claim(exactly("r", count=40)), device("a"))
    assert found.answer.reason.endswith("exceeds the claim limit of 32, with 0 already accounted for")
    assert found.findings == (
        (
            "scheduling fails on all nodes: request r of claim default/x requests 40 devices; "
            "a claim can have at most 32"
        ),
    )


def test_a_node_without_complete_pools_has_no_devices() -> None:
    found = explained(claim(exactly()), device("a"), pool={"resourceSliceCount": 2})
    assert found.broken_pools == ("pool d.io/p is incomplete: 1 of 2 slices of generation 1 exist",)
    assert found.findings[0].endswith("the node has no devices (no complete ResourceSlice pool)")


def test_a_constraint_that_prevents_the_allocation_is_named_with_the_devices_per_value() -> None:
    devices = [device(n, attributes={"n": {"int": i % 2}}) for i, n in enumerate("abcd")]
    wanted = claim(exactly(count=3), constraints=[{"matchAttribute": "d.io/n"}])
    assert explained(wanted, *devices).findings == (
        (
            "no choice of devices gives all requests of claim default/x the same d.io/n: "
            "r finds 2 with 0, 2 with 1"
        ),
    )


def test_requests_that_compete_for_devices_are_explained() -> None:
    found = explained(claim(exactly("a"), exactly("b")), device("a"))
    assert found.findings[0].startswith("each request alone could be satisfied, but together")


def test_the_claims_that_use_capacity_are_named() -> None:
    shared = device("a", allowMultipleAllocations=True, capacity={"k": {"value": "8"}})
    held = tuple(allocated("a", name=f"h{i}", shareID=str(i), consumedCapacity={"k": "1"}) for i in range(5))
    found = explained(claim(exactly(capacity={"requests": {"k": "4"}})), shared, held=held)
    assert found.requests[0].rejections[0].text == (
        "3 of 8 k is free, but 4 is needed; used by claim default/h0, claim default/h1, "
        "claim default/h2 and 2 more"
    )


def test_a_node_on_which_the_pod_fits_has_no_findings_and_no_remedies() -> None:
    found = explained(claim(exactly()), device("a"))
    assert found.answer.fits
    assert found.findings == ()
    cycle = prepare(snapshot(resource_slice(device("a")), claims=(claim(exactly()),)), pod("x"))
    assert with_remedies(cycle, node(), found) is found
