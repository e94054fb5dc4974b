"""CEL values at run time, and operators.

CEL's ``int``, ``uint``, ``double``, ``bool``, ``string``, ``bytes``, ``null``, lists and maps are
Python's ``int``, :class:`UInt`, ``float``, ``bool``, ``str``, ``bytes``, ``None``, ``list`` and
``dict``. As dictionary keys, bools are wrapped: Python treats ``True`` and ``1`` as the same key.
"""

from __future__ import annotations

import enum
import itertools
import math
import operator as operators
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.stdlib.quantities import Amount
from drakit.scheduler.cel.stdlib.semver import Semver
from drakit.scheduler.cel.syntax.tree import UInt

Value: TypeAlias = Any
"""A CEL value."""
Overloads: TypeAlias = dict[str, list[tuple[Callable[..., Any], tuple[type, ...]]]]
"""Implementations of functions: by name, each with the types of its arguments."""

INT_MAX: Final = 2**63 - 1
INT_MIN: Final = -(2**63)
UINT_MAX: Final = 2**64 - 1
NUMBERS: Final = frozenset({int, float, UInt})


class _BoolKey(enum.Enum):
    FALSE = False
    TRUE = True


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A point in time, in nanoseconds since 1970."""

    nanos: int


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A duration in nanoseconds."""

    nanos: int


@dataclass(frozen=True, slots=True)
class OptionalValue:
    """A value that may be absent."""

    present: bool
    value: Value = None


NONE: Final = OptionalValue(False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value: ``type(1) == int``."""

    name: str


class DomainMap(dict[str, Any]):
    """``device.attributes`` and ``device.capacity``: an unknown domain reads as an empty map."""

    def find(self, key: Value) -> tuple[Value, bool]:
        """The entry of *key*, which always exists."""
        return self.get(key, {}) if type(key) is str else {}, True


@dataclass(slots=True, eq=False)
class DeviceValue:
    """The variable ``device``."""

    driver: str
    attributes: DomainMap
    capacity: DomainMap
    allow_multiple_allocations: bool

    def field(self, name: str) -> Value:
        """A field by its API name; the type checker rejects unknown names."""
        if name == "allowMultipleAllocations":
            return self.allow_multiple_allocations
        return getattr(self, name)


_TYPE_NAMES: Final[dict[type, str]] = {
    bool: "bool", int: "int", UInt: "uint", float: "double", str: "string", bytes: "bytes",
    type(None): "null_type", list: "list", dict: "map", DomainMap: "map",
    Timestamp: "google.protobuf.Timestamp", Duration: "google.protobuf.Duration",
    OptionalValue: "optional_type", TypeValue: "type", Amount: "kubernetes.Quantity",
    Semver: "kubernetes.Semver", DeviceValue: "kubernetes.DRADevice",
}  # fmt: skip


def type_name(value: Value) -> str:
    """The name of a value's type."""
    return _TYPE_NAMES.get(type(value)) or value.type_name


def no_such_overload(function: str, *args: Value) -> CelRuntimeError:
    """The error for argument types that the function does not accept."""
    return CelRuntimeError(f"no such overload: {function}({', '.join(map(type_name, args))})")


def overloaded(
    name: str, options: list[tuple[Callable[..., Value], tuple[type, ...]]]
) -> Callable[..., Value]:
    """A function that calls the option whose parameter types are those of the arguments."""
    table = {kinds: function for function, kinds in options}

    def dispatch(*args: Value) -> Value:
        function = table.get(tuple(map(type, args)))
        if function is None:
            raise no_such_overload(name, *args)
        return function(*args)

    return dispatch


def accepts(parse: Callable[..., Value]) -> Callable[..., bool]:
    """A function that tells whether *parse* succeeds."""

    def test(*args: Value) -> bool:
        try:
            parse(*args)
        except CelRuntimeError:
            return False
        return True

    return test


def key_of(value: Value) -> Any:
    """The key of a Python dictionary that represents *value*."""
    kind = type(value)
    if kind is bool:
        return _BoolKey(value)
    if kind in (str, int, UInt):
        return value
    if kind is float and not math.isnan(value):
        return value
    raise CelRuntimeError(f"unsupported key type: {type_name(value)}")


def key_value(key: Any) -> Value:
    """The inverse of :func:`key_of`."""
    return key.value if type(key) is _BoolKey else key


def find(mapping: dict[Any, Value], key: Value) -> tuple[Value, bool]:
    """The entry of *key*, and whether it exists."""
    if type(mapping) is DomainMap:
        return mapping.find(key)
    try:
        wrapped = key_of(key)
    except CelRuntimeError:
        return None, False
    if wrapped in mapping:
        return mapping[wrapped], True
    return None, False


def index(container: Value, at: Value) -> Value:
    """``container[at]``."""
    kind = type(container)
    if kind is dict or kind is DomainMap:
        value, found = find(container, at)
        if found:
            return value
        raise CelRuntimeError(f"no such key: {shown(at)}")
    if kind is list:
        return container[_position(container, at)]
    if kind is OptionalValue:
        return optional_index(container, at)
    raise no_such_overload("_[_]", container, at)


def _position(items: list[Value], at: Value) -> int:
    if type(at) not in NUMBERS or int(at) != at:
        raise CelRuntimeError(f"unsupported index type '{type_name(at)}' in list")
    if not 0 <= at < len(items):
        raise CelRuntimeError(f"index out of bounds: {shown(at)}")
    return int(at)


def optional_index(container: Value, at: Value) -> OptionalValue:
    """``container[?at]``."""
    if type(container) is OptionalValue:
        return optional_index(container.value, at) if container.present else NONE
    if isinstance(container, dict):
        value, found = find(container, at)
        return OptionalValue(True, value) if found else NONE
    if type(container) is list:
        if type(at) not in NUMBERS:
            raise no_such_overload("_[?_]", container, at)
        inside = int(at) == at and 0 <= at < len(container)
        return OptionalValue(True, container[int(at)]) if inside else NONE
    raise no_such_overload("_[?_]", container, at)


def select(container: Value, name: str) -> Value:
    """``container.name``."""
    kind = type(container)
    if kind is dict:
        try:
            return container[name]
        except KeyError:
            raise CelRuntimeError(f"no such key: {name}") from None
    if kind is DomainMap:
        return container.find(name)[0]
    if kind is DeviceValue:
        return container.field(name)
    if kind is OptionalValue:
        return optional_index(container, name)
    raise CelRuntimeError(f"no such overload: {type_name(container)}.{name}")


def has(container: Value, name: str) -> bool:
    """``has(container.name)``."""
    kind = type(container)
    if kind is dict:
        return name in container
    if kind in (DomainMap, DeviceValue):
        return True
    if kind is OptionalValue:
        return container.present and has(container.value, name)
    raise CelRuntimeError(f"no such overload: {type_name(container)}.{name}")


def optional_select(container: Value, name: str) -> OptionalValue:
    """``container.?name``."""
    if type(container) is DeviceValue:
        return OptionalValue(True, container.field(name))
    if type(container) is OptionalValue:
        return optional_select(container.value, name) if container.present else NONE
    if isinstance(container, dict):
        value, found = find(container, name)
        return OptionalValue(True, value) if found else NONE
    raise CelRuntimeError(f"no such overload: {type_name(container)}.?{name}")


def equal(a: Value, b: Value) -> bool:  # noqa: PLR0911 - one line per kind of value
    """``a == b``: numbers compare by value, other types only with the same type."""
    kind = type(a)
    if kind is type(b):
        if kind is list:
            return len(a) == len(b) and all(map(equal, a, b))
        if kind is dict or kind is DomainMap:
            return _equal_maps(a, b)
        if kind is OptionalValue:
            if not a.present or not b.present:
                return bool(a.present == b.present)
            return equal(a.value, b.value)
        if kind is Amount and b.computed:
            # Sums and differences are pointers in the API server, which its == does not support.
            raise no_such_overload("_==_", a, b)
        return bool(a == b)
    if kind in NUMBERS:
        if type(b) not in NUMBERS:
            return False
        # cel-go compares an integer with a double as doubles, losing digits beyond 2^53.
        return float(a) == float(b) if float in (kind, type(b)) else bool(a == b)
    if isinstance(a, dict) and isinstance(b, dict):
        return _equal_maps(a, b)
    if b is None:
        return False
    if kind is Amount or kind is Semver or hasattr(a, "type_name"):
        # Types of the API server report "no such overload" for other types instead of false.
        raise no_such_overload("_==_", a, b)
    return False


def equal_or_false(a: Value, b: Value) -> bool:
    """Equality in which an error counts as false, as for members of lists and sets."""
    try:
        return equal(a, b)
    except CelRuntimeError:
        return False


def _equal_maps(a: dict[Any, Value], b: dict[Any, Value]) -> bool:
    if len(a) != len(b):
        return False
    for key, value in a.items():
        other, found = find(b, key_value(key))
        if not found or not equal(value, other):
            return False
    return True


_COMPARABLE: Final = (
    *itertools.product(NUMBERS, NUMBERS),
    *((kind, kind) for kind in (str, bytes, bool, Timestamp, Duration)),
)


def _comparison(operator: str, compare: Callable[[Value, Value], bool]) -> Callable[[Value, Value], bool]:
    return overloaded(operator, [(compare, kinds) for kinds in _COMPARABLE])


less: Final = _comparison("_<_", operators.lt)
greater: Final = _comparison("_>_", operators.gt)


def contains(item: Value, container: Value) -> bool:
    """``item in container``."""
    if type(container) is list:
        return any(equal_or_false(item, other) for other in container)
    if isinstance(container, dict):
        try:
            return key_of(item) in container
        except CelRuntimeError:
            return False
    raise no_such_overload("@in", item, container)


def int64(value: int) -> int:
    """*value*, checked to fit in 64 bits."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise CelRuntimeError("integer overflow")


def uint64(value: int) -> UInt:
    """*value* as an unsigned integer, checked to fit in 64 bits."""
    if 0 <= value <= UINT_MAX:
        return UInt(value)
    raise CelRuntimeError("unsigned integer overflow")


def time_span(nanos: int) -> Duration:
    """A duration, checked to fit in 64 bits."""
    if not INT_MIN <= nanos <= INT_MAX:
        raise CelRuntimeError("duration overflow")
    return Duration(nanos)


_FIRST_SECOND: Final = -62135596800
_LAST_SECOND: Final = 253402300799


def point_in_time(nanos: int) -> Timestamp:
    """A timestamp, checked to be in the years 1 to 9999."""
    if not _FIRST_SECOND <= nanos // 10**9 <= _LAST_SECOND:
        raise CelRuntimeError("timestamp overflow")
    return Timestamp(nanos)


def _divide(a: float, b: float) -> float:
    if b != 0.0:
        return a / b
    return math.nan if a == 0.0 or math.isnan(a) else a * math.copysign(math.inf, b)


def _quotient(a: int, b: int) -> int:
    """The quotient, rounded toward zero."""
    if b == 0:
        raise CelRuntimeError("division by zero")
    return abs(a) // abs(b) if (a < 0) == (b < 0) else -(abs(a) // abs(b))


def _remainder(a: int, b: int) -> int:
    """The remainder, with the sign of *a*."""
    if b == 0:
        raise CelRuntimeError("modulus by zero")
    return -(abs(a) % abs(b)) if a < 0 else abs(a) % abs(b)


def _integers(compute: Callable[[int, int], int]) -> list[tuple[Callable[..., Value], tuple[type, ...]]]:
    return [
        (lambda a, b: int64(compute(a, b)), (int, int)),
        (lambda a, b: uint64(compute(int(a), int(b))), (UInt, UInt)),
    ]


_ARITHMETIC: Final[Overloads] = {
    "_+_": [
        *_integers(operators.add),
        *((operators.add, (kind, kind)) for kind in (float, str, list, bytes)),
        (lambda a, b: time_span(a.nanos + b.nanos), (Duration, Duration)),
        (lambda a, b: point_in_time(a.nanos + b.nanos), (Timestamp, Duration)),
        (lambda a, b: point_in_time(a.nanos + b.nanos), (Duration, Timestamp)),
    ],
    "_-_": [
        *_integers(operators.sub),
        (operators.sub, (float, float)),
        (lambda a, b: time_span(a.nanos - b.nanos), (Duration, Duration)),
        (lambda a, b: time_span(a.nanos - b.nanos), (Timestamp, Timestamp)),
        (lambda a, b: point_in_time(a.nanos - b.nanos), (Timestamp, Duration)),
    ],
    "_*_": [*_integers(operators.mul), (operators.mul, (float, float))],
    "_/_": [*_integers(_quotient), (_divide, (float, float))],
    "_%_": _integers(_remainder),
    "-_": [(lambda a: int64(-a), (int,)), (operators.neg, (float,))],
    "!_": [(operators.not_, (bool,))],
}


def elements(container: Value) -> Iterable[Value]:
    """The range of a one-variable loop: the items of a list or the keys of a map."""
    if type(container) is list:
        return container
    if isinstance(container, dict):
        return list(map(key_value, container))
    raise CelRuntimeError(f"got '{type_name(container)}', expected iterable type")


def pairs(container: Value) -> Iterable[tuple[Value, Value]]:
    """The range of a two-variable loop: index and item, or key and value."""
    if type(container) is list:
        return enumerate(container)
    if isinstance(container, dict):
        return [(key_value(key), value) for key, value in container.items()]
    raise CelRuntimeError(f"got '{type_name(container)}', expected iterable type")


def shown(value: Value) -> str:
    """A short form for messages."""
    return value if type(value) is str else repr(value)


OPERATORS: Final[dict[str, Callable[..., Value]]] = {
    "_==_": equal, "_!=_": lambda a, b: not equal(a, b), "_<_": less, "_>_": greater,
    "_<=_": _comparison("_<=_", operators.le), "_>=_": _comparison("_>=_", operators.ge),
    "@in": contains, "_[_]": index, "_[?_]": optional_index,
    "@not_strictly_false": lambda a: a is not False,
    **{name: overloaded(name, options) for name, options in _ARITHMETIC.items()},
}  # fmt: skip
