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
    CallExpr,
    ComprehensionExpr,
    Expr,
    IdentExpr,
    ListExpr,
    LiteralExpr,
    Macro,
    MapExpr,
    SelectExpr,
)

_Expander = Callable[[Expr | None, tuple[Expr, ...], int], Expr | None]


def expand(name: str, target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr | None:
    """The expansion of a call, or None when it is an ordinary one."""
    expander = _MACROS.get((name, len(args), target is not None))
    return expander(target, args, at) if expander else None


def _variable(node: Expr) -> str:
    if not isinstance(node, IdentExpr):
        raise CelSyntaxError("argument must be a simple name", node.at)
    if node.name in (ACCUMULATOR, "__result__"):
        raise CelSyntaxError("iteration variable overwrites accumulator variable", node.at)
    return node.name


def _accumulator() -> IdentExpr:
    return IdentExpr(ACCUMULATOR)


def _variables(args: tuple[Expr, ...], count: int) -> tuple[str, str | None]:
    first = _variable(args[0])
    if count == 1:
        return first, None
    second = _variable(args[1])
    if first == second:
        raise CelSyntaxError(f"duplicate variable name: {first}", args[1].at)
    return first, second


def _has(_: Expr | None, args: tuple[Expr, ...], at: int) -> Expr:
    if not isinstance(args[0], SelectExpr) or args[0].test:
        raise CelSyntaxError("invalid argument to has() macro", args[0].at)
    return SelectExpr(args[0].operand, args[0].field, True, at)


def _quantifier(kind: str, variables: int) -> _Expander:
    def build(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr:
        assert target is not None
        first, second = _variables(args, variables)
        predicate = args[-1]
        accumulator = _accumulator()
        result: Expr = _accumulator()
        init: Expr
        condition: Expr
        if kind == "all":
            init = LiteralExpr(True, at)
            condition = CallExpr("@not_strictly_false", (accumulator,), None, at)
            step = CallExpr("_&&_", (_accumulator(), predicate), None, at)
        elif kind == "exists":
            init = LiteralExpr(False, at)
            negated = CallExpr("!_", (accumulator,), None, at)
            condition = CallExpr("@not_strictly_false", (negated,), None, at)
            step = CallExpr("_||_", (_accumulator(), predicate), None, at)
        else:
            init = LiteralExpr(0, at)
            condition = LiteralExpr(True, at)
            more = CallExpr("_+_", (accumulator, LiteralExpr(1, at)), None, at)
            step = CallExpr("_?_:_", (predicate, more, _accumulator()), None, at)
            result = CallExpr("_==_", (result, LiteralExpr(1, at)), None, at)
        macro = Macro(kind, predicate)
        return ComprehensionExpr(
            target, first, second, ACCUMULATOR, init, condition, step, result, macro, at
        )

    return build


def _collect(  # noqa: PLR0917 - the parts of a fold
    target: Expr, names: tuple[str, str | None], insert: Expr, macro: Macro, init: Expr, at: int
) -> Expr:
    """A fold that adds to a list or a map, for elements that pass the macro's condition."""
    step = insert
    if macro.condition is not None:
        step = CallExpr("_?_:_", (macro.condition, insert, _accumulator()), None, at)
    return ComprehensionExpr(
        target, names[0], names[1], ACCUMULATOR, init, LiteralExpr(True, at), step, _accumulator(),
        macro, at,
    )  # fmt: skip


def _appended(value: Expr, at: int) -> Expr:
    return CallExpr("_+_", (_accumulator(), ListExpr((value,), frozenset(), at)), None, at)


def _mapping(kind: str, variables: int) -> _Expander:
    def build(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr:
        assert target is not None
        names = _variables(args, variables)
        condition = args[variables] if len(args) == variables + 2 else None
        macro = Macro(kind, condition, args[-1])
        if kind == "map":
            init: Expr = ListExpr((), frozenset(), at)
            return _collect(target, names, _appended(args[-1], at), macro, init, at)
        if kind == "transformMap":
            inserted = (_accumulator(), IdentExpr(names[0], at), args[-1])
        else:
            inserted = (_accumulator(), args[-1])  # type: ignore[assignment]
        insert = CallExpr("cel.@mapInsert", inserted, None, at)
        return _collect(target, names, insert, macro, MapExpr((), frozenset(), at), at)

    return build


def _filter(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr:
    assert target is not None
    name = _variable(args[0])
    macro = Macro("map", args[1], args[0])
    insert = _appended(args[0], at)
    return _collect(target, (name, None), insert, macro, ListExpr((), frozenset(), at), at)


def _binding(variable: str, value: Expr, body: Expr, at: int) -> Expr:
    return ComprehensionExpr(
        ListExpr((), frozenset(), at), UNUSED_VARIABLE, None, variable, value,
        LiteralExpr(False, at), IdentExpr(variable, at), body, Macro("bind"), at,
    )  # fmt: skip


def _bind(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr | None:
    if not isinstance(target, IdentExpr) or target.name != "cel":
        return None
    if not isinstance(args[0], IdentExpr):
        raise CelSyntaxError("cel.bind() variable names must be simple identifiers", args[0].at)
    return _binding(args[0].name, args[1], args[2], at)


def _optional_map(function: str) -> _Expander:
    def build(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr:
        assert target is not None
        if not isinstance(args[0], IdentExpr):
            raise CelSyntaxError(f"{function}() variable name must be a simple identifier", at)
        body = _binding(args[0].name, CallExpr("value", (), target, at), args[1], at)
        if function == "optMap":
            body = CallExpr("optional.of", (body,), None, at)
        nothing = CallExpr("optional.none", (), None, at)
        return CallExpr("_?_:_", (CallExpr("hasValue", (), target, at), body, nothing), None, at)

    return build


def _sort_by(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr | None:
    """``list.sortBy(x, key)`` is ``list.@sortByAssociatedKeys(list.map(x, key))``, bound once."""
    assert target is not None
    if not isinstance(target, IdentExpr | SelectExpr | ListExpr | ComprehensionExpr | CallExpr):
        raise CelSyntaxError("sortBy can only be applied to a list, identifier, comprehension, "
                             "call or select expression", target.at)  # fmt: skip
    name = _variable(args[0])
    bound = "@__sortBy_input__"
    macro = Macro("map", None, args[1])
    keys = _collect(
        IdentExpr(bound, at), (name, None), _appended(args[1], at), macro,
        ListExpr((), frozenset(), at), at,
    )  # fmt: skip
    body = CallExpr("@sortByAssociatedKeys", (keys,), IdentExpr(bound, at), at)
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
