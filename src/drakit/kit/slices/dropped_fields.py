"""What the API server silently left out of a slice, and which feature gate is the likely reason.

Fields whose gate is off are cleared without a word. A driver that does not look would update for
ever, or believe in taints nobody ever saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drakit.core.objects import Device
from drakit.kit.slices.layout import Content, same_content

PARTITIONS: Final = "DRAPartitionableDevices"
TAINTS: Final = "DRADeviceTaints"
BINDING: Final = "DRADeviceBindingConditions"
SHARING: Final = "DRAConsumableCapacity"
GROUPS: Final = "DRADeviceCompatibilityGroups"
NODE_RESOURCES: Final = "DRANodeAllocatableResources"
LISTS: Final = "DRAListTypeAttributes"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A field that did not survive the way into the API server."""

    pool: str
    field: str
    gate: str | None
    """The feature gate that is probably off; ``None`` when no gate explains it."""
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(self.devices[:3]) + (", …" if len(self.devices) > 3 else "")
        whose = f" of {len(self.devices)} devices ({shown})" if self.devices else ""
        reason = (
            f"its feature gate {self.gate} is probably off"
            if self.gate
            else "no feature gate explains it, perhaps an admission webhook changed it"
        )
        return f"pool {self.pool}: the API server did not keep {self.field}{whose}: {reason}"


def find_dropped(pool: str, sent: Content, got: Content) -> tuple[Dropped, ...]:
    """Compare what was written with what the server answered; empty when all was kept."""
    if same_content(sent, got):
        return ()
    lost: dict[tuple[str, str | None], list[str]] = {}
    if len(got.shared_counters) < len(sent.shared_counters):
        lost[("sharedCounters", PARTITIONS)] = []
    kept = {device.name: device for device in got.devices}
    for device in sent.devices:
        for field, gate in _lost_fields(device, kept.get(device.name, Device())):
            lost.setdefault((field, gate), []).append(device.name)
    if not lost:
        lost[("what was written", None)] = []
    return tuple(Dropped(pool, field, gate, tuple(names)) for (field, gate), names in lost.items())


def _lost_fields(sent: Device, got: Device) -> Iterator[tuple[str, str]]:
    if len(got.taints) < len(sent.taints):
        yield "taints", TAINTS
    if len(got.consumes_counters) < len(sent.consumes_counters):
        yield "consumesCounters", PARTITIONS
    elif any(
        len(kept.compatibility_groups) < len(asked.compatibility_groups)
        for asked, kept in zip(sent.consumes_counters, got.consumes_counters, strict=False)
    ):
        yield "compatibilityGroups", GROUPS
    conditions = (sent.binds_to_node, sent.binding_conditions, sent.binding_failure_conditions)
    if conditions != (got.binds_to_node, got.binding_conditions, got.binding_failure_conditions):
        yield "bindingConditions", BINDING
    if sent.allow_multiple_allocations is not None and got.allow_multiple_allocations is None:
        yield "allowMultipleAllocations", SHARING
    if any(
        capacity.request_policy is not None
        and (key not in got.capacity or got.capacity[key].request_policy is None)
        for key, capacity in sent.capacity.items()
    ):
        yield "requestPolicy", SHARING
    if sent.node_allocatable_resources and not got.node_allocatable_resources:
        yield "nodeAllocatableResources", NODE_RESOURCES


def hint_for_rejected(content: Content) -> str:
    """What to think of when the server calls a slice invalid that our own checks let pass.

    List attributes whose gate is off are cleared first, and an attribute without value is invalid.
    """
    for device in content.devices:
        for key, attribute in device.attributes.items():
            if attribute.is_list():
                return (
                    f"device {device.name} has the list attribute {key!r}: "
                    f"lists are refused where the feature gate {LISTS} is off"
                )
    return "this does not heal by itself: change what the driver offers"
