"""Selector results for many devices, cached by the values that the selector reads.

A large cluster has a hundred thousand devices of a few models, and most expressions read one or two
attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Final

from drakit.core.kubernetes_releases import LATEST, CelEnvironment
from drakit.core.objects import Device
from drakit.scheduler.cel.checker.fields import all_fields
from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.selector import compile_selector, device_value
from drakit.scheduler.cel.stdlib import semver

_MAX_KEPT: Final = 10_000
Outcome = bool | CelRuntimeError


class Matcher:
    """A compiled expression. Raises ``CelCompileError`` if kube-scheduler could not compile it."""

    __slots__ = ("_attributes", "_capacities", "_known", "_selector", "simple")

    def __init__(self, expression: str, cel: CelEnvironment = LATEST.cel) -> None:
        self._selector = compile_selector(expression, cel)
        fields = all_fields(self._selector.root)
        self.simple = fields is not None
        """Whether the result depends only on fields that the expression names."""
        named = sorted(fields or ())
        self._attributes = [(f.domain, f.name) for f in named if f.part == "attributes"]
        self._capacities = [(f.domain, f.name) for f in named if f.part == "capacity"]
        self._known: dict[Hashable, Outcome] = {}

    def key(self, driver: str, device: Device, shareable: bool) -> Hashable | None:
        """The values on which the result depends; None if it is not known which those are."""
        if not self.simple or not _is_valid(device):
            return None
        found: list[Hashable] = [driver, shareable]
        for names, values in ((self._attributes, device.attributes), (self._capacities, device.capacity)):
            for domain, name in names:
                found.append(values.get(f"{domain}/{name}"))
                if domain == driver:
                    found.append(values.get(name))
        return tuple(found)

    def outcome(self, driver: str, device: Device, shareable: bool) -> Outcome:
        """Whether the device is selected, or the error of the evaluation."""
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
            # Releases without consumable capacity drop the field, so it reads as false.
            value.allow_multiple_allocations = shareable
            return self._selector.matches(value)
        except CelRuntimeError as error:
            return error


def _is_valid(device: Device) -> bool:
    """Whether every attribute has a value; otherwise every expression fails."""
    for attribute in device.attributes.values():
        if attribute.string is not None or attribute.int_ is not None:
            continue
        if attribute.bool_ is None and not _is_version(attribute.version or ""):
            return False
    return True


@functools.lru_cache(maxsize=_MAX_KEPT)
def _is_version(text: str) -> bool:
    try:
        semver.parse(text)
    except ValueError:
        return False
    return True
