from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.scheduler.cel.checker.function_costs import MAX_COST, Span
from drakit.scheduler.cel.selector import compile_selector

SPANS = st.tuples(st.integers(0, 2**65), st.integers(0, 2**65)).map(
    lambda t: Span(min(*t, MAX_COST), min(max(t), MAX_COST))
)


def cost(text: str) -> int:
    return compile_selector(text).max_cost


@given(SPANS, SPANS)
def test_spans_stay_ordered_and_within_64_bits(a: Span, b: Span) -> None:
    for found in (a.plus(b), a.times(b), a.scaled(0.1), a.scaled(3.5), a.union(b)):
        assert 0 <= found.low <= found.high <= MAX_COST
    assert a.plus(b) == b.plus(a)
    assert Span(2, 3).times(Span(4, 5)) == Span(8, 15)
    assert a.union(b).low <= a.low <= a.high <= a.union(b).high


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", 0),
        ("device.allowMultipleAllocations", 2),
        ("has(device.attributes['d'].m)", 3),  # has() itself is free
        ("device.driver == 'x'", 3),
        ("[1, 2] == [1, 2]", 21),
        ("{'a': 1}.size() == 1", 32),
    ],
)
def test_costs(text: str, expected: int) -> None:
    assert cost(text) == expected


def test_a_conditional_costs_its_more_expensive_branch() -> None:
    cheap, dear = "device.driver == 'x'", "device.driver == 'x' && device.driver == 'y'"
    assert cost(f"true ? ({cheap}) : ({dear})") == cost(f"true ? ({dear}) : ({cheap})")


def test_a_loop_multiplies_the_cost_of_its_body() -> None:
    def loop(count: int) -> int:
        return cost(f"lists.range({count}).all(x, x >= 0)")

    assert loop(30) - loop(20) == loop(20) - loop(10) > 0


def test_unknown_sizes_are_unbounded_and_device_fields_are_not() -> None:
    assert cost("device.attributes['d'].m.startsWith(device.driver)") < 100
    assert cost("device.attributes['d'].m.lowerAscii() == 'a'") < 100
    assert cost("device.driver.split('.').exists(x, x.lowerAscii() == 'a')") == MAX_COST


def test_the_longer_the_pattern_the_higher_the_cost() -> None:
    costs = [cost(f"device.driver.matches('{'a' * n}')") for n in (4, 40, 400)]
    assert costs == sorted(set(costs))
