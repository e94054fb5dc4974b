"""CPUs by state, for ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable

from drakit.drivers.cpu.driver import CpuDriver
from drakit.drivers.models.cpus import KIND, NodeCpus
from drakit.kit.driver import Driver, PreparedClaims
from drakit.kit.telemetry.metrics import Gauge


def gauges(driver: Driver, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
    """CPUs in all, under the Go driver's names, and per NUMA node and state."""
    if isinstance(driver, CpuDriver):
        yield from cpu_gauges(driver.cpus, prepared_claims)


def cpu_gauges(node: NodeCpus, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
    """The CPUs of a node, whichever driver hands them out."""
    held = prepared_claims.exclusive(KIND) & node.machine.online
    pool = node.shared(prepared_claims)
    yield Gauge("allocated_cpus", "CPUs held by claims.", len(held))
    yield Gauge("available_cpus", "CPUs no claim holds.", len(pool))
    yield Gauge("reserved_cpus", "CPUs reserved for the system.", len(node.reserved))
    states = {
        "allocatable": node.allocatable,
        "exclusive": held,
        "shared": pool,
        "reserved": node.reserved,
        "offline": node.machine.present - node.machine.online,
    }
    for numa in node.machine.numa_nodes:
        for state, cpus in states.items():
            labels = (("numa_node", str(numa.id)), ("state", state))
            yield Gauge("cpus", "CPUs by NUMA node and state.", len(cpus & numa.cpus), labels)
