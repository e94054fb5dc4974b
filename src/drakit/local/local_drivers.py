"""Drivers for claims on this machine: which driver a claim needs, and how it is configured."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from drakit.core.cpuset import CpuSet
from drakit.core.errors import ActionableError
from drakit.core.objects import (
    CapacityRequirements,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactRequest,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimSpec,
)
from drakit.core.quantity import Quantity
from drakit.drivers.cpu.config import CpuConfig, DeviceMode
from drakit.drivers.cpu.driver import CPU, cpu_driver
from drakit.drivers.cpumem.driver import cpumem_driver
from drakit.drivers.cpumem.kinds import DRIVER as CPUMEM
from drakit.drivers.cpumem.others import held_by_others
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.claims.checkpoint_files import read_checkpoint
from drakit.kit.driver import PreparedClaim
from drakit.machine.model import Machine

CPU_DRIVER: Final = "dra.cpu"


class ClaimDriverError(ActionableError):
    """The claims need more than one driver."""


def local_driver(
    name: str,
    machine: Machine,
    directory: str,
    *,
    reserved_cpus: CpuSet,
    reserved_memory: str,
    cpu_device_mode: DeviceMode,
    **common: Any,
) -> NodeDriver:
    """Return the driver *name* with the claims in *directory*; *common* are settings of both drivers.

    CPUs outside this process's affinity are reserved: in a container or a cpuset the whole machine is
    visible, but not usable. Raises ``ValueError`` for settings that are not valid.
    """
    common["reserved_cpus"] = str(reserved_cpus | machine.online - CpuSet(os.sched_getaffinity(0)))
    common["hold_back_shared"] = True
    if name != CPUMEM:
        return cpu_driver(CpuConfig(cpu_device_mode=cpu_device_mode, **common), machine)
    claims: tuple[PreparedClaim, ...] = ()
    with contextlib.suppress(OSError):  # reported when the directory is used
        claims = read_checkpoint(directory).entries
    return cpumem_driver(
        CpuMemConfig(reserved_memory=reserved_memory, **common),
        machine,
        held_by_others=held_by_others(machine, claims, ""),
    )


def driver_for(claims: Iterable[ResourceClaim], classes: Iterable[DeviceClass]) -> str:
    """Return the driver of *claims*, for *classes* by their selectors. Raises :class:`ClaimDriverError`."""
    known = {each.metadata.name: each for each in classes}
    found = set()
    for claim in claims:
        for request in claim.spec.devices.requests:
            exact = (request.exactly,) if request.exactly else ()
            variants = (*request.first_available, *exact)
            found |= {_driver_of(each.device_class_name, known) for each in variants}
    if found == {CPU_DRIVER, CPUMEM}:
        raise ClaimDriverError(
            f"the claims are of both {CPU_DRIVER} and {CPUMEM}",
            f"use only one of them: {CPUMEM} also has CPUs",
        )
    return CPUMEM if CPUMEM in found else CPU_DRIVER


def _driver_of(class_name: str, classes: Mapping[str, DeviceClass]) -> str:
    made = classes.get(class_name)
    if made is None:
        return CPUMEM if class_name.startswith(CPUMEM) else CPU_DRIVER
    selectors = " ".join(each.cel.expression for each in made.spec.selectors if each.cel)
    return CPUMEM if CPUMEM in selectors else CPU_DRIVER


def amounts_claim(amounts: Mapping[str, Quantity]) -> ResourceClaim:
    """Return a claim of CPUs, memory and hugepages of one NUMA node, by capacity key."""
    return _claim("amounts", "amounts", CPUMEM, amounts)


def simple_claim(cpus: int, mode: str = "grouped") -> ResourceClaim:
    """Return a claim of a number of CPUs."""
    if mode == "individual":
        return _claim(f"{cpus}-cpus", "cpus", CPU_DRIVER, {}, count=cpus)
    return _claim(f"{cpus}-cpus", "cpus", CPU_DRIVER, {CPU.key: Quantity(cpus)})


def _claim(
    name: str, request: str, class_name: str, amounts: Mapping[str, Quantity], *, count: int = 1
) -> ResourceClaim:
    capacity = CapacityRequirements(requests=dict(amounts)) if amounts else None
    exact = ExactRequest(device_class_name=class_name, capacity=capacity, count=count)
    devices = DeviceClaim(requests=(DeviceRequest(name=request, exactly=exact),))
    return ResourceClaim(metadata=ObjectMeta(name=name), spec=ResourceClaimSpec(devices=devices))
