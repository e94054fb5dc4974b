from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.scheduler.cel.errors import CelSyntaxError
from drakit.scheduler.cel.syntax import tree
from drakit.scheduler.cel.syntax.parser import MAX_NESTING, parse
from drakit.scheduler.recursion import deep_stack

_BINARY = {"_+_": "+", "_*_": "*", "_<_": "<", "_==_": "==", "_&&_": "&&", "_||_": "||"}


def written(node: tree.Expr) -> str:
    """The expression as fully parenthesized text."""
    match node:
        case tree.LiteralExpr(value):
            return str(value).lower() if isinstance(value, bool) else "null" if value is None else repr(value)
        case tree.IdentExpr(name):
            return name
        case tree.SelectExpr(operand, field, test):
            return f"has({written(operand)}.{field})" if test else f"{written(operand)}.{field}"
        case tree.ListExpr(items):
            return f"[{', '.join(map(written, items))}]"
        case tree.MapExpr(entries):
            return "{" + ", ".join(f"{written(k)}: {written(v)}" for k, v in entries) + "}"
        case tree.CallExpr(function, (a, b)) if function in _BINARY:
            return f"({written(a)} {_BINARY[function]} {written(b)})"
        case tree.CallExpr("_?_:_", (a, b, c)):
            return f"({written(a)} ? {written(b)} : {written(c)})"
        case tree.CallExpr("_[_]", (a, b)):
            return f"{written(a)}[{written(b)}]"
        case tree.CallExpr("!_", (a,)):
            return f"!{written(a)}"
        case tree.CallExpr(function, args, target):
            call = f"{function}({', '.join(map(written, args))})"
            return f"{written(target)}.{call}" if target else call
    raise AssertionError(node)


TEXTS = st.recursive(
    st.sampled_from(["a", "b.c", "1", "'x'", "true", "null", "f()"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(sorted(_BINARY.values())), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} ? {t[1]} : {t[2]})"),
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.tuples(inner, inner).map(lambda t: f"{{{t[0]}: {t[1]}}}"),
        inner.map(lambda t: f"(a).m({t}).n"),
        inner.map(lambda t: f"a[{t}]"),
    ),
    max_leaves=12,
)


@given(TEXTS)
def test_a_parsed_expression_can_be_written_and_parsed_again(text: str) -> None:
    once = written(parse(text))
    assert written(parse(once)) == once


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("1 + 2 * 3 < 4", "((1 + (2 * 3)) < 4)"),
        ("a || b && c", "(a || (b && c))"),
        ("a + b + c", "((a + b) + c)"),
        ("a ? b : c ? d : e", "(a ? b : (c ? d : e))"),
        ("a && b && c && d", "((a && b) && (c && d))"),  # chains are balanced, as in cel-go
        ("!!a", "a"),
        ("!a.b", "!a.b"),
        ("has(a.b)", "has(a.b)"),
        ("-1", "-1"),
    ],
)
def test_precedence(text: str, grouped: str) -> None:
    assert written(parse(text)) == grouped


@pytest.mark.parametrize("text", ["", "1 +", "a b", "(a", "[1, , 2]", "a.1", "if", "a ? b", "{1}"])
def test_an_invalid_expression_is_rejected(text: str) -> None:
    with pytest.raises(CelSyntaxError):
        parse(text)


def test_optional_entries_and_selections() -> None:
    items = parse("[a, ?b]")
    assert isinstance(items, tree.ListExpr)
    assert items.optional == {1}
    assert written(parse("a.?b")) == "_?._(a, 'b')"
    assert written(parse("a[?b]")) == "_[?_](a, b)"


def test_nesting_is_limited_as_in_cel_go() -> None:
    with deep_stack():
        parse("(" * (MAX_NESTING - 1) + "1" + ")" * (MAX_NESTING - 1))
        for text in (
            "(" * MAX_NESTING + "1" + ")" * MAX_NESTING,
            "a" + ".b" * MAX_NESTING,
            "1" + "+1" * MAX_NESTING,
        ):
            with pytest.raises(CelSyntaxError, match="recursion limit exceeded: 250"):
                parse(text)
