from __future__ import annotations

import pytest

from drakit.scheduler.cel.errors import CelSyntaxError
from drakit.scheduler.cel.syntax import tree
from drakit.scheduler.cel.syntax.parser import parse


@pytest.mark.parametrize(
    ("text", "macro", "second"),
    [
        ("l.all(x, true)", "all", None),
        ("l.exists(x, true)", "exists", None),
        ("l.exists_one(x, true)", "exists_one", None),
        ("l.existsOne(i, x, true)", "exists_one", "x"),
        ("l.map(x, x)", "map", None),
        ("l.map(x, true, x)", "map", None),
        ("l.filter(x, true)", "map", None),
        ("l.transformList(i, x, x)", "map", "x"),
        ("l.transformMap(k, v, true, v)", "transformMap", "v"),
        ("l.transformMapEntry(k, v, {k: v})", "transformMapEntry", "v"),
        ("cel.bind(x, 1, x)", "bind", None),
    ],
)
def test_a_macro_becomes_a_comprehension(text: str, macro: str, second: str | None) -> None:
    found = parse(text)
    assert isinstance(found, tree.ComprehensionExpr)
    assert (found.macro.name, found.second) == (macro, second)


def test_other_calls_are_not_macros() -> None:
    for text in ("l.all(x)", "all(x, true)", "other.bind(x, 1, x)", "l.map(x)"):
        assert isinstance(parse(text), tree.CallExpr)


def test_a_filter_keeps_the_condition_and_map_the_value() -> None:
    found = parse("l.filter(x, x > 1)")
    assert isinstance(found, tree.ComprehensionExpr)
    assert isinstance(found.macro.condition, tree.CallExpr)
    assert isinstance(found.macro.value, tree.IdentExpr)


def test_opt_map_is_a_conditional() -> None:
    found = parse("o.optMap(x, x)")
    assert isinstance(found, tree.CallExpr)
    assert found.function == "_?_:_"
    assert isinstance(found.args[1], tree.CallExpr)
    assert found.args[1].function == "optional.of"
    flat = parse("o.optFlatMap(x, x)")
    assert isinstance(flat, tree.CallExpr)
    assert isinstance(flat.args[1], tree.ComprehensionExpr)


@pytest.mark.parametrize(
    "text",
    ["l.all(1, true)", "has(a)", "l.all(x, x, true)", "cel.bind(a.b, 1, 1)", "o.optMap(1, 1)",
     "'a'.sortBy(x, x)"],
)  # fmt: skip
def test_invalid_arguments_of_a_macro_are_rejected(text: str) -> None:
    with pytest.raises(CelSyntaxError):
        parse(text)
