"""Capacity and claims by NUMA node and kind, for ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable

from drakit.drivers.cpu.gauges import cpu_gauges
from drakit.drivers.cpumem.driver import CpuMem
from drakit.drivers.cpumem.kinds import CPU, amount_key
from drakit.drivers.models.cpus import KIND as CPU_NUMBERS
from drakit.kit.driver import Driver, PreparedClaims
from drakit.kit.telemetry.metrics import Gauge


def gauges(driver: Driver, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
    """What is offered and what is claimed of each kind on each node, and CPUs by state."""
    if not isinstance(driver, CpuMem):
        return
    inventory = driver.inventory
    held = prepared_claims.exclusive(CPU_NUMBERS)
    for stock in inventory.stocks:
        for kind, amount in stock.amounts.items():
            labels = (("numa_node", str(stock.node)), ("kind", kind.name))
            claimed = (
                len(held & stock.cpus)
                if kind == CPU
                else prepared_claims.amount(amount_key(stock.node, kind))
            )
            yield Gauge("capacity", "CPUs, or bytes of a kind, offered to claims.", amount, labels)
            yield Gauge("claimed", "CPUs, or bytes of a kind, that claims hold.", claimed, labels)
    if inventory.config.manage_cpus:
        yield from cpu_gauges(inventory.cpus, prepared_claims)
