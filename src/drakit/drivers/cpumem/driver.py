"""CPU and memory driver of a configuration: the grouped model over CPUs, memory and hugepages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drakit.core.cpuset import EMPTY
from drakit.drivers.cpumem.kinds import CDI_KIND, CPU, DRIVER
from drakit.drivers.cpumem.layouts import LAYOUTS
from drakit.drivers.cpumem.memory import MemoryResource, PagesByNode
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.cpu_resource import CpuResource
from drakit.drivers.models.cpus import CPU_NUMBERS, NodeCpus
from drakit.drivers.models.grouped import GroupedDriver
from drakit.drivers.models.groups import node_localities
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy
from drakit.kit.driver import PreparedClaims
from drakit.kit.telemetry.metrics import Gauge
from drakit.machine.model import Machine


@dataclass(frozen=True, kw_only=True)
class CpuMemDriver(GroupedDriver):
    """The grouped driver with a memory resource."""

    memory: MemoryResource

    @property
    def memory_policy(self) -> MemoryQosPolicy:
        """Memory protection and hugepage limits that the driver enforces."""
        return self.memory.policy

    def gauges(self, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
        """Capacity and claims by NUMA node and kind, then the metrics of the resources."""
        held = prepared_claims.exclusive(CPU_NUMBERS)
        rows = [
            (each.numa_node, CPU.name, len(each.cpus), len(held & each.cpus))
            for each in self.localities
            if each.cpus
        ] + [
            (each.numa_node, each.kind, each.offered, prepared_claims.amount(each.key))
            for each in self.node_amounts
        ]
        for node, kind, offered, claimed in sorted(rows, key=lambda row: row[0]):
            labels = (("numa_node", str(node)), ("kind", kind))
            yield Gauge("capacity", "CPUs, or bytes of a kind, offered to claims.", offered, labels)
            yield Gauge("claimed", "CPUs, or bytes of a kind, held by claims.", claimed, labels)
        yield from super().gauges(prepared_claims)


def cpumem_driver(
    config: CpuMemConfig,
    machine: Machine,
    *,
    held_by_others: PagesByNode | None = None,
    growth: PagesByNode | None = None,
    possible_growth: PagesByNode | None = None,
    policy: MemoryQosPolicy | None = None,
) -> CpuMemDriver:
    """The driver for a machine. Pure and total: problems are in ``driver.warnings``.

    *held_by_others* are hugepages in use at start except by our claims, *growth* those that can be
    added on demand, *possible_growth* the part of them that the kernel is expected to provide (default:
    all); by NUMA node and page size in bytes. *policy* is the configured Memory QoS policy without
    what the kubelet does itself (default: as configured).
    """
    cpus = NodeCpus(machine, config)
    policy = policy or configured_policy(config, machine)
    memory = MemoryResource(cpus, config, policy, held_by_others or {}, growth or {}, possible_growth)
    # Memory is bound by what was claimed of it. CPUs of another driver are not offered.
    resources = (CpuResource(cpus, CPU, config.manage_cpus, binds_memory=False), memory)
    localities = node_localities(cpus, cpus.offered if config.manage_cpus else EMPTY)
    layout = LAYOUTS[config.layout]
    return CpuMemDriver(DRIVER, CDI_KIND, cpus, resources, localities, config.group_by, layout, memory=memory)


def configured_policy(config: CpuMemConfig, machine: Machine) -> MemoryQosPolicy:
    """The Memory QoS policy of the settings alone; with mappings (KEP-5517) the kubelet limits hugepages."""
    mapped = config.publish_node_allocatable_resource_mapping
    return MemoryQosPolicy(
        mode=config.memory_qos,
        throttling_factor=config.memory_throttling_factor or None,
        page_limits=config.hugepage_limits,
        hugetlb_charged=machine.cgroups.memory_hugetlb_accounting,
        kubelets=frozenset({Knob.HUGEPAGES}) if mapped else frozenset(),
    )
