from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.scheduler.cel import values as v
from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.syntax.tree import UInt

INTS = st.integers(v.INT_MIN, v.INT_MAX)
SCALARS = st.one_of(
    INTS, st.booleans(), st.text(max_size=3), st.binary(max_size=3), st.floats(allow_nan=False)
)


@given(INTS, INTS.filter(bool))
def test_division_truncates_and_modulo_is_its_remainder(a: int, b: int) -> None:
    try:
        quotient = v.OPERATORS["_/_"](a, b)
    except CelRuntimeError:
        assert (a, b) == (v.INT_MIN, -1)
        return
    rest = v.OPERATORS["_%_"](a, b)
    assert quotient * b + rest == a
    assert rest == 0 or (rest < 0) == (a < 0)


@given(INTS, INTS)
def test_overflow_is_an_error(a: int, b: int) -> None:
    for operation, exact in (
        (v.OPERATORS["_+_"], a + b),
        (v.OPERATORS["_-_"], a - b),
        (v.OPERATORS["_*_"], a * b),
    ):
        if v.INT_MIN <= exact <= v.INT_MAX:
            assert operation(a, b) == exact
        else:
            with pytest.raises(CelRuntimeError, match="integer overflow"):
                operation(a, b)


@given(SCALARS, SCALARS)
def test_equality_is_symmetric_and_order_is_consistent_with_it(a: object, b: object) -> None:
    assert v.equal(a, b) == v.equal(b, a)
    try:
        below, above = v.less(a, b), v.greater(a, b)
    except CelRuntimeError:
        return
    assert below == v.less(b, a) is False or below != above or not (below or above)
    assert not (below and above)


def test_types_compare_as_in_cel() -> None:
    assert v.equal(1, UInt(1))
    assert v.equal(1, 1.0)
    assert not v.equal(1, True)
    assert not v.equal("1", 1)
    assert v.equal([1, "a"], [1.0, "a"])
    with pytest.raises(CelRuntimeError, match="no such overload"):
        v.less(1, "a")


def test_bools_and_numbers_are_different_keys() -> None:
    mapping = {v.key_of(True): "bool", v.key_of(1): "int"}
    assert [v.index(mapping, key) for key in (True, 1, UInt(1), 1.0)] == ["bool", "int", "int", "int"]
    assert list(v.elements(mapping)) == [True, 1]
    with pytest.raises(CelRuntimeError, match="unsupported key type"):
        v.key_of([])


def test_division_of_doubles_by_zero() -> None:
    assert v.OPERATORS["_/_"](1.0, 0.0) == math.inf
    assert v.OPERATORS["_/_"](-1.0, 0.0) == v.OPERATORS["_/_"](1.0, -0.0) == -math.inf
    assert math.isnan(v.OPERATORS["_/_"](0.0, 0.0))
    with pytest.raises(CelRuntimeError, match="division by zero"):
        v.OPERATORS["_/_"](1, 0)


def test_missing_entries() -> None:
    assert v.optional_index([1], 1) == v.NONE
    assert v.optional_index({"a": 1}, "a").value == 1
    assert v.optional_select(v.NONE, "a") == v.NONE
    with pytest.raises(CelRuntimeError, match="no such key: b"):
        v.select({"a": 1}, "b")
    with pytest.raises(CelRuntimeError, match="index out of bounds: 1"):
        v.index([1], 1)
    assert v.select(v.DomainMap(), "any.io") == {}
    assert not v.contains("any.io", v.DomainMap())


def test_accepts_tells_whether_a_parser_succeeds() -> None:
    assert v.accepts(v.int64)(1)
    assert not v.accepts(v.int64)(2**63)
