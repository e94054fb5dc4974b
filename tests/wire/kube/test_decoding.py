"""Objects nested deeper than the decoder goes are told apart from the others, whatever is in them."""

from __future__ import annotations

import json
import string
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drakit.wire.kube import CLAIMS, DecodeError, decoding
from drakit.wire.kube.resources import Object

TOO_DEEP = 40_000
"""For the decoder of every release of Python."""
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(string.printable + "é☃", max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(string.printable, max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for level in range(depth):
        value = [value] if level % 2 else {'[{\\"': value, "]}": "]}"}
    return value


def encoded(depth: int, around: Any) -> bytes:
    """A list of two claims; the first has *depth* levels of parameters."""
    text = json.dumps({"items": [{"metadata": {"name": "deep"}, "x": "HERE"}, around]})
    opening = "".join('{"[{\\\\\\"":' if level % 2 else "[" for level in range(depth))
    closing = "".join("}" if level % 2 else "]" for level in reversed(range(depth)))
    return text.replace('"HERE"', f"{opening}1{closing}").encode()


@settings(max_examples=25, deadline=None)
@given(VALUES)
def test_objects_next_to_a_deep_one_are_not_affected(value: Any) -> None:
    around = {"metadata": {"name": "plain"}, "value": value}
    depth = TOO_DEEP
    first, second = decoding.decode(encoded(depth, around))["items"]
    assert decoding.is_cut(first)
    assert first["metadata"] == {"name": "deep"}
    assert not decoding.is_cut(second)
    assert second == json.loads(json.dumps(around))


@given(VALUES, st.integers(1, 150))
def test_shallower_objects_are_complete(value: Any, depth: int) -> None:
    data = json.dumps({"value": value, "nested": nested(depth)}).encode()
    assert b"".join(decoding._shallow(data)) == data
    assert decoding.decode(data) == json.loads(data)


def test_only_too_deep_values_are_cut() -> None:
    data = encoded(TOO_DEEP, {"after": [1, 2]})
    shallow = b"".join(decoding._shallow(data))
    assert len(shallow) < len(data)
    first, second = json.loads(shallow)["items"]
    assert second == {"after": [1, 2]}
    levels, value = 0, first["x"]
    while not isinstance(value, str):
        (value,) = value if isinstance(value, list) else value.values()
        levels += 1
    assert levels == decoding.DEEPEST - 3, "the document, its items and the item are levels too"


@pytest.mark.parametrize("data", [b"[" * 30000, b"[" * 30000 + b"]" * 29999, b"{", b'{"a":'])
def test_invalid_json_is_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoding.decode(data)


def test_an_object_that_was_cut_is_not_used() -> None:
    first, _second = decoding.decode(encoded(TOO_DEEP, {}))["items"]
    found = Object(CLAIMS, first)
    assert found.name == "deep"
    with pytest.raises(DecodeError, match=r"ResourceClaim deep: nested deeper than 200 levels"):
        _ = found.typed
