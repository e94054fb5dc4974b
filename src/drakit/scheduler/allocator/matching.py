"""One selector on many devices: what depends only on a few fields is computed once per values.

A large cluster has a hundred thousand devices of a handful of models. Most expressions look at one or
two attributes, so their result is kept by the values of those.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from drakit.core.objects import Attribute, Device
from drakit.scheduler.cel.checker.fields import all_fields
from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.selector import compile_selector, device_value
from drakit.scheduler.cel.stdlib import semver

_MAX_KEPT: Final = 10_000
Outcome = bool | CelRuntimeError
_good_versions: set[str] = set()


class Matcher:
    """An expression, compiled. Raises ``CelCompileError`` if kube-scheduler could not do that."""

    __slots__ = ("_attributes", "_capacities", "_known", "_selector", "simple")

    def __init__(self, expression: str) -> None:
        self._selector = compile_selector(expression)
        fields = all_fields(self._selector.root)
        self.simple = fields is not None
        """Whether all that counts is a few fields."""
        named = sorted(fields or ())
        self._attributes = [(f.domain, f.name) for f in named if f.part == "attributes"]
        self._capacities = [(f.domain, f.name) for f in named if f.part == "capacity"]
        self._known: dict[Hashable, Outcome] = {}

    def key(self, driver: str, device: Device, shareable: bool) -> Hashable | None:
        """What the result depends on; None when that is more than a few fields."""
        if not self.simple or not _is_sound(device):
            return None
        found: list[Hashable] = [driver, shareable]
        for domain, name in self._attributes:
            found.append(device.attributes.get(f"{domain}/{name}"))
            if domain == driver:
                found.append(device.attributes.get(name))
        for domain, name in self._capacities:
            found.append(device.capacity.get(f"{domain}/{name}"))
            if domain == driver:
                found.append(device.capacity.get(name))
        return tuple(found)

    def outcome(self, driver: str, device: Device, shareable: bool) -> Outcome:
        """Whether the device is selected, or the error of looking at it."""
        key = self.key(driver, device, shareable)
        if key is None:
            return self._evaluate(driver, device, shareable)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            known = self._known[key] = self._evaluate(driver, device, shareable)
        return known

    def _evaluate(self, driver: str, device: Device, shareable: bool) -> Outcome:
        try:
            value = device_value(driver, device)
            # Releases without consumable capacity drop the field, so that it reads as false.
            value.allow_multiple_allocations = shareable
            return self._selector.matches(value)
        except CelRuntimeError as error:
            return error


def _is_sound(device: Device) -> bool:
    """Whether every attribute has a value; one that has none is an error in any expression."""
    for attribute in device.attributes.values():
        if attribute.string is not None or attribute.int_ is not None:
            continue
        if attribute.bool_ is None and not _is_version(attribute):
            return False
    return True


def _is_version(attribute: Attribute) -> bool:
    text = attribute.version or ""
    if text in _good_versions:
        return True
    try:
        semver.parse(text)
    except ValueError:
        return False
    if len(_good_versions) < _MAX_KEPT:
        _good_versions.add(text)
    return True
