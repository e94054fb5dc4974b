"""What the Kubernetes releases do differently, with default feature gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KubernetesVersion:
    """A release: which features its scheduler has on by default, and which quirks.

    The results are exact for 1.36 and 1.37. Schedulers before 1.36 walk pools in random order, so
    for them only the answer whether it fits is meaningful, not which devices are taken.
    """

    name: str
    consumable_capacity: bool
    fractional_range: bool
    partitionable: bool
    taints: bool
    taint_rules: bool
    binding_conditions: bool
    exact: bool
    counter_slices_on_every_node: bool
    """1.36 takes a slice with counters for relevant wherever its devices are."""
    distinct_by_request: bool
    """Until 1.36 ``distinctAttribute`` remembers one device per request (kubernetes#140600)."""
    all_skips_full_devices: bool
    """Until 1.36 ``All`` leaves out devices without remaining capacity (kubernetes#140769)."""
    capacity_errors_are_fatal: bool
    share_without_capacity_holds_counters: bool


V1_37: Final = KubernetesVersion(
    name="1.37",
    consumable_capacity=True,
    fractional_range=True,
    partitionable=True,
    taints=True,
    taint_rules=True,
    binding_conditions=True,
    exact=True,
    counter_slices_on_every_node=False,
    distinct_by_request=False,
    all_skips_full_devices=False,
    capacity_errors_are_fatal=True,
    share_without_capacity_holds_counters=True,
)
V1_36: Final = KubernetesVersion(
    name="1.36",
    consumable_capacity=True,
    fractional_range=False,
    partitionable=True,
    taints=True,
    taint_rules=False,
    binding_conditions=True,
    exact=True,
    counter_slices_on_every_node=True,
    distinct_by_request=True,
    all_skips_full_devices=True,
    capacity_errors_are_fatal=False,
    share_without_capacity_holds_counters=False,
)
V1_35: Final = KubernetesVersion(
    name="1.35",
    consumable_capacity=False,
    fractional_range=False,
    partitionable=False,
    taints=False,
    taint_rules=False,
    binding_conditions=False,
    exact=False,
    counter_slices_on_every_node=True,
    distinct_by_request=True,
    all_skips_full_devices=True,
    capacity_errors_are_fatal=False,
    share_without_capacity_holds_counters=False,
)
V1_34: Final = KubernetesVersion(
    name="1.34",
    consumable_capacity=False,
    fractional_range=False,
    partitionable=False,
    taints=False,
    taint_rules=False,
    binding_conditions=False,
    exact=False,
    counter_slices_on_every_node=True,
    distinct_by_request=True,
    all_skips_full_devices=True,
    capacity_errors_are_fatal=False,
    share_without_capacity_holds_counters=False,
)

VERSIONS: Final = {version.name: version for version in (V1_37, V1_36, V1_35, V1_34)}
"""All releases drakit knows, newest first."""
