"""Whatever text comes in: an answer or an error of ours, never anything else, in bounded time."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.objects import Device, from_builtins
from drakit.scheduler.cel.errors import (
    CelCompileError,
    CelCostError,
    CelError,
    CelRuntimeError,
    CelSyntaxError,
    CelTypeError,
)
from drakit.scheduler.cel.selector import compile_selector, device_value, rejection

DEVICE = device_value(
    "d.io",
    from_builtins(
        {"attributes": {"a": {"int": 1}, "s": {"string": "x"}}, "capacity": {"m": {"value": "1Gi"}}}, Device
    ),
)
PIECES = st.sampled_from(
    [
        "device",
        ".attributes",
        '["d.io"]',
        ".a",
        ".?",
        "[?",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "?",
        "+",
        "-",
        "*",
        "/",
        "%",
        "!",
        "==",
        "<",
        "in",
        "&&",
        "||",
        '"x"',
        "1",
        "2.5",
        "3u",
        "true",
        "null",
        "has",
        "all",
        "exists",
        "map",
        "x",
        ".size()",
        "quantity",
        "semver",
        "optional.none()",
        "b''",
        "r'\\d'",
        "//",
        "\n",
        "orValue",
        "cel.bind",
        "lists.range",
        "sets.contains",
        ".matches",
        ".format",
        "%s",
    ]
)


def evaluate(text: str) -> None:
    with contextlib.suppress(CelError):
        compile_selector(text).matches(DEVICE)


@given(st.lists(PIECES, max_size=25).map("".join))
def test_random_pieces_of_expressions_end_in_an_answer_or_our_error(text: str) -> None:
    evaluate(text)


@given(st.text(max_size=60))
def test_random_texts_end_in_an_answer_or_our_error(text: str) -> None:
    evaluate(text)


@pytest.mark.parametrize(
    "text",
    ["(" * 5000 + "true", "!" * 9000 + "true", "-" * 5000 + "1 == 1", "[" * 3000, "true && " * 1200 + "true",
     "1 + " * 2000 + "1 == 1", "device" + ".a" * 3000, "{" * 4000, "true ? " * 900 + "true"],
)  # fmt: skip
def test_deep_nesting_is_rejected_or_evaluated_not_fatal(text: str) -> None:
    evaluate(text)


def test_too_long_texts_are_rejected() -> None:
    with pytest.raises(CelSyntaxError, match="10240"):
        compile_selector("true || " * 2000 + "true")


def test_a_loop_that_costs_too_much_is_rejected_and_stops_at_run_time() -> None:
    text = "lists.range(100000).all(x, lists.range(100000).all(y, x + y >= 0))"
    assert isinstance(rejection(text), CelCostError)
    with pytest.raises(CelRuntimeError, match="cost limit"):
        compile_selector(text).matches(DEVICE)


@given(st.from_regex(r"[ab.*+?()\[\]|^$\\dw{}0-9,-]{0,12}", fullmatch=True))
def test_any_pattern_is_taken_or_rejected(pattern: str) -> None:
    quoted = pattern.replace("\\", "\\\\").replace('"', '\\"')
    evaluate(f'"aab0".matches("{quoted}")')


def test_rejections_say_why() -> None:
    assert isinstance(rejection("device.nope"), CelTypeError)
    assert "undefined field 'nope'" in str(rejection("device.nope"))
    assert "must evaluate to bool" in str(rejection("device.driver"))
    assert isinstance(rejection("device.driver ="), CelCompileError)
    assert rejection("device.allowMultipleAllocations") is None


def test_a_missing_attribute_is_an_error_and_a_missing_domain_is_empty() -> None:
    with pytest.raises(CelRuntimeError, match="no such key: nope"):
        compile_selector('device.attributes["d.io"].nope == 1').matches(DEVICE)
    assert compile_selector('device.attributes["other.io"].size() == 0').matches(DEVICE)
