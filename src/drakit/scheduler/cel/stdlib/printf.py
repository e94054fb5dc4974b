"""String formatting: ``"…".format([…])`` of cel-go's strings extension."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.stdlib import times
from drakit.scheduler.cel.syntax.tree import UInt
from drakit.scheduler.cel.values import DomainMap, Duration, Timestamp, TypeValue, Value, key_value, type_name

_CLAUSE: Final = re.compile(r"(?:\.([0-9]*))?(.)?", re.DOTALL)
_DEFAULT_PRECISION: Final = 6
MAX_PRECISION: Final = 1000


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a format string: plain *text*, or a verb with its precision."""

    text: str = ""
    verb: str = ""
    precision: int | None = None


def clauses(template: str) -> list[Clause]:
    """Split a format string. Raises :class:`CelRuntimeError` if it is malformed."""
    found: list[Clause] = []
    at = 0
    while at < len(template):
        percent = template.find("%", at)
        if percent < 0:
            found.append(Clause(template[at:]))
            break
        found.append(Clause(template[at:percent]))
        if template[percent : percent + 2] == "%%":
            found.append(Clause("%"))
            at = percent + 2
            continue
        match = _CLAUSE.match(template, percent + 1)
        assert match is not None
        if match[2] is None:
            raise CelRuntimeError("unexpected end of string")
        if match[1] == "":
            raise CelRuntimeError("could not parse formatting clause: precision is empty")
        if match[2] not in "sdfebxXo":
            raise CelRuntimeError(
                f'could not parse formatting clause: unrecognized formatting clause "{match[2]}"'
            )
        precision = None if match[1] is None else int(match[1][:9])
        if precision is not None and precision > MAX_PRECISION:
            raise CelRuntimeError(f"precision {precision} exceeds maximum allowed precision")
        found.append(Clause("", match[2], precision))
        at = match.end()
    return found


def format_text(template: str, args: list[Value], float_text: Callable[[float], str]) -> str:
    """Format *args*."""
    out: list[str] = []
    used = 0
    for clause in clauses(template):
        if not clause.verb:
            out.append(clause.text)
            continue
        if used >= len(args):
            raise CelRuntimeError(f"index {used} out of range")
        out.append(_formatted(clause, args[used], float_text))
        used += 1
    return "".join(out)


def _formatted(clause: Clause, value: Value, float_text: Callable[[float], str]) -> str:
    kind = type(value)
    whole = kind in (int, UInt)
    match clause.verb:
        case "s":
            return _text(value, float_text)
        case "d" if whole:
            return str(int(value))
        case "b" if whole or kind is bool:
            return format(int(value), "b")
        case "o" if whole:
            return format(int(value), "o")
        case "x" | "X" if whole:
            return format(int(value), clause.verb)
        case "x" | "X" if kind in (str, bytes):
            data = value.encode() if kind is str else value
            return str(data.hex() if clause.verb == "x" else data.hex().upper())
        case "f" | "e" if kind is float or value in ("NaN", "Infinity", "-Infinity"):
            return _number(float(value), clause)
    raise CelRuntimeError(f"error during formatting: %{clause.verb} of {type_name(value)}")


_SUPERSCRIPTS: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _number(value: float, clause: Clause) -> str:
    """Numbers as golang.org/x/text prints them for American English."""
    precision = _DEFAULT_PRECISION if clause.precision is None else clause.precision
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if clause.verb == "f":
        return f"{value:,.{precision}f}"
    # For %e the number is a width, not a precision; the precision is always six.
    mantissa, _, exponent = f"{value:.{_DEFAULT_PRECISION}e}".partition("e")
    power = f"{int(exponent):03d}" if int(exponent) < 0 else f"{int(exponent):02d}"
    return f"{mantissa}\u202f×\u202f10{power.translate(_SUPERSCRIPTS)}".rjust(precision)


def _text(value: Value, float_text: Callable[[float], str]) -> str:
    kind = type(value)
    if value is None:
        return "null"
    if kind is list or isinstance(value, dict):
        return _nested(value)
    if kind is float:
        return float_text(value)
    simple: dict[type, Callable[[Any], str]] = {
        str: str, bool: lambda v: "true" if v else "false", int: str, UInt: lambda v: str(int(v)),
        Timestamp: times.timestamp_text, Duration: times.duration_text,
        TypeValue: lambda v: v.name, bytes: lambda v: v.decode("utf-8", "replace"),
    }  # fmt: skip
    if kind in simple:
        return simple[kind](value)
    raise CelRuntimeError(f"error during formatting: string clause of {type_name(value)}")


def _nested(value: Value) -> str:
    """A value inside a list or map, as a CEL literal."""
    kind = type(value)
    if kind is list:
        return f"[{', '.join(map(_nested, value))}]"
    if kind is dict or kind is DomainMap:
        pairs = sorted((_nested(key_value(k)), _nested(v)) for k, v in value.items())
        return "{" + ", ".join(f"{k}:{v}" for k, v in pairs) + "}"
    if kind is str:
        return json.dumps(value, ensure_ascii=False)
    if kind is bytes:
        return "b" + json.dumps(value.decode("utf-8", "replace"), ensure_ascii=False)
    if kind is float:
        return f"{value:.{_DEFAULT_PRECISION}f}"
    if kind is Timestamp:
        return f'timestamp("{times.timestamp_text(value)}")'
    if kind is Duration:
        return f'duration("{times.duration_text(value)}")'
    return _text(value, str)
