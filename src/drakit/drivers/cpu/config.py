"""The settings of drivers of CPUs. Keys are those of the Go driver, so its files are read as they are."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from drakit.core.cpuset import CpuSet, CpuSetError
from drakit.kit.config.options import HostOptions
from drakit.kit.config.settings import setting

DeviceMode = Literal["grouped", "individual"]
GroupBy = Literal["numanode", "socket", "machine"]


class CpuSettings(HostOptions, frozen=True):
    """What every driver that hands out CPUs can be told, except what every driver can."""

    api_version: Annotated[
        Literal["", "v1alpha1"], setting("version of the configuration file's format")
    ] = ""
    group_by: Annotated[
        GroupBy, setting("what a device is in grouped mode", flags=["--cpu-device-group-by"])
    ] = "numanode"
    reserved_cpus: Annotated[
        str, setting("CPUs for the system alone, as a list (0-1,64): no pod ever gets them")
    ] = msgspec.field(name="reservedCPUs", default="")
    min_shared_cpus: Annotated[
        int, setting("how many CPUs stay with the containers without claims, whatever is claimed")
    ] = msgspec.field(name="minSharedCPUs", default=1)
    hold_back_shared: Annotated[
        bool,
        setting("do not offer the minSharedCPUs, so that the scheduler never gets that far"),
    ] = False
    bind_memory: Annotated[
        bool, setting("give claimed containers memory of their CPUs' NUMA nodes only")
    ] = True
    lift_quota: Annotated[
        bool, setting("lift the CPU quota of claimed containers: owned CPUs are not throttled")
    ] = True
    expose_pcie_roots: Annotated[
        bool,
        setting("list the PCIe roots near each device (needs the gate DRAListTypeAttributes)"),
    ] = msgspec.field(name="exposePCIeRoots", default=False)
    publish_node_allocatable_resource_mapping: Annotated[
        bool,
        setting("count claimed CPUs as node CPUs (needs the gate DRANodeAllocatableResources)"),
    ] = False

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for what could not work on any machine."""
        HostOptions.__post_init__(self)
        try:
            CpuSet.parse(self.reserved_cpus)
        except CpuSetError as error:
            raise ValueError(f"reservedCPUs is no list of CPUs: {error}") from error
        if not 0 <= self.min_shared_cpus <= 8192:
            raise ValueError(
                f"minSharedCPUs must be between 0 and 8192, not {self.min_shared_cpus}"
            )

    @property
    def reserved(self) -> CpuSet:
        """The reserved CPUs; they need not exist on this machine."""
        return CpuSet.parse(self.reserved_cpus)


class CpuConfig(CpuSettings, frozen=True):
    """What the CPU driver can be told."""

    cpu_device_mode: Annotated[
        DeviceMode,
        setting(
            "grouped: one device per group of CPUs, claims take amounts of it; "
            "individual: one device per CPU, the scheduler names every one"
        ),
    ] = "grouped"
