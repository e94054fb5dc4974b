"""Macro expansion: calls that are rewritten before type checking.

The expansions equal cel-go's, because type checking and cost estimates depend on their form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from drakit.scheduler.cel.errors import CelSyntaxError
from drakit.scheduler.cel.syntax import tree
from drakit.scheduler.cel.syntax.tree import ACCUMULATOR, UNUSED_VARIABLE, Expr, Macro

_Expander = Callable[[Expr | None, tuple[Expr, ...], int], Expr | None]


def expand(name: str, target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr | None:
    """The expansion of a call, or None if it is not a macro."""
    expander = _MACROS.get((name, len(args), target is not None))
    return expander(target, args, at) if expander else None


def _variable(node: Expr) -> str:
    if not isinstance(node, tree.IdentExpr):
        raise CelSyntaxError("argument must be a simple name", node.at)
    if node.name in (ACCUMULATOR, "__result__"):
        raise CelSyntaxError("iteration variable overwrites accumulator variable", node.at)
    return node.name


def _accumulator() -> tree.IdentExpr:
    return tree.IdentExpr(ACCUMULATOR)


def _variables(args: tuple[Expr, ...], count: int) -> tuple[str, str | None]:
    first = _variable(args[0])
    if count == 1:
        return first, None
    second = _variable(args[1])
    if first == second:
        raise CelSyntaxError(f"duplicate variable name: {first}", args[1].at)
    return first, second


def _has(_: Expr | None, args: tuple[Expr, ...], at: int) -> Expr:
    if not isinstance(args[0], tree.SelectExpr) or args[0].test:
        raise CelSyntaxError("invalid argument to has() macro", args[0].at)
    return tree.SelectExpr(args[0].operand, args[0].field, True, at)


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
            init = tree.LiteralExpr(True, at)
            condition = tree.CallExpr("@not_strictly_false", (accumulator,), None, at)
            step = tree.CallExpr("_&&_", (_accumulator(), predicate), None, at)
        elif kind == "exists":
            init = tree.LiteralExpr(False, at)
            negated = tree.CallExpr("!_", (accumulator,), None, at)
            condition = tree.CallExpr("@not_strictly_false", (negated,), None, at)
            step = tree.CallExpr("_||_", (_accumulator(), predicate), None, at)
        else:
            init = tree.LiteralExpr(0, at)
            condition = tree.LiteralExpr(True, at)
            more = tree.CallExpr("_+_", (accumulator, tree.LiteralExpr(1, at)), None, at)
            step = tree.CallExpr("_?_:_", (predicate, more, _accumulator()), None, at)
            result = tree.CallExpr("_==_", (result, tree.LiteralExpr(1, at)), None, at)
        macro = Macro(kind, predicate)
        return tree.ComprehensionExpr(
            target, first, second, ACCUMULATOR, init, condition, step, result, macro, at
        )

    return build


def _collect(target: Expr | None, names: tuple[str, str | None], macro: Macro, at: int) -> Expr:
    """A fold that adds the elements that satisfy the macro's condition to a list or map."""
    assert target is not None
    assert macro.value is not None
    init: Expr = tree.MapExpr((), frozenset(), at)
    if macro.name == "map":
        init = tree.ListExpr((), frozenset(), at)
        step = tree.CallExpr(
            "_+_", (_accumulator(), tree.ListExpr((macro.value,), frozenset(), at)), None, at
        )
    else:
        key = (tree.IdentExpr(names[0], at),) if macro.name == "transformMap" else ()
        step = tree.CallExpr("cel.@mapInsert", (_accumulator(), *key, macro.value), None, at)
    if macro.condition is not None:
        step = tree.CallExpr("_?_:_", (macro.condition, step, _accumulator()), None, at)
    always = tree.LiteralExpr(True, at)
    return tree.ComprehensionExpr(target, *names, ACCUMULATOR, init, always, step, _accumulator(), macro, at)


def _mapping(kind: str, variables: int) -> _Expander:
    def build(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr:
        condition = args[variables] if len(args) == variables + 2 else None
        return _collect(target, _variables(args, variables), Macro(kind, condition, args[-1]), at)

    return build


def _filter(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr:
    return _collect(target, (_variable(args[0]), None), Macro("map", args[1], args[0]), at)


def _binding(variable: str, value: Expr, body: Expr, at: int) -> Expr:
    return tree.ComprehensionExpr(
        tree.ListExpr((), frozenset(), at), UNUSED_VARIABLE, None, variable, value,
        tree.LiteralExpr(False, at), tree.IdentExpr(variable, at), body, Macro("bind"), at,
    )  # fmt: skip


def _bind(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr | None:
    if not isinstance(target, tree.IdentExpr) or target.name != "cel":
        return None
    if not isinstance(args[0], tree.IdentExpr):
        raise CelSyntaxError("cel.bind() variable names must be simple identifiers", args[0].at)
    return _binding(args[0].name, args[1], args[2], at)


def _optional_map(function: str) -> _Expander:
    def build(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr:
        assert target is not None
        if not isinstance(args[0], tree.IdentExpr):
            raise CelSyntaxError(f"{function}() variable name must be a simple identifier", at)
        body = _binding(args[0].name, tree.CallExpr("value", (), target, at), args[1], at)
        if function == "optMap":
            body = tree.CallExpr("optional.of", (body,), None, at)
        nothing = tree.CallExpr("optional.none", (), None, at)
        return tree.CallExpr("_?_:_", (tree.CallExpr("hasValue", (), target, at), body, nothing), None, at)

    return build


def _sort_by(target: Expr | None, args: tuple[Expr, ...], at: int) -> Expr | None:
    """``list.sortBy(x, key)`` is ``list.@sortByAssociatedKeys(list.map(x, key))``, bound once."""
    assert target is not None
    if not isinstance(
        target, tree.IdentExpr | tree.SelectExpr | tree.ListExpr | tree.ComprehensionExpr | tree.CallExpr
    ):
        raise CelSyntaxError("sortBy can only be applied to a list, identifier, comprehension, "
                             "call or select expression", target.at)  # fmt: skip
    bound = "@__sortBy_input__"
    names = (_variable(args[0]), None)
    keys = _collect(tree.IdentExpr(bound, at), names, Macro("map", None, args[1]), at)
    body = tree.CallExpr("@sortByAssociatedKeys", (keys,), tree.IdentExpr(bound, at), at)
    return _binding(bound, target, body, at)


_MACROS: Final[dict[tuple[str, int, bool], _Expander]] = {
    ("has", 1, False): _has,
    **{
        (kind, variables + 1, True): _quantifier(kind, variables)
        for kind in ("all", "exists", "exists_one")
        for variables in (1, 2)
    },
    ("existsOne", 3, True): _quantifier("exists_one", 2),
    ("filter", 2, True): _filter,
    **{
        (name, variables + extra, True): _mapping(kind, variables)
        for name, kind, variables in (
            ("map", "map", 1),
            ("transformList", "map", 2),
            ("transformMap", "transformMap", 2),
            ("transformMapEntry", "transformMapEntry", 2),
        )
        for extra in (1, 2)  # without and with a condition
    },
    ("bind", 3, True): _bind,
    ("optMap", 2, True): _optional_map("optMap"),
    ("optFlatMap", 2, True): _optional_map("optFlatMap"),
    ("sortBy", 2, True): _sort_by,
}
"""Expanders by name, number of arguments and whether the call has a receiver."""
