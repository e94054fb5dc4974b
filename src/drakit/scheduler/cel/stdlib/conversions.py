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
    Timestamp,
    Value,
    int64,
    no_such_overload,
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


def size(value: Value) -> int:
    """``size(value)``."""
    if type(value) in (str, bytes, list, dict, DomainMap):
        return len(value)
    raise no_such_overload("size", value)


def _conversion_error(value: Value, target: str) -> CelRuntimeError:
    return CelRuntimeError(f"type conversion error from '{type_name(value)}' to '{target}'")


def to_int(value: Value) -> int:
    """``int(value)``."""
    kind = type(value)
    if kind in (int, UInt):
        return int64(int(value))
    if kind is float:
        if math.isnan(value) or not -(2.0**63) < value < 2.0**63:
            raise CelRuntimeError("integer overflow")
        return int(value)
    if kind is str:
        if re.fullmatch(r"[+-]?[0-9]{1,40}", value, re.ASCII) and -(2**63) <= int(value) < 2**63:
            return int(value)
        raise _conversion_error(value, "int")
    if kind is Timestamp:
        return int(value.nanos // 10**9)
    if kind is Duration:
        return int(value.nanos)
    raise no_such_overload("int", value)


def to_uint(value: Value) -> UInt:
    """``uint(value)``."""
    kind = type(value)
    if kind in (int, UInt):
        return uint64(int(value))
    if kind is float:
        if math.isnan(value) or not 0 <= value < 2.0**64:
            raise CelRuntimeError("unsigned integer overflow")
        return UInt(int(value))
    if kind is str:
        if re.fullmatch(r"[0-9]{1,40}", value, re.ASCII) and int(value) < 2**64:
            return UInt(int(value))
        raise _conversion_error(value, "uint")
    raise no_such_overload("uint", value)


def to_double(value: Value) -> float:
    """``double(value)``."""
    if type(value) in (float, int, UInt):
        return float(value)
    if type(value) is str:
        if _FLOAT.fullmatch(value):
            number = float(value)
            if not math.isinf(number) or "inf" in value.lower():
                return number
        raise _conversion_error(value, "double")
    raise no_such_overload("double", value)


def to_bool(value: Value) -> bool:
    """``bool(value)``."""
    if type(value) is bool:
        return value
    if type(value) is str:
        if value in _BOOLS:
            return _BOOLS[value]
        raise _conversion_error(value, "bool")
    raise no_such_overload("bool", value)


def to_bytes(value: Value) -> bytes:
    """``bytes(value)``."""
    if type(value) is bytes:
        return value
    if type(value) is str:
        return value.encode("utf-8", "surrogatepass")
    raise no_such_overload("bytes", value)


def to_string(value: Value) -> str:
    """``string(value)``."""
    kind = type(value)
    if kind is bool:
        return "true" if value else "false"
    if kind in (int, UInt):
        return str(int(value))
    if kind is float:
        return strings.shortest_float(value)
    if kind is bytes:
        try:
            return str(value.decode("utf-8"))
        except UnicodeDecodeError:
            raise CelRuntimeError("invalid UTF-8 in bytes, cannot convert to string") from None
    if kind is Timestamp:
        return times.timestamp_text(value)
    if kind is Duration:
        return times.duration_text(value)
    if kind in (str, network.Ip, network.Cidr):
        return str(value)
    raise no_such_overload("string", value)
