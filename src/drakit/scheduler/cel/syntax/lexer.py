"""Lexer: splits text into tokens by the rules of cel-go's grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from drakit.scheduler.cel.errors import CelSyntaxError
from drakit.scheduler.cel.syntax.tree import UInt

_ESCAPE: Final = (
    r"\\[abfnrtv\"'\\?`]|\\[0-3][0-7][0-7]|\\[xX][0-9a-fA-F]{2}"
    r"|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}"
)
_STRING: Final = (
    rf'[rR]"""(?:.|\n)*?"""|[rR]\'\'\'(?:.|\n)*?\'\'\''
    rf"|[rR]\"[^\"\n\r]*\"|[rR]'[^'\n\r]*'"
    rf'|"""(?:{_ESCAPE}|[^\\])*?"""|\'\'\'(?:{_ESCAPE}|[^\\])*?\'\'\''
    rf"|\"(?:{_ESCAPE}|[^\\\"\n\r])*\"|'(?:{_ESCAPE}|[^\\'\n\r])*'"
)
_TOKEN: Final = re.compile(
    rf"""
    (?P<space>[\t\ \r\n\f]+|//[^\n]*)
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
  | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
  | (?P<bytes>[bB](?:{_STRING}))
  | (?P<string>{_STRING})
  | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<quoted>`[A-Za-z0-9_.\-/\ ]+`)
  | (?P<op>==|!=|<=|>=|&&|\|\||[<>\[\]{{}}().,\-!?:+*/%])
    """,
    re.VERBOSE,
)
_SIMPLE: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_KEYWORDS: Final = frozenset({"in", "true", "false", "null"})


@dataclass(frozen=True, slots=True)
class Token:
    """A token; *kind* is the operator or keyword itself, or a class such as ``ident``."""

    kind: str
    text: str
    at: int


def tokens(text: str) -> list[Token]:
    """Split *text*; the last token has the kind ``end``. Raises :class:`CelSyntaxError`."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CelSyntaxError(f"token recognition error at: {text[at : at + 20]!r}", at)
        kind = match.lastgroup or ""
        word = match.group()
        if kind == "op" or (kind == "ident" and word in _KEYWORDS):
            found.append(Token(word, word, at))
        elif kind != "space":
            found.append(Token(kind, word, at))
        at = match.end()
    found.append(Token("end", "", len(text)))
    return found


def integer(text: str, negative: bool, at: int) -> int:
    """The value of an integer literal. Raises :class:`CelSyntaxError` beyond 64 bits."""
    value = -_number(text) if negative else _number(text)
    if not -(2**63) <= value < 2**63:
        raise CelSyntaxError("invalid int literal", at)
    return value


def unsigned(text: str, at: int) -> UInt:
    """The value of an unsigned literal. Raises :class:`CelSyntaxError` beyond 64 bits."""
    value = _number(text[:-1])
    if value >= 2**64:
        raise CelSyntaxError("invalid uint literal", at)
    return UInt(value)


def _number(digits: str) -> int:
    if len(digits) > 60:
        return 2**64
    return int(digits, 16 if digits.startswith("0x") else 10)


def double(text: str, negative: bool, at: int) -> float:
    """The value of a floating-point literal."""
    value = float(text)
    if value == float("inf"):
        raise CelSyntaxError("invalid double literal", at)
    return -value if negative else value


def string(text: str, at: int) -> str:
    """The value of a string literal."""
    body, raw = _body(text)
    if raw or "\\" not in body:
        return body
    out: list[str] = []
    for piece, code, _ in _pieces(body):
        if code is None:
            out.append(piece)
            continue
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise CelSyntaxError("invalid unicode code point", at)
        out.append(chr(code))
    return "".join(out)


def byte_string(text: str, at: int) -> bytes:
    r"""The value of a bytes literal; ``\x`` and octal escapes are single bytes."""
    body, raw = _body(text[1:])
    if raw or "\\" not in body:
        return body.encode("utf-8", "surrogatepass")
    out = bytearray()
    for piece, code, unicode_escape in _pieces(body):
        if code is None:
            out += piece.encode("utf-8", "surrogatepass")
        elif unicode_escape:
            raise CelSyntaxError("unable to unescape string", at)
        else:
            out.append(code)
    return bytes(out)


def _body(text: str) -> tuple[str, bool]:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    raw = text[0] in "rR"
    if raw:
        text = text[1:]
    width = 3 if len(text) >= 6 and text[:3] in ('"""', "'''") else 1
    return text[width:-width], raw


def _pieces(body: str) -> list[tuple[str, int | None, bool]]:
    r"""Plain runs and escapes in order: (text, code point of an escape, whether it is \u)."""
    pieces: list[tuple[str, int | None, bool]] = []
    at = 0
    for match in re.finditer(_ESCAPE, body):
        if match.start() > at:
            pieces.append((body[at : match.start()], None, False))
        escape = match.group()[1:]
        if escape[0] in "xXuU":
            pieces.append(("", int(escape[1:], 16), escape[0] in "uU"))
        elif escape[0] in "0123":
            pieces.append(("", int(escape, 8), False))
        else:
            pieces.append((_SIMPLE.get(escape, escape), None, False))
        at = match.end()
    pieces.append((body[at:], None, False))
    return pieces
