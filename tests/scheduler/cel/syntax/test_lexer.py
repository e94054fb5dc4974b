from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.scheduler.cel.errors import CelSyntaxError
from drakit.scheduler.cel.syntax import lexer
from drakit.scheduler.cel.syntax.tree import UInt


def kinds(text: str) -> list[str]:
    return [token.kind for token in lexer.tokens(text)]


def test_operators_and_keywords_are_their_own_kind() -> None:
    assert kinds("a >= 1 && true // x") == ["ident", ">=", "int", "&&", "true", "end"]
    assert kinds("1u 2.5 .5 1e3 b'x' r'\\' `a-b` in") == [
        "uint", "float", "float", "float", "bytes", "string", "quoted", "in", "end",
    ]  # fmt: skip


def test_an_unknown_character_is_an_error_with_its_position() -> None:
    with pytest.raises(CelSyntaxError, match="token recognition error") as caught:
        lexer.tokens("a # b")
    assert caught.value.position == 2


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_round_trip_in_both_notations(value: int) -> None:
    negative = value < 0
    assert lexer.integer(str(abs(value)), negative, 0) == value
    assert lexer.integer(hex(abs(value)), negative, 0) == value


@given(st.integers(0, 2**64 - 1))
def test_unsigned_integers_round_trip(value: int) -> None:
    found = lexer.unsigned(f"{value}u", 0)
    assert found == value
    assert type(found) is UInt


@pytest.mark.parametrize("text", [str(2**63), "9" * 100, hex(2**64)])
def test_an_integer_beyond_64_bits_is_an_error(text: str) -> None:
    with pytest.raises(CelSyntaxError, match="invalid int literal"):
        lexer.integer(text, False, 0)
    with pytest.raises(CelSyntaxError, match="invalid uint literal"):
        lexer.unsigned(f"{max(int(text, 0), 2**64)}u", 0)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_strings_round_trip_through_escapes(text: str) -> None:
    escaped = "".join(f"\\U{ord(c):08x}" for c in text)
    assert lexer.string(f'"{escaped}"', 0) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [(r'"a\n\t\\\""', 'a\n\t\\"'), (r"'\x41\101'", "AA"), (r"r'\n'", "\\n"), ("'''a'b\r\nc'''", "a'b\nc")],
)
def test_string_literals(text: str, value: str) -> None:
    assert lexer.string(text, 0) == value


def test_byte_escapes_are_single_bytes() -> None:
    assert lexer.byte_string(r"b'\xff\101é'", 0) == b"\xffA\xc3\xa9"
    with pytest.raises(CelSyntaxError):
        lexer.byte_string(r"b'\u00e9'", 0)
    with pytest.raises(CelSyntaxError, match="code point"):
        lexer.string(r"'\ud800'", 0)
