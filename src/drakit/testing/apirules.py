"""What the API server does to a ResourceSlice on its way in: drop gated fields, then validate.

Written from the API's rules and not from the publisher's, over plain documents, so that the two can
be wrong only independently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Document = dict[str, Any]
Problem = tuple[str, str]
"""Field path and what is wrong with it."""

# The minor release of Kubernetes 1.x from which a gate is on by default.
_ON_SINCE: Final[Mapping[str, int]] = {
    "DRAResourceClaimDeviceStatus": 34,
    "DRADeviceTaints": 36,
    "DRAPartitionableDevices": 36,
    "DRADeviceBindingConditions": 36,
    "DRAConsumableCapacity": 36,
}
_NEVER_ON: Final = (
    "DRADeviceCompatibilityGroups",
    "DRAPartitionableDevicesType",
    "DRAOptionalNodeOperations",
    "DRANodeAllocatableResources",
    "DRAListTypeAttributes",
)
_LISTS: Final = ("ints", "bools", "strings", "versions")
_VALUES: Final = ("int", "bool", "string", "version", *_LISTS)

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-((0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(\+([0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*))?",
    re.ASCII,
)


def default_gates(minor: int) -> dict[str, bool]:
    """The feature gates of Kubernetes 1.*minor* as they are when nobody touches them."""
    gates = {name: minor >= since for name, since in _ON_SINCE.items()}
    return gates | dict.fromkeys(_NEVER_ON, False)


# -- dropping -----------------------------------------------------------------------------------------


def _devices(spec: Document) -> list[Document]:
    return spec.get("devices") or []


def _drop_from_devices(*fields: str) -> Callable[[Document], None]:
    def drop(spec: Document) -> None:
        for device in _devices(spec):
            for field in fields:
                device.pop(field, None)

    return drop


def _drop_partitions(spec: Document) -> None:
    spec.pop("sharedCounters", None)
    spec.pop("perDeviceNodeSelection", None)
    _drop_from_devices("consumesCounters", "nodeName", "nodeSelector", "allNodes")(spec)


def _drop_sharing(spec: Document) -> None:
    for device in _devices(spec):
        device.pop("allowMultipleAllocations", None)
        for capacity in (device.get("capacity") or {}).values():
            capacity.pop("requestPolicy", None)


def _drop_groups(spec: Document) -> None:
    for device in _devices(spec):
        for consumption in device.get("consumesCounters") or []:
            consumption.pop("compatibilityGroups", None)


def _drop_lists(spec: Document) -> None:
    for device in _devices(spec):
        for attribute in (device.get("attributes") or {}).values():
            for field in _LISTS:
                attribute.pop(field, None)


def _dropper(field: str) -> Callable[[Document], None]:
    def drop(spec: Document) -> None:
        spec.pop(field, None)

    return drop


_DROPS: Final[Mapping[str, Callable[[Document], None]]] = {
    "DRADeviceTaints": _drop_from_devices("taints"),
    "DRAPartitionableDevices": _drop_partitions,
    "DRADeviceBindingConditions": _drop_from_devices(
        "bindsToNode", "bindingConditions", "bindingFailureConditions"
    ),
    "DRAConsumableCapacity": _drop_sharing,
    "DRADeviceCompatibilityGroups": _drop_groups,
    "DRAPartitionableDevicesType": _dropper("partitionTypeAttribute"),
    "DRAOptionalNodeOperations": _dropper("skipNodeOperations"),
    "DRANodeAllocatableResources": _drop_from_devices("nodeAllocatableResources"),
    "DRAListTypeAttributes": _drop_lists,
}


def drop_disabled(spec: Document, stored: Document | None, gates: Mapping[str, bool]) -> None:
    """Clear the fields of *spec* whose gate is off, unless *stored* uses them already."""
    for gate, drop in _DROPS.items():
        if not gates.get(gate, False) and not _uses(stored, drop):
            drop(spec)


def _uses(stored: Document | None, drop: Callable[[Document], None]) -> bool:
    if stored is None:
        return False
    copy = copied(stored)
    drop(copy)
    return copy != stored


def copied(value: Document) -> Document:
    """A deep copy of a JSON document."""
    return {key: _copied(item) for key, item in value.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return copied(value)
    return [_copied(item) for item in value] if isinstance(value, list) else value


# -- validating -----------------------------------------------------------------------------------------


def validate_slice(spec: Document, stored: Document | None, minor: int) -> list[Problem]:
    """Everything Kubernetes 1.*minor* finds wrong with a slice."""
    problems = list(_slice_problems(spec, minor))
    if stored is not None:
        changed = [f for f in ("driver", "nodeName") if spec.get(f) != stored.get(f)]
        problems += [(f"spec.{field}", "field is immutable") for field in changed]
        if (spec.get("pool") or {}).get("name") != (stored.get("pool") or {}).get("name"):
            problems.append(("spec.pool.name", "field is immutable"))
    return problems


def _slice_problems(spec: Document, minor: int) -> Iterator[Problem]:
    driver = spec.get("driver") or ""
    if len(driver) > 63 or not _SUBDOMAIN.fullmatch(driver):
        yield "spec.driver", "must be a DNS subdomain of at most 63 characters"
    yield from _pool_problems(spec.get("pool") or {})
    selections = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    if sum(1 for field in selections if spec.get(field)) != 1:
        yield "spec", f"exactly one of {', '.join(selections)} is required"
    devices, counters = _devices(spec), spec.get("sharedCounters") or []
    if devices and counters and minor >= 35:
        yield "spec", "only one of devices and sharedCounters may be set"
    limit = 64 if minor >= 35 and any(_advanced(device, minor) for device in devices) else 128
    if len(devices) > limit:
        yield "spec.devices", f"must have at most {limit} items"
    yield from _duplicates("spec.devices", [device.get("name") for device in devices])
    for index, device in enumerate(devices):
        for field, message in _device_problems(device, minor):
            yield f"spec.devices[{index}]{field}", message
    if len(counters) > 8:
        yield "spec.sharedCounters", "must have at most 8 items"
    yield from _duplicates("spec.sharedCounters", [item.get("name") for item in counters])
    for index, item in enumerate(counters):
        at = f"spec.sharedCounters[{index}]"
        if not _LABEL.fullmatch(item.get("name") or ""):
            yield f"{at}.name", "must be a DNS label"
        if not 1 <= len(item.get("counters") or {}) <= 32:
            yield f"{at}.counters", "must have 1 to 32 items"


def _pool_problems(pool: Document) -> Iterator[Problem]:
    name = pool.get("name") or ""
    if len(name) > 253 or not all(_SUBDOMAIN.fullmatch(part) for part in name.split("/")):
        yield "spec.pool.name", "must be DNS subdomains joined by slashes, at most 253 characters"
    if (pool.get("resourceSliceCount") or 0) < 1:
        yield "spec.pool.resourceSliceCount", "must be greater than zero"
    if (pool.get("generation") or 0) < 0:
        yield "spec.pool.generation", "must be greater than or equal to zero"


def _duplicates(field: str, names: list[Any]) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"{field}[{index}].name", f"Duplicate value: {name!r}"


def _advanced(device: Document, minor: int) -> bool:
    lists = any(
        field in attribute
        for attribute in (device.get("attributes") or {}).values()
        for field in _LISTS
    )
    return bool(device.get("taints") or device.get("consumesCounters") or (minor >= 36 and lists))


def _device_problems(device: Document, minor: int) -> Iterator[Problem]:
    if not _LABEL.fullmatch(device.get("name") or ""):
        yield ".name", "must be a DNS label"
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > 32:
        yield "", "may have at most 32 attributes and capacities in total"
    for key in (*attributes, *capacity):
        if not _qualified(key):
            yield f".attributes[{key}]", "must be [domain/]C-identifier"
    yield from _attribute_problems(attributes)
    if len(device.get("taints") or []) > (4 if minor < 35 else 16):
        yield ".taints", "too many"
    if len(device.get("consumesCounters") or []) > 2 and minor >= 35:
        yield ".consumesCounters", "must have at most 2 items"
    for field in ("bindingConditions", "bindingFailureConditions"):
        if len(device.get(field) or []) > 4:
            yield f".{field}", "must have at most 4 items"
    for key, item in capacity.items():
        if item.get("requestPolicy") and not device.get("allowMultipleAllocations"):
            yield (
                f".capacity[{key}].requestPolicy",
                "must not be specified when allowMultipleAllocations is not true",
            )


def _attribute_problems(attributes: Document) -> Iterator[Problem]:
    values = 0
    for key, attribute in attributes.items():
        present = [field for field in _VALUES if field in attribute]
        if len(present) != 1:
            yield f".attributes[{key}]", "exactly one value must be specified"
            continue
        value = attribute[present[0]]
        items = value if isinstance(value, list) else [value]
        values += len(items)
        yield from _value_problems(f".attributes[{key}].{present[0]}", present[0], items)
    if values > 48:
        yield ".attributes", "may have at most 48 values in total"


def _qualified(key: str) -> bool:
    domain, slash, identifier = key.rpartition("/")
    if slash and (len(domain) > 63 or not _SUBDOMAIN.fullmatch(domain.lower())):
        return False
    return len(identifier) <= 32 and _IDENTIFIER.fullmatch(identifier) is not None


def _value_problems(field: str, kind: str, items: list[Any]) -> Iterator[Problem]:
    for item in items:
        if kind.startswith(("string", "version")) and len(str(item).encode()) > 64:
            yield field, "Too long: may not be more than 64 bytes"
        if kind.startswith("version") and not _SEMVER.fullmatch(str(item)):
            yield field, "must be a string compatible with semver.org spec 2.0.0"
