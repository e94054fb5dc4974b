"""Settings of the CPU and memory driver."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from drakit.drivers.cpumem.hugepages.settings import HugepageSettings, PageCounts
from drakit.drivers.cpumem.reservation import Reservation
from drakit.drivers.models.cpu_settings import CpuSettings, GroupBy
from drakit.drivers.models.memory_policy import Mode
from drakit.kit.config.settings import setting

LayoutName = Literal["combined", "split"]


class CpuMemConfig(CpuSettings, frozen=True):
    """Settings of the CPU and memory driver."""

    group_by: Annotated[
        GroupBy, setting("what a device is; NUMA nodes without CPUs are always separate devices")
    ] = "numanode"
    layout: Annotated[
        LayoutName,
        setting(
            "combined: one device has all resources of a group; split: one device per resource, "
            "aligned by matchAttribute in the claim"
        ),
    ] = "combined"
    manage_cpus: Annotated[
        bool,
        setting(
            "offer CPUs and confine containers to them; false if another driver does so (which "
            "then needs bindMemory: false)"
        ),
    ] = msgspec.field(name="manageCPUs", default=True)
    bind_memory: Annotated[
        bool, setting("restrict claimed containers to memory of their claims' NUMA nodes")
    ] = True
    publish_node_allocatable_resource_mapping: Annotated[
        bool,
        setting(
            "count claimed amounts as the node's, and leave hugepage limits to the kubelet (needs "
            "the gate DRANodeAllocatableResources)"
        ),
    ] = False
    reserved_memory: Annotated[
        str,
        setting(
            "memory and hugepages reserved for the system, per NUMA node in the kubelet's syntax "
            "(0:memory=1Gi,hugepages-2Mi=0;1:memory=1Gi), or a total (2Gi) taken evenly"
        ),
    ] = "100Mi"
    hugepage_limits: Annotated[
        bool, setting("limit claimed containers to their hugepages, for the claimed sizes only")
    ] = True
    hugepage_pools: Annotated[
        str, setting("pages of each pool (0:2Mi=512,1Gi=4;*:2Mi=64); empty: pools are not changed")
    ] = ""
    hugepage_growth: Annotated[
        str, setting("pages that can be added to a pool while claims need them, in the same form")
    ] = ""
    hugepage_binding: Annotated[
        bool,
        setting(
            "add pages before a pod is bound to the node, so that it is scheduled elsewhere if they "
            "cannot be added (needs the gate DRADeviceBindingConditions; without it they are added "
            "when the claim is prepared)"
        ),
    ] = True
    hugepage_shrink_seconds: Annotated[
        float, setting("seconds until added pages that no claim needs are removed")
    ] = 300.0
    memory_qos: Annotated[
        Mode,
        setting(
            "protect memory by memory.min, memory.low and memory.high: off, that of claims, or that "
            "of all pods as the kubelet's MemoryQoS does"
        ),
    ] = msgspec.field(name="memoryQoS", default="claims")
    memory_throttling_factor: Annotated[
        float,
        setting(
            "fraction between request and limit at which memory.high throttles a container (0.9 is "
            "common); 0: never"
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for settings that cannot work on any machine."""
        CpuSettings.__post_init__(self)
        for key, parse in (
            ("reservedMemory", lambda: Reservation.parse(self.reserved_memory)),
            ("hugepagePools", lambda: PageCounts.parse(self.hugepage_pools)),
            ("hugepageGrowth", lambda: PageCounts.parse(self.hugepage_growth)),
        ):
            try:
                parse()
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from error
        if not 0 <= self.memory_throttling_factor <= 1:
            raise ValueError(
                f"memoryThrottlingFactor must be between 0 and 1, not {self.memory_throttling_factor}"
            )
        if not 0 <= self.hugepage_shrink_seconds < 1e6:
            raise ValueError("hugepageShrinkSeconds must be between 0 and 1000000 seconds")

    @property
    def hugepages(self) -> HugepageSettings:
        """Settings of hugepage pools."""
        return HugepageSettings(
            pools=PageCounts.parse(self.hugepage_pools),
            growth=PageCounts.parse(self.hugepage_growth),
            shrink_after=self.hugepage_shrink_seconds,
        )
