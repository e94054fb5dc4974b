"""Estimate of the worst-case cost of an expression, as the API server computes it.

Costs are cel-go's abstract units. The estimate follows the rules of cel-go and the API server: sizes
of device fields come from the limits of the API, other sizes are unbounded.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, NamedTuple

from drakit.scheduler.cel.checker.checker import Checked
from drakit.scheduler.cel.checker.function_costs import (
    LIST_CREATION_COST,
    MAX_COST,
    ONE,
    STRING_FACTOR,
    UNKNOWN,
    ZERO,
    CallCost,
    Operand,
    Span,
    fixed,
    special_cost,
    standard_cost,
)
from drakit.scheduler.cel.checker.types import Type
from drakit.scheduler.cel.syntax import tree
from drakit.scheduler.cel.syntax.tree import ACCUMULATOR, Expr

COST_LIMIT: Final = 1_000_000
"""CELSelectorExpressionMaxCost."""
_MAP_CREATION_COST: Final = 30
_STRUCT_CREATION_COST: Final = 40


class _Entries(NamedTuple):
    """Sizes of the entries of a list or map that the expression builds."""

    kind: str
    key: Span
    value: Span


@dataclass(frozen=True, slots=True)
class _Local:
    """What is known about a loop variable or ``cel.bind`` variable."""

    path: tuple[str, ...]
    size: Span | None
    entries: _Entries | None


_DEVICE_SIZES: Final[dict[tuple[str, ...], int]] = {
    ("driver",): 63,
    ("allowMultipleAllocations",): 1,
    **{
        (field, *path): size
        for field in ("attributes", "capacity")
        for path, size in {(): 32, ("@values",): 32, ("@keys",): 63, ("@values", "@keys"): 32}.items()
    },
}
"""Maximum sizes of what is below ``device``: of strings and keys, and of maps in entries."""
_MAX_ATTRIBUTE_SIZE: Final = 64


def _device_size(path: tuple[str, ...]) -> Span | None:
    """The maximum size of the value at a path that begins with ``device``."""
    if path[:1] != ("device",):
        return None
    size = _DEVICE_SIZES.get(path[1:])
    if size is None and len(path) == 4 and path[1:3] == ("attributes", "@values"):
        size = _MAX_ATTRIBUTE_SIZE
    return None if size is None else Span(0, size)


def estimate(root: Expr, checked: Checked) -> int:
    """The maximum cost of the expression for any device."""
    return _Estimator(checked).cost(root).high


class _Estimator:
    def __init__(self, checked: Checked) -> None:
        self._types = checked.types
        self._overloads = checked.overloads
        self._names = checked.names
        self._paths: dict[Expr, tuple[str, ...]] = {}
        self._sizes: dict[Expr, Span] = {}
        self._entries: dict[Expr, _Entries] = {}
        self._locals: dict[str, list[_Local]] = {}

    def _local(self, node: Expr) -> _Local | None:
        stack = self._locals.get(node.name) if isinstance(node, tree.IdentExpr) else None
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
            return ONE
        local = self._local(node)
        return local.size if local else None

    def _entry_sizes(self, node: Expr) -> _Entries | None:
        if node in self._entries:
            return self._entries[node]
        local = self._local(node)
        return local.entries if local else None

    def _bounds(self, node: Expr) -> Span:
        size = self._size(node)
        return UNKNOWN if size is None else size

    def cost(self, node: Expr) -> Span:
        """The cost of evaluating *node* once."""
        match node:
            case tree.LiteralExpr():
                return ZERO
            case tree.IdentExpr():
                local = self._local(node)
                self._paths[node] = local.path if local else (node.name,)
                return ONE
            case tree.SelectExpr():
                return self._select(node)
            case tree.CallExpr():
                return self._call(node)
            case tree.ListExpr():
                return self._list(node)
            case tree.MapExpr():
                return self._map(node)
            case tree.StructExpr():
                values = (self.cost(value) for _, value in node.fields)
                return functools.reduce(Span.plus, values, fixed(_STRUCT_CREATION_COST))
            case tree.ComprehensionExpr():
                return self._bind(node) if node.macro.name == "bind" else self._loop(node)

    def _select(self, node: tree.SelectExpr) -> Span:
        if node in self._names:
            self._paths[node] = (self._names[node],)
            return ONE
        total = self.cost(node.operand)
        if node.test:
            return total
        if self._types[node.operand].kind in ("map", "struct", "param"):
            total = total.plus(ONE)
        self._paths[node] = (*self._path(node.operand), node.field)
        return total

    def _list(self, node: tree.ListExpr) -> Span:
        total = fixed(LIST_CREATION_COST)
        sizes = Span(0 if not node.items else MAX_COST, 0)
        for item in node.items:
            total = total.plus(self.cost(item))
            sizes = sizes.union(self._bounds(item))
        self._entries[node] = _Entries("list", ONE, sizes)
        return total

    def _map(self, node: tree.MapExpr) -> Span:
        total = fixed(_MAP_CREATION_COST)
        keys = values = Span(0 if not node.entries else MAX_COST, 0)
        for key, value in node.entries:
            total = total.plus(self.cost(key)).plus(self.cost(value))
            keys, values = keys.union(self._bounds(key)), values.union(self._bounds(value))
        self._entries[node] = _Entries("map", keys, values)
        return total

    def _bind(self, node: tree.ComprehensionExpr) -> Span:
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

    def _loop(self, node: tree.ComprehensionExpr) -> Span:
        total = self.cost(node.range).plus(self.cost(node.init))
        self._push(node.accumulator, self._bound(node.init))
        entries = self._entry_sizes(node.range)
        kind = entries.kind if entries else self._types[node.range].kind
        path = self._path(node.range)
        key = _Local((*path, "@indices" if kind == "list" else "@keys"), entries and entries.key, None)
        value = _Local((*path, "@items" if kind == "list" else "@values"), entries and entries.value, None)
        variables = {node.variable: value if kind == "list" else key}
        if node.second:
            variables = {node.variable: key, node.second: value}
        for name, local in variables.items():
            self._push(name, local)
        turn = self.cost(node.condition).plus(self.cost(node.step))
        for name in variables:
            self._locals[name].pop()
        total = total.plus(self.cost(node.result))
        self._locals[node.accumulator].pop()
        turns = self._bounds(node.range)
        total = total.plus(turns.times(turn))
        if isinstance(node.init, tree.LiteralExpr):
            size = self._size(node.init)
            if size is not None:
                self._sizes[node] = size
        else:
            self._sizes[node] = turns
            stepped = self._entry_sizes(node.step)
            if stepped is not None:
                self._entries[node] = stepped
        return total

    def _call(self, node: tree.CallExpr) -> Span:
        name = self._names.get(node, node.function)
        if name == "dyn":
            total = self.cost(node.args[0]).plus(ONE)
            self._copy(node, node.args[0])
            return total
        costs = [self.cost(argument) for argument in node.args]
        args = [self._operand(argument) for argument in node.args]
        total = ZERO
        target = None
        if node.target is not None and node not in self._names:
            total = self.cost(node.target)
            target = self._operand(node.target)
        cost, size = Span(MAX_COST, 0), None
        for overload in self._overloads.get(node, ()):
            found = self._call_cost(node, name, overload, target, args, costs)
            cost = cost.union(found.cost)
            if found.size is not None:
                size = found.size if size is None else size.union(found.size)
            if overload in ("index_list", "index_map"):
                entries = self._entry_sizes(node.args[0])
                size = entries.value if entries else None
                step = "@items" if overload == "index_list" else "@values"
                self._paths[node] = (*self._path(node.args[0]), step)
            if size is None:
                size = self._size(node)
        if size is not None:
            self._sizes[node] = size
        return total.plus(cost)

    def _operand(self, node: Expr) -> Operand:
        path = self._path(node)
        if path and path[0] == ACCUMULATOR:
            size = self._sizes.get(node) or _literal_size(node) or self._size(node)
        else:
            size = self._size(node)
        return Operand(node, self._types[node], size)

    def _call_cost(  # noqa: PLR0917 - inputs of the rules
        self,
        node: tree.CallExpr,
        name: str,
        overload: str,
        target: Operand | None,
        args: list[Operand],
        costs: list[Span],
    ) -> CallCost:
        paid = functools.reduce(Span.plus, costs, ZERO)
        found = special_cost(name, overload, target, args)
        if found is None:
            if overload in ("logical_and", "logical_or"):
                return CallCost(Span(costs[0].low, costs[0].plus(costs[1]).high))
            if overload == "conditional":
                return self._conditional(node, args, costs)
            if overload in ("add_string", "add_bytes", "add_list"):
                return self._addition(node, overload, args, paid)
            found = standard_cost(overload, target, args)
        return CallCost(found.cost.plus(paid), found.size)

    def _conditional(self, node: tree.CallExpr, args: list[Operand], costs: list[Span]) -> CallCost:
        self._join_entries(node, node.args[1], node.args[2])
        size = args[1].bounds.union(args[2].bounds)
        return CallCost(costs[0].plus(costs[1].union(costs[2])), size)

    def _addition(self, node: tree.CallExpr, overload: str, args: list[Operand], paid: Span) -> CallCost:
        size = args[0].bounds.plus(args[1].bounds)
        self._join_entries(node, node.args[0], node.args[1])
        cost = ONE if overload == "add_list" else size.scaled(STRING_FACTOR)
        return CallCost(cost.plus(paid), size)

    def _join_entries(self, node: Expr, a: Expr, b: Expr) -> None:
        first, second = self._entry_sizes(a), self._entry_sizes(b)
        if first and second:
            key, value = first.key.union(second.key), first.value.union(second.value)
            self._entries[node] = _Entries(first.kind, key, value)


def _literal_size(node: Expr) -> Span | None:
    if isinstance(node, tree.LiteralExpr):
        return fixed(len(node.value)) if isinstance(node.value, str | bytes) else ONE
    if isinstance(node, tree.ListExpr):
        return fixed(len(node.items))
    if isinstance(node, tree.MapExpr):
        return fixed(len(node.entries))
    return None


def _is_scalar(t: Type) -> bool:
    if t.is_optional:
        return _is_scalar(t.params[0])
    return t.kind in ("bool", "double", "duration", "int", "timestamp", "uint")
