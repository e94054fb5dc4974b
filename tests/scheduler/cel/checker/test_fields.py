from __future__ import annotations

import pytest

from drakit.scheduler.cel.checker.fields import Field, all_fields, fields_named, unguarded_fields
from drakit.scheduler.cel.syntax.parser import parse

M = Field("attributes", "d", "m")


@pytest.mark.parametrize(
    "text",
    [
        "device.attributes['d'].m",
        "device.attributes['d'].?m",
        "device.attributes['d']['m']",
        "device.attributes['d'][?'m']",
        "has(device.attributes['d'].m)",
    ],
)
def test_every_notation_names_the_same_field(text: str) -> None:
    assert list(fields_named(parse(text))) == [M]
    assert all_fields(parse(text)) == {M}


def test_an_expression_that_uses_device_in_another_way_has_no_list_of_fields() -> None:
    for text in ("device.attributes['d'].exists(k, true)", "device.attributes[device.driver].m == 1"):
        assert all_fields(parse(text)) is None
    both = parse("device.driver == 'x' && device.capacity['d'].k.isInteger()")
    assert all_fields(both) == {Field("driver", "", ""), Field("capacity", "d", "k")}


@pytest.mark.parametrize(
    ("text", "unguarded"),
    [
        ("device.attributes['d'].m == 1", True),
        ("device.attributes['d']['m'] == 1", True),
        ("has(device.attributes['d'].m) && device.attributes['d'].m == 1", False),
        ("device.attributes['d'].?m.orValue(1) == 1", False),
        ("'m' in device.attributes['d'] && device.attributes['d'].m == 1", False),
        ("device.driver == 'd' && device.attributes['d'].m == 1", False),
        ("'d' == device.driver && device.attributes['d'].m == 1", False),
        ("device.driver == 'e' && device.attributes['d'].m == 1", True),
        ("'x' == 'd' && device.attributes['d'].m == 1", True),
        ("has(device.attributes['d'].other) && device.attributes['d'].m == 1", True),
    ],
)
def test_unguarded_fields(text: str, unguarded: bool) -> None:
    assert unguarded_fields(parse(text)) == ([M] if unguarded else [])
