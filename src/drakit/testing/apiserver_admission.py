"""Admission of a ResourceSlice by the API server: drop gated fields, then validate.

Written from the API's rules over plain documents, independently of the checks in
:mod:`drakit.kit.slices.limits`; only the numbers are shared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from drakit.core.kubernetes_releases import GATED_FIELDS, KubernetesRelease, SliceLimits

Document = dict[str, Any]
Problem = tuple[str, str]
"""Field path and message."""

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


def drop_disabled(spec: Document, stored: Document | None, gates: Mapping[str, bool]) -> None:
    """Clear the fields of *spec* whose gate is off, unless *stored* uses them already."""
    for gate, fields in GATED_FIELDS.items():
        if not gates.get(gate, False) and not _uses(stored, fields):
            _drop(spec, fields)


def _uses(stored: Document | None, fields: Iterable[str]) -> bool:
    if stored is None:
        return False
    copy = copied(stored)
    _drop(copy, fields)
    return copy != stored


def _drop(spec: Document, fields: Iterable[str]) -> None:
    for field in fields:
        *parents, name = field.split(".")
        for parent in _at(spec, parents):
            parent.pop(name, None)


def _at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """Every value at *path*, where ``*`` stands for all items of a list or mapping."""
    if not path or not value:
        yield from [value] if value else []
    elif path[0] != "*":
        yield from _at(value.get(path[0]), path[1:])
    else:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _at(item, path[1:])


def copied(value: Document) -> Document:
    """A deep copy of a JSON document."""
    return {key: _copied(item) for key, item in value.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return copied(value)
    return [_copied(item) for item in value] if isinstance(value, list) else value


def validate_slice(spec: Document, stored: Document | None, release: KubernetesRelease) -> list[Problem]:
    """Everything that *release* finds wrong with a slice."""
    problems = list(_slice_problems(spec, release.slice_limits))
    if stored is not None:
        changed = [f for f in ("driver", "nodeName") if spec.get(f) != stored.get(f)]
        problems += [(f"spec.{field}", "field is immutable") for field in changed]
        if (spec.get("pool") or {}).get("name") != (stored.get("pool") or {}).get("name"):
            problems.append(("spec.pool.name", "field is immutable"))
    return problems


def _slice_problems(spec: Document, limits: SliceLimits) -> Iterator[Problem]:
    driver = spec.get("driver") or ""
    if len(driver) > 63 or not _SUBDOMAIN.fullmatch(driver):
        yield "spec.driver", "must be a DNS subdomain of at most 63 characters"
    yield from _pool_problems(spec.get("pool") or {})
    selections = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    if sum(1 for field in selections if spec.get(field)) != 1:
        yield "spec", f"exactly one of {', '.join(selections)} is required"
    devices, counters = spec.get("devices") or [], spec.get("sharedCounters") or []
    if devices and counters and limits.devices_or_counters:
        yield "spec", "only one of devices and sharedCounters may be set"
    advanced = any(map(_advanced, devices))
    most = limits.devices_with_advanced_features if advanced else limits.devices
    if len(devices) > most:
        yield "spec.devices", f"must have at most {most} items"
    yield from _duplicates("spec.devices", [device.get("name") for device in devices])
    for index, device in enumerate(devices):
        for field, message in _device_problems(device, limits):
            yield f"spec.devices[{index}]{field}", message
    yield from _counter_problems(counters, limits)


def _counter_problems(counters: list[Document], limits: SliceLimits) -> Iterator[Problem]:
    if len(counters) > limits.counter_sets:
        yield "spec.sharedCounters", f"must have at most {limits.counter_sets} items"
    yield from _duplicates("spec.sharedCounters", [item.get("name") for item in counters])
    for index, item in enumerate(counters):
        at = f"spec.sharedCounters[{index}]"
        if not _LABEL.fullmatch(item.get("name") or ""):
            yield f"{at}.name", "must be a DNS label"
        if not 1 <= len(item.get("counters") or {}) <= limits.counters_per_set:
            yield f"{at}.counters", f"must have 1 to {limits.counters_per_set} items"


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


def _advanced(device: Document) -> bool:
    attributes = (device.get("attributes") or {}).values()
    lists = any(field in attribute for attribute in attributes for field in _LISTS)
    return bool(device.get("taints") or device.get("consumesCounters") or lists)


def _device_problems(device: Document, limits: SliceLimits) -> Iterator[Problem]:
    if not _LABEL.fullmatch(device.get("name") or ""):
        yield ".name", "must be a DNS label"
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    most = limits.attributes_and_capacities
    if len(attributes) + len(capacity) > most:
        yield "", f"may have at most {most} attributes and capacities in total"
    for key in (*attributes, *capacity):
        if not _qualified(key):
            yield f".attributes[{key}]", "must be [domain/]C-identifier"
    yield from _attribute_problems(attributes, limits)
    for field, allowed in (
        ("taints", limits.taints),
        ("consumesCounters", limits.consumed_counter_sets),
        ("bindingConditions", limits.binding_conditions),
        ("bindingFailureConditions", limits.binding_conditions),
    ):
        if allowed is not None and len(device.get(field) or []) > allowed:
            yield f".{field}", f"must have at most {allowed} items"
    for key, item in capacity.items():
        if item.get("requestPolicy") and not device.get("allowMultipleAllocations"):
            message = "must not be specified when allowMultipleAllocations is not true"
            yield f".capacity[{key}].requestPolicy", message


def _attribute_problems(attributes: Document, limits: SliceLimits) -> Iterator[Problem]:
    values = 0
    for key, attribute in attributes.items():
        present = [field for field in _VALUES if field in attribute]
        if len(present) != 1:
            yield f".attributes[{key}]", "exactly one value must be specified"
            continue
        kind, value = present[0], attribute[present[0]]
        items = value if isinstance(value, list) else [value]
        values += len(items)
        for message in _value_problems(kind, items, limits):
            yield f".attributes[{key}].{kind}", message
    if values > limits.attribute_values:
        yield ".attributes", f"may have at most {limits.attribute_values} values in total"


def _qualified(key: str) -> bool:
    domain, slash, identifier = key.rpartition("/")
    if slash and (len(domain) > 63 or not _SUBDOMAIN.fullmatch(domain.lower())):
        return False
    return len(identifier) <= 32 and _IDENTIFIER.fullmatch(identifier) is not None


def _value_problems(kind: str, items: list[Any], limits: SliceLimits) -> Iterator[str]:
    for item in items:
        size = len(str(item).encode())
        if kind.startswith(("string", "version")) and size > limits.text_bytes:
            yield f"Too long: may not be more than {limits.text_bytes} bytes"
        if kind.startswith("version") and not _SEMVER.fullmatch(str(item)):
            yield "must be a string compatible with semver.org spec 2.0.0"
