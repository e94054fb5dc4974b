"""CPUs that dra-driver-cpu would give to the claims of a planned pod.

With one device per CPU the scheduler selects the CPUs, and the attributes of the devices describe enough
of the machine to draw it. With grouped devices the driver selects them when the pod starts: that needs
the machine, and existing claims are assumed to have been prepared in the order of their age.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from drakit.core.cpuset import CpuSet
from drakit.core.errors import ActionableError
from drakit.core.objects import Device, DeviceRequestAllocationResult, ResourceClaim
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import CPU, cpu_driver
from drakit.drivers.models.cpu_settings import GroupBy
from drakit.drivers.models.cpus import DRIVER
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.claims.checkpoint import entry_of
from drakit.kit.claims.resource_claims import claim_for
from drakit.kit.driver import PreparedClaim, PreparedClaims, RejectedError
from drakit.local.node import as_allocated
from drakit.local.published_machine import cpu_number, published_machine
from drakit.machine.discover import discover
from drakit.machine.model import Machine
from drakit.scheduler.placement import ClusterSnapshot, SchedulingResult
from drakit.scheduler.requests import claim_name

_SINGLE_CPU: Final = re.compile(r"cpudev[0-9]+")
_GROUPS: Final[dict[str, GroupBy]] = {
    "cpudevnuma": "numanode",
    "cpudevsocket": "socket",
    "cpudevmachine": "machine",
}


class PlannedCpusError(ActionableError):
    """The machine directory or the reserved CPUs are not valid."""


@dataclass(frozen=True, slots=True)
class ClaimCpus:
    """A claim and its CPUs."""

    claim: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class PlannedCpus:
    """CPUs of the planned and of the existing claims, on the machine of the node."""

    machine: Machine
    planned: tuple[ClaimCpus, ...]
    existing: tuple[ClaimCpus, ...]
    left: CpuSet
    """CPUs that later claims can still get."""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class UnknownCpus:
    """Why the CPUs are not known, and what would help."""

    reason: str


def planned_cpus(
    cluster: ClusterSnapshot, placement: SchedulingResult, root: str | None, reserved: str
) -> PlannedCpus | UnknownCpus | None:
    """Return the CPUs of *placement*; None if it has no device of dra-driver-cpu.

    *root* contains ``sys`` and ``proc`` of the node; *reserved* are the CPUs that its driver reserves
    for the system. Raises :class:`PlannedCpusError` if either is not valid.
    """
    if not any(pick.device.driver == DRIVER for a in placement.allocations for pick in a.picks):
        return None
    node = placement.node or ""
    devices = {
        device.name: device
        for entry in cluster.slices
        if entry.spec.driver == DRIVER and entry.spec.node_name == node
        for device in entry.spec.devices
    }
    if devices and all(_SINGLE_CPU.fullmatch(name) for name in devices):
        return _individual(cluster, placement, devices, root)
    groups = {group for name in devices for group in _GROUPS if name.startswith(group)}
    if len(groups) != 1:
        return None  # devices of another driver with the same name
    if root is None and node != os.uname().nodename:
        return UnknownCpus(
            f"dra-driver-cpu selects the CPUs on node {node}; --machine DIR with the node's /sys and "
            "/proc (or / on the node itself) shows which"
        )
    try:
        config = CpuConfig(group_by=_GROUPS[groups.pop()], reserved_cpus=reserved, min_shared_cpus=0)
    except ValueError as error:
        raise PlannedCpusError(str(error), "check --reserved-cpus") from None
    return _grouped(cluster, placement, devices, cpu_driver(config, _machine(root or "/")))


def _machine(root: str) -> Machine:
    machine = discover(root)
    if not machine.cpus:
        raise PlannedCpusError(f"no CPU found below {root}/sys", "check --machine")
    return machine


def _existing_claims(
    cluster: ClusterSnapshot, placement: SchedulingResult
) -> list[tuple[ResourceClaim, Sequence[DeviceRequestAllocationResult]]]:
    """Return the allocated claims with CPUs of the node, oldest first, and their results."""
    planned = {claim_name(allocation.claim) for allocation in placement.allocations}
    found = []
    for claim in cluster.claims:
        allocation = claim.status.allocation
        results = allocation.devices.results if allocation else ()
        here = any(each.driver == DRIVER and each.pool == placement.node for each in results)
        if allocation and here and claim_name(claim) not in planned:
            age = allocation.allocation_timestamp or claim.metadata.creation_timestamp or ""
            found.append((age, claim_name(claim), claim, results))
    return [(claim, results) for _, _, claim, results in sorted(found, key=lambda each: each[:2])]


def _individual(
    cluster: ClusterSnapshot, placement: SchedulingResult, devices: dict[str, Device], root: str | None
) -> PlannedCpus:
    machine = published_machine(devices.values()) if root is None else _machine(root)
    numbers = {name: cpu_number(device) for name, device in devices.items()}

    def cpus(chosen: Iterable[Any]) -> CpuSet:
        found = (numbers.get(each.device) for each in chosen if each.driver == DRIVER)
        return CpuSet(number for number in found if number is not None)

    planned = tuple(
        ClaimCpus(claim_name(a.claim), cpus(pick.device for pick in a.picks)) for a in placement.allocations
    )
    existing = tuple(
        ClaimCpus(
            claim_name(claim), cpus(r for r in results if r.pool == placement.node and not r.admin_access)
        )
        for claim, results in _existing_claims(cluster, placement)
    )
    offered = CpuSet(number for number in numbers.values() if number is not None)
    left = offered - CpuSet.union(each.cpus for each in (*planned, *existing))
    remark = "" if root is not None else "CPUs that the driver does not offer are not drawn"
    return PlannedCpus(machine, planned, existing, left, remark)


def _grouped(
    cluster: ClusterSnapshot, placement: SchedulingResult, devices: dict[str, Device], driver: NodeDriver
) -> PlannedCpus | UnknownCpus:
    difference = _difference(devices, driver)
    if difference:
        return UnknownCpus(difference)
    classes = {each.metadata.name: each for each in cluster.classes}
    prepared: list[PreparedClaim] = []

    def assign(claim: ResourceClaim) -> ClaimCpus:
        wanted = claim_for(driver.name, claim, claim.metadata.uid)
        assigned = driver.assign(wanted, PreparedClaims(prepared)).devices
        prepared.append(entry_of(wanted, assigned, boot=""))
        return ClaimCpus(claim_name(claim), prepared[-1].exclusive("cpu"))

    try:
        existing = [assign(_with_uid(claim)) for claim, _ in _existing_claims(cluster, placement)]
        planned = [
            assign(as_allocated(_with_uid(allocation.claim), allocation, classes))
            for allocation in placement.allocations
            if any(pick.device.driver == DRIVER for pick in allocation.picks)
        ]
    except RejectedError as error:
        return UnknownCpus(f"dra-driver-cpu would reject the claim when the pod starts: {error}")
    left = driver.cpus.offered - CpuSet.union(each.cpus for each in (*existing, *planned))
    remark = "assuming that existing claims were prepared oldest first" if existing else ""
    return PlannedCpus(driver.cpus.machine, tuple(planned), tuple(existing), left, remark)


def _with_uid(claim: ResourceClaim) -> ResourceClaim:
    """Give a claim from a manifest a UID, by which drivers distinguish claims."""
    if claim.metadata.uid:
        return claim
    metadata = msgspec.structs.replace(claim.metadata, uid=claim_name(claim))
    return msgspec.structs.replace(claim, metadata=metadata)


def _difference(devices: dict[str, Device], driver: NodeDriver) -> str:
    """Describe how the published devices differ from those of the given machine."""
    ours = {d.name: _amount(d) for pool in driver.offer().pools for d in pool.devices}
    theirs = {name: _amount(device) for name, device in devices.items()}
    if ours == theirs:
        return ""
    name = min(n for n in {*ours, *theirs} if ours.get(n) != theirs.get(n))
    return (
        f"the given machine does not match what the node publishes: {name} has "
        f"{theirs.get(name, 'no')} CPUs there, {ours.get(name, 'no')} here; give the node's own "
        "/sys and /proc with --machine and its driver's --reserved-cpus"
    )


def _amount(device: Device) -> str:
    return str(device.capacity[CPU.key].value) if CPU.key in device.capacity else "no"
