from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.scheduler.allocator.search_state import SearchState, bits, mask_of
from drakit.scheduler.errors import FatalError
from tests.scheduler.factories import claim, device, exactly, node_devices, plans, resource_slice

SHARED = {
    "allowMultipleAllocations": True,
    "capacity": {"k": {"value": "4", "requestPolicy": {"default": "2"}}},
}


@given(st.sets(st.integers(0, 200)))
def test_bits_and_mask_of_are_inverse(positions: set[int]) -> None:
    assert list(bits(mask_of(sorted(positions)))) == sorted(positions)


def state(*claims: Any) -> SearchState:
    counted = {"consumesCounters": [{"counterSet": "m", "counters": {"gb": {"value": "3"}}}]}
    counters = resource_slice(
        name="counters", pool={"resourceSliceCount": 2},
        sharedCounters=[{"name": "m", "counters": {"gb": {"value": "5"}}}],
    )  # fmt: skip
    devices = [
        device("a", attributes={"n": {"int": 0}}),
        device("b", attributes={"n": {"int": 1}}),
        device("c", **counted),
        device("d", **counted),
        device("s", **SHARED),
    ]
    return SearchState(
        node_devices(counters, resource_slice(*devices, pool={"resourceSliceCount": 2})), plans(*claims)
    )


def snapshot(found: SearchState) -> Any:
    consumed = {k: v for used in found.consumed.values() for k, v in used.items() if v}
    constraints = [k.state() for ks in found.constraints for k in ks]
    return (
        found.taken, list(found.taken_by), dict(found.share_states), consumed, constraints,
        [list(p) for p in found.picks],
    )  # fmt: skip


@given(st.lists(st.integers(0, 4), max_size=8))
def test_undo_take_restores_the_state(order: list[int]) -> None:
    found = state(claim(exactly(count=4)))
    variant = next(found.variants())
    stack = [(snapshot(found), -1)]
    for at in order:
        before = snapshot(found)
        if found.take(0, variant, at, insist=False):
            stack.append((before, at))
        else:
            assert snapshot(found) == before
    while len(stack) > 1:
        before, at = stack.pop()
        found.undo_take(0, at)
        assert snapshot(found) == before


def test_a_device_is_taken_once_but_a_shareable_one_while_capacity_is_free() -> None:
    found = state(claim(exactly(count=4)))
    variant = next(found.variants())
    assert [found.take(0, variant, 0, insist=False) for _ in range(2)] == [True, False]
    assert [found.take(0, variant, 4, insist=False) for _ in range(3)] == [True, True, False]


def test_counters_limit_the_devices_that_consume_them() -> None:
    found = state(claim(exactly(count=2)))
    variant = next(found.variants())
    assert found.take(0, variant, 2, insist=False)
    assert not found.take(0, variant, 3, insist=False)


def test_a_violated_constraint_of_a_request_for_all_devices_is_an_error() -> None:
    found = state(claim(exactly(count=2), constraints=[{"matchAttribute": "d.io/n"}]))
    variant = next(found.variants())
    assert found.take(0, variant, 0, insist=False)
    assert not found.take(0, variant, 1, insist=False)
    with pytest.raises(FatalError, match=r"cannot add device d\.io/p/b because a claim constraint"):
        found.take(0, variant, 1, insist=True)


def test_a_claim_with_too_many_devices_fails_the_pod() -> None:
    with pytest.raises(FatalError, match="adding 30 devices exceeds the claim limit of 32") as caught:
        state(claim(exactly("one", count=5), exactly("two", count=30)))
    assert caught.value.summary == (
        "request two of claim default/x requests 30 devices, other requests 5; a claim can have at most 32"
    )


def test_undo_take_releases_the_constraint() -> None:
    found = state(claim(exactly(count=2), constraints=[{"matchAttribute": "d.io/n"}]))
    variant = next(found.variants())
    assert found.take(0, variant, 0, insist=False)
    found.undo_take(0, 0)
    assert found.take(0, variant, 1, insist=False)
