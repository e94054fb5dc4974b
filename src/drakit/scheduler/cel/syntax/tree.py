"""The syntax tree of an expression.

Nodes are compared by identity, so that the checker can keep types in a dictionary beside the tree.
Macros are expanded by the parser exactly as cel-go expands them; :attr:`ComprehensionExpr.macro` keeps
the original form for the evaluator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

ACCUMULATOR: Final = "@result"
UNUSED_VARIABLE: Final = "#unused"


class UInt(int):
    """An unsigned integer, kept apart from CEL's signed ``int``."""

    __slots__ = ()


Constant: TypeAlias = bool | int | UInt | float | str | bytes | None


@dataclass(frozen=True, slots=True, eq=False)
class LiteralExpr:
    """A constant."""

    value: Constant
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class IdentExpr:
    """A name; a leading dot is kept."""

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
    """A function, operator (``_+_``) or, with a *target*, a method."""

    function: str
    args: tuple[Expr, ...]
    target: Expr | None = None
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ListExpr:
    """``[a, ?b]``; *optional* has the positions of elements marked ``?``."""

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
    """What a comprehension was written as: ``all``, ``map``, ``bind`` and so on."""

    name: str
    condition: Expr | None = None
    value: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ComprehensionExpr:
    """A fold over a list or a map, the only loop of the language."""

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
    LiteralExpr
    | IdentExpr
    | SelectExpr
    | CallExpr
    | ListExpr
    | MapExpr
    | StructExpr
    | ComprehensionExpr
)
