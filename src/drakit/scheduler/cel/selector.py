"""A device selector: compiled once, evaluated per device."""

from __future__ import annotations

import functools
from typing import Any, Final

from drakit.core.objects import Attribute, Device
from drakit.scheduler.cel.checker import types as t
from drakit.scheduler.cel.checker.checker import NEW, STORED, Checked, Environment, check
from drakit.scheduler.cel.checker.cost import COST_LIMIT, estimate
from drakit.scheduler.cel.checker.validators import validate
from drakit.scheduler.cel.errors import (
    CelCompileError,
    CelCostError,
    CelRuntimeError,
    CelTypeError,
)
from drakit.scheduler.cel.evaluator import CompiledExpression, build
from drakit.scheduler.cel.stdlib import semver
from drakit.scheduler.cel.stdlib.quantities import stored
from drakit.scheduler.cel.syntax.parser import parse
from drakit.scheduler.cel.syntax.tree import Expr
from drakit.scheduler.cel.values import DeviceValue, DomainMap, Value, type_name
from drakit.scheduler.recursion import deep_stack

HINT: Final = (
    "consider using CEL optional chaining (.? followed by orValue()) "
    "or guarding the check with has() for optional fields"
)


class CompiledSelector:
    """An expression that picks devices.

    *rejection* is why the API server would not take an object with this expression now, if it would
    not; the scheduler evaluates stored expressions by slightly wider rules.
    """

    __slots__ = ("_program", "expression", "max_cost", "rejection", "root")

    def __init__(
        self,
        expression: str,
        root: Expr,
        program: CompiledExpression,
        max_cost: int,
        rejection: CelCompileError | None,
    ) -> None:
        self.expression = expression
        self.root = root
        self.max_cost = max_cost
        self.rejection = rejection
        self._program = program

    def matches(self, device: DeviceValue) -> bool:
        """Whether *device* is selected. Raises :class:`CelRuntimeError`."""
        result = self._program.run(device)
        if result is True or result is False:
            return result
        raise CelRuntimeError(
            f"CEL result of type {type_name(result)} could not be converted to bool"
        )


@functools.lru_cache(maxsize=1024)
def compile_selector(expression: str) -> CompiledSelector:
    """Compile for the scheduler. Raises :class:`CelCompileError` if it could not evaluate it."""
    with deep_stack():  # for the nesting cel-go allows
        root = parse(expression)
        checked = _checked(root, STORED)
        program = build(root, checked)
        cost = estimate(root, checked)
        return CompiledSelector(expression, root, program, cost, _rejection(root, cost))


def rejection(expression: str) -> CelCompileError | None:
    """Why the API server rejects a new object with this expression, or None."""
    try:
        return compile_selector(expression).rejection
    except CelCompileError as error:
        return error


def _rejection(root: Expr, cost: int) -> CelCompileError | None:
    try:
        _checked(root, NEW)
    except CelCompileError as error:
        return error
    if cost > COST_LIMIT:
        return CelCostError(
            f"too complex, exceeds cost limit: estimated cost {cost} is above {COST_LIMIT}"
        )
    return None


def _checked(root: Expr, environment: Environment) -> Checked:
    checked = check(root, environment)
    validate(root, checked)
    found = checked.types[root]
    if found not in (t.BOOL, environment.attribute):
        raise CelTypeError(f"must evaluate to bool or the unknown type, not {found}")
    return checked


# -- devices ----------------------------------------------------------------------------------------


def device_value(driver: str, device: Device) -> DeviceValue:
    """The variable ``device``. Raises :class:`CelRuntimeError` for an attribute without value."""
    attributes = DomainMap()
    for name, attribute in device.attributes.items():
        domain, identifier = split_name(name, driver)
        attributes.setdefault(domain, {})[identifier] = _attribute_value(name, attribute)
    capacity = DomainMap()
    for name, entry in device.capacity.items():
        domain, identifier = split_name(name, driver)
        capacity.setdefault(domain, {})[identifier] = stored(entry.value)
    return DeviceValue(driver, attributes, capacity, bool(device.allow_multiple_allocations))


def split_name(name: str, driver: str) -> tuple[str, str]:
    """Domain and identifier of a qualified name; the driver is the default domain."""
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _attribute_value(name: str, attribute: Attribute) -> Value:
    lists: tuple[Any, ...] = (attribute.ints, attribute.bools, attribute.strings)
    for values in lists:
        if values is not None:
            return list(values)
    try:
        if attribute.versions is not None:
            return [semver.parse(v) for v in attribute.versions]
        for value in (attribute.int_, attribute.bool_, attribute.string):
            if value is not None:
                return value
        if attribute.version is not None:
            return semver.parse(attribute.version)
    except ValueError as error:
        raise CelRuntimeError(f"attribute {name}: parse semantic version: {error}") from None
    raise CelRuntimeError(f"attribute {name}: unsupported attribute value")
