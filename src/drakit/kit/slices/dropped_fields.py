"""Fields that the API server silently dropped from a slice, and the feature gate that is likely off.

Without this check a driver would rewrite its slices forever, or rely on taints that were never stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drakit.core.kubernetes_releases import GATED_FIELDS
from drakit.core.objects import Device
from drakit.kit.slices.comparison import same_content
from drakit.kit.slices.layout import Content

_GATES: Final = {path.rpartition(".")[2]: gate for gate, paths in GATED_FIELDS.items() for path in paths}
"""The feature gate of each gated field."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A field that the API server did not store."""

    pool: str
    field: str
    gate: str | None
    """The feature gate that is probably off; ``None`` when no gate explains it."""
    devices: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The likely cause."""
        if self.gate:
            return f"the feature gate {self.gate} is probably off"
        return "no feature gate explains it; an admission webhook may have changed the slice"


def find_dropped(pool: str, sent: Content, got: Content) -> tuple[Dropped, ...]:
    """Compare the slice that was written with the server's response; empty when nothing is missing."""
    if same_content(sent, got):
        return ()
    lost: dict[str, list[str]] = {}
    if len(got.shared_counters) < len(sent.shared_counters):
        lost["sharedCounters"] = []
    kept = {device.name: device for device in got.devices}
    for device in sent.devices:
        for field in _lost_fields(device, kept.get(device.name, Device())):
            lost.setdefault(field, []).append(device.name)
    if not lost:
        return (Dropped(pool, "content", None),)
    return tuple(Dropped(pool, field, _GATES[field], tuple(names)) for field, names in lost.items())


def _lost_fields(sent: Device, got: Device) -> Iterator[str]:
    if len(got.taints) < len(sent.taints):
        yield "taints"
    if len(got.consumes_counters) < len(sent.consumes_counters):
        yield "consumesCounters"
    elif any(
        len(kept.compatibility_groups) < len(asked.compatibility_groups)
        for asked, kept in zip(sent.consumes_counters, got.consumes_counters, strict=False)
    ):
        yield "compatibilityGroups"
    conditions = (sent.binds_to_node, sent.binding_conditions, sent.binding_failure_conditions)
    if conditions != (got.binds_to_node, got.binding_conditions, got.binding_failure_conditions):
        yield "bindingConditions"
    if sent.allow_multiple_allocations is not None and got.allow_multiple_allocations is None:
        yield "allowMultipleAllocations"
    if any(
        capacity.request_policy is not None
        and (key not in got.capacity or got.capacity[key].request_policy is None)
        for key, capacity in sent.capacity.items()
    ):
        yield "requestPolicy"
    if sent.node_allocatable_resources and not got.node_allocatable_resources:
        yield "nodeAllocatableResources"


def hint_for_rejected(content: Content) -> str:
    """Advice for a slice that the server rejected although it passed our own checks.

    The server clears list attributes whose gate is off, and then rejects attributes without a value.
    """
    for device in content.devices:
        for key, attribute in device.attributes.items():
            if attribute.is_list():
                return (
                    f"device {device.name} has the list attribute {key!r}: "
                    f"lists are rejected where the feature gate {_GATES['ints']} is off"
                )
    return "retrying does not help: change what the driver offers"
