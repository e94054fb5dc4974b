from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.scheduler.cel.checker import types as t
from drakit.scheduler.cel.checker.types import Bindings, Type, most_general, parse_type, split_types

TYPES = st.recursive(
    st.sampled_from([t.BOOL, t.INT, t.UINT, t.DOUBLE, t.STRING, t.BYTES, t.DYN, t.TIMESTAMP]),
    lambda inner: st.one_of(
        inner.map(t.list_of), inner.map(t.optional_of), st.tuples(inner, inner).map(lambda p: t.map_of(*p))
    ),
    max_leaves=4,
)  # fmt: skip


def fits(given_type: Type, wanted: Type) -> bool:
    return Bindings().fits((given_type,), (wanted,))


@given(TYPES)
def test_the_text_of_a_type_can_be_parsed(found: Type) -> None:
    assert parse_type(str(found)) == found


@given(TYPES)
def test_every_type_fits_itself_and_dyn(found: Type) -> None:
    assert fits(found, found)
    assert fits(found, t.DYN)
    assert fits(t.DYN, found)
    assert most_general(found, found) == found
    assert most_general(found, t.DYN) == t.DYN


@pytest.mark.parametrize(
    ("one", "other"),
    [(t.INT, t.UINT), (t.list_of(t.INT), t.list_of(t.STRING)), (t.INT, t.list_of(t.INT)), (t.NULL, t.INT)],
)  # fmt: skip
def test_different_types_do_not_fit(one: Type, other: Type) -> None:
    assert not fits(one, other)
    assert not fits(other, one)


def test_null_fits_object_types() -> None:
    assert fits(t.NULL, t.struct("kubernetes.Quantity"))
    assert fits(t.NULL, t.TIMESTAMP)


def test_a_parameter_is_bound_once_and_only_on_success() -> None:
    bindings = Bindings()
    param = bindings.fresh()
    assert not bindings.fits((t.INT, t.STRING), (param, t.INT))
    assert bindings.substitute(param) == param
    assert bindings.fits((t.INT,), (param,))
    assert not bindings.fits((t.STRING,), (param,))
    assert bindings.substitute(t.list_of(param)) == t.list_of(t.INT)
    assert bindings.substitute(bindings.fresh(), unbound=t.DYN) == t.DYN


def test_a_parameter_cannot_contain_itself() -> None:
    bindings = Bindings()
    param = bindings.fresh()
    assert not bindings.fits((t.list_of(param),), (param,))


def test_types_are_split_outside_parentheses() -> None:
    assert split_types("map(a, b), list(c), d") == ["map(a, b)", "list(c)", "d"]
    assert split_types("") == []
