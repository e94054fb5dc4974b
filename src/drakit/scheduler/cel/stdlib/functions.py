"""Registry of all CEL functions by name, on run-time values.

A method gets its receiver as the first argument. Argument types are checked at run time, because the
types of attributes are not known before; a mismatch raises "no such overload", as in cel-go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from drakit.core.quantity import QuantityError
from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.stdlib import (
    conversions,
    formats,
    lists,
    network,
    quantities,
    regex,
    semver,
    strings,
    times,
    urls,
)
from drakit.scheduler.cel.stdlib.quantities import Amount
from drakit.scheduler.cel.stdlib.semver import Semver
from drakit.scheduler.cel.syntax.tree import UInt
from drakit.scheduler.cel.values import (
    NONE,
    DomainMap,
    OptionalValue,
    Overloads,
    TypeValue,
    Value,
    accepts,
    int64,
    overloaded,
    type_name,
)

Function = Callable[..., Value]


def _of_non_zero(value: Value) -> OptionalValue:
    zero = type(value) in (list, dict, DomainMap, int, UInt, float, str, bytes, bool) and not value
    return NONE if value is None or zero else OptionalValue(True, value)


def _value(optional: OptionalValue) -> Value:
    if not optional.present:
        raise CelRuntimeError("optional.none() dereference")
    return optional.value


def _unwrap(items: list[Value]) -> list[Value]:
    if any(type(item) is not OptionalValue for item in items):
        raise CelRuntimeError("optional.unwrap: not an optional value")
    return [item.value for item in items if item.present]


def _map_insert(mapping: dict[Any, Value], *rest: Value) -> dict[Any, Value]:
    raise CelRuntimeError("cel.@mapInsert is only used by macros")


_OPTIONALS: Final[Overloads] = {
    "optional.unwrap": [(_unwrap, (list,))],
    "unwrapOpt": [(_unwrap, (list,))],
    "hasValue": [(lambda optional: optional.present, (OptionalValue,))],
    "value": [(_value, (OptionalValue,))],
}


def _quantity(text: str) -> Amount:
    try:
        return quantities.amount(text)
    except QuantityError as error:
        raise CelRuntimeError(f"quantities must match the regular expression: {error}") from None


def _as_integer(value: Amount) -> int:
    if not value.integral:
        raise CelRuntimeError("cannot convert value to integer")
    return value.quantity.ceil()


def _semver(text: str, lenient: bool = False) -> Semver:
    try:
        return semver.parse_leniently(text) if lenient else semver.parse(text)
    except ValueError as error:
        raise CelRuntimeError(str(error)) from None


def _compared(test: Callable[[Any, Any], Value]) -> list[tuple[Function, tuple[type, ...]]]:
    """A comparison that exists for quantities and for versions."""
    return [(lambda a, b: test(a.quantity, b.quantity), (Amount, Amount)), (test, (Semver, Semver))]


def _component(name: str) -> list[tuple[Function, tuple[type, ...]]]:
    return [(lambda version: int64(getattr(version, name)), (Semver,))]


_KUBERNETES_TYPES: Final[Overloads] = {
    "quantity": [(_quantity, (str,))],
    "isQuantity": [(accepts(_quantity), (str,))],
    "sign": [(lambda a: (a.quantity.nanos > 0) - (a.quantity.nanos < 0), (Amount,))],
    "asInteger": [(_as_integer, (Amount,))],
    "isInteger": [(lambda a: a.integral, (Amount,))],
    "asApproximateFloat": [(lambda a: a.quantity.nanos / 10**9, (Amount,))],
    "add": [(Amount.plus, (Amount, Amount)), (lambda a, n: a.plus(quantities.whole(n)), (Amount, int))],
    "sub": [(Amount.minus, (Amount, Amount)), (lambda a, n: a.minus(quantities.whole(n)), (Amount, int))],
    "compareTo": _compared(lambda a, b: (a > b) - (a < b)),
    "isLessThan": _compared(lambda a, b: a < b),
    "isGreaterThan": _compared(lambda a, b: a > b),
    "semver": [(_semver, (str,)), (_semver, (str, bool))],
    "isSemver": [(accepts(_semver), (str,)), (accepts(_semver), (str, bool))],
    "major": _component("major"),
    "minor": _component("minor"),
    "patch": _component("patch"),
}


def _text_or_list(name: str, in_list: Function) -> Function:
    in_text = overloaded(name, strings.OVERLOADS[name])

    def dispatch(*args: Value) -> Value:
        return in_list(*args) if type(args[0]) is list and len(args) == 2 else in_text(*args)

    return dispatch


FUNCTIONS: Final[dict[str, Function]] = {
    **{
        name: overloaded(name, options)
        for module in (
            strings.OVERLOADS, regex.OVERLOADS, times.OVERLOADS, network.OVERLOADS, urls.OVERLOADS,
            lists.OVERLOADS, formats.OVERLOADS, conversions.OVERLOADS, _OPTIONALS, _KUBERNETES_TYPES,
        )
        for name, options in module.items()
    },
    **{f"format.{name}": (lambda found=found: found) for name, found in formats.FORMATS.items()},
    "dyn": lambda value: value,
    "type": lambda value: TypeValue(type_name(value)),
    "includes": lists.includes,
    "indexOf": _text_or_list("indexOf", lists.index_of),
    "lastIndexOf": _text_or_list("lastIndexOf", lists.last_index_of),
    "optional.of": lambda value: OptionalValue(True, value),
    "optional.none": lambda: NONE,
    "optional.ofNonZeroValue": _of_non_zero,
    "cel.@mapInsert": _map_insert,
}  # fmt: skip
