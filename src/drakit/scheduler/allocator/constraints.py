"""Constraints over the devices of a claim: same or different attribute values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from drakit.core.objects import Attribute, Device, DeviceConstraint
from drakit.scheduler.errors import FatalError
from drakit.scheduler.versions import KubernetesVersion


def lookup_attribute(device: Device, driver: str, name: str) -> Attribute | None:
    """An attribute by its full name; names without domain belong to the driver's."""
    found = device.attributes.get(name)
    if found is not None:
        return found
    domain, slash, identifier = name.partition("/")
    return device.attributes.get(identifier) if slash and domain == driver else None


Values = frozenset[tuple[str, Any]]
"""The values of an attribute, each with its type: one, or those of a list."""


def values_of(attribute: Attribute) -> Values:
    """What constraints compare. A list (gate ``DRAListTypeAttributes``) stands for all its values.

    Whether the gate is on need not be known: the API server stores lists only when it is, and single
    values compare alike with and without it.
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
    """Values for people: ``1``, or ``1 and 2`` for a list."""
    texts = [str(v).lower() if isinstance(v, bool) else str(v) for _, v in values]
    return " and ".join(sorted(texts))


@dataclass(frozen=True, slots=True)
class RequestName:
    """A request, or a subrequest of it."""

    base: str
    sub: str = ""

    def __str__(self) -> str:
        return f"{self.base}/{self.sub}" if self.sub else self.base


class Constraint(Protocol):
    """A constraint while devices are tried; calls of add and remove nest."""

    attribute: str

    def covers(self, request: RequestName) -> bool:
        """Whether devices of *request* are constrained."""

    def values(self, device: Device, driver: str) -> Values:
        """What of the device counts; nothing when it lacks the attribute."""

    def add(self, request: RequestName, device: Device, driver: str) -> str:
        """Take the device in; returns why not, or nothing."""

    def remove(self, request: RequestName) -> None:
        """Undo the last add."""

    def state(self) -> Any:
        """What future decisions depend on."""

    def admits(self, device: Device, driver: str) -> bool:
        """Whether the device, of a covered request, could be added now."""


class _Base:
    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        self.attribute = attribute
        self._requests = frozenset(requests)

    def covers(self, request: RequestName) -> bool:
        """Whether devices of *request* are constrained."""
        return (
            not self._requests
            or request.base in self._requests
            or (bool(request.sub) and str(request) in self._requests)
        )

    def values(self, device: Device, driver: str) -> Values:
        found = lookup_attribute(device, driver, self.attribute)
        return values_of(found) if found is not None else frozenset()


class MatchAttribute(_Base):
    """All devices have a value in common."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self._common: list[Values] = []

    def add(self, request: RequestName, device: Device, driver: str) -> str:
        """Take the device in; returns why not, or nothing."""
        if not self.covers(request):
            return ""
        values = self.values(device, driver)
        if not values:
            return f"it has no attribute {self.attribute}"
        common = values & self._common[-1] if self._common else values
        if not common:
            before = shown_values(self._common[-1])
            return (
                f"its {self.attribute} is {shown_values(values)}, "
                f"the devices before it have {before}"
            )
        self._common.append(common)
        return ""

    def remove(self, request: RequestName) -> None:
        """Undo the last add."""
        if self.covers(request):
            self._common.pop()

    def state(self) -> Any:
        """What future decisions depend on."""
        return self._common[-1] if self._common else ()

    def admits(self, device: Device, driver: str) -> bool:
        """Whether the device could be added now."""
        values = self.values(device, driver)
        return bool(values & self._common[-1] if self._common else values)


class DistinctAttribute(_Base):
    """No two devices have a value in common."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self._values: list[Values] = []

    def add(self, request: RequestName, device: Device, driver: str) -> str:
        """Take the device in; returns why not, or nothing."""
        if not self.covers(request):
            return ""
        values = self.values(device, driver)
        wrong = self._wrong(values, self._values)
        if not wrong:
            self._values.append(values)
        return wrong

    def _wrong(self, values: Values, others: Iterable[Values]) -> str:
        if not values:
            return f"it has no attribute {self.attribute}"
        if any(values & other for other in others):
            return (
                f"its {self.attribute} is {shown_values(values)}, like that of a device before it"
            )
        return ""

    def remove(self, request: RequestName) -> None:
        """Undo the last add."""
        if self.covers(request):
            self._values.pop()

    def state(self) -> Any:
        """What future decisions depend on."""
        return frozenset(self._values)

    def admits(self, device: Device, driver: str) -> bool:
        """Whether the device could be added now."""
        return not self._wrong(self.values(device, driver), self._values)


class DistinctAttributeByRequest(DistinctAttribute):
    """The behavior until 1.36: one value is remembered per request (kubernetes#140600)."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self._by_request: dict[str, Values] = {}
        self._devices = 0

    def add(self, request: RequestName, device: Device, driver: str) -> str:
        """Take the device in; returns why not, or nothing."""
        if not self.covers(request):
            return ""
        values = self.values(device, driver)
        wrong = self._wrong(values, self._by_request.values() if self._devices > 0 else ())
        if wrong:
            return wrong
        self._by_request[request.base] = values
        self._devices += 1
        return ""

    def remove(self, request: RequestName) -> None:
        """Undo the last add."""
        if self.covers(request):
            self._by_request.pop(request.base, None)
            self._devices -= 1

    def state(self) -> Any:
        """What future decisions depend on."""
        return self._devices > 0, frozenset(self._by_request.items())

    def admits(self, device: Device, driver: str) -> bool:
        """Whether the device could be added now, or after some were removed."""
        return bool(self.values(device, driver))


def build_constraint(
    claim: str, index: int, constraint: DeviceConstraint, version: KubernetesVersion
) -> Constraint:
    """A fresh constraint for one search. Raises :class:`FatalError` for an unknown kind."""
    if constraint.match_attribute is not None:
        return MatchAttribute(constraint.match_attribute, constraint.requests)
    if constraint.distinct_attribute is not None and version.consumable_capacity:
        kind = DistinctAttributeByRequest if version.distinct_by_request else DistinctAttribute
        return kind(constraint.distinct_attribute, constraint.requests)
    raise FatalError(
        f"claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)"
    )
