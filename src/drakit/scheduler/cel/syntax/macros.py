"""Macros: calls that are rewritten before type checking.

The expansions have the shape of cel-go's, because the type checker's verdict and the cost estimate
of the API server depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from drakit.scheduler.cel.errors import CelSyntaxError
from drakit.scheduler.cel.syntax.tree import (
    ACCUMULATOR,
    UNUSED_VARIABLE,
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    Macro,
    MapLiteral,
    Node,
    Select,
)

_Expander = Callable[[Node | None, tuple[Node, ...], int], Node | None]


def expand(name: str, target: Node | None, args: tuple[Node, ...], at: int) -> Node | None:
    """The expansion of a call, or None when it is an ordinary one."""
    expander = _MACROS.get((name, len(args), target is not None))
    return expander(target, args, at) if expander else None


def _variable(node: Node) -> str:
    if not isinstance(node, Ident):
        raise CelSyntaxError("argument must be a simple name", node.at)
    if node.name in (ACCUMULATOR, "__result__"):
        raise CelSyntaxError("iteration variable overwrites accumulator variable", node.at)
    return node.name


def _accumulator() -> Ident:
    return Ident(ACCUMULATOR)


def _variables(args: tuple[Node, ...], count: int) -> tuple[str, str | None]:
    first = _variable(args[0])
    if count == 1:
        return first, None
    second = _variable(args[1])
    if first == second:
        raise CelSyntaxError(f"duplicate variable name: {first}", args[1].at)
    return first, second


def _has(_: Node | None, args: tuple[Node, ...], at: int) -> Node:
    if not isinstance(args[0], Select) or args[0].test:
        raise CelSyntaxError("invalid argument to has() macro", args[0].at)
    return Select(args[0].operand, args[0].field, True, at)


def _quantifier(kind: str, variables: int) -> _Expander:
    def build(target: Node | None, args: tuple[Node, ...], at: int) -> Node:
        assert target is not None
        first, second = _variables(args, variables)
        predicate = args[-1]
        accumulator = _accumulator()
        result: Node = _accumulator()
        init: Node
        condition: Node
        if kind == "all":
            init = Literal(True, at)
            condition = Call("@not_strictly_false", (accumulator,), None, at)
            step = Call("_&&_", (_accumulator(), predicate), None, at)
        elif kind == "exists":
            init = Literal(False, at)
            negated = Call("!_", (accumulator,), None, at)
            condition = Call("@not_strictly_false", (negated,), None, at)
            step = Call("_||_", (_accumulator(), predicate), None, at)
        else:
            init = Literal(0, at)
            condition = Literal(True, at)
            more = Call("_+_", (accumulator, Literal(1, at)), None, at)
            step = Call("_?_:_", (predicate, more, _accumulator()), None, at)
            result = Call("_==_", (result, Literal(1, at)), None, at)
        macro = Macro(kind, predicate)
        return Comprehension(
            target, first, second, ACCUMULATOR, init, condition, step, result, macro, at
        )

    return build


def _collect(  # noqa: PLR0917 - the parts of a fold
    target: Node, names: tuple[str, str | None], insert: Node, macro: Macro, init: Node, at: int
) -> Node:
    """A fold that adds to a list or a map, for elements that pass the macro's condition."""
    step = insert
    if macro.condition is not None:
        step = Call("_?_:_", (macro.condition, insert, _accumulator()), None, at)
    return Comprehension(
        target, names[0], names[1], ACCUMULATOR, init, Literal(True, at), step, _accumulator(),
        macro, at,
    )  # fmt: skip


def _appended(value: Node, at: int) -> Node:
    return Call("_+_", (_accumulator(), ListLiteral((value,), frozenset(), at)), None, at)


def _mapping(kind: str, variables: int) -> _Expander:
    def build(target: Node | None, args: tuple[Node, ...], at: int) -> Node:
        assert target is not None
        names = _variables(args, variables)
        condition = args[variables] if len(args) == variables + 2 else None
        macro = Macro(kind, condition, args[-1])
        if kind == "map":
            init: Node = ListLiteral((), frozenset(), at)
            return _collect(target, names, _appended(args[-1], at), macro, init, at)
        if kind == "transformMap":
            inserted = (_accumulator(), Ident(names[0], at), args[-1])
        else:
            inserted = (_accumulator(), args[-1])  # type: ignore[assignment]
        insert = Call("cel.@mapInsert", inserted, None, at)
        return _collect(target, names, insert, macro, MapLiteral((), frozenset(), at), at)

    return build


def _filter(target: Node | None, args: tuple[Node, ...], at: int) -> Node:
    assert target is not None
    name = _variable(args[0])
    macro = Macro("map", args[1], args[0])
    insert = _appended(args[0], at)
    return _collect(target, (name, None), insert, macro, ListLiteral((), frozenset(), at), at)


def _binding(variable: str, value: Node, body: Node, at: int) -> Node:
    return Comprehension(
        ListLiteral((), frozenset(), at), UNUSED_VARIABLE, None, variable, value,
        Literal(False, at), Ident(variable, at), body, Macro("bind"), at,
    )  # fmt: skip


def _bind(target: Node | None, args: tuple[Node, ...], at: int) -> Node | None:
    if not isinstance(target, Ident) or target.name != "cel":
        return None
    if not isinstance(args[0], Ident):
        raise CelSyntaxError("cel.bind() variable names must be simple identifiers", args[0].at)
    return _binding(args[0].name, args[1], args[2], at)


def _optional_map(function: str) -> _Expander:
    def build(target: Node | None, args: tuple[Node, ...], at: int) -> Node:
        assert target is not None
        if not isinstance(args[0], Ident):
            raise CelSyntaxError(f"{function}() variable name must be a simple identifier", at)
        body = _binding(args[0].name, Call("value", (), target, at), args[1], at)
        if function == "optMap":
            body = Call("optional.of", (body,), None, at)
        nothing = Call("optional.none", (), None, at)
        return Call("_?_:_", (Call("hasValue", (), target, at), body, nothing), None, at)

    return build


def _sort_by(target: Node | None, args: tuple[Node, ...], at: int) -> Node | None:
    """``list.sortBy(x, key)`` is ``list.@sortByAssociatedKeys(list.map(x, key))``, bound once."""
    assert target is not None
    if not isinstance(target, Ident | Select | ListLiteral | Comprehension | Call):
        raise CelSyntaxError("sortBy can only be applied to a list, identifier, comprehension, "
                             "call or select expression", target.at)  # fmt: skip
    name = _variable(args[0])
    bound = "@__sortBy_input__"
    macro = Macro("map", None, args[1])
    keys = _collect(
        Ident(bound, at), (name, None), _appended(args[1], at), macro,
        ListLiteral((), frozenset(), at), at,
    )  # fmt: skip
    body = Call("@sortByAssociatedKeys", (keys,), Ident(bound, at), at)
    return _binding(bound, target, body, at)


_MACROS: Final[dict[tuple[str, int, bool], _Expander]] = {
    ("has", 1, False): _has,
    ("all", 2, True): _quantifier("all", 1),
    ("exists", 2, True): _quantifier("exists", 1),
    ("exists_one", 2, True): _quantifier("exists_one", 1),
    ("all", 3, True): _quantifier("all", 2),
    ("exists", 3, True): _quantifier("exists", 2),
    ("exists_one", 3, True): _quantifier("exists_one", 2),
    ("existsOne", 3, True): _quantifier("exists_one", 2),
    ("map", 2, True): _mapping("map", 1),
    ("map", 3, True): _mapping("map", 1),
    ("filter", 2, True): _filter,
    ("transformList", 3, True): _mapping("map", 2),
    ("transformList", 4, True): _mapping("map", 2),
    ("transformMap", 3, True): _mapping("transformMap", 2),
    ("transformMap", 4, True): _mapping("transformMap", 2),
    ("transformMapEntry", 3, True): _mapping("transformMapEntry", 2),
    ("transformMapEntry", 4, True): _mapping("transformMapEntry", 2),
    ("bind", 3, True): _bind,
    ("optMap", 2, True): _optional_map("optMap"),
    ("optFlatMap", 2, True): _optional_map("optFlatMap"),
    ("sortBy", 2, True): _sort_by,
}
