from __future__ import annotations

import pytest

from drakit.core.objects import Device, from_builtins
from drakit.scheduler.cel.errors import CelCompileError, CelRuntimeError, CelUnsupportedError
from drakit.scheduler.cel.selector import compile_selector, device_value, selector_fields, split_name

DEVICE = device_value(
    "d.io",
    from_builtins(
        {"attributes": {"b": {"bool": True}, "i": {"int": 7}, "o.io/v": {"version": "1.2.3"}}}, Device
    ),
)  # fmt: skip
FAILS = "device.attributes['d.io'].nope"


def result(text: str) -> bool:
    return compile_selector(text).matches(DEVICE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"true || {FAILS}", True),
        (f"{FAILS} || true", True),
        (f"{FAILS} && false", False),
        (f"[1, 2].exists(x, x == 2 || {FAILS})", True),
        (f"[1, 2].all(x, x == 1 && {FAILS})", False),
        (f"true ? true : {FAILS}", True),
        (f"optional.of(true).orValue({FAILS})", True),
        (f"cel.bind(x, {FAILS}, true)", True),
        (f"{FAILS} in []", False),
    ],
)
def test_an_error_that_cannot_change_the_result_is_ignored(text: str, expected: bool) -> None:
    assert result(text) is expected


@pytest.mark.parametrize(
    "text", [f"false || {FAILS}", f"{FAILS} && true", f"[1].all(x, {FAILS})", f"{FAILS} == 1"]
)
def test_an_error_that_decides_is_reported(text: str) -> None:
    with pytest.raises(CelRuntimeError, match="no such key: nope"):
        result(text)


@pytest.mark.parametrize(
    "text",
    [
        "[3, 1, 2].map(x, x * 2) == [6, 2, 4]",
        "[1, 2, 3].filter(x, x > 1).size() == 2",
        "['a', 'b'].transformMap(i, v, i) == {0: 0, 1: 1}",
        "{'a': 1}.transformMapEntry(k, v, {v: k}) == {1: 'a'}",
        "[1, 2].exists_one(x, x == 1)",
        "[?optional.of(1), ?optional.none(), 2] == [1, 2]",
        "{?'a': optional.none(), ?'b': optional.of(1)} == {'b': 1}",
        "cel.bind(x, 2, x * x) == 4",
        "optional.of(2).optMap(x, x + 1).value() == 3",
        "optional.none().or(optional.of(1)).value() == 1",
        "['b', 'a'].sortBy(x, x) == ['a', 'b']",
        "type(device.attributes['d.io'].i) == int",
        "device.attributes['o.io'].v.isGreaterThan(semver('1.2.0'))",
    ],
)
def test_expressions(text: str) -> None:
    assert result(text)


def test_a_map_cannot_have_a_key_twice() -> None:
    with pytest.raises(CelRuntimeError, match="insert failed: key 1 already exists"):
        result("[1, 1].transformMapEntry(i, v, {v: i}).size() == 1")


def test_the_result_must_be_a_bool() -> None:
    assert result("device.attributes['d.io'].b")
    with pytest.raises(CelRuntimeError, match="CEL result of type int could not be converted to bool"):
        result("device.attributes['d.io'].i")


def test_constants_are_checked_when_the_expression_is_compiled() -> None:
    with pytest.raises(CelCompileError, match="program instantiation failed"):
        compile_selector("int('x') == 1")
    with pytest.raises(CelUnsupportedError, match="cannot run the regular expression"):
        compile_selector("device.driver.matches('(a+)+')")
    with pytest.raises(CelRuntimeError):
        result("quantity('x').isInteger()")


def test_names_have_the_driver_as_default_domain() -> None:
    assert split_name("a", "d.io") == ("d.io", "a")
    assert split_name("o.io/a", "d.io") == ("o.io", "a")
    assert [tuple(f) for f in selector_fields("device.capacity['d'].k.isInteger()")] == [
        ("capacity", "d", "k")
    ]
    assert selector_fields("not valid (") == ()


def test_an_attribute_without_a_valid_value_is_an_error() -> None:
    for attribute in ({}, {"version": "1"}):
        with pytest.raises(CelRuntimeError, match="attribute x"):
            device_value("d.io", from_builtins({"attributes": {"x": attribute}}, Device))
