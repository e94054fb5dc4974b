"""Quantities: exact values, and the canonical forms the API server writes."""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drakit.core.quantity import ZERO, Quantity, QuantityError

BINARY = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4, "Pi": 1024**5, "Ei": 1024**6}
DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
CAP = 2**63 - 1

FORMS = [
    # zero
    ("0", "0"),
    ("0Ki", "0"),
    ("-0", "0"),
    ("0.000", "0"),
    ("0n", "0"),
    ("0e9", "0"),
    # decimal: no fraction, the largest suffix that keeps the number whole
    ("1", "1"),
    ("+1", "1"),
    ("007", "7"),
    ("1000", "1k"),
    ("1100", "1100"),
    ("1.1", "1100m"),
    ("1.", "1"),
    (".5", "500m"),
    ("1.G", "1G"),
    ("0.5", "500m"),
    ("1500m", "1500m"),
    ("2000m", "2"),
    ("100m", "100m"),
    ("0.1", "100m"),
    ("0.001", "1m"),
    ("1.001", "1001m"),
    ("1.500", "1500m"),
    ("1000u", "1m"),
    ("1000000n", "1m"),
    ("12345678n", "12345678n"),
    ("1000k", "1M"),
    ("1500k", "1500k"),
    ("1.5M", "1500k"),
    ("1000G", "1T"),
    ("123.456789G", "123456789k"),
    (".0001k", "100m"),
    ("12E", "12E"),
    ("1000P", "1E"),
    ("-1.5", "-1500m"),
    ("-1000", "-1k"),
    # binary: from 1024 on, and only without a fraction
    ("1Ki", "1Ki"),
    ("1024Ki", "1Mi"),
    ("1025Ki", "1025Ki"),
    ("1.5Gi", "1536Mi"),
    ("0.5Mi", "512Ki"),
    ("0.5Ki", "512"),
    ("2Gi", "2Gi"),
    ("2048Mi", "2Gi"),
    ("1Ei", "1Ei"),
    ("100.035Ki", "102435840m"),
    ("0.05Gi", "53687091200m"),
    ("0.025Ti", "27487790694400m"),
    ("-1Ki", "-1Ki"),
    ("-1.5Gi", "-1536Mi"),
    # binary is capped, decimal is not
    ("9Ei", "9223372036854775807"),
    ("9223372036854775807Ki", "9223372036854775807"),
    ("-9Ei", "-9223372036854775807"),
    ("100E", "100E"),
    # exponents keep their family
    ("1e3", "1e3"),
    ("1E3", "1e3"),
    ("1e0", "1"),
    ("1e+3", "1e3"),
    ("1e1", "10"),
    ("12e5", "1200e3"),
    ("1.5e3", "1500"),
    ("1e-3", "1e-3"),
    ("1e-4", "100e-6"),
    ("100e-1", "10"),
    ("1e30", "1e30"),
    ("1000e18", "1e21"),
    # finer than nano rounds up, away from zero
    ("0.1n", "1n"),
    ("1.1n", "2n"),
    ("0.0000000001", "1n"),
    ("0.000000000001Ki", "2n"),
    ("-0.1n", "-1n"),
    ("1e-400", "1e-9"),
    ("1.00000000001", "1000000001n"),
    # digits may be missing
    ("m", "0"),
    ("Ti", "0"),
    (".", "0"),
    ("-", "0"),
]


@pytest.mark.parametrize(("text", "canonical"), FORMS)
def test_canonical_forms(text: str, canonical: str) -> None:
    quantity = Quantity(text)
    assert str(quantity) == canonical
    assert str(Quantity(canonical)) == canonical
    assert Quantity(canonical) == quantity


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        (" 1", 0),
        ("1 ", 1),
        ("1 k", 1),
        ("aoeu", 0),
        ("1i", 1),
        (".5i", 2),
        ("1.1.M", 3),
        ("1+1.0M", 1),
        ("0.1mi", 3),
        ("-3.01i", 5),
        ("1K", 1),
        ("1ki", 1),
        ("1e", 1),
        ("1e-", 1),
        ("1e1.5", 1),
        ("1e3Ki", 1),
        ("1e٣", 1),
        ("٣", 0),
        ("--1", 1),
        ("0x10", 1),
        ("1_000", 1),
        ("Pi", 0),
        ("Ei", 0),
        ("1e99999", 1),
        ("9" * 300, 256),
    ],
)
def test_what_is_no_quantity_is_rejected_with_its_position(text: str, position: int) -> None:
    with pytest.raises(QuantityError) as caught:
        Quantity(text)
    assert caught.value.position == position
    assert f"position {position}" in str(caught.value)


@pytest.mark.parametrize("value", [1.5, True, None, b"1"])
def test_other_types_are_rejected(value: object) -> None:
    with pytest.raises(TypeError):
        Quantity(value)  # type: ignore[arg-type]


# -- exactness -----------------------------------------------------------------------------------------

digits = st.text(alphabet="0123456789", min_size=1, max_size=16)
fractions = st.one_of(st.just(""), digits.map(lambda text: "." + text))
signs = st.sampled_from(["", "+", "-"])


def round_away(value: Fraction) -> int:
    return math.ceil(value) if value >= 0 else math.floor(value)


@given(signs, digits, fractions, st.sampled_from(sorted(DECIMAL)))
def test_decimal_values_are_exact(sign: str, whole: str, fraction: str, suffix: str) -> None:
    exact = Fraction(f"{sign}{whole}{fraction}") * DECIMAL[suffix]
    quantity = Quantity(f"{sign}{whole}{fraction}{suffix}")
    assert quantity.nanos == round_away(exact * 10**9)
    assert quantity.family == "decimal"


@given(signs, digits, fractions, st.integers(-40, 40))
def test_exponent_values_are_exact(sign: str, whole: str, fraction: str, exponent: int) -> None:
    exact = Fraction(f"{sign}{whole}{fraction}") * Fraction(10) ** exponent
    quantity = Quantity(f"{sign}{whole}{fraction}e{exponent}")
    assert quantity.nanos == round_away(exact * 10**9)


@given(signs, digits, fractions, st.sampled_from(sorted(BINARY)))
def test_binary_values_are_exact_up_to_the_cap(sign: str, whole: str, fraction: str, suffix: str) -> None:
    exact = Fraction(f"{sign}{whole}{fraction}") * BINARY[suffix]
    quantity = Quantity(f"{sign}{whole}{fraction}{suffix}")
    bounded = min(max(exact, Fraction(-CAP)), Fraction(CAP))
    assert quantity.nanos == round_away(bounded * 10**9)
    small = 0 < abs(quantity.nanos) < 10**9
    assert quantity.family == ("decimal" if small else "binary")


families = st.sampled_from(["binary", "decimal", "exponent"])
quantities = st.builds(Quantity.from_nanos, st.integers(-(10**30), 10**30), families)
sane = st.builds(Quantity.from_nanos, st.integers(-CAP * 10**9, CAP * 10**9), families)


@given(sane)
@example(Quantity.from_bytes(15_625_000))  # a multiple of 1000, but not of 1024
def test_the_canonical_form_reads_back(quantity: Quantity) -> None:
    text = str(quantity)
    again = Quantity(text)
    assert again == quantity
    if quantity.family == "binary" and text.lstrip("-").isdigit():
        # Without a suffix it is read as decimal, as apimachinery does, and then written as decimal.
        assert str(again) == str(Quantity.from_nanos(quantity.nanos, "decimal"))
    else:
        assert str(again) == text
    assert "." not in text


@given(st.integers(0, CAP))
def test_bytes_are_written_with_binary_suffixes(count: int) -> None:
    quantity = Quantity.from_bytes(count)
    assert quantity.ceil() == count
    number = str(quantity).rstrip("KMGTPEi")
    assert count < 1024 or int(number) % 1024 != 0 or str(quantity).endswith("Ei")


# -- arithmetic and order ------------------------------------------------------------------------------


@given(quantities, quantities)
def test_arithmetic_is_exact(a: Quantity, b: Quantity) -> None:
    assert (a + b).nanos == a.nanos + b.nanos
    assert (a - b).nanos == a.nanos - b.nanos
    assert (-a).nanos == -a.nanos
    assert (a + b) - b == a
    assert (a * 3) == a + a + a == 3 * a
    assert (a + b).family == (a.family if a else b.family)


@given(quantities, quantities)
def test_order_and_equality_go_by_value(a: Quantity, b: Quantity) -> None:
    assert (a < b, a <= b, a == b, a >= b, a > b) == (
        a.nanos < b.nanos,
        a.nanos <= b.nanos,
        a.nanos == b.nanos,
        a.nanos >= b.nanos,
        a.nanos > b.nanos,
    )
    if a == b:
        assert hash(a) == hash(b)
    assert bool(a) == (a.nanos != 0)


def test_equal_values_are_equal_however_written() -> None:
    assert Quantity("1Gi") == Quantity("1024Mi") == Quantity(2**30)
    assert Quantity("1") == Quantity("1000m") == Quantity("1e0")
    assert len({Quantity("1Gi"), Quantity("1024Mi"), Quantity("1073741824")}) == 1
    assert Quantity("1") != 1


@given(quantities)
def test_rounding_goes_away_from_zero(a: Quantity) -> None:
    value = Fraction(a.nanos, 10**9)
    assert a.ceil() == round_away(value)


def test_only_quantities_and_whole_factors_mix() -> None:
    one = Quantity("1")
    for operation in (
        lambda: one + 1,
        lambda: one - 1,
        lambda: one * 1.5,
        lambda: one * True,
        lambda: one < 1,
    ):
        with pytest.raises(TypeError):
            operation()


def test_it_is_a_value() -> None:
    quantity = Quantity("1.5Gi")
    assert repr(quantity) == "Quantity('1536Mi')"
    assert str(pickle.loads(pickle.dumps(quantity))) == "1536Mi"
    assert copy.deepcopy(quantity) == quantity
    with pytest.raises(AttributeError, match="immutable"):
        quantity._nanos = 0
    assert not ZERO
    assert ZERO + quantity == quantity
    assert (ZERO + quantity).family == "binary"
