"""CPUs of a node: which are reserved, exclusive to claims, or in the shared pool.

Every online CPU is in exactly one of three states: *reserved* for the system, *exclusive* to a claim, or in
the *shared pool* of all containers without claims. The last two together are *allocatable*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.core.objects import Attribute, int_attribute
from drakit.drivers.models.cpu_choice import choose
from drakit.drivers.models.cpu_settings import CpuSettings
from drakit.drivers.models.cpu_topology import CpuTopology
from drakit.kit.driver import Claim, PreparedClaims, RejectedError
from drakit.kit.telemetry.metrics import Gauge
from drakit.machine.model import Cpu, Machine, NumaNode

DRIVER: Final = "dra.cpu"
CDI_KIND: Final = "dra.k8s.io/cpu"
CPU_NUMBERS: Final = "cpu"
"""Kind of exclusive numbers in the checkpoint."""


@dataclass(frozen=True)
class NodeCpus:
    """A machine's CPUs under a configuration. Immutable; derived values are cached."""

    machine: Machine
    config: CpuSettings

    @cached_property
    def topology(self) -> CpuTopology:
        """The machine, indexed for choosing CPUs."""
        return CpuTopology(self.machine)

    @cached_property
    def reserved(self) -> CpuSet:
        """CPUs reserved for the system, of those that the machine has."""
        return self.config.reserved & self.machine.present

    @cached_property
    def allocatable(self) -> CpuSet:
        """CPUs that pods may use, with claims or without."""
        return self.machine.online - self.reserved

    @cached_property
    def held_back(self) -> CpuSet:
        """CPUs that are not offered, so that the shared pool always has them; usually none.

        Chosen as for a claim, hence first the other threads of reserved cores.
        """
        if not self.config.hold_back_shared or not self.config.min_shared_cpus:
            return EMPTY
        if len(self.allocatable) <= self.config.min_shared_cpus:
            return self.allocatable
        return choose(self.topology, self.allocatable, self.allocatable, self.config.min_shared_cpus)

    @cached_property
    def offered(self) -> CpuSet:
        """CPUs that the scheduler may allocate."""
        return self.allocatable - self.held_back

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that do not fit this machine, one sentence each."""
        found = []
        unknown = self.config.reserved - self.machine.present
        if unknown:
            found.append(f"reservedCPUs names CPUs {unknown}, which this machine does not have")
        if not self.allocatable:
            found.append(
                f"reservedCPUs {self.config.reserved} leaves no CPU for pods: nothing is offered, "
                f"and containers without claims are rejected; reserve fewer"
            )
        elif not self.offered or len(self.allocatable) <= self.config.min_shared_cpus:
            found.append(
                f"minSharedCPUs {self.config.min_shared_cpus} leaves none of the CPUs "
                f"{self.allocatable} for claims; lower it"
            )
        return tuple(found)

    def shared(self, prepared_claims: PreparedClaims) -> CpuSet:
        """The pool of all containers without claims: allocatable and exclusive to no claim."""
        return self.allocatable - prepared_claims.exclusive(CPU_NUMBERS)

    def check_pool(self, claim: Claim, wanted: CpuSet, prepared_claims: PreparedClaims) -> None:
        """Raise :class:`RejectedError` if *wanted* would leave the shared pool below its minimum.

        To a container an empty CPU list means *any* CPU: the pool must never become empty.
        """
        pool = self.shared(prepared_claims)
        least = self.config.min_shared_cpus
        if wanted and len(pool - wanted) < least:
            raise RejectedError(
                f"{claim} needs CPUs {wanted}, but of {len(pool)} free CPUs ({pool or 'none'}) "
                f"{least} must stay available to containers without claims (minSharedCPUs); it can "
                f"be prepared when another claim ends. holdBackShared: true keeps the scheduler "
                f"from allocating the last CPUs",
                reason="shared-pool",
            )

    def check_free(self, claim: Claim, wanted: CpuSet, prepared_claims: PreparedClaims) -> None:
        """Raise :class:`RejectedError` with the holder if any of *wanted* is another claim's."""
        taken = wanted & prepared_claims.exclusive(CPU_NUMBERS)
        if taken:
            raise RejectedError(
                f"CPU {taken} for {claim} is held by "
                f"{prepared_claims.holder(CPU_NUMBERS, taken)}; it can be prepared when that claim "
                f"ends",
                reason="conflict",
            )

    def memory_nodes(self, cpus: CpuSet) -> CpuSet:
        """The NUMA nodes whose memory is nearest to *cpus*; empty where no node has memory.

        The kernel rejects a node without memory in ``cpuset.mems``: its nearest node with memory
        takes its place.
        """
        nodes = {node.id: node for node in self.machine.numa_nodes}
        with_memory = [node.id for node in nodes.values() if node.memory_bytes]
        if not with_memory:
            return EMPTY
        return CpuSet(
            near if near in with_memory else min(with_memory, key=_distance_from(nodes[near]))
            for near in self.machine.nodes_of(cpus)
            if near in nodes
        )

    def gauges(self, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
        """CPUs by state, with the Go driver's names, and per NUMA node and state."""
        held = prepared_claims.exclusive(CPU_NUMBERS) & self.machine.online
        shared = self.shared(prepared_claims)
        yield Gauge("allocated_cpus", "CPUs held by claims.", len(held))
        yield Gauge("available_cpus", "CPUs that no claim holds.", len(shared))
        yield Gauge("reserved_cpus", "CPUs reserved for the system.", len(self.reserved))
        states = {
            "allocatable": self.allocatable,
            "exclusive": held,
            "shared": shared,
            "reserved": self.reserved,
            "offline": self.machine.present - self.machine.online,
        }
        for numa in self.machine.numa_nodes:
            for state, cpus in states.items():
                labels = (("numa_node", str(numa.id)), ("state", state))
                yield Gauge("cpus", "CPUs by NUMA node and state.", len(cpus & numa.cpus), labels)


def _distance_from(node: NumaNode) -> Callable[[int], tuple[int, int]]:
    return lambda other: (node.distances.get(other, 255), other)


def _published(pairs: Iterable[tuple[int | None, int | None]]) -> dict[int, int]:
    """Published id of each part, by index: the firmware's where those are unique, else the index.

    Firmware numbers cores from 0 in every socket; a published id must be unique on a node.
    """
    raw_of = {index: raw for index, raw in pairs if index is not None}
    raws = [raw for raw in raw_of.values() if raw is not None and raw >= 0]
    if len(set(raws)) == len(raw_of):
        return {index: raw for index, raw in raw_of.items() if raw is not None}
    return {index: index for index in raw_of}


class TopologyIds:
    """Published ids of a machine's cores, sockets and last-level caches."""

    def __init__(self, machine: Machine) -> None:
        cpus = [cpu for cpu in machine.cpus if cpu.online]
        self._core = _published((cpu.core, cpu.raw_core) for cpu in cpus)
        self._socket = _published((cpu.socket, cpu.raw_socket) for cpu in cpus)
        self._llc = _published((cpu.llc, cpu.raw_llc) for cpu in cpus)

    def core(self, cpu: Cpu) -> int:
        """The core's id, unique on the machine; -1 if not known."""
        return -1 if cpu.core is None else self._core[cpu.core]

    def socket(self, cpu: Cpu) -> int:
        """The socket's id; 0 if not known, as on a machine with one socket."""
        return 0 if cpu.socket is None else self._socket[cpu.socket]

    def llc(self, cpu: Cpu) -> int:
        """The last-level cache's id, unique on the machine; -1 if not known."""
        return -1 if cpu.llc is None else self._llc[cpu.llc]


def node_id(cpu: Cpu) -> int:
    """The NUMA node of a CPU; a kernel without NUMA has one node, 0."""
    return 0 if cpu.numa_node is None else cpu.numa_node


def numa_attributes(node: int, driver: str = DRIVER) -> dict[str, Attribute]:
    """A NUMA node under the standard attribute and the two older ones."""
    return {
        "resource.kubernetes.io/numaNode": int_attribute(node),
        f"{driver}/numaNodeID": int_attribute(node),
        "dra.net/numaNode": int_attribute(node),
    }


_MOST_VALUES: Final = 48
"""Limit of a device's attribute values, counting each item of a list (Kubernetes 1.36)."""


def pcie_roots(node: NodeCpus, cpus: CpuSet, others: int) -> dict[str, Attribute]:
    """The PCIe roots near *cpus* as an attribute, if configured and if *others* leave room for it."""
    if not node.config.expose_pcie_roots:
        return {}
    roots = {root.name for root in node.machine.pci_roots if root.local_cpus & cpus}
    if not roots or len(roots) + others > _MOST_VALUES:
        return {}
    return {"resource.kubernetes.io/pcieRoot": Attribute(strings=tuple(sorted(roots)))}
