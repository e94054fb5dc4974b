"""Claims, prepared claims and containers for the CPU driver's tests, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from drakit.core.cpuset import CpuSet
from drakit.core.quantity import Quantity
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.claims.checkpoint import entry_of
from drakit.kit.claims.conflicts import check_conflicts
from drakit.kit.driver import (
    AllocatedDevice,
    Assignment,
    Claim,
    ClaimUse,
    ContainerView,
    OpaqueConfig,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
)
from drakit.machine.model import Machine

NODE = "worker"


def driver(machine: Machine, **settings: Any) -> NodeDriver:
    return cpu_driver(CpuConfig(**settings), machine)


def policy_config(source: str = "FromClaim", /, **fields: Any) -> tuple[OpaqueConfig, ...]:
    return (OpaqueConfig(source, {"apiVersion": "v1alpha1", "cpuConfig": fields}),)


def amount(
    device: str, count: int | str, config: tuple[OpaqueConfig, ...] = (), request: str = "cpus", **more: Any
) -> AllocatedDevice:
    """A share of a grouped device."""
    return AllocatedDevice(
        request=request,
        pool=NODE,
        device=device,
        share_id=more.pop("share_id", "share"),
        consumed_capacity={"dra.cpu/cpu": Quantity(count)},
        config=config,
        **more,
    )


def single(
    cpu: int, config: tuple[OpaqueConfig, ...] = (), request: str = "cpus", **more: Any
) -> AllocatedDevice:
    """A device of one CPU."""
    return AllocatedDevice(request=request, pool=NODE, device=f"cpudev{cpu:03d}", config=config, **more)


def claim(*allocated_devices: AllocatedDevice, uid: str = "uid-1", name: str = "mine") -> Claim:
    return Claim(uid=uid, namespace="default", name=name, devices=allocated_devices)


def entry(of: Claim, given: Assignment) -> PreparedClaim:
    return entry_of(of, given.devices, "boot")


def prepared_claims_of(held: Mapping[str, str]) -> PreparedClaims:
    """Claims that hold CPUs, by UID, whatever device they came from."""
    return PreparedClaims(
        PreparedClaim(
            uid=uid,
            namespace="default",
            name=f"claim-{uid}",
            devices=(
                PreparedDevice(
                    request="cpus",
                    pool=NODE,
                    device="somewhere",
                    share_id=uid,
                    exclusive={"cpu": CpuSet.parse(cpus)},
                ),
            ),
        )
        for uid, cpus in held.items()
    )


def container(*entries: PreparedClaim, request: str | None = None, name: str = "main") -> ContainerView:
    """A container that uses these claims, or only one request of them."""
    return ContainerView(
        id=f"id-{name}",
        name=name,
        pod_uid="pod",
        pod_name="pod",
        namespace="default",
        uses=tuple(ClaimUse(each, each.for_request(request)) for each in entries),
    )


class Node:
    """A driver and a checkpoint in memory, with the kit's own guard between them."""

    def __init__(self, driver: NodeDriver) -> None:
        self.driver = driver
        self.offer = driver.offer().named(NODE)
        self.entries: dict[str, PreparedClaim] = {}

    @property
    def prepared_claims(self) -> PreparedClaims:
        return PreparedClaims(self.entries.values())

    def prepare(self, wanted: Claim) -> PreparedClaim:
        """Assign and write down; raises RejectedError, or Conflict if the driver's answer is wrong."""
        new = entry(wanted, self.driver.assign(wanted, self.prepared_claims))
        check_conflicts(new, self.prepared_claims, self.offer)
        self.entries[new.uid] = new
        return new

    def unprepare(self, uid: str) -> None:
        del self.entries[uid]

    def cpus(self, uid: str) -> CpuSet:
        return self.entries[uid].exclusive("cpu")


def device_names(driver: NodeDriver) -> list[str]:
    return [device.name for pool in driver.offer().pools for device in pool.devices]


def union(sets: Iterable[CpuSet]) -> CpuSet:
    return CpuSet.union(sets)
