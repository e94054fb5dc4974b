"""Metrics of CPUs by state and NUMA node."""

from __future__ import annotations

from collections.abc import Iterable

from drakit.drivers.models.cpus import CPU_NUMBERS, NodeCpus
from drakit.kit.driver import PreparedClaims
from drakit.kit.telemetry.metrics import Gauge


def cpu_gauges(node: NodeCpus, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
    """CPUs of the node, with the Go driver's names, and per NUMA node and state."""
    held = prepared_claims.exclusive(CPU_NUMBERS) & node.machine.online
    shared = node.shared(prepared_claims)
    yield Gauge("allocated_cpus", "CPUs held by claims.", len(held))
    yield Gauge("available_cpus", "CPUs that no claim holds.", len(shared))
    yield Gauge("reserved_cpus", "CPUs reserved for the system.", len(node.reserved))
    states = {
        "allocatable": node.allocatable,
        "exclusive": held,
        "shared": shared,
        "reserved": node.reserved,
        "offline": node.machine.present - node.machine.online,
    }
    for numa in node.machine.numa_nodes:
        for state, cpus in states.items():
            labels = (("numa_node", str(numa.id)), ("state", state))
            yield Gauge("cpus", "CPUs by NUMA node and state.", len(cpus & numa.cpus), labels)
