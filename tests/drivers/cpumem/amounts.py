"""Machines, claims and containers for the CPU and memory driver's tests, in few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drakit.core.cpuset import CpuSet
from drakit.core.quantity import Quantity
from drakit.drivers.cpumem.driver import CpuMemDriver, cpumem_driver
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.claims.checkpoint import entry_of
from drakit.kit.claims.conflicts import check_conflicts
from drakit.kit.driver import (
    AllocatedDevice,
    Claim,
    ClaimUse,
    ContainerView,
    DesiredResources,
    PreparedClaim,
    PreparedClaims,
)
from drakit.machine.model import HugepagePool, Machine
from drakit.testing.synthetic import build

NODE = "worker"
MI, GI = 1 << 20, 1 << 30


def pool(size: str, total: int, free: int | None = None, surplus: int = 0) -> HugepagePool:
    return HugepagePool(Quantity(size).ceil(), total, total if free is None else free, surplus)


SERVER = build(
    sockets=2,
    nodes=2,
    cores=4,
    threads=2,
    memory_per_node=16 * GI,
    hugepages=[pool("2Mi", 512), pool("1Gi", 2)],
    memory_only_nodes=1,
)
"""Four nodes of 8 CPUs, 13 GiB, 1 GiB in small and 2 GiB in large pages; node 4 has no CPUs."""


def driver(machine: Machine = SERVER, **settings: Any) -> CpuMemDriver:
    """The driver, by default without anything kept for the system."""
    return cpumem_driver(CpuMemConfig(**{"reserved_memory": "", **settings}), machine)


def share(device: str, request: str = "r", /, share_id: str = "", **amounts: int | str) -> AllocatedDevice:
    """A share of a device; amounts by the last part of their keys."""
    consumed = {f"dra.cpumem/{key}": Quantity(value) for key, value in amounts.items()}
    return AllocatedDevice(
        request=request,
        pool=NODE,
        device=device,
        share_id=share_id or f"share-{device}-{request}",
        consumed_capacity=consumed,
    )


def claim(*allocated_devices: AllocatedDevice, uid: str = "uid-1") -> Claim:
    return Claim(uid=uid, namespace="default", name=f"claim-{uid}", devices=allocated_devices)


def container(
    *entries: PreparedClaim,
    request: str | None = None,
    pod: str = "pod",
    owner: str = "pod",
    classic: Mapping[str, int] | None = None,
    **more: Any,
) -> ContainerView:
    """A container of *pod* that uses these claims of pod *owner*, or only one request of them."""
    return ContainerView(
        id="container-id",
        name="main",
        pod_uid=pod,
        pod_name=pod,
        namespace="default",
        uses=tuple(ClaimUse(each, each.for_request(request), owner, f"default/{owner}") for each in entries),
        hugepage_limits=classic or {},
        **more,
    )


class Node:
    """A driver and a checkpoint in memory, with the kit's own guard between them."""

    def __init__(self, one: CpuMemDriver) -> None:
        self.driver = one
        self.offer = one.offer().named(NODE)
        self.entries: dict[str, PreparedClaim] = {}

    @property
    def prepared_claims(self) -> PreparedClaims:
        return PreparedClaims(self.entries.values())

    def prepare(self, *allocated_devices: AllocatedDevice, uid: str = "uid-1") -> PreparedClaim:
        """Assign and write down; raises RejectedError, or Conflict if the driver's answer is wrong."""
        wanted = claim(*allocated_devices, uid=uid)
        new = entry_of(wanted, self.driver.assign(wanted, self.prepared_claims).devices, "boot")
        check_conflicts(new, self.prepared_claims, self.offer)
        self.entries[uid] = new
        return new

    def desired(self, which: ContainerView | None = None) -> DesiredResources:
        return self.driver.enforce(which or container(), self.prepared_claims)


def capacities(one: CpuMemDriver) -> dict[str, dict[str, str]]:
    """What is published: by device, the amounts by the last part of their keys."""
    return {
        device.name: {
            key.removeprefix("dra.cpumem/"): str(capacity.value) for key, capacity in device.capacity.items()
        }
        for device in one.offer().pools[0].devices
    }


def cpuset(text: str) -> CpuSet:
    return CpuSet.parse(text)
