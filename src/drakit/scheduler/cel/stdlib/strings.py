"""String functions: the strings extension (version 2) of cel-go."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.stdlib.printf import format_text
from drakit.scheduler.cel.values import Overloads

_SPACE: Final = "\t\n\v\f\r \x85\xa0   " + "".join(map(chr, range(0x2000, 0x200B)))
_TRIMMED: Final = _SPACE + "\u2028\u2029\u202f\u205f\u3000\u1680"


def _out_of_range(at: int) -> CelRuntimeError:
    return CelRuntimeError(f"index out of range: {at}")


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise _out_of_range(at)
    return text[at : at + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise _out_of_range(start)
    if not part:
        return min(start, len(text))
    return text.find(part, start) if start < len(text) else -1


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        if not part:
            return len(text)
        if len(text.encode()) < len(part.encode()):
            return -1
        start = len(text) - 1
    if start < 0:
        raise _out_of_range(start)
    if not part:
        return min(start, len(text))
    if start >= len(text):
        return -1
    return text.rfind(part, 0, start + len(part))


def _ascii(text: str, change: Callable[[str], str]) -> str:
    return "".join(change(c) if c < "\x80" else c for c in text)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    if limit < 0 or limit >= len(text):
        return list(text)
    return [*text[: limit - 1], text[limit - 1 :]]


def _join(items: list[Any], separator: str = "") -> str:
    for item in items:
        if type(item) is not str:
            raise CelRuntimeError(f"join: invalid input: {item!r}")
    return separator.join(items)


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, limit if limit >= 0 else -1)


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is None:
        end = len(text)
    elif start > end:
        raise CelRuntimeError(f"invalid substring range. start: {start}, end: {end}")
    for at in (start, end):
        if not 0 <= at <= len(text):
            raise _out_of_range(at)
    return text[start:end]


_QUOTED: Final = str.maketrans(
    {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
     "\\": "\\\\", '"': '\\"'}
)  # fmt: skip


def shortest_float(value: float) -> str:
    """The shortest text that reads back as *value*, with Go's choice of exponent form."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    digits = repr(value)
    mantissa, _, exponent = digits.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    before, _, after = mantissa.lstrip("-").partition(".")
    after = "" if after == "0" else after
    # Position of the decimal point: value = 0.<significant> * 10**point
    point = len(before) + int(exponent or 0)
    significant = (before + after).lstrip("0")
    point -= len(before + after) - len(significant)
    significant = significant.rstrip("0")
    if not significant:
        return sign + "0"
    if -4 <= point - 1 < 21:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{significant}"
        if point >= len(significant):
            return sign + significant + "0" * (point - len(significant))
        return f"{sign}{significant[:point]}.{significant[point:]}"
    rest = "." + significant[1:] if len(significant) > 1 else ""
    return f"{sign}{significant[0]}{rest}e{point - 1:+03d}"


OVERLOADS: Final[Overloads] = {
    "contains": [(lambda text, part: part in text, (str, str))],
    "startsWith": [(str.startswith, (str, str))],
    "endsWith": [(str.endswith, (str, str))],
    "charAt": [(_char_at, (str, int))],
    "lowerAscii": [(lambda text: _ascii(text, str.lower), (str,))],
    "upperAscii": [(lambda text: _ascii(text, str.upper), (str,))],
    "indexOf": [(_index_of, (str, str)), (_index_of, (str, str, int))],
    "lastIndexOf": [(_last_index_of, (str, str)), (_last_index_of, (str, str, int))],
    "split": [(_split, (str, str)), (_split, (str, str, int))],
    "join": [(_join, (list,)), (_join, (list, str))],
    "replace": [(_replace, (str, str, str)), (_replace, (str, str, str, int))],
    "substring": [(_substring, (str, int)), (_substring, (str, int, int))],
    "trim": [(lambda text: text.strip(_TRIMMED), (str,))],
    "strings.quote": [(lambda text: f'"{text.translate(_QUOTED)}"', (str,))],
    "format": [(lambda text, args: format_text(text, args, shortest_float), (str, list))],
}
