"""Settings shared by the drivers of CPUs. Keys are those of the Go driver, whose files are accepted."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from drakit.core.cpuset import CpuSet, CpuSetError
from drakit.kit.config.options import HostOptions
from drakit.kit.config.settings import setting

GroupBy = Literal["numanode", "socket", "machine"]


class CpuSettings(HostOptions, frozen=True):
    """Settings of every driver that offers CPUs."""

    api_version: Annotated[Literal["", "v1alpha1"], setting("version of the configuration file's format")] = (
        ""
    )
    group_by: Annotated[
        GroupBy, setting("what a device is in grouped mode", flags=["--cpu-device-group-by"])
    ] = "numanode"
    reserved_cpus: Annotated[
        str, setting("CPUs reserved for the system, as a list (0-1,64): no pod ever gets them")
    ] = msgspec.field(name="reservedCPUs", default="")
    min_shared_cpus: Annotated[
        int, setting("number of CPUs that always stay available to containers without claims")
    ] = msgspec.field(name="minSharedCPUs", default=1)
    hold_back_shared: Annotated[
        bool, setting("do not offer the minSharedCPUs, so that the scheduler never allocates them")
    ] = False
    bind_memory: Annotated[
        bool, setting("restrict claimed containers to memory of their CPUs' NUMA nodes")
    ] = True
    lift_quota: Annotated[
        bool, setting("remove the CPU quota of claimed containers: exclusive CPUs are not throttled")
    ] = True
    expose_pcie_roots: Annotated[
        bool, setting("list the PCIe roots near each device (needs the gate DRAListTypeAttributes)")
    ] = msgspec.field(name="exposePCIeRoots", default=False)
    publish_node_allocatable_resource_mapping: Annotated[
        bool, setting("count claimed CPUs as node CPUs (needs the gate DRANodeAllocatableResources)")
    ] = False

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for settings that cannot work on any machine."""
        HostOptions.__post_init__(self)
        try:
            CpuSet.parse(self.reserved_cpus)
        except CpuSetError as error:
            raise ValueError(f"reservedCPUs is not a valid list of CPUs: {error}") from error
        if not 0 <= self.min_shared_cpus <= 8192:
            raise ValueError(f"minSharedCPUs must be between 0 and 8192, not {self.min_shared_cpus}")

    @property
    def reserved(self) -> CpuSet:
        """The reserved CPUs; they need not exist on this machine."""
        return CpuSet.parse(self.reserved_cpus)
