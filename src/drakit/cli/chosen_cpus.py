"""Which CPUs dra-driver-cpu would give the claims of a planned pod, and the machine to draw them on.

With a device per CPU the scheduler names the CPUs, and the attributes of the devices tell enough of
the machine to draw it. With grouped devices the driver chooses when the pod starts: that needs the
machine itself, and the claims already there are taken to have been placed in the order of their age.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from drakit.cli.errors import Problem
from drakit.cli.published_machine import cpu_number, machine_of
from drakit.core.cpuset import CpuSet
from drakit.core.objects import Device, ResourceClaim
from drakit.drivers.cpu.config import CpuConfig, GroupBy
from drakit.drivers.cpu.driver import CpuDriver, cpu_driver
from drakit.drivers.models.cpus import DRIVER
from drakit.drivers.models.grouped import CAPACITY
from drakit.kit.claims.checkpoint import entry_of
from drakit.kit.claims.resource_claims import claim_for
from drakit.kit.driver import PreparedClaim, PreparedClaims, RejectedError
from drakit.local.node import as_allocated
from drakit.machine.discover import discover
from drakit.machine.model import Machine
from drakit.scheduler.placement import ClusterSnapshot, SchedulingResult
from drakit.scheduler.requests import claim_name

_SINGLE: Final = re.compile(r"cpudev[0-9]+")
_GROUPS: Final[dict[str, GroupBy]] = {
    "cpudevnuma": "numanode",
    "cpudevsocket": "socket",
    "cpudevmachine": "machine",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim and its CPUs."""

    claim: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class Chosen:
    """The CPUs of the planned claims and of those there before, on the machine of the node."""

    machine: Machine
    planned: tuple[Holder, ...]
    held: tuple[Holder, ...]
    left: CpuSet
    """CPUs that later claims could still get."""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The CPUs cannot be told, and what would help."""

    reason: str


def chosen_cpus(
    cluster: ClusterSnapshot, placement: SchedulingResult, root: str | None, reserved: str
) -> Chosen | Unknown | None:
    """The CPUs of *placement*; None when it has no device of dra-driver-cpu.

    *root* is where ``sys`` and ``proc`` of the node's machine are, *reserved* the CPUs its driver
    keeps for the system. Raises :class:`Problem` when these are wrong.
    """
    if not any(p.device.driver == DRIVER for a in placement.allocations for p in a.picks):
        return None
    node = placement.node or ""
    devices = _devices(cluster, node)
    if devices and all(_SINGLE.fullmatch(name) for name in devices):
        return _individual(cluster, placement, devices, root)
    groups = {g for d in devices for g in _GROUPS if d.startswith(g)}
    if len(groups) != 1:
        return None  # somebody else's devices under our name
    if root is None and node != os.uname().nodename:
        return Unknown(
            f"dra-driver-cpu chooses the CPUs on node {node}; --machine DIR with the node's /sys "
            "and /proc (or / on the node itself) shows which"
        )
    machine = _machine(root or "/")
    try:
        config = CpuConfig(
            group_by=_GROUPS[groups.pop()],
            reserved_cpus=reserved,
            min_shared_cpus=0,
        )
    except ValueError as error:
        raise Problem(str(error), "check --reserved-cpus") from None
    return _grouped(cluster, placement, devices, cpu_driver(config, machine))


def _devices(cluster: ClusterSnapshot, node: str) -> dict[str, Device]:
    return {
        device.name: device
        for entry in cluster.slices
        if entry.spec.driver == DRIVER and entry.spec.node_name == node
        for device in entry.spec.devices
    }


def _machine(root: str) -> Machine:
    machine = discover(root)
    if not machine.cpus:
        raise Problem(f"no CPU could be found below {root}/sys", "check --machine")
    return machine


def _claims_there(cluster: ClusterSnapshot, placement: SchedulingResult) -> list[ResourceClaim]:
    """Claims with CPUs of the node, oldest first."""
    node = placement.node
    new = {claim_name(a.claim) for a in placement.allocations}
    found = [
        claim
        for claim in cluster.claims
        if claim.status.allocation is not None
        and claim_name(claim) not in new
        and any(
            r.driver == DRIVER and r.pool == node for r in claim.status.allocation.devices.results
        )
    ]
    return sorted(found, key=_age)


def _age(claim: ResourceClaim) -> tuple[str, str]:
    allocation = claim.status.allocation
    when = (allocation.allocation_timestamp if allocation else None) or ""
    return when or claim.metadata.creation_timestamp or "", claim_name(claim)


# -- a device per CPU ---------------------------------------------------------------------------------


def _individual(
    cluster: ClusterSnapshot,
    placement: SchedulingResult,
    devices: dict[str, Device],
    root: str | None,
) -> Chosen:
    machine = _machine(root) if root is not None else machine_of(devices.values())
    numbers = {name: cpu_number(device) for name, device in devices.items()}

    def cpus(names: Iterable[str]) -> CpuSet:
        found = (numbers.get(name) for name in names)
        return CpuSet(number for number in found if number is not None)

    planned = tuple(
        Holder(
            claim_name(a.claim),
            cpus(p.device.device for p in a.picks if p.device.driver == DRIVER),
        )
        for a in placement.allocations
    )
    held = tuple(
        Holder(
            claim_name(claim),
            cpus(
                r.device
                for r in (
                    claim.status.allocation.devices.results if claim.status.allocation else ()
                )
                if r.driver == DRIVER and r.pool == placement.node and not r.admin_access
            ),
        )
        for claim in _claims_there(cluster, placement)
    )
    taken = CpuSet.union(h.cpus for h in (*planned, *held))
    offered = CpuSet(n for n in numbers.values() if n is not None)
    remark = "" if root is not None else "CPUs the driver does not offer are not drawn"
    return Chosen(machine, planned, held, offered - taken, remark)


# -- grouped devices ------------------------------------------------------------------------------------


def _grouped(
    cluster: ClusterSnapshot,
    placement: SchedulingResult,
    devices: dict[str, Device],
    driver: CpuDriver,
) -> Chosen | Unknown:
    wrong = _disagreement(devices, driver)
    if wrong:
        return Unknown(wrong)
    classes = {c.metadata.name: c for c in cluster.classes}
    entries: list[PreparedClaim] = []

    def assign(claim: ResourceClaim) -> CpuSet:
        uid = claim.metadata.uid
        wanted = claim_for(driver.name, claim, uid)
        prepared_devices = driver.assign(wanted, PreparedClaims(entries)).devices
        entry = entry_of(wanted, prepared_devices, boot="")
        entries.append(entry)
        return entry.exclusive("cpu")

    held: list[Holder] = []
    planned: list[Holder] = []
    try:
        held += [
            Holder(claim_name(claim), assign(_identified(claim)))
            for claim in _claims_there(cluster, placement)
        ]
        for allocation in placement.allocations:
            claim = as_allocated(_identified(allocation.claim), allocation, classes)
            if any(p.device.driver == DRIVER for p in allocation.picks):
                planned.append(Holder(claim_name(claim), assign(claim)))
    except RejectedError as error:
        return Unknown(f"dra-driver-cpu would refuse when the pod starts: {error}")
    left = driver.cpus.offered - CpuSet.union(h.cpus for h in (*held, *planned))
    remark = "claims there before are taken to have been placed oldest first" if held else ""
    return Chosen(driver.cpus.machine, tuple(planned), tuple(held), left, remark)


def _identified(claim: ResourceClaim) -> ResourceClaim:
    """The claim with a UID: drivers keep claims apart by it, manifests have none."""
    import msgspec

    if claim.metadata.uid:
        return claim
    meta = msgspec.structs.replace(claim.metadata, uid=claim_name(claim))
    return msgspec.structs.replace(claim, metadata=meta)


def _disagreement(devices: dict[str, Device], driver: CpuDriver) -> str:
    """How what the node publishes differs from what this machine would."""
    ours = {d.name: _amount(d) for pool in driver.offer().pools for d in pool.devices}
    theirs = {name: _amount(device) for name, device in devices.items()}
    if ours == theirs:
        return ""
    name = min(n for n in {*ours, *theirs} if ours.get(n) != theirs.get(n))
    return (
        f"the machine given does not match what the node publishes: {name} has "
        f"{theirs.get(name, 'no')} CPUs there, {ours.get(name, 'no')} here; give the node's own "
        "/sys and /proc with --machine and its driver's --reserved-cpus"
    )


def _amount(device: Device) -> str:
    return str(device.capacity[CAPACITY].value) if CAPACITY in device.capacity else "no"
