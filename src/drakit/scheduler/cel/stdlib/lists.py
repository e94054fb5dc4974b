"""List and set functions: cel-go's lists (version 3) and sets extensions, and Kubernetes' own."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Final

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.syntax.tree import UInt
from drakit.scheduler.cel.values import (
    NONE,
    OPERATORS,
    Duration,
    OptionalValue,
    Overloads,
    Timestamp,
    Value,
    equal,
    equal_or_false,
    greater,
    less,
    no_such_overload,
)

MAX_LIST_LENGTH: Final = 1_000_000
"""Iterating over a longer list exceeds the cost limit of Kubernetes."""
_SORTABLE: Final = (int, UInt, float, bool, Duration, Timestamp, str, bytes)
_Comparison = Callable[[Value, Value], bool]


def _distinct(items: list[Value]) -> list[Value]:
    found: list[Value] = []
    for item in items:
        if not any(equal(other, item) for other in found):
            found.append(item)
    return found


def _flatten(items: list[Value], depth: int = 1) -> list[Value]:
    if depth < 0:
        raise CelRuntimeError("level must be non-negative")
    found: list[Value] = []
    for item in items:
        if type(item) is list and depth > 0:
            found += _flatten(item, depth - 1)
        else:
            found.append(item)
    return found


def _slice(items: list[Value], start: int, end: int) -> list[Value]:
    if start < 0 or end < 0 or start > end or end > len(items):
        raise CelRuntimeError(f"cannot slice({start}, {end}) of a list of length {len(items)}")
    return items[start:end]


def _range(count: int) -> list[Value]:
    if not 0 <= count <= MAX_LIST_LENGTH:
        raise CelRuntimeError(f"lists.range: size {count} is negative or too large")
    return list(range(count))


def _sort_by(items: list[Value], keys: list[Value]) -> list[Value]:
    if not items:
        return []
    kind = type(keys[0])
    if kind not in _SORTABLE or any(type(k) is not kind for k in keys):
        raise CelRuntimeError("list elements must have the same comparable type")
    return [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]


def _sum(items: list[Value]) -> Value:
    if not items:
        return 0
    if type(items[0]) not in (int, UInt, float, Duration):
        raise no_such_overload("sum", items)
    return functools.reduce(OPERATORS["_+_"], items)


def _extreme(name: str, better: _Comparison) -> Callable[[list[Value]], Value]:
    def pick(items: list[Value]) -> Value:
        if not items:
            raise CelRuntimeError(f"{name} called on empty list")
        if any(type(item) not in _SORTABLE for item in items):
            raise no_such_overload(name, items)
        return functools.reduce(lambda best, x: x if _holds(better, x, best) else best, items)

    return pick


def _holds(compare: _Comparison, a: Value, b: Value) -> bool:
    """Compare; an error counts as false, as in Kubernetes' list functions."""
    try:
        return compare(a, b)
    except CelRuntimeError:
        return False


def _is_sorted(items: list[Value]) -> bool:
    return not any(_holds(greater, a, b) for a, b in itertools.pairwise(items))


def index_of(items: list[Value], wanted: Value) -> int:
    """The first position of *wanted*, or -1."""
    return next((at for at, item in enumerate(items) if equal_or_false(item, wanted)), -1)


def last_index_of(items: list[Value], wanted: Value) -> int:
    """The last position of *wanted*, or -1."""
    positions = reversed(range(len(items)))
    return next((at for at in positions if equal_or_false(items[at], wanted)), -1)


def includes(target: Value, wanted: Value) -> bool:
    """``target.includes(wanted)``: for a list whether it has the item, else equality."""
    if type(target) is list:
        return index_of(target, wanted) >= 0
    return equal_or_false(target, wanted)


def _contains_all(items: list[Value], wanted: list[Value]) -> bool:
    return all(index_of(items, w) >= 0 for w in wanted)


def _item(at: int) -> Callable[[list[Value]], OptionalValue]:
    return lambda items: OptionalValue(True, items[at]) if items else NONE


OVERLOADS: Final[Overloads] = {
    "distinct": [(_distinct, (list,))],
    "flatten": [(_flatten, (list,)), (_flatten, (list, int))],
    "slice": [(_slice, (list, int, int))],
    "reverse": [(lambda items: items[::-1], (list,))],
    "lists.range": [(_range, (int,))],
    "sort": [(lambda items: _sort_by(items, items), (list,))],
    "@sortByAssociatedKeys": [(_sort_by, (list, list))],
    "first": [(_item(0), (list,))],
    "last": [(_item(-1), (list,))],
    "sum": [(_sum, (list,))],
    "min": [(_extreme("min", less), (list,))],
    "max": [(_extreme("max", greater), (list,))],
    "isSorted": [(_is_sorted, (list,))],
    "sets.contains": [(_contains_all, (list, list))],
    "sets.equivalent": [(lambda a, b: _contains_all(a, b) and _contains_all(b, a), (list, list))],
    "sets.intersects": [(lambda a, b: any(index_of(a, item) >= 0 for item in b), (list, list))],
}
