"""Type conversions of the CEL standard library: ``int()``, ``string()`` and others, and ``size()``."""

from __future__ import annotations

import math
import re
from typing import Final

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.stdlib import network, strings, times
from drakit.scheduler.cel.syntax.tree import UInt
from drakit.scheduler.cel.values import (
    DomainMap,
    Duration,
    Overloads,
    Timestamp,
    Value,
    int64,
    type_name,
    uint64,
)

_FLOAT: Final = re.compile(
    r"[+-]?(?:inf|infinity|nan|[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?)",
    re.ASCII | re.IGNORECASE,
)
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def _conversion_error(value: Value, target: str) -> CelRuntimeError:
    return CelRuntimeError(f"type conversion error from '{type_name(value)}' to '{target}'")


def _parse_int(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,40}", text, re.ASCII) and -(2**63) <= int(text) < 2**63:
        return int(text)
    raise _conversion_error(text, "int")


def _parse_uint(text: str) -> UInt:
    if re.fullmatch(r"[0-9]{1,40}", text, re.ASCII) and int(text) < 2**64:
        return UInt(int(text))
    raise _conversion_error(text, "uint")


def _parse_double(text: str) -> float:
    if _FLOAT.fullmatch(text) and (not math.isinf(float(text)) or "inf" in text.lower()):
        return float(text)
    raise _conversion_error(text, "double")


def _parse_bool(text: str) -> bool:
    if text in _BOOLS:
        return _BOOLS[text]
    raise _conversion_error(text, "bool")


def _truncate(value: float) -> int:
    if math.isnan(value) or not -(2.0**63) < value < 2.0**63:
        raise CelRuntimeError("integer overflow")
    return int(value)


def _truncate_unsigned(value: float) -> UInt:
    if math.isnan(value) or not 0 <= value < 2.0**64:
        raise CelRuntimeError("unsigned integer overflow")
    return UInt(int(value))


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise CelRuntimeError("invalid UTF-8 in bytes, cannot convert to string") from None


OVERLOADS: Final[Overloads] = {
    "size": [(len, (kind,)) for kind in (str, bytes, list, dict, DomainMap)],
    "int": [
        (int64, (int,)), (lambda n: int64(int(n)), (UInt,)), (_truncate, (float,)), (_parse_int, (str,)),
        (lambda value: value.nanos // 10**9, (Timestamp,)), (lambda value: value.nanos, (Duration,)),
    ],
    "uint": [(uint64, (int,)), (UInt, (UInt,)), (_truncate_unsigned, (float,)), (_parse_uint, (str,))],
    "double": [(float, (int,)), (float, (UInt,)), (float, (float,)), (_parse_double, (str,))],
    "bool": [(bool, (bool,)), (_parse_bool, (str,))],
    "bytes": [(bytes, (bytes,)), (lambda text: text.encode("utf-8", "surrogatepass"), (str,))],
    "string": [
        (lambda value: "true" if value else "false", (bool,)), (strings.shortest_float, (float,)),
        (_decode, (bytes,)), (times.timestamp_text, (Timestamp,)), (times.duration_text, (Duration,)),
        *((str, (kind,)) for kind in (str, int, UInt, network.Ip, network.Cidr)),
    ],
}  # fmt: skip
