from __future__ import annotations

import dataclasses

import pytest

from drakit.core.kubernetes_releases import LATEST
from drakit.scheduler.cel.checker.checker import check, new_objects, stored_objects
from drakit.scheduler.cel.checker.validators import validate
from drakit.scheduler.cel.errors import CelTypeError, CelUnsupportedError
from drakit.scheduler.cel.syntax.parser import parse

STORED, NEW = stored_objects(LATEST.cel), new_objects(LATEST.cel)


def type_of(text: str) -> str:
    root = parse(text)
    return str(check(root, STORED).types[root])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2", "int"),
        ("[1, 2]", "list(int)"),
        ("[]", "list(dyn)"),
        ("{'a': 1u}", "map(string, uint)"),
        ("device.driver", "string"),
        ("device.attributes", "map(string, map(string, dyn))"),
        ("device.capacity['d'].m", "kubernetes.Quantity"),
        ("device.attributes['d'].?m", "optional_type(dyn)"),
        ("has(device.attributes['d'].m)", "bool"),
        ("[1].map(x, string(x))", "list(string)"),
        ("{'a': 1}.transformMap(k, v, v > 1)", "map(string, bool)"),
        ("cel.bind(x, 1, [x])", "list(int)"),
        ("type(1)", "type(int)"),
        ("optional.of(1).orValue(2)", "int"),
        ("true ? 1 : 2", "int"),
    ],
)
def test_types(text: str, expected: str) -> None:
    assert type_of(text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nope", "undeclared reference to 'nope'"),
        ("device.nope", "undefined field 'nope'"),
        ("f(1)", "undeclared reference to 'f'"),
        ("1 + 'a'", r"found no matching overload for '_\+_' applied to '\(int, string\)'"),
        ("1 && true", "expected type 'bool' but found 'int'"),
        ("1.size()", "found no matching overload for 'size'"),
        ("1.all(x, true)", "cannot be range of a comprehension"),
        ("'a'.b", "does not support field selection"),
    ],
)
def test_type_errors(text: str, error: str) -> None:
    with pytest.raises(CelTypeError, match=error):
        check(parse(text.replace("1.", "(1).")), STORED)


def test_all_errors_are_reported_with_the_position_of_the_first() -> None:
    with pytest.raises(CelTypeError, match=r"'a'.*; .*'b'") as caught:
        check(parse("   a == b"), STORED)
    assert caught.value.position == 3


def test_an_accumulator_is_not_visible_outside_its_loop() -> None:
    with pytest.raises(CelTypeError, match="undeclared reference to 'x'"):
        check(parse("[1].all(x, true) && x == 1"), STORED)


def test_message_literals_are_not_supported() -> None:
    with pytest.raises(CelUnsupportedError):
        check(parse("google.protobuf.Timestamp{}"), STORED)


def test_the_release_decides_which_functions_exist() -> None:
    check(parse("[1].includes(1)"), STORED)
    with pytest.raises(CelTypeError, match="includes"):
        check(parse("[1].includes(1)"), NEW)
    without_size = dataclasses.replace(LATEST.cel, missing=frozenset({"size"}))
    with pytest.raises(CelTypeError, match="size"):
        check(parse("[1].size()"), stored_objects(without_size))


@pytest.mark.parametrize(
    "text",
    [
        "[1, 'a']",
        "{1: 1, 'a': 2}",
        "duration('x') == duration('1s')",
        "timestamp('x') == timestamp('x')",
        "'a'.matches('(')",
        "'%d'.format(['a'])",
        "'%d %d'.format([1])",
        "'%d'.format([1, 2])",
        "'%q'.format([1])",
    ],
)
def test_well_typed_expressions_that_validation_rejects(text: str) -> None:
    root = parse(text)
    checked = check(root, STORED)
    with pytest.raises(CelTypeError):
        validate(root, checked)


@pytest.mark.parametrize("text", ["'%s %d'.format(['a', 1])", "[1, 2]", "[optional.of(1), optional.none()]"])
def test_well_typed_expressions_that_validation_accepts(text: str) -> None:
    root = parse(text)
    validate(root, check(root, STORED))
