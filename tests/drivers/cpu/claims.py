"""Claims, holdings and containers for the CPU driver's tests, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from drakit.core.cpuset import CpuSet
from drakit.core.quantity import Quantity
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.model import CpuDriver, cpu_driver
from drakit.kit.driver import (
    Allotment,
    Assignment,
    Claim,
    Config,
    Container,
    Entry,
    Grant,
    Holdings,
    Use,
)
from drakit.kit.ledger import check_conflicts, entry_of
from drakit.machine.model import Machine

NODE = "worker"


def driver(machine: Machine, **settings: Any) -> CpuDriver:
    return cpu_driver(CpuConfig(**settings), machine)


def wishes(source: str = "FromClaim", /, **fields: Any) -> tuple[Config, ...]:
    return (Config(source, {"apiVersion": "v1alpha1", "cpuConfig": fields}),)


def amount(
    device: str,
    count: int | str,
    config: tuple[Config, ...] = (),
    request: str = "cpus",
    **more: Any,
) -> Allotment:
    """A share of a grouped device."""
    return Allotment(
        request=request,
        pool=NODE,
        device=device,
        share_id=more.pop("share_id", "share"),
        consumed_capacity={"dra.cpu/cpu": Quantity(count)},
        config=config,
        **more,
    )


def single(
    cpu: int, config: tuple[Config, ...] = (), request: str = "cpus", **more: Any
) -> Allotment:
    """A device of one CPU."""
    return Allotment(request=request, pool=NODE, device=f"cpudev{cpu:03d}", config=config, **more)


def claim(*allotments: Allotment, uid: str = "uid-1", name: str = "mine") -> Claim:
    return Claim(uid=uid, namespace="default", name=name, allotments=allotments)


def entry(of: Claim, given: Assignment) -> Entry:
    return entry_of(of, given.grants, "boot")


def holdings_of(held: Mapping[str, str]) -> Holdings:
    """Claims that hold CPUs, by UID, whatever device they came from."""
    return Holdings(
        Entry(
            uid=uid,
            namespace="default",
            name=f"claim-{uid}",
            grants=(
                Grant(
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


def container(*entries: Entry, request: str | None = None, name: str = "main") -> Container:
    """A container that uses these claims, or only one request of them."""
    return Container(
        id=f"id-{name}",
        name=name,
        pod_uid="pod",
        pod_name="pod",
        namespace="default",
        uses=tuple(Use(each, each.for_request(request)) for each in entries),
    )


class Node:
    """A driver and a ledger in memory, with the kit's own guard between them."""

    def __init__(self, driver: CpuDriver) -> None:
        self.driver = driver
        self.offer = driver.offer().named(NODE)
        self.entries: dict[str, Entry] = {}

    @property
    def holdings(self) -> Holdings:
        return Holdings(self.entries.values())

    def prepare(self, wanted: Claim) -> Entry:
        """Assign and write down; raises Refused, or Conflict if the driver's answer is wrong."""
        new = entry(wanted, self.driver.assign(wanted, self.holdings))
        check_conflicts(new, self.holdings, self.offer)
        self.entries[new.uid] = new
        return new

    def unprepare(self, uid: str) -> None:
        del self.entries[uid]

    def cpus(self, uid: str) -> CpuSet:
        return self.entries[uid].exclusive("cpu")


def device_names(driver: CpuDriver) -> list[str]:
    return [device.name for pool in driver.offer().pools for device in pool.devices]


def union(sets: Iterable[CpuSet]) -> CpuSet:
    return CpuSet.union(sets)
