from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.objects import Device, from_builtins
from drakit.scheduler.allocator.constraints import (
    DistinctAttribute,
    DistinctAttributeByRequest,
    MatchAttribute,
    RequestName,
    lookup_attribute,
)

R = RequestName("r")


def device(**attribute: Any) -> Device:
    return from_builtins({"name": "d", "attributes": {"a": attribute}}, Device)


ONE, TWO = device(int=1), device(int=2)
BOTH, UPPER = device(ints=[1, 2]), device(ints=[2, 3])


@pytest.mark.parametrize(
    ("devices", "match", "distinct"),
    [
        ([ONE, BOTH], True, False),
        ([BOTH, UPPER], True, False),
        ([BOTH, UPPER, TWO], True, False),
        ([BOTH, UPPER, ONE], False, False),  # 1 is in the first only: the common value is 2
        ([ONE, UPPER], False, True),
        ([ONE, device(string="1")], False, True),
        ([ONE, device(strings=["1"])], False, True),
        ([device(int=1), device(bool=True)], False, True),
        ([ONE, from_builtins({"name": "d"}, Device)], False, False),
    ],
)
def test_lists_match_by_a_common_value(devices: list[Device], match: bool, distinct: bool) -> None:
    same, different = MatchAttribute("x.io/a", ()), DistinctAttribute("x.io/a", ())
    assert all(same.add(R, d, "x.io") for d in devices) is match
    assert all(different.add(R, d, "x.io") for d in devices) is distinct


def test_removing_a_device_restores_the_common_values() -> None:
    same = MatchAttribute("x.io/a", ())
    for d in (BOTH, UPPER):
        assert same.add(R, d, "x.io")
    assert not same.add(R, ONE, "x.io")
    same.remove(R)
    assert same.add(R, ONE, "x.io")


@given(
    values=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_constraints_do_not_depend_on_the_order_of_devices(values: list[list[int]], order: Random) -> None:
    devices = [device(ints=v) for v in values]
    shuffled = order.sample(devices, len(devices))
    for kind in (MatchAttribute, DistinctAttribute):
        accepted = []
        for sequence in (devices, shuffled):
            constraint = kind("x.io/a", ())
            accepted.append(all(constraint.add(R, d, "x.io") for d in sequence))
        assert accepted[0] == accepted[1]


@given(values=st.lists(st.integers(0, 3), max_size=6))
def test_remove_restores_the_state_and_admits_agrees_with_add(values: list[int]) -> None:
    for kind in (MatchAttribute, DistinctAttribute):
        constraint = kind("x.io/a", ())
        for value in values:
            before = constraint.state()
            one = device(int=value)
            admitted = constraint.admits(one, "x.io")
            assert constraint.add(R, one, "x.io") == admitted
            if admitted:
                constraint.remove(R)
                assert constraint.state() == before
                constraint.add(R, one, "x.io")


def test_a_constraint_covers_its_requests_and_their_subrequests() -> None:
    constraint = MatchAttribute("x.io/a", ("one", "two/sub"))
    assert constraint.covers(RequestName("one"))
    assert constraint.covers(RequestName("one", "any"))
    assert constraint.covers(RequestName("two", "sub"))
    assert not constraint.covers(RequestName("two", "other"))
    assert not constraint.covers(RequestName("two"))
    assert constraint.add(RequestName("three"), device(int=1), "x.io")
    assert constraint.state() == ()


def test_until_1_36_values_of_the_same_request_replace_each_other() -> None:
    by_request = DistinctAttributeByRequest("x.io/a", ())
    assert by_request.add(R, device(int=1), "x.io")
    assert not by_request.add(R, device(int=1), "x.io")
    assert by_request.add(R, device(int=2), "x.io")  # the request's value is now 2
    assert by_request.add(RequestName("other"), device(int=1), "x.io")


def test_an_attribute_without_domain_belongs_to_the_driver() -> None:
    one = device(int=1)
    assert lookup_attribute(one, "x.io", "x.io/a") is not None
    assert lookup_attribute(one, "y.io", "x.io/a") is None
    assert lookup_attribute(one, "x.io", "a") is not None
