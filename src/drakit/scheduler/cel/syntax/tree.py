"""Syntax tree of CEL expressions.

Expressions compare by identity, so that the checker can store their types in a dictionary. The parser
expands macros exactly as cel-go does; :attr:`ComprehensionExpr.macro` keeps the original form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

ACCUMULATOR: Final = "@result"
UNUSED_VARIABLE: Final = "#unused"


class UInt(int):
    """An unsigned integer, distinct from CEL's signed ``int``."""

    __slots__ = ()


Constant: TypeAlias = bool | int | UInt | float | str | bytes | None


@dataclass(frozen=True, slots=True, eq=False)
class LiteralExpr:
    """A constant."""

    value: Constant
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class IdentExpr:
    """A name, including a leading dot."""

    name: str
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SelectExpr:
    """``operand.field``; *test* for ``has(operand.field)``."""

    operand: Expr
    field: str
    test: bool = False
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class CallExpr:
    """A call of a function, an operator (``_+_``) or, with a *target*, a method."""

    function: str
    args: tuple[Expr, ...]
    target: Expr | None = None
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ListExpr:
    """``[a, ?b]``; *optional* holds the positions of elements marked ``?``."""

    items: tuple[Expr, ...]
    optional: frozenset[int] = frozenset()
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class MapExpr:
    """``{k: v, ?k: v}``."""

    entries: tuple[tuple[Expr, Expr], ...]
    optional: frozenset[int] = frozenset()
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class StructExpr:
    """``Type{field: value}``."""

    type_name: str
    fields: tuple[tuple[str, Expr], ...]
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Macro:
    """The macro from which a comprehension was expanded: ``all``, ``map``, ``bind`` and others."""

    name: str
    condition: Expr | None = None
    value: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ComprehensionExpr:
    """A fold over a list or map, the only loop in CEL."""

    range: Expr
    variable: str
    second: str | None
    accumulator: str
    init: Expr
    condition: Expr
    step: Expr
    result: Expr
    macro: Macro
    at: int = 0


Expr: TypeAlias = (
    LiteralExpr | IdentExpr | SelectExpr | CallExpr | ListExpr | MapExpr | StructExpr | ComprehensionExpr
)


def children(expr: Expr) -> Iterator[Expr]:
    """The direct subexpressions, in the order of cel-go's expansion."""
    if isinstance(expr, SelectExpr):
        yield expr.operand
    elif isinstance(expr, CallExpr):
        if expr.target is not None:
            yield expr.target
        yield from expr.args
    elif isinstance(expr, ListExpr):
        yield from expr.items
    elif isinstance(expr, MapExpr):
        for key, value in expr.entries:
            yield key
            yield value
    elif isinstance(expr, StructExpr):
        yield from (value for _, value in expr.fields)
    elif isinstance(expr, ComprehensionExpr):
        yield from (expr.range, expr.init, expr.condition, expr.step, expr.result)


def walk(root: Expr) -> Iterator[Expr]:
    """All expressions within *root*, outermost first."""
    pending = [root]
    while pending:
        node = pending.pop(0)
        yield node
        pending.extend(children(node))
