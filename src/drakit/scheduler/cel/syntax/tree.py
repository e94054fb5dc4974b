"""The syntax tree of an expression.

Nodes are compared by identity, so that the checker can keep types in a dictionary beside the tree.
Macros are expanded by the parser exactly as cel-go expands them; :attr:`Comprehension.macro` keeps
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
class Literal:
    """A constant."""

    value: Constant
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ident:
    """A name; a leading dot is kept."""

    name: str
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """``operand.field``; *test* for ``has(operand.field)``."""

    operand: Node
    field: str
    test: bool = False
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A function, operator (``_+_``) or, with a *target*, a method."""

    function: str
    args: tuple[Node, ...]
    target: Node | None = None
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ListLiteral:
    """``[a, ?b]``; *optional* has the positions of elements marked ``?``."""

    items: tuple[Node, ...]
    optional: frozenset[int] = frozenset()
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class MapLiteral:
    """``{k: v, ?k: v}``."""

    entries: tuple[tuple[Node, Node], ...]
    optional: frozenset[int] = frozenset()
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class StructLiteral:
    """``Type{field: value}``."""

    type_name: str
    fields: tuple[tuple[str, Node], ...]
    at: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Macro:
    """What a comprehension was written as: ``all``, ``map``, ``bind`` and so on."""

    name: str
    condition: Node | None = None
    value: Node | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Comprehension:
    """A fold over a list or a map, the only loop of the language."""

    range: Node
    variable: str
    second: str | None
    accumulator: str
    init: Node
    condition: Node
    step: Node
    result: Node
    macro: Macro
    at: int = 0


Node: TypeAlias = (
    Literal | Ident | Select | Call | ListLiteral | MapLiteral | StructLiteral | Comprehension
)
