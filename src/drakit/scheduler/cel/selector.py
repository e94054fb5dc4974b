"""Device selectors: compiled once, evaluated per device."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from drakit.core.kubernetes_releases import LATEST, CelEnvironment
from drakit.core.objects import Attribute, Device
from drakit.scheduler.cel.checker import types as t
from drakit.scheduler.cel.checker.checker import Checked, Environment, check, new_objects, stored_objects
from drakit.scheduler.cel.checker.cost import COST_LIMIT, estimate
from drakit.scheduler.cel.checker.fields import Field, fields_named
from drakit.scheduler.cel.checker.validators import validate
from drakit.scheduler.cel.errors import CelCompileError, CelCostError, CelRuntimeError, CelTypeError
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


@dataclass(frozen=True, slots=True)
class CompiledSelector:
    """A compiled selector expression.

    *rejection* is the error with which the API server rejects new objects with this expression, if
    any; the rules for stored expressions, which the scheduler evaluates, are slightly wider.
    """

    expression: str
    root: Expr
    _program: CompiledExpression
    max_cost: int
    rejection: CelCompileError | None

    def matches(self, device: DeviceValue) -> bool:
        """Whether *device* is selected. Raises :class:`CelRuntimeError`."""
        result = self._program.run(device)
        if result is True or result is False:
            return result
        raise CelRuntimeError(f"CEL result of type {type_name(result)} could not be converted to bool")


@functools.lru_cache(maxsize=1024)
def compile_selector(expression: str, cel: CelEnvironment = LATEST.cel) -> CompiledSelector:
    """Compile for the scheduler. Raises :class:`CelCompileError` if it cannot evaluate it."""
    with deep_stack():  # as deep as the nesting that cel-go allows
        root = parse(expression)
        checked = _checked(root, stored_objects(cel))
        program = build(root, checked)
        cost = estimate(root, checked)
        return CompiledSelector(expression, root, program, cost, _rejection(root, cost, cel))


@functools.lru_cache(maxsize=1024)
def selector_fields(expression: str) -> tuple[Field, ...]:
    """The fields of ``device`` that an expression names; none if it is not valid."""
    try:
        return tuple(fields_named(compile_selector(expression).root))
    except CelCompileError:
        return ()


def rejection(expression: str, cel: CelEnvironment = LATEST.cel) -> CelCompileError | None:
    """The error with which the API server rejects a new object with this expression, or None."""
    try:
        return compile_selector(expression, cel).rejection
    except CelCompileError as error:
        return error


def _rejection(root: Expr, cost: int, cel: CelEnvironment) -> CelCompileError | None:
    try:
        _checked(root, new_objects(cel))
    except CelCompileError as error:
        return error
    if cost > COST_LIMIT:
        return CelCostError(f"too complex, exceeds cost limit: estimated cost {cost} is above {COST_LIMIT}")
    return None


def _checked(root: Expr, environment: Environment) -> Checked:
    checked = check(root, environment)
    validate(root, checked)
    found = checked.types[root]
    if found not in (t.BOOL, environment.attribute):
        raise CelTypeError(f"must evaluate to bool or the unknown type, not {found}")
    return checked


def device_value(driver: str, device: Device) -> DeviceValue:
    """The variable ``device``. Raises :class:`CelRuntimeError` if an attribute has no value."""
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
    for values in (attribute.ints, attribute.bools, attribute.strings):
        if values is not None:
            return list(values)
    for value in (attribute.int_, attribute.bool_, attribute.string):
        if value is not None and attribute.versions is None:
            return value
    try:
        if attribute.versions is not None:
            return [semver.parse(v) for v in attribute.versions]
        if attribute.version is not None:
            return semver.parse(attribute.version)
    except ValueError as error:
        raise CelRuntimeError(f"attribute {name}: parse semantic version: {error}") from None
    raise CelRuntimeError(f"attribute {name}: unsupported attribute value")
