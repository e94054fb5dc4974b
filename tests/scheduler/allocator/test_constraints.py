"""List attributes in constraints, as kube-scheduler compares them with ``DRAListTypeAttributes``."""

from __future__ import annotations

from typing import Any

import pytest

from drakit.core.objects import Device, from_builtins
from drakit.scheduler.allocator.constraints import DistinctAttribute, MatchAttribute, RequestName

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
