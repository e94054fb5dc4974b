"""Kubernetes minor releases: feature gates, ResourceSlice limits, scheduler and CEL, one row each.

To add a release, add a row as a :func:`~dataclasses.replace` of its predecessor and list it in
:data:`RELEASES`; a new gate that guards fields of ResourceSlices also needs an entry in
:data:`GATED_FIELDS`. The sources are ``pkg/features/kube_features.go`` (gates),
``pkg/apis/resource/types.go`` and ``validation.go`` (limits) and
``apiserver/pkg/cel/environment/base.go`` (CEL) of each release branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

GATED_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "DRADeviceTaints": ("devices.*.taints",),
    "DRAPartitionableDevices": (
        "sharedCounters",
        "perDeviceNodeSelection",
        "devices.*.consumesCounters",
        "devices.*.nodeName",
        "devices.*.nodeSelector",
        "devices.*.allNodes",
    ),
    "DRADeviceBindingConditions": (
        "devices.*.bindsToNode",
        "devices.*.bindingConditions",
        "devices.*.bindingFailureConditions",
    ),
    "DRAConsumableCapacity": ("devices.*.allowMultipleAllocations", "devices.*.capacity.*.requestPolicy"),
    "DRADeviceCompatibilityGroups": ("devices.*.consumesCounters.*.compatibilityGroups",),
    "DRAPartitionableDevicesType": ("partitionTypeAttribute",),
    "DRAOptionalNodeOperations": ("skipNodeOperations",),
    "DRANodeAllocatableResources": ("devices.*.nodeAllocatableResources",),
    "DRAListTypeAttributes": tuple(
        f"devices.*.attributes.*.{kind}" for kind in ("ints", "bools", "strings", "versions")
    ),
}
"""Fields of a ResourceSlice spec that the API server drops silently while a feature gate is off.

``*`` stands for every item of a list or mapping.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """How much a ResourceSlice may contain; ``None`` where the release has no limit."""

    devices: int
    devices_with_advanced_features: int
    """The limit once any device has taints, consumed counters or list attributes."""
    counter_sets: int
    counters_per_set: int
    attributes_and_capacities: int
    attribute_values: int
    text_bytes: int
    taints: int
    binding_conditions: int
    consumed_counter_sets: int | None
    compatibility_groups: int
    valid_values: int
    devices_or_counters: bool
    """Whether a slice may have devices or shared counters, but not both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerBehavior:
    """Differences between the device allocators of kube-scheduler that no feature gate names.

    Before 1.36 kube-scheduler walks pools in random order: it may choose other devices than the model.
    """

    counter_slices_on_every_node: bool
    """Until 1.36 a slice with counters is relevant wherever its devices are."""
    distinct_by_request: bool
    """Until 1.36 ``distinctAttribute`` remembers one device per request (kubernetes#140600)."""
    all_skips_full_devices: bool
    """Until 1.36 ``All`` leaves out devices without remaining capacity (kubernetes#140769)."""
    capacity_errors_are_fatal: bool
    share_without_capacity_holds_counters: bool


_LISTS_EXTENSION: Final = frozenset(
    {"slice", "flatten", "sort", "@sortByAssociatedKeys", "lists.range", "distinct", "reverse"}
)
"""Functions of cel-go's lists extension, version 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CelEnvironment:
    """Functions of the newest CEL environment for device selectors that a release does not have.

    The API server checks new objects against the environment of the previous minor, so that they
    stay valid after a rollback; the scheduler evaluates stored expressions with its own.
    """

    missing: frozenset[str]
    """Functions that the scheduler cannot evaluate."""
    rejected: frozenset[str]
    """Functions that the API server rejects in new objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesRelease:
    """A minor release with default feature gates."""

    minor: int
    gates: Mapping[str, bool] = field(hash=False)
    """The feature gates that the release knows, and whether each is on by default."""
    slice_limits: SliceLimits
    selects_slices_by_pool: bool
    """Whether ``spec.pool.name`` is a field selector of ResourceSlices."""
    serves_taint_rules: bool
    """Whether ``resource.k8s.io/v1`` has DeviceTaintRules."""
    scheduler: SchedulerBehavior
    cel: CelEnvironment

    @property
    def name(self) -> str:
        """``1.<minor>``."""
        return f"1.{self.minor}"

    def enables(self, gate: str) -> bool:
        """Whether *gate* is on by default; a gate that the release does not know is off."""
        return self.gates.get(gate, False)


V1_34: Final = KubernetesRelease(
    minor=34,
    gates={
        "DRAResourceClaimDeviceStatus": True,
        "DRADeviceTaints": False,
        "DRAPartitionableDevices": False,
        "DRADeviceBindingConditions": False,
        "DRAConsumableCapacity": False,
    },
    slice_limits=SliceLimits(
        devices=128,
        devices_with_advanced_features=128,
        counter_sets=8,
        counters_per_set=32,
        attributes_and_capacities=32,
        attribute_values=48,
        text_bytes=64,
        taints=4,
        binding_conditions=4,
        consumed_counter_sets=None,
        compatibility_groups=2,
        valid_values=10,
        devices_or_counters=False,
    ),
    selects_slices_by_pool=False,
    serves_taint_rules=False,
    scheduler=SchedulerBehavior(
        counter_slices_on_every_node=True,
        distinct_by_request=True,
        all_skips_full_devices=True,
        capacity_errors_are_fatal=False,
        share_without_capacity_holds_counters=False,
    ),
    cel=CelEnvironment(missing=frozenset({"includes"}), rejected=frozenset({"includes"}) | _LISTS_EXTENSION),
)
V1_35: Final = replace(
    V1_34,
    minor=35,
    gates={**V1_34.gates, "DRADeviceTaintRules": False},
    slice_limits=replace(
        V1_34.slice_limits,
        devices_with_advanced_features=64,
        taints=16,
        consumed_counter_sets=2,
        devices_or_counters=True,
    ),
    cel=replace(V1_34.cel, rejected=frozenset({"includes"})),
)
V1_36: Final = replace(
    V1_35,
    minor=36,
    gates={
        **V1_35.gates,
        "DRADeviceTaints": True,
        "DRAPartitionableDevices": True,
        "DRADeviceBindingConditions": True,
        "DRAConsumableCapacity": True,
        "DRAListTypeAttributes": False,
        "DRANodeAllocatableResources": False,
    },
)
V1_37: Final = replace(
    V1_36,
    minor=37,
    gates={
        **V1_36.gates,
        "DRADeviceTaintRules": True,
        "DRAFractionalCapacityRange": True,
        "DRADeviceCompatibilityGroups": False,
        "DRAPartitionableDevicesType": False,
        "DRAOptionalNodeOperations": False,
    },
    selects_slices_by_pool=True,
    serves_taint_rules=True,
    scheduler=SchedulerBehavior(
        counter_slices_on_every_node=False,
        distinct_by_request=False,
        all_skips_full_devices=False,
        capacity_errors_are_fatal=True,
        share_without_capacity_holds_counters=True,
    ),
    cel=replace(V1_36.cel, missing=frozenset()),
)
# Not released yet (December 2026): like 1.37 until it can be tested.
V1_38: Final = replace(V1_37, minor=38)

RELEASES: Final = {row.name: row for row in (V1_34, V1_35, V1_36, V1_37, V1_38)}
"""All supported releases by name, oldest first."""
LATEST: Final = V1_37
"""The newest release that drakit was tested with."""
