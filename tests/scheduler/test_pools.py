from __future__ import annotations

from typing import Any

import pytest

from drakit.core.kubernetes_releases import LATEST, V1_35, V1_36
from drakit.core.objects import ResourceSlice
from drakit.scheduler.pools import PoolId, PoolView, SliceIndex
from tests.scheduler.factories import device, node, resource_slice

COUNTERS = {"sharedCounters": [{"name": "m", "counters": {"gb": {"value": "8"}}}]}
USES = {"consumesCounters": [{"counterSet": "m", "counters": {"gb": {"value": "3"}}}]}


def pools(*slices: ResourceSlice, release: Any = LATEST, name: str = "n") -> list[PoolView]:
    return list(SliceIndex(slices, release).pools(node(name)))


def test_a_pool_is_incomplete_until_all_slices_exist() -> None:
    one = resource_slice(device("a"), pool={"resourceSliceCount": 2})
    (found,) = pools(one)
    assert found.incomplete == "1 of 2 slices of generation 1 exist"
    assert not found.usable
    elsewhere = resource_slice(device("b"), name="t", nodeName="m", pool={"resourceSliceCount": 2})
    (found,) = pools(one, elsewhere)
    assert found.usable
    assert [s.metadata.name for s in found.slices_elsewhere] == ["t"]


def test_only_the_newest_generation_counts() -> None:
    old = resource_slice(device("old"), name="a")
    new = resource_slice(device("new"), name="b", pool={"generation": 2})
    for order in ((old, new), (new, old)):
        (found,) = pools(*order)
        assert [d.name for s in found.slices for d in s.spec.devices] == ["new"]


def test_a_pool_that_is_replaced_by_a_generation_for_other_nodes_disappears() -> None:
    old = resource_slice(device("a"), pool={"resourceSliceCount": 2})
    new = resource_slice(device("a"), name="t", nodeName="m", pool={"generation": 2})
    assert pools(old, new) == []


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        ((resource_slice(device("a"), device("a")),), "duplicate device name a"),
        ((resource_slice(device("a", **USES)),), "counter set m not found"),
        (
            (
                resource_slice(name="c", pool={"resourceSliceCount": 3}, **COUNTERS),
                resource_slice(name="d", pool={"resourceSliceCount": 3}, **COUNTERS),
                resource_slice(device("a", **USES), pool={"resourceSliceCount": 3}),
            ),
            "duplicate counter set name m",
        ),
    ],
)
def test_a_contradictory_pool_is_invalid(slices: tuple[ResourceSlice, ...], reason: str) -> None:
    (found,) = pools(*slices)
    assert found.invalid == reason


def test_slices_are_filtered_by_node() -> None:
    slices = (
        resource_slice(device("a"), name="a", pool={"name": "named"}),
        resource_slice(device("b"), name="b", pool={"name": "all"}, allNodes=True),
        resource_slice(
            device("c", nodeName="m"), name="c", pool={"name": "device"}, perDeviceNodeSelection=True
        ),
    )
    assert [p.id.name for p in pools(*slices)] == ["all", "named"]
    assert [p.id.name for p in pools(*slices, name="m")] == ["all", "device"]
    assert [p.id.name for p in pools(*slices, name="m", release=V1_35)] == ["all"]


def test_slices_with_counters_are_relevant_on_every_node_until_1_36() -> None:
    counters = resource_slice(name="c", **COUNTERS)
    assert pools(counters, name="m") == []
    assert [p.id for p in pools(counters, name="m", release=V1_36)] == [PoolId("d.io", "p")]


def test_pools_with_binding_conditions_come_last() -> None:
    bound = resource_slice(device("a", bindingConditions=["x"]), name="a", pool={"name": "a"})
    plain = resource_slice(device("b"), name="b", pool={"name": "b"})
    assert [p.id.name for p in pools(bound, plain)] == ["b", "a"]


def test_a_matcher_is_compiled_once() -> None:
    index = SliceIndex((), LATEST)
    assert index.matcher("true") is index.matcher("true")
