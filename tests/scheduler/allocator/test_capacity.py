from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.kubernetes_releases import V1_36, V1_37
from drakit.core.objects import Capacity, CapacityRequirements, from_builtins
from drakit.core.quantity import Quantity
from drakit.scheduler.allocator.capacity import (
    CapacityError,
    CapacityShortage,
    consumption,
    remaining_shortage,
)


def capacity(value: str, **policy: object) -> Capacity:
    plain = {"value": value, **({"requestPolicy": policy} if policy else {})}
    return from_builtins(plain, Capacity)


def consumed(asked: str | None, found: Capacity, release: object = V1_37) -> object:
    requests = {"k": Quantity(asked)} if asked is not None else {}
    outcome = consumption(CapacityRequirements(requests=requests), {"k": found}, release)  # type: ignore[arg-type]
    return outcome.reason if isinstance(outcome, CapacityShortage) else str(outcome["k"])


def test_without_a_request_the_default_or_everything_is_consumed() -> None:
    assert consumed(None, capacity("8", default="2")) == "2"
    assert consumed(None, capacity("8")) == "8"


@given(asked=st.integers(0, 500), low=st.integers(0, 40), step=st.integers(1, 40))
def test_a_request_is_rounded_up_to_the_next_step(asked: int, low: int, step: int) -> None:
    found = capacity("1000", default="1000", validRange={"min": str(low), "step": str(step)})
    amount = Quantity(str(consumed(str(asked), found))).ceil()
    assert amount >= max(asked, low)
    assert (amount - low) % step == 0
    assert amount == low or amount - step < asked


def test_fractions_are_rounded_in_milli_units_since_1_37() -> None:
    found = capacity("8", default="8", validRange={"min": "500m", "step": "250m"})
    assert consumed("600m", found) == "750m"
    assert consumed("600m", found, V1_36) == "1"


def test_the_smallest_valid_value_that_suffices_is_consumed() -> None:
    found = capacity("8", default="1", validValues=["1", "2", "4"])
    assert consumed("3", found) == "4"
    assert consumed("5", found) == "requested 5, which is not one of the allowed amounts (1, 2, 4)"


def test_a_request_above_the_maximum_is_rejected() -> None:
    found = capacity("64", default="1", validRange={"min": "1", "max": "62", "step": "1"})
    assert consumed("62", found) == "62"
    assert consumed("65", found) == "requested 65, but the largest request allowed is 62"


def test_only_identical_keys_match() -> None:
    requirements = CapacityRequirements(requests={"d.io/k": Quantity("1")})
    outcome = consumption(requirements, {"k": capacity("8")}, V1_37)
    assert outcome == CapacityShortage("the device has no capacity 'd.io/k' (it has: k)")


def test_an_unrepresentable_amount_is_an_error() -> None:
    found = capacity("8", default="8", validRange={"min": "1m", "step": "1m"})
    with pytest.raises(CapacityError, match="milli"):
        consumed("1500u", found)


def test_a_negative_amount_is_an_error_only_where_errors_are_fatal() -> None:
    assert consumed("-1", capacity("8"), V1_36) == "-1"
    with pytest.raises(CapacityError, match="negative"):
        consumed("-1", capacity("8"))
    lenient = dataclasses.replace(
        V1_37, scheduler=dataclasses.replace(V1_37.scheduler, capacity_errors_are_fatal=False)
    )
    assert consumed("-1", capacity("8"), lenient) == "-1"


@given(total=st.integers(0, 50), used=st.integers(0, 60), taken=st.integers(0, 60))
def test_a_shortage_is_reported_exactly_if_the_free_amount_is_too_small(
    total: int, used: int, taken: int
) -> None:
    found = remaining_shortage({"k": Quantity(taken)}, {"k": capacity(str(total))}, {"k": used * 10**9})
    assert (found is not None) == (used + taken > total)
    if found is not None:
        assert found.reason == f"{max(total - used, 0)} of {total} k is free, but {taken} is needed"
