"""Estimated cost of every CEL function call, by the rules of cel-go and the API server."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from drakit.scheduler.cel.checker.types import Type
from drakit.scheduler.cel.syntax.tree import Expr, LiteralExpr

MAX_COST: Final = 2**64 - 1
STRING_FACTOR: Final = 0.1
"""Cost of processing one character (cel-go's StringTraversalCostFactor)."""
_REGEX_FACTOR: Final = 0.25
LIST_CREATION_COST: Final = 10


class Span(NamedTuple):
    """Lower and upper bound of a size or cost."""

    low: int
    high: int

    def plus(self, other: Span) -> Span:
        """The sum, up to 64 bits."""
        return Span(min(self.low + other.low, MAX_COST), min(self.high + other.high, MAX_COST))

    def times(self, other: Span) -> Span:
        """The product, up to 64 bits."""
        return Span(min(self.low * other.low, MAX_COST), min(self.high * other.high, MAX_COST))

    def scaled(self, factor: float) -> Span:
        """A multiple, rounded up."""
        return Span(_scaled(self.low, factor), _scaled(self.high, factor))

    def union(self, other: Span) -> Span:
        """The span that covers both."""
        return Span(min(self.low, other.low), max(self.high, other.high))


def _scaled(value: int, factor: float) -> int:
    return min(math.ceil(float(value) * factor), MAX_COST)


def fixed(value: int) -> Span:
    """The span of a known value."""
    return Span(value, value)


UNKNOWN: Final = Span(0, MAX_COST)
ONE: Final = fixed(1)
ZERO: Final = fixed(0)


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument or receiver of a call; *size* is None if nothing is known about it."""

    expr: Expr
    type: Type
    size: Span | None

    @property
    def bounds(self) -> Span:
        """The size, unbounded if it is not known."""
        return UNKNOWN if self.size is None else self.size

    @property
    def scan(self) -> Span:
        """The cost of reading the string once."""
        return self.bounds.scaled(STRING_FACTOR)

    def constant(self, default: int) -> int:
        """The value of a non-negative integer literal, or *default*."""
        value = self.expr.value if isinstance(self.expr, LiteralExpr) else None
        return max(value, 0) if type(value) is int else default


@dataclass(frozen=True, slots=True)
class CallCost:
    """The cost of a call and the size of its result."""

    cost: Span
    size: Span | None = None


_Rule = Callable[[Operand, list[Operand]], CallCost]
"""Cost from the receiver (the first argument of a plain function) and the arguments."""


def special_cost(name: str, overload: str, target: Operand | None, args: list[Operand]) -> CallCost | None:
    """The cost of a function of an extension library or of Kubernetes; None for other functions."""
    first = target or (args[0] if args else None)
    if name in _NOMINAL or overload == "cidr_ip":
        return CallCost(ONE)
    if name == "check":
        return CallCost(fixed(350_000))
    if name == "_==_":
        return _equality(args)
    if name in ("containsIP", "containsCIDR"):
        return _contains(name, overload, args)
    rule = _BY_OVERLOAD.get(overload)
    if rule is None and overload.endswith(("_sort", "_sortByAssociatedKeys")):
        text = overload.startswith(("list_string_", "list_bytes_"))
        rule = functools.partial(_sort, factor=2.0 + STRING_FACTOR) if text else _sort
    if rule is None:
        rule = _BY_NAME.get(name) or (_METHODS.get(name) if target else None)
    return rule(first, args) if rule and first else None


def standard_cost(overload: str, target: Operand | None, args: list[Operand]) -> CallCost:
    """The cost of a function of the standard library."""
    rule = _STANDARD.get(overload)
    first = target or (args[0] if args else None)
    return rule(first, args) if rule and first else CallCost(ONE)


def _compare(first: Operand, args: list[Operand]) -> CallCost:
    smaller = min(args[0].bounds.high, args[1].bounds.high)
    return CallCost(Span(1 if smaller else 0, smaller).scaled(STRING_FACTOR))


def _search(text: Operand, pattern: Operand) -> Span:
    return text.bounds.plus(ONE).scaled(STRING_FACTOR).times(pattern.bounds.scaled(_REGEX_FACTOR))


def _converted(low: Callable[[int], int], high: Callable[[int], int]) -> _Rule:
    def rule(text: Operand, _: list[Operand]) -> CallCost:
        size = text.bounds
        return CallCost(text.scan, Span(low(size.low), min(high(size.high), MAX_COST)))

    return rule


_STANDARD: Final[dict[str, _Rule]] = {
    "string_format": lambda text, _: CallCost(text.scan),
    "string_to_bytes": _converted(lambda low: low, lambda high: high * 4),
    "bytes_to_string": _converted(lambda low: low // 4, lambda high: high),
    "strings_quote": _converted(lambda low: low + 2, lambda high: high * 2 + 2),
    "starts_with_string": lambda _, args: CallCost(args[0].scan),
    "ends_with_string": lambda _, args: CallCost(args[0].scan),
    "contains_string": lambda text, args: CallCost(text.scan.times(args[0].scan)),
    "in_list": lambda _, args: CallCost(args[1].bounds),
    "matches": lambda _, args: CallCost(_search(args[0], args[1])),
    "matches_string": lambda text, args: CallCost(_search(text, args[0])),
    **dict.fromkeys(("equals", "not_equals"), _compare),
    **{
        f"{relation}_{kind}": _compare
        for relation in ("less", "greater", "less_equals", "greater_equals")
        for kind in ("string", "bytes")
    },
}


def _new_list(factor: float, size: Span) -> CallCost:
    return CallCost(size.scaled(factor).plus(fixed(1 + LIST_CREATION_COST)), size)


def _slice(items: Operand, args: list[Operand]) -> CallCost:
    length = (args[1].constant(items.bounds.high) - args[0].constant(0)) % 2**64
    return _new_list(1, fixed(length))


def _flatten(items: Operand, args: list[Operand]) -> CallCost:
    return _new_list(float(args[0].constant(MAX_COST)) if args else 1.0, items.bounds)


def _sort(items: Operand, args: list[Operand], factor: float = 2.0) -> CallCost:
    size = args[0].bounds if args else items.bounds
    return _new_list(factor, size.times(size))


def _sets(factor: float) -> _Rule:
    def rule(_: Operand, args: list[Operand]) -> CallCost:
        return CallCost(args[0].bounds.times(args[1].bounds).scaled(factor).plus(ONE))

    return rule


def _over_list(includes: bool) -> _Rule:
    def rule(items: Operand, _: list[Operand]) -> CallCost:
        if items.type.params:
            each = ONE
            if items.type.params[0].kind in ("string", "bytes"):
                each = each.plus(UNKNOWN.scaled(STRING_FACTOR))
            return CallCost(items.bounds.times(each))
        return CallCost(items.bounds if includes else items.scan)

    return rule


def _split(text: Operand, args: list[Operand]) -> CallCost:
    most = text.bounds.high
    if len(args) > 1:
        limit = args[1].expr.value if isinstance(args[1].expr, LiteralExpr) else None
        most = limit % 2**64 if type(limit) is int else most
    return CallCost(text.bounds.scaled(2 * STRING_FACTOR), Span(0, most))


def _join(items: Operand, args: list[Operand]) -> CallCost:
    count = items.bounds
    size = count.times(UNKNOWN) if items.type.params else ZERO
    if args:
        separators = Span(max(count.low - 1, 0), max(count.high - 1, 0))
        size = size.plus(args[0].bounds.times(separators))
    return CallCost(size.scaled(STRING_FACTOR), size)


def _find(text: Operand, args: list[Operand]) -> CallCost:
    return CallCost(_search(text, args[0]), Span(0, text.bounds.high))


def _replaced(size: int, old: int, *, none: bool) -> tuple[int, int]:
    """How often a text of length *old* is replaced in one of length *size*, and how much is kept."""
    if old == 0:
        return min(size + 1, MAX_COST), size
    return (0, size) if none else (math.ceil(size / old), 0)


def _replace(text: Operand, args: list[Operand]) -> CallCost:
    size, old, new = text.bounds, args[0].bounds, args[1].bounds
    most, kept_most = _replaced(size.high, old.low, none=new.high <= old.low)
    least, kept_least = _replaced(size.low, old.high, none=old.high <= new.low)
    result = Span(least, most).times(new).plus(Span(kept_least, kept_most))
    return CallCost(size.scaled(2 * STRING_FACTOR), result)


_BY_OVERLOAD: Final[dict[str, _Rule]] = {
    "list_sets_contains_list": _sets(1.0),
    "list_sets_intersects_list": _sets(1.0),
    "list_sets_equivalent_list": _sets(2.0),
    "lists_range": lambda count, _: _new_list(1, fixed(count.constant(MAX_COST))),
    "list_slice": _slice,
    "list_reverse": lambda items, _: _new_list(1, items.bounds),
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "list_distinct": lambda items, _: _new_list(2.0, items.bounds.times(items.bounds)),
}
_METHODS: Final[dict[str, _Rule]] = {
    "includes": _over_list(includes=True),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _over_list(includes=False)),
    **dict.fromkeys(
        ("lowerAscii", "upperAscii", "substring", "trim"), lambda text, _: CallCost(text.scan, text.bounds)
    ),
    "split": _split,
    "join": _join,
    "find": _find,
    "findAll": _find,
    "replace": _replace,
}


def _contains(name: str, overload: str, args: list[Operand]) -> CallCost:
    address = Span(4, 16)
    cost = address.plus(address).scaled(STRING_FACTOR)
    if name == "containsCIDR":
        cost = cost.plus(address.scaled(STRING_FACTOR)).plus(ONE)
    return CallCost(cost.plus(args[0].scan) if overload.endswith("_string") else cost)


def _equality(args: list[Operand]) -> CallCost | None:
    if args[0].type != args[1].type:
        return None
    name = args[0].type.name
    if name in ("net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver"):
        return CallCost(ONE)
    if name == "kubernetes.NamedFormat":
        return CallCost(Span(1, 64).scaled(STRING_FACTOR))
    if name == "kubernetes.URL":
        size = args[1].size
        return CallCost(Span(1, size.high if size else 1).scaled(STRING_FACTOR))
    return None


_NOMINAL: Final = frozenset(
    {
        "masked", "prefixLength", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast",
        "isLinkLocalUnicast", "isGlobalUnicast", "format.named", "sign", "asInteger", "isInteger",
        "asApproximateFloat", "isGreaterThan", "isLessThan", "compareTo", "add", "sub", "major",
        "minor", "patch", "getScheme", "getHostname", "getHost", "getPort", "getEscapedPath",
        "getQuery", "serviceAccount", "path", "group", "resource", "subresource", "namespace",
        "name", "allowed", "reason", "error", "errored",
    }
)  # fmt: skip
_BY_NAME: Final[dict[str, _Rule]] = {
    **dict.fromkeys(
        ("ip", "cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"),
        lambda _, args: CallCost(args[0].scan),
    ),
    "ip.isCanonical": lambda _, args: CallCost(args[0].bounds.scaled(2 * STRING_FACTOR)),
    "url": lambda _, args: CallCost(args[0].scan, args[0].bounds),
    "validate": lambda _, args: CallCost(args[0].scan.scaled(128 * _REGEX_FACTOR)),
}
