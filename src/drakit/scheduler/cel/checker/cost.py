"""The worst-case cost of an expression, as the API server estimates it before it accepts one.

Costs are cel-go's abstract units. The estimate follows cel-go's and the apiserver's rules (sizes
of device fields from the API's limits, unbounded elsewhere); it is meant to give the same number,
but the number is theirs to change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from drakit.scheduler.cel.checker.checker import Checked
from drakit.scheduler.cel.checker.types import Type
from drakit.scheduler.cel.syntax.tree import (
    ACCUMULATOR,
    CallExpr,
    ComprehensionExpr,
    Expr,
    IdentExpr,
    ListExpr,
    LiteralExpr,
    MapExpr,
    SelectExpr,
    StructExpr,
)

COST_LIMIT: Final = 1_000_000
"""CELSelectorExpressionMaxCost."""
_MAX: Final = 2**64 - 1
_STRING: Final = 0.1
_REGEX: Final = 0.25
_LIST_BASE: Final = 10
_MAP_BASE: Final = 30
_STRUCT_BASE: Final = 40


class Span(NamedTuple):
    """A size or cost between two bounds."""

    low: int
    high: int

    def plus(self, other: Span) -> Span:
        """The sum, up to 64 bits."""
        return Span(min(self.low + other.low, _MAX), min(self.high + other.high, _MAX))

    def times(self, other: Span) -> Span:
        """The product, up to 64 bits."""
        return Span(min(self.low * other.low, _MAX), min(self.high * other.high, _MAX))

    def scaled(self, factor: float) -> Span:
        """A multiple, rounded up."""
        return Span(_scaled(self.low, factor), _scaled(self.high, factor))

    def union(self, other: Span) -> Span:
        """The span that covers both."""
        return Span(min(self.low, other.low), max(self.high, other.high))


def _scaled(value: int, factor: float) -> int:
    product = math.ceil(float(value) * factor)
    return _MAX if product >= 2**64 else product


def _fixed(value: int) -> Span:
    return Span(value, value)


_UNKNOWN: Final = Span(0, _MAX)
_ONE: Final = _fixed(1)
_NOTHING: Final = _fixed(0)


class _Entries(NamedTuple):
    """Sizes of the entries of a list or map built in the expression."""

    kind: str
    key: Span
    value: Span


@dataclass(frozen=True, slots=True)
class _Local:
    path: tuple[str, ...]
    size: Span | None
    entries: _Entries | None


@dataclass(frozen=True, slots=True)
class _Operand:
    """An argument as the cost rules see it."""

    node: Expr
    type: Type
    size: Span | None

    @property
    def bounds(self) -> Span:
        return _UNKNOWN if self.size is None else self.size


@dataclass(frozen=True, slots=True)
class _Rule:
    """The price of a call and the size of its result."""

    cost: Span
    size: Span | None = None


# -- sizes of the device's fields: field → (size, size of keys, what is in it) -----------------------

_ATTRIBUTE_SIZE: Final = 64
_IDENTIFIERS: Final = 32
_DOMAINS: Final = 63
_ENTRIES: Final = 32


def _device_size(path: tuple[str, ...]) -> Span | None:  # noqa: PLR0911 - a table in prose
    """The largest size of what a path from ``device`` leads to."""
    if path[:1] != ("device",) or len(path) < 2:
        return None
    field, rest = path[1], path[2:]
    if field == "driver":
        return Span(0, 63) if not rest else None
    if field == "allowMultipleAllocations":
        return Span(0, 1) if not rest else None
    if field not in ("attributes", "capacity"):
        return None
    if not rest:
        return Span(0, _ENTRIES)
    if len(rest) == 1:
        return {"@values": Span(0, _ENTRIES), "@keys": Span(0, _DOMAINS)}.get(rest[0])
    if rest[0] != "@values" or len(rest) > 2:
        return None
    if rest[1] == "@keys":
        return Span(0, _IDENTIFIERS)
    if field == "attributes":
        return Span(0, _ATTRIBUTE_SIZE)
    return None


def estimate(root: Expr, checked: Checked) -> int:
    """The largest cost the expression can have for any device."""
    return _Coster(checked).cost(root).high


class _Coster:
    def __init__(self, checked: Checked) -> None:
        self._types = checked.types
        self._overloads = checked.overloads
        self._names = checked.names
        self._paths: dict[Expr, tuple[str, ...]] = {}
        self._sizes: dict[Expr, Span] = {}
        self._entries: dict[Expr, _Entries] = {}
        self._locals: dict[str, list[_Local]] = {}

    # -- sizes ------------------------------------------------------------------------------------

    def _local(self, node: Expr) -> _Local | None:
        stack = self._locals.get(node.name) if isinstance(node, IdentExpr) else None
        return stack[-1] if stack else None

    def _path(self, node: Expr) -> tuple[str, ...]:
        local = self._local(node)
        return local.path if local else self._paths.get(node, ())

    def _size(self, node: Expr) -> Span | None:
        if node in self._sizes:
            return self._sizes[node]
        size = _literal_size(node) or _device_size(self._path(node))
        if size is not None:
            self._sizes[node] = size
            return size
        if _is_scalar(self._types[node]):
            return _ONE
        local = self._local(node)
        return local.size if local else None

    def _entry_sizes(self, node: Expr) -> _Entries | None:
        if node in self._entries:
            return self._entries[node]
        local = self._local(node)
        return local.entries if local else None

    def _bounds(self, node: Expr) -> Span:
        size = self._size(node)
        return _UNKNOWN if size is None else size

    # -- nodes ------------------------------------------------------------------------------------

    def cost(self, node: Expr) -> Span:
        """The cost of evaluating *node* once."""
        match node:
            case LiteralExpr():
                return _NOTHING
            case IdentExpr():
                local = self._local(node)
                self._paths[node] = local.path if local else (node.name,)
                return _ONE
            case SelectExpr():
                return self._select(node)
            case CallExpr():
                return self._call(node)
            case ListExpr():
                return self._list(node)
            case MapExpr():
                return self._map(node)
            case StructExpr():
                total = _fixed(_STRUCT_BASE)
                for _, value in node.fields:
                    total = total.plus(self.cost(value))
                return total
            case ComprehensionExpr():
                return self._bind(node) if node.macro.name == "bind" else self._loop(node)

    def _select(self, node: SelectExpr) -> Span:
        if node in self._names:
            self._paths[node] = (self._names[node],)
            return _ONE
        total = self.cost(node.operand)
        if node.test:
            return total
        if self._types[node.operand].kind in ("map", "struct", "param"):
            total = total.plus(_ONE)
        self._paths[node] = (*self._path(node.operand), node.field)
        return total

    def _list(self, node: ListExpr) -> Span:
        total = _fixed(_LIST_BASE)
        sizes = Span(0 if not node.items else _MAX, 0)
        for item in node.items:
            total = total.plus(self.cost(item))
            sizes = sizes.union(self._bounds(item))
        self._entries[node] = _Entries("list", _ONE, sizes)
        return total

    def _map(self, node: MapExpr) -> Span:
        total = _fixed(_MAP_BASE)
        keys = values = Span(0 if not node.entries else _MAX, 0)
        for key, value in node.entries:
            total = total.plus(self.cost(key)).plus(self.cost(value))
            keys, values = keys.union(self._bounds(key)), values.union(self._bounds(value))
        self._entries[node] = _Entries("map", keys, values)
        return total

    # -- loops ------------------------------------------------------------------------------------

    def _bind(self, node: ComprehensionExpr) -> Span:
        total = self.cost(node.range).plus(self.cost(node.init))
        self._push(node.accumulator, self._bound(node.init))
        total = total.plus(self.cost(node.result))
        self._locals[node.accumulator].pop()
        self._copy(node, node.result)
        return total

    def _bound(self, node: Expr) -> _Local:
        return _Local(self._path(node), self._size(node), self._entry_sizes(node))

    def _copy(self, to: Expr, source: Expr) -> None:
        size, entries = self._size(source), self._entry_sizes(source)
        if size is not None:
            self._sizes[to] = size
        if entries is not None:
            self._entries[to] = entries

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _loop(self, node: ComprehensionExpr) -> Span:
        total = self.cost(node.range).plus(self.cost(node.init))
        self._push(node.accumulator, self._bound(node.init))
        entries = self._entry_sizes(node.range)
        kind = entries.kind if entries else self._types[node.range].kind
        path = self._path(node.range)
        key = _Local(
            (*path, "@indices" if kind == "list" else "@keys"), entries and entries.key, None
        )
        value = _Local(
            (*path, "@items" if kind == "list" else "@values"), entries and entries.value, None
        )
        if node.second:
            self._push(node.variable, key)
            self._push(node.second, value)
        else:
            self._push(node.variable, value if kind == "list" else key)
        turn = self.cost(node.condition).plus(self.cost(node.step))
        self._locals[node.variable].pop()
        if node.second:
            self._locals[node.second].pop()
        total = total.plus(self.cost(node.result))
        self._locals[node.accumulator].pop()
        turns = self._bounds(node.range)
        total = total.plus(turns.times(turn))
        if isinstance(node.init, LiteralExpr):
            size = self._size(node.init)
            if size is not None:
                self._sizes[node] = size
        else:
            self._sizes[node] = turns
            stepped = self._entry_sizes(node.step)
            if stepped is not None:
                self._entries[node] = stepped
        return total

    # -- calls ------------------------------------------------------------------------------------

    def _call(self, node: CallExpr) -> Span:
        name = self._names.get(node, node.function)
        if name == "dyn":
            total = self.cost(node.args[0]).plus(_ONE)
            self._copy(node, node.args[0])
            return total
        costs = [self.cost(argument) for argument in node.args]
        args = [self._operand(argument) for argument in node.args]
        total = _NOTHING
        target = None
        if node.target is not None and node not in self._names:
            total = self.cost(node.target)
            target = self._operand(node.target)
        price, size = Span(_MAX, 0), None
        for overload in self._overloads.get(node, ()):
            rule = self._rule(node, name, overload, target, args, costs)
            price = price.union(rule.cost)
            if rule.size is not None:
                size = rule.size if size is None else size.union(rule.size)
            if overload in ("index_list", "index_map"):
                entries = self._entry_sizes(node.args[0])
                size = entries.value if entries else None
                step = "@items" if overload == "index_list" else "@values"
                self._paths[node] = (*self._path(node.args[0]), step)
            if size is None:
                size = self._size(node)
        if size is not None:
            self._sizes[node] = size
        return total.plus(price)

    def _operand(self, node: Expr) -> _Operand:
        path = self._path(node)
        if path and path[0] == ACCUMULATOR:
            size = self._sizes.get(node) or _literal_size(node) or self._size(node)
        else:
            size = self._size(node)
        return _Operand(node, self._types[node], size)

    def _rule(  # noqa: PLR0917 - what a price depends on
        self,
        node: CallExpr,
        name: str,
        overload: str,
        target: _Operand | None,
        args: list[_Operand],
        costs: list[Span],
    ) -> _Rule:
        paid = _NOTHING
        for cost in costs:
            paid = paid.plus(cost)
        rule = _extension_rule(overload, target, args) or _kubernetes_rule(
            name, overload, target, args
        )
        if rule is not None:
            return _Rule(rule.cost.plus(paid), rule.size)
        if overload in ("logical_and", "logical_or"):
            return _Rule(Span(costs[0].low, costs[0].plus(costs[1]).high))
        if overload == "conditional":
            return self._conditional(node, args, costs)
        if overload in ("add_string", "add_bytes", "add_list"):
            return self._addition(node, overload, args, paid)
        rule = _standard_rule(overload, target, args)
        return _Rule(rule.cost.plus(paid), rule.size)

    def _conditional(self, node: CallExpr, args: list[_Operand], costs: list[Span]) -> _Rule:
        self._join_entries(node, node.args[1], node.args[2])
        size = args[1].bounds.union(args[2].bounds)
        return _Rule(costs[0].plus(costs[1].union(costs[2])), size)

    def _addition(self, node: CallExpr, overload: str, args: list[_Operand], paid: Span) -> _Rule:
        size = args[0].bounds.plus(args[1].bounds)
        self._join_entries(node, node.args[0], node.args[1])
        cost = _ONE if overload == "add_list" else size.scaled(_STRING)
        return _Rule(cost.plus(paid), size)

    def _join_entries(self, node: Expr, a: Expr, b: Expr) -> None:
        first, second = self._entry_sizes(a), self._entry_sizes(b)
        if first and second:
            key, value = first.key.union(second.key), first.value.union(second.value)
            self._entries[node] = _Entries(first.kind, key, value)


def _literal_size(node: Expr) -> Span | None:
    if isinstance(node, LiteralExpr):
        return _fixed(len(node.value)) if isinstance(node.value, str | bytes) else _ONE
    if isinstance(node, ListExpr):
        return _fixed(len(node.items))
    if isinstance(node, MapExpr):
        return _fixed(len(node.entries))
    return None


def _is_scalar(t: Type) -> bool:
    if t.is_optional:
        return _is_scalar(t.params[0])
    return t.kind in ("bool", "double", "duration", "int", "timestamp", "uint")


# -- prices of functions ---------------------------------------------------------------------------------


def _standard_rule(  # noqa: PLR0911 - one rule per line
    overload: str, target: _Operand | None, args: list[_Operand]
) -> _Rule:
    if overload == "string_format" and target:
        return _Rule(target.bounds.scaled(_STRING))
    if overload == "string_to_bytes":
        size = args[0].bounds
        return _Rule(size.scaled(_STRING), Span(size.low, min(size.high * 4, _MAX)))
    if overload == "bytes_to_string":
        size = args[0].bounds
        return _Rule(size.scaled(_STRING), Span(size.low // 4, size.high))
    if overload == "strings_quote":
        size = args[0].bounds
        return _Rule(size.scaled(_STRING), Span(size.low + 2, min(size.high * 2 + 2, _MAX)))
    if overload in ("starts_with_string", "ends_with_string"):
        return _Rule(args[0].bounds.scaled(_STRING))
    if overload == "in_list":
        return _Rule(args[1].bounds)
    if overload in ("matches", "matches_string"):
        text, pattern = (target, args[0]) if target else (args[0], args[1])
        assert text is not None
        return _Rule(_search(text.bounds, pattern.bounds))
    if overload == "contains_string" and target:
        return _Rule(target.bounds.scaled(_STRING).times(args[0].bounds.scaled(_STRING)))
    if overload in _COMPARISONS:
        smaller = min(args[0].bounds.high, args[1].bounds.high)
        return _Rule(Span(1 if smaller else 0, smaller).scaled(_STRING))
    return _Rule(_ONE)


_COMPARISONS: Final = frozenset(
    {"equals", "not_equals"}
    | {f"{op}_{kind}" for op in ("less", "greater", "less_equals", "greater_equals")
       for kind in ("string", "bytes")}
)  # fmt: skip


def _search(text: Span, pattern: Span) -> Span:
    return text.plus(_ONE).scaled(_STRING).times(pattern.scaled(_REGEX))


def _list_call(factor: float, size: Span) -> _Rule:
    return _Rule(size.scaled(factor).plus(_fixed(1 + _LIST_BASE)), size)


def _constant(operand: _Operand, default: int) -> int:
    node = operand.node
    if isinstance(node, LiteralExpr) and type(node.value) is int:
        return max(node.value, 0)
    return default


def _extension_rule(  # noqa: PLR0911 - one rule per line
    overload: str, target: _Operand | None, args: list[_Operand]
) -> _Rule | None:
    """Lists (version 3) and sets price their own calls."""
    if overload.startswith("list_sets_"):
        factor = 2.0 if overload == "list_sets_equivalent_list" else 1.0
        return _Rule(args[0].bounds.times(args[1].bounds).scaled(factor).plus(_ONE))
    if overload == "lists_range":
        return _list_call(1, _fixed(_constant(args[0], _MAX)))
    if target is None:
        return None
    size = target.bounds
    if overload == "list_slice":
        length = (_constant(args[1], size.high) - _constant(args[0], 0)) % 2**64
        return _list_call(1, _fixed(length))
    if overload == "list_reverse":
        return _list_call(1, size)
    if overload in ("list_flatten", "list_flatten_int"):
        return _list_call(float(_constant(args[0], _MAX)) if args else 1.0, size)
    if overload == "list_distinct":
        return _list_call(2.0, size.times(size))
    if overload.endswith(("_sort", "_sortByAssociatedKeys")):
        size = args[0].bounds if args else size
        texts = overload.startswith(("list_string_", "list_bytes_"))
        return _list_call(2.0 + _STRING if texts else 2.0, size.times(size))
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
_PARSED: Final = frozenset(
    ["cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"]
)


def _kubernetes_rule(  # noqa: PLR0911 - one rule per line
    name: str, overload: str, target: _Operand | None, args: list[_Operand]
) -> _Rule | None:
    if name in _NOMINAL or overload == "cidr_ip":
        return _Rule(_ONE)
    if name == "check":
        return _Rule(_fixed(350_000))
    if name in _PARSED or name == "ip":
        return _Rule(args[0].bounds.scaled(_STRING))
    if name == "ip.isCanonical":
        return _Rule(args[0].bounds.scaled(2 * _STRING))
    if name == "url":
        return _Rule(args[0].bounds.scaled(_STRING), args[0].bounds)
    if name == "validate":
        return _Rule(args[0].bounds.scaled(_STRING).scaled(128 * _REGEX))
    if name in ("containsIP", "containsCIDR"):
        return _contains_rule(name, overload, args)
    if name == "_==_":
        return _equality_rule(args)
    if target is None:
        return None
    rule = _ON_TARGET.get(name)
    return rule(name, target, args) if rule else None


def _contains_rule(name: str, overload: str, args: list[_Operand]) -> _Rule:
    address = Span(4, 16)
    cost = address.plus(address).scaled(_STRING)
    if name == "containsCIDR":
        cost = cost.plus(address.scaled(_STRING)).plus(_ONE)
    if overload.endswith("_string"):
        cost = cost.plus(args[0].bounds.scaled(_STRING))
    return _Rule(cost)


def _equality_rule(args: list[_Operand]) -> _Rule | None:
    if args[0].type != args[1].type:
        return None
    name = args[0].type.name
    if name in ("net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver"):
        return _Rule(_ONE)
    if name == "kubernetes.NamedFormat":
        return _Rule(Span(1, 64).scaled(_STRING))
    if name == "kubernetes.URL":
        size = args[1].size
        return _Rule(Span(1, size.high if size else 1).scaled(_STRING))
    return None


def _element_size(target: _Operand) -> Span:
    """What one element of a list takes; only device fields would be known, and none is a list."""
    return _ONE if _is_scalar(target.type.params[0]) else _UNKNOWN


def _over_list(name: str, target: _Operand, _: list[_Operand]) -> _Rule:
    if target.type.params:
        each = _ONE
        if target.type.params[0].kind in ("string", "bytes"):
            each = each.plus(_UNKNOWN.scaled(_STRING))
        return _Rule(target.bounds.times(each))
    if name == "includes":
        return _Rule(target.bounds)
    return _Rule(target.bounds.scaled(_STRING))


def _same_size(_: str, target: _Operand, __: list[_Operand]) -> _Rule:
    return _Rule(target.bounds.scaled(_STRING), target.bounds)


def _split_rule(_: str, target: _Operand, args: list[_Operand]) -> _Rule:
    size = target.bounds
    most = size.high
    if len(args) > 1 and isinstance(args[1].node, LiteralExpr) and type(args[1].node.value) is int:
        most = args[1].node.value % 2**64
    return _Rule(size.scaled(2 * _STRING), Span(0, most))


def _join_rule(_: str, target: _Operand, args: list[_Operand]) -> _Rule:
    items = target.bounds
    size = _NOTHING
    if target.type.params:
        size = items.times(_UNKNOWN)
    if args:
        separators = Span(max(items.low - 1, 0), max(items.high - 1, 0))
        size = size.plus(args[0].bounds.times(separators))
    return _Rule(size.scaled(_STRING), size)


def _find_rule(_: str, target: _Operand, args: list[_Operand]) -> _Rule:
    return _Rule(_search(target.bounds, args[0].bounds), Span(0, target.bounds.high))


def _replace_rule(_: str, target: _Operand, args: list[_Operand]) -> _Rule:
    size, old, new = target.bounds, args[0].bounds, args[1].bounds
    if old.low == 0:
        most, kept_most = min(size.high + 1, _MAX), size.high
    elif new.high <= old.low:
        most, kept_most = 0, size.high
    else:
        most, kept_most = math.ceil(size.high / old.low), 0
    if old.high == 0:
        least, kept_least = min(size.low + 1, _MAX), size.low
    elif old.high <= new.low:
        least, kept_least = 0, size.low
    else:
        least, kept_least = math.ceil(size.low / old.high), 0
    result = Span(least, most).times(new).plus(Span(kept_least, kept_most))
    return _Rule(size.scaled(2 * _STRING), result)


_ON_TARGET: Final[dict[str, Callable[[str, _Operand, list[_Operand]], _Rule]]] = {
    **dict.fromkeys(
        ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"), _over_list
    ),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _same_size),
    "split": _split_rule,
    "join": _join_rule,
    "find": _find_rule,
    "findAll": _find_rule,
    "replace": _replace_rule,
}
