"""Functions of the standard library and of Kubernetes, by name, on run-time values.

A function gets its receiver as first argument. Types are checked here, because attributes are only
known at run time; what does not fit raises "no such overload" as cel-go does.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable
from typing import Any, Final

from drakit.core.quantity import QuantityError
from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.stdlib import formats as named_formats
from drakit.scheduler.cel.stdlib import network, regex, semver, strings, times, urls
from drakit.scheduler.cel.stdlib import quantities as amounts
from drakit.scheduler.cel.stdlib.quantities import Amount
from drakit.scheduler.cel.stdlib.semver import Semver
from drakit.scheduler.cel.syntax.tree import UInt
from drakit.scheduler.cel.values import (
    NONE,
    DomainMap,
    Duration,
    OptionalValue,
    Timestamp,
    TypeValue,
    Value,
    add,
    equal,
    greater,
    less,
    no_such_overload,
    same,
    type_name,
    unsigned,
    whole,
)

Function = Callable[..., Value]
MAX_LIST_LENGTH: Final = 1_000_000
"""Beyond this a list cannot be walked within Kubernetes' cost limit anyway."""


def typed(name: str, function: Function, *kinds: type) -> Function:
    """*function* behind a check of its argument types."""

    def checked(*args: Value) -> Value:
        if len(args) == len(kinds) and all(type(a) is k for a, k in zip(args, kinds, strict=True)):
            return function(*args)
        raise no_such_overload(name, *args)

    return checked


def overloaded(name: str, *options: tuple[Function, tuple[type, ...]]) -> Function:
    """The first of the *options* whose types fit."""
    table = {kinds: function for function, kinds in options}

    def dispatch(*args: Value) -> Value:
        function = table.get(tuple(map(type, args)))
        if function is None:
            raise no_such_overload(name, *args)
        return function(*args)

    return dispatch


# -- sizes and conversions --------------------------------------------------------------------------


def _size(value: Value) -> int:
    if type(value) in (str, bytes, list, dict, DomainMap):
        return len(value)
    raise no_such_overload("size", value)


def _conversion_error(value: Value, target: str) -> CelRuntimeError:
    return CelRuntimeError(f"type conversion error from '{type_name(value)}' to '{target}'")


def _int(value: Value) -> int:
    kind = type(value)
    if kind is int:
        return int(value)
    if kind is UInt:
        return whole(int(value))
    if kind is float:
        if math.isnan(value) or not -(2.0**63) < value < 2.0**63:
            raise CelRuntimeError("integer overflow")
        return int(value)
    if kind is str:
        if re.fullmatch(r"[+-]?[0-9]{1,40}", value, re.ASCII) and abs(int(value)) < 2**64:
            number = int(value)
            if -(2**63) <= number < 2**63:
                return number
        raise _conversion_error(value, "int")
    if kind is Timestamp:
        return int(value.nanos // 10**9)
    if kind is Duration:
        return int(value.nanos)
    raise no_such_overload("int", value)


def _uint(value: Value) -> UInt:
    kind = type(value)
    if kind is UInt:
        return UInt(value)
    if kind is int:
        return unsigned(value)
    if kind is float:
        if math.isnan(value) or not 0 <= value < 2.0**64:
            raise CelRuntimeError("unsigned integer overflow")
        return UInt(int(value))
    if kind is str:
        if re.fullmatch(r"[0-9]{1,40}", value, re.ASCII) and int(value) < 2**64:
            return UInt(int(value))
        raise _conversion_error(value, "uint")
    raise no_such_overload("uint", value)


_FLOAT: Final = re.compile(
    r"[+-]?(?:inf|infinity|nan|[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?)",
    re.ASCII | re.IGNORECASE,
)


def _double(value: Value) -> float:
    kind = type(value)
    if kind in (float, int, UInt):
        return float(value)
    if kind is str:
        if _FLOAT.fullmatch(value):
            number = float(value)
            if not math.isinf(number) or "inf" in value.lower():
                return number
        raise _conversion_error(value, "double")
    raise no_such_overload("double", value)


def _bool(value: Value) -> bool:
    if type(value) is bool:
        return bool(value)
    if type(value) is str:
        if value in ("1", "t", "T", "TRUE", "true", "True"):
            return True
        if value in ("0", "f", "F", "FALSE", "false", "False"):
            return False
        raise _conversion_error(value, "bool")
    raise no_such_overload("bool", value)


def _bytes(value: Value) -> bytes:
    if type(value) is bytes:
        return bytes(value)
    if type(value) is str:
        return value.encode("utf-8", "surrogatepass")
    raise no_such_overload("bytes", value)


def _string(value: Value) -> str:
    kind = type(value)
    if kind is str:
        return str(value)
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
    if kind in (network.Ip, network.Cidr):
        return str(value)
    raise no_such_overload("string", value)


# -- lists and sets -----------------------------------------------------------------------------------


def _distinct(items: list[Value]) -> list[Value]:
    found: list[Value] = []
    for item in items:
        if not any(equal(other, item) for other in found):
            found.append(item)
    return found


def _flatten(items: list[Value], depth: int = 1) -> list[Value]:
    if depth < 0:
        raise CelRuntimeError("level must be non-negative")
    found: list[Value] = []
    for item in items:
        if type(item) is list and depth > 0:
            found += _flatten(item, depth - 1)
        else:
            found.append(item)
    return found


def _slice(items: list[Value], start: int, end: int) -> list[Value]:
    if start < 0 or end < 0 or start > end or end > len(items):
        raise CelRuntimeError(f"cannot slice({start}, {end}) of a list of length {len(items)}")
    return items[start:end]


def _range(count: int) -> list[Value]:
    if not 0 <= count <= MAX_LIST_LENGTH:
        raise CelRuntimeError(f"lists.range: size {count} is negative or too large")
    return list(range(count))


_SORTABLE: Final = (int, UInt, float, bool, Duration, Timestamp, str, bytes)


def _sort_by(items: list[Value], keys: list[Value]) -> list[Value]:
    if not items:
        return []
    kind = type(keys[0])
    if kind not in _SORTABLE or any(type(k) is not kind for k in keys):
        raise CelRuntimeError("list elements must have the same comparable type")
    order = sorted(range(len(items)), key=keys.__getitem__)
    return [items[at] for at in order]


def _sum(items: list[Value]) -> Value:
    if not items:
        return 0
    if type(items[0]) not in (int, UInt, float, Duration):
        raise no_such_overload("sum", items)
    return functools.reduce(add, items[1:], items[0])


def _extreme(name: str, better: Callable[[Value, Value], bool]) -> Function:
    def pick(items: list[Value]) -> Value:
        if not items:
            raise CelRuntimeError(f"{name} called on empty list")
        for item in items:
            if type(item) not in _SORTABLE:
                raise no_such_overload(name, items)
        chosen = items[0]
        for item in items[1:]:
            if _decidedly(better, item, chosen):
                chosen = item
        return chosen

    return pick


def _decidedly(compare: Callable[[Value, Value], bool], a: Value, b: Value) -> bool:
    """A comparison where an error counts as false, as Kubernetes' list functions take it."""
    try:
        return compare(a, b)
    except CelRuntimeError:
        return False


def _is_sorted(items: list[Value]) -> bool:
    return not any(_decidedly(greater, a, b) for a, b in itertools.pairwise(items))


def _index_of(items: list[Value], wanted: Value) -> int:
    return next((at for at, item in enumerate(items) if same(item, wanted)), -1)


def _last_index_of(items: list[Value], wanted: Value) -> int:
    return next((at for at in reversed(range(len(items))) if same(items[at], wanted)), -1)


def _includes(target: Value, wanted: Value) -> bool:
    if type(target) is list:
        return any(same(item, wanted) for item in target)
    return same(target, wanted)


def _contains_all(items: list[Value], wanted: list[Value]) -> bool:
    return all(any(same(item, w) for item in items) for w in wanted)


def _equivalent(a: list[Value], b: list[Value]) -> bool:
    return _contains_all(a, b) and _contains_all(b, a)


def _intersects(a: list[Value], b: list[Value]) -> bool:
    return any(same(x, y) for x in a for y in b)


def _map_insert(mapping: dict[Any, Value], *rest: Value) -> dict[Any, Value]:
    raise CelRuntimeError("cel.@mapInsert is only used by macros")


# -- optionals ----------------------------------------------------------------------------------------

_ZERO: Final[tuple[Value, ...]] = (0, 0.0, "", b"", False)


def _of_non_zero(value: Value) -> OptionalValue:
    if value is None or (type(value) in (list, dict, DomainMap) and not value):
        return NONE
    if type(value) in (int, UInt, float, str, bytes, bool) and value in _ZERO:
        return NONE
    return OptionalValue(True, value)


def _value(optional: OptionalValue) -> Value:
    if not optional.present:
        raise CelRuntimeError("optional.none() dereference")
    return optional.value


def _unwrap(items: list[Value]) -> list[Value]:
    if any(type(item) is not OptionalValue for item in items):
        raise CelRuntimeError("optional.unwrap: not an optional value")
    return [item.value for item in items if item.present]


# -- Kubernetes' own types ------------------------------------------------------------------------------


def _quantity(text: str) -> Amount:
    try:
        return amounts.amount(text)
    except QuantityError as error:
        raise CelRuntimeError(f"quantities must match the regular expression: {error}") from None


def _is_quantity(text: str) -> bool:
    try:
        amounts.amount(text)
    except QuantityError:
        return False
    return True


def _as_integer(value: Amount) -> int:
    if not value.integral:
        raise CelRuntimeError("cannot convert value to integer")
    return value.quantity.ceil()


def _compare_amounts(a: Amount, b: Amount) -> int:
    return (a.quantity > b.quantity) - (a.quantity < b.quantity)


def _semver(text: str, lenient: bool = False) -> Semver:
    try:
        return semver.parse_leniently(text) if lenient else semver.parse(text)
    except ValueError as error:
        raise CelRuntimeError(str(error)) from None


def _is_semver(text: str, lenient: bool = False) -> bool:
    try:
        _semver(text, lenient)
    except CelRuntimeError:
        return False
    return True


def _component(name: str) -> Function:
    return lambda version: whole(getattr(version, name))


def _first(items: list[Value]) -> OptionalValue:
    return OptionalValue(True, items[0]) if items else NONE


def _last(items: list[Value]) -> OptionalValue:
    return OptionalValue(True, items[-1]) if items else NONE


def _named_format(name: str) -> OptionalValue:
    found = named_formats.FORMATS.get(name)
    return OptionalValue(True, found) if found else NONE


def _validate(checker: named_formats.Format, text: str) -> OptionalValue:
    complaints = checker.complaints(text)
    return OptionalValue(True, complaints) if complaints else NONE


_TWO_AMOUNTS: Final = (Amount, Amount)
_TWO_VERSIONS: Final = (Semver, Semver)
_LIST: Final = (list,)

FUNCTIONS: Final[dict[str, Function]] = {
    "size": _size, "int": _int, "uint": _uint, "double": _double, "bool": _bool,
    "bytes": _bytes, "string": _string, "dyn": lambda value: value,
    "type": lambda value: TypeValue(type_name(value)),
    # lists
    "distinct": typed("distinct", _distinct, list),
    "flatten": overloaded("flatten", (_flatten, _LIST), (_flatten, (list, int))),
    "slice": typed("slice", _slice, list, int, int),
    "reverse": typed("reverse", lambda items: items[::-1], list),
    "lists.range": typed("lists.range", _range, int),
    "sort": typed("sort", lambda items: _sort_by(items, items), list),
    "@sortByAssociatedKeys": typed("sortBy", _sort_by, list, list),
    "first": typed("first", _first, list), "last": typed("last", _last, list),
    "sum": typed("sum", _sum, list),
    "min": typed("min", _extreme("min", less), list),
    "max": typed("max", _extreme("max", greater), list),
    "isSorted": typed("isSorted", _is_sorted, list), "includes": _includes,
    "sets.contains": typed("sets.contains", _contains_all, list, list),
    "sets.equivalent": typed("sets.equivalent", _equivalent, list, list),
    "sets.intersects": typed("sets.intersects", _intersects, list, list),
    "cel.@mapInsert": _map_insert,
    # optionals
    "optional.of": lambda value: OptionalValue(True, value), "optional.none": lambda: NONE,
    "optional.ofNonZeroValue": _of_non_zero,
    "optional.unwrap": typed("optional.unwrap", _unwrap, list),
    "unwrapOpt": typed("unwrapOpt", _unwrap, list),
    "hasValue": typed("hasValue", lambda o: o.present, OptionalValue),
    "value": typed("value", _value, OptionalValue),
    # quantities and versions
    "quantity": typed("quantity", _quantity, str),
    "isQuantity": typed("isQuantity", _is_quantity, str),
    "sign": typed("sign", lambda a: (a.quantity.nanos > 0) - (a.quantity.nanos < 0), Amount),
    "asInteger": typed("asInteger", _as_integer, Amount),
    "isInteger": typed("isInteger", lambda a: a.integral, Amount),
    "asApproximateFloat": typed("asApproximateFloat", lambda a: a.quantity.nanos / 10**9, Amount),
    "add": overloaded(
        "add", (Amount.plus, _TWO_AMOUNTS),
        (lambda a, n: a.plus(amounts.whole(n)), (Amount, int)),
    ),
    "sub": overloaded(
        "sub", (Amount.minus, _TWO_AMOUNTS),
        (lambda a, n: a.minus(amounts.whole(n)), (Amount, int)),
    ),
    "compareTo": overloaded(
        "compareTo", (_compare_amounts, _TWO_AMOUNTS),
        (lambda a, b: (a > b) - (a < b), _TWO_VERSIONS),
    ),
    "isLessThan": overloaded(
        "isLessThan", (lambda a, b: a.quantity < b.quantity, _TWO_AMOUNTS),
        (lambda a, b: a < b, _TWO_VERSIONS),
    ),
    "isGreaterThan": overloaded(
        "isGreaterThan", (lambda a, b: a.quantity > b.quantity, _TWO_AMOUNTS),
        (lambda a, b: a > b, _TWO_VERSIONS),
    ),
    "semver": overloaded("semver", (_semver, (str,)), (_semver, (str, bool))),
    "isSemver": overloaded("isSemver", (_is_semver, (str,)), (_is_semver, (str, bool))),
    "major": typed("major", _component("major"), Semver),
    "minor": typed("minor", _component("minor"), Semver),
    "patch": typed("patch", _component("patch"), Semver),
    # named formats
    "format.named": typed("format.named", _named_format, str),
    "validate": typed("validate", _validate, named_formats.Format, str),
    # texts, also of lists
    "indexOf": overloaded(
        "indexOf", (strings.index_of, (str, str)), (strings.index_of, (str, str, int)),
    ),
    "lastIndexOf": overloaded(
        "lastIndexOf", (strings.last_index_of, (str, str)),
        (strings.last_index_of, (str, str, int)),
    ),
}  # fmt: skip


def _or_list(name: str, texts: Function, lists: Function) -> Function:
    def dispatch(*args: Value) -> Value:
        return lists(*args) if type(args[0]) is list and len(args) == 2 else texts(*args)

    return dispatch


FUNCTIONS["indexOf"] = _or_list("indexOf", FUNCTIONS["indexOf"], _index_of)
FUNCTIONS["lastIndexOf"] = _or_list("lastIndexOf", FUNCTIONS["lastIndexOf"], _last_index_of)
FUNCTIONS.update({f"format.{n}": (lambda f=f: f) for n, f in named_formats.FORMATS.items()})


def _register(table: dict[str, list[tuple[Function, tuple[type, ...]]]]) -> None:
    for name, options in table.items():
        FUNCTIONS[name] = overloaded(name, *options)


_register(strings.OVERLOADS)
_register(regex.OVERLOADS)
_register(times.OVERLOADS)
_register(network.OVERLOADS)
_register(urls.OVERLOADS)
