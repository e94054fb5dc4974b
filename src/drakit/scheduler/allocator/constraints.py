"""Constraints of a claim: devices with the same attribute value, or with distinct ones."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from drakit.core.kubernetes_releases import KubernetesRelease
from drakit.core.objects import Attribute, Device, DeviceConstraint
from drakit.scheduler.errors import FatalError


def lookup_attribute(device: Device, driver: str, name: str) -> Attribute | None:
    """An attribute by its qualified name; the driver name is the default domain."""
    found = device.attributes.get(name)
    if found is not None:
        return found
    domain, slash, identifier = name.partition("/")
    return device.attributes.get(identifier) if slash and domain == driver else None


Values = frozenset[tuple[str, Any]]
"""The values of an attribute with their type: one, or those of a list."""


def values_of(attribute: Attribute) -> Values:
    """The values that constraints compare: all items of a list (gate ``DRAListTypeAttributes``).

    The gate need not be known: the API server stores lists only while it is on, and single values
    compare the same with and without it.
    """
    found: list[tuple[str, Any]] = []
    for kind, one, many in (
        ("int", attribute.int_, attribute.ints),
        ("bool", attribute.bool_, attribute.bools),
        ("string", attribute.string, attribute.strings),
        ("version", attribute.version, attribute.versions),
    ):
        if many:
            return frozenset((kind, value) for value in many)
        if one is not None:
            found.append((kind, one))
    return frozenset(found[:1])


def shown_values(values: Values) -> str:
    """The values as text: ``1``, or ``1 and 2`` for a list."""
    texts = [str(v).lower() if isinstance(v, bool) else str(v) for _, v in values]
    return " and ".join(sorted(texts))


@dataclass(frozen=True, slots=True)
class RequestName:
    """The name of a request or subrequest."""

    base: str
    sub: str = ""

    def __str__(self) -> str:
        return f"{self.base}/{self.sub}" if self.sub else self.base


class Constraint:
    """A constraint during a search; calls of ``add`` and ``remove`` nest."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        self.attribute = attribute
        self._requests = frozenset(requests)
        self._values: list[Values] = []

    def covers(self, request: RequestName) -> bool:
        """Whether the constraint applies to devices of *request*."""
        return (
            not self._requests
            or request.base in self._requests
            or (bool(request.sub) and str(request) in self._requests)
        )

    def values(self, device: Device, driver: str) -> Values:
        """The values to compare; empty if the device does not have the attribute."""
        found = lookup_attribute(device, driver, self.attribute)
        return values_of(found) if found is not None else frozenset()

    def add(self, request: RequestName, device: Device, driver: str) -> bool:
        """Add the device if the constraint allows it; returns whether it does."""
        if not self.covers(request):
            return True
        values = self.values(device, driver)
        if not values or not self._allows(values):
            return False
        self._push(request, values)
        return True

    def remove(self, request: RequestName) -> None:
        """Undo the last ``add``."""
        if self.covers(request):
            self._pop(request)

    def admits(self, device: Device, driver: str) -> bool:
        """Whether a device of a covered request could be added now."""
        values = self.values(device, driver)
        return bool(values) and self._allows(values)

    def state(self) -> Hashable:
        """Everything that future decisions depend on."""
        raise NotImplementedError

    def _allows(self, values: Values) -> bool:
        raise NotImplementedError

    def _push(self, request: RequestName, values: Values) -> None:
        self._values.append(values)

    def _pop(self, request: RequestName) -> None:
        self._values.pop()


class MatchAttribute(Constraint):
    """All devices have a value in common; the stack holds the values in common so far."""

    def state(self) -> Hashable:
        """The values that all devices have in common."""
        return self._values[-1] if self._values else ()

    def _allows(self, values: Values) -> bool:
        return not self._values or bool(values & self._values[-1])

    def _push(self, request: RequestName, values: Values) -> None:
        super()._push(request, values & self._values[-1] if self._values else values)


class DistinctAttribute(Constraint):
    """No two devices have a value in common."""

    def state(self) -> Hashable:
        """The values of all devices."""
        return frozenset(self._values)

    def _allows(self, values: Values) -> bool:
        return not any(values & other for other in self._values)


class DistinctAttributeByRequest(DistinctAttribute):
    """The behavior until 1.36: only one value per request is compared (kubernetes#140600)."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self._by_request: dict[str, Values] = {}
        self._devices = 0

    def admits(self, device: Device, driver: str) -> bool:
        """Whether the device could be added now, or after others were removed."""
        return bool(self.values(device, driver))

    def state(self) -> Hashable:
        """The remembered value of each request."""
        return self._devices > 0, frozenset(self._by_request.items())

    def _allows(self, values: Values) -> bool:
        return not self._devices or not any(values & v for v in self._by_request.values())

    def _push(self, request: RequestName, values: Values) -> None:
        self._by_request[request.base] = values
        self._devices += 1

    def _pop(self, request: RequestName) -> None:
        self._by_request.pop(request.base, None)
        self._devices -= 1


def build_constraint(
    claim: str, index: int, constraint: DeviceConstraint, release: KubernetesRelease
) -> Constraint:
    """A new constraint for one search. Raises :class:`FatalError` for an unknown kind."""
    if constraint.match_attribute is not None:
        return MatchAttribute(constraint.match_attribute, constraint.requests)
    if constraint.distinct_attribute is not None and release.enables("DRAConsumableCapacity"):
        kind = DistinctAttributeByRequest if release.scheduler.distinct_by_request else DistinctAttribute
        return kind(constraint.distinct_attribute, constraint.requests)
    raise FatalError(f"claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)")
