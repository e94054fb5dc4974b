from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from drakit.core.quantity import Quantity
from drakit.scheduler.cel.stdlib import quantities, semver
from drakit.scheduler.cel.stdlib.strings import shortest_float
from drakit.scheduler.cel.stdlib.times import duration_text, parse_duration, parse_timestamp, timestamp_text
from drakit.scheduler.cel.values import Duration, Timestamp

SECOND = 10**9


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_double_can_be_read_back(value: float) -> None:
    assert float(shortest_float(value)) == value


def test_large_and_small_doubles_have_an_exponent_as_in_go() -> None:
    assert [shortest_float(x) for x in (1e20, 1e21, 1e-4, 1e-5, -1.5e300)] == [
        "100000000000000000000", "1e+21", "0.0001", "1e-05", "-1.5e+300",
    ]  # fmt: skip
    assert [shortest_float(x) for x in (math.inf, -math.inf, math.nan)] == ["+Inf", "-Inf", "NaN"]


@given(st.integers(-(2**62), 2**62))
def test_durations_round_trip(nanos: int) -> None:
    assert parse_duration(duration_text(Duration(nanos))) == Duration(nanos)


@given(st.integers(-62135596800 * SECOND, 253402300799 * SECOND))
def test_timestamps_round_trip(nanos: int) -> None:
    assert parse_timestamp(timestamp_text(Timestamp(nanos))) == Timestamp(nanos)


VERSIONS = st.builds(
    semver.Semver, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9),
    st.lists(st.one_of(st.integers(0, 20), st.sampled_from(["rc", "alpha", "x-1"])), max_size=3).map(tuple),
)  # fmt: skip


@given(VERSIONS, VERSIONS)
def test_versions_round_trip_and_are_ordered(a: semver.Semver, b: semver.Semver) -> None:
    assert semver.parse(str(a)) == a
    assert (a < b) + (a == b) + (a > b) == 1
    assert semver.Semver(a.major, a.minor, a.patch) >= a  # a pre-release is older


def test_whether_a_quantity_is_an_integer_depends_on_its_text() -> None:
    found = {text: quantities.amount(text).integral for text in ("1", "1Gi", "0.5Gi", "1000m", "123456Gi")}
    assert found == {"1": True, "1Gi": True, "0.5Gi": False, "1000m": False, "123456Gi": False}
    assert quantities.stored(Quantity("1000m")).integral  # stored as 1
