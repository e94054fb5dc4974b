"""The CPUs of a node as the driver sees them: which it may give away, which are whose.

Every online CPU is in exactly one of four states: *reserved* (the system's), *exclusive* (a claim's),
or in the *shared pool* of all containers without claims; the last two together are *allocatable*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.core.objects import Attribute, bool_attribute, int_attribute
from drakit.drivers.cpu.config import CpuSettings
from drakit.drivers.models.cpu_choice import choose
from drakit.drivers.models.cpu_topology import Topology
from drakit.kit.driver import Claim, PreparedClaims, RejectedError
from drakit.machine.model import Cpu, Machine, NumaNode

DRIVER: Final = "dra.cpu"
CDI_KIND: Final = "dra.k8s.io/cpu"
KIND: Final = "cpu"
"""The kind of exclusive things in the checkpoint."""


@dataclass(frozen=True)
class NodeCpus:
    """A machine and what the configuration makes of it. Immutable; what is derived is kept."""

    machine: Machine
    config: CpuSettings

    @cached_property
    def topology(self) -> Topology:
        """The machine, indexed for choosing."""
        return Topology(self.machine)

    @cached_property
    def reserved(self) -> CpuSet:
        """CPUs of the system; those that the machine does not have are not counted."""
        return self.config.reserved & self.machine.present

    @cached_property
    def allocatable(self) -> CpuSet:
        """CPUs that pods may use, with claims or without."""
        return self.machine.online - self.reserved

    @cached_property
    def held_back(self) -> CpuSet:
        """CPUs that are not offered so that the shared pool always has them; usually none.

        Chosen as for a claim, hence first the other threads of reserved cores.
        """
        if not self.config.hold_back_shared or not self.config.min_shared_cpus:
            return EMPTY
        if len(self.allocatable) <= self.config.min_shared_cpus:
            return self.allocatable
        return choose(
            self.topology, self.allocatable, self.allocatable, self.config.min_shared_cpus
        )

    @cached_property
    def offered(self) -> CpuSet:
        """CPUs that the scheduler may give away."""
        return self.allocatable - self.held_back

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the operator should know about the configuration on this very machine."""
        found = []
        unknown = self.config.reserved - self.machine.present
        if unknown:
            found.append(f"reservedCPUs names CPUs {unknown}, which this machine does not have")
        if not self.allocatable:
            found.append(
                f"reservedCPUs {self.config.reserved} leaves no CPU for pods: nothing is offered, "
                f"and containers without claims are refused; reserve fewer"
            )
        elif not self.offered or len(self.allocatable) <= self.config.min_shared_cpus:
            found.append(
                f"minSharedCPUs {self.config.min_shared_cpus} leaves none of the CPUs "
                f"{self.allocatable} for claims; lower it"
            )
        return tuple(found)

    # -- who has what --------------------------------------------------------------------------

    def shared(self, prepared_claims: PreparedClaims) -> CpuSet:
        """The pool of all containers without claims: allocatable and nobody's own."""
        return self.allocatable - prepared_claims.exclusive(KIND)

    def check_pool(self, claim: Claim, wanted: CpuSet, prepared_claims: PreparedClaims) -> None:
        """Raise :class:`RejectedError` if *wanted* would leave the shared pool below its minimum.

        To a container an empty CPU list means *any* CPU: the pool must never run dry.
        """
        pool = self.shared(prepared_claims)
        least = self.config.min_shared_cpus
        if wanted and len(pool - wanted) < least:
            raise RejectedError(
                f"{claim} needs CPUs {wanted}, but of {len(pool)} free CPUs ({pool or 'none'}) "
                f"{least} must stay with the containers without claims (minSharedCPUs); it can be "
                f"prepared when another claim ends. holdBackShared: true keeps the scheduler "
                f"from allocating the last CPUs",
                reason="shared-pool",
            )

    def check_free(self, claim: Claim, wanted: CpuSet, prepared_claims: PreparedClaims) -> None:
        """Raise :class:`RejectedError` naming the holder if any of *wanted* is another claim's."""
        taken = wanted & prepared_claims.exclusive(KIND)
        if taken:
            raise RejectedError(
                f"CPU {taken} for {claim} is held by {prepared_claims.holder(KIND, taken)}; it can be "
                f"prepared when that claim ends",
                reason="conflict",
            )

    def memory_nodes(self, cpus: CpuSet) -> CpuSet:
        """The NUMA nodes whose memory is nearest to *cpus*; empty where nothing is known of it.

        A node without memory cannot stand in ``cpuset.mems``: its nearest node with memory does.
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


def _distance_from(node: NumaNode) -> Callable[[int], tuple[int, int]]:
    return lambda other: (node.distances.get(other, 255), other)


# -- what CPUs are called ----------------------------------------------------------------------


def _published(pairs: Iterable[tuple[int | None, int | None]]) -> dict[int, int]:
    """What number each part is published under: firmware's where those are unique, else our own.

    Firmware numbers cores anew in every socket; a published id must mean one thing on a node.
    """
    raw_of = {rank: raw for rank, raw in pairs if rank is not None}
    raws = [raw for raw in raw_of.values() if raw is not None and raw >= 0]
    if len(set(raws)) == len(raw_of):
        return {rank: raw for rank, raw in raw_of.items() if raw is not None}
    return {rank: rank for rank in raw_of}


class Names:
    """The numbers under which a machine's cores, sockets and caches are published."""

    def __init__(self, machine: Machine) -> None:
        cpus = [cpu for cpu in machine.cpus if cpu.online]
        self._core = _published((cpu.core, cpu.raw_core) for cpu in cpus)
        self._socket = _published((cpu.socket, cpu.raw_socket) for cpu in cpus)
        self._llc = _published((cpu.llc, cpu.raw_llc) for cpu in cpus)

    def core(self, cpu: Cpu) -> int:
        """The core's number, unique on the machine; -1 if not known."""
        return -1 if cpu.core is None else self._core[cpu.core]

    def socket(self, cpu: Cpu) -> int:
        """The socket's number; 0 if not known: then there is but one."""
        return 0 if cpu.socket is None else self._socket[cpu.socket]

    def llc(self, cpu: Cpu) -> int:
        """The last-level cache's number, unique on the machine; -1 if not known."""
        return -1 if cpu.llc is None else self._llc[cpu.llc]


def node_id(cpu: Cpu) -> int:
    """The NUMA node of a CPU; a kernel without NUMA has one node, 0."""
    return 0 if cpu.numa_node is None else cpu.numa_node


def numa_attributes(node: int) -> dict[str, Attribute]:
    """A NUMA node under its standard name and the two older ones."""
    return {
        "resource.kubernetes.io/numaNode": int_attribute(node),
        "dra.cpu/numaNodeID": int_attribute(node),
        "dra.net/numaNode": int_attribute(node),
    }


_MOST_VALUES: Final = 48
"""Values that a device's attributes may have together, counting each item of a list (1.36)."""


def pcie_roots(node: NodeCpus, cpus: CpuSet, others: int) -> dict[str, Attribute]:
    """The PCIe roots near *cpus* as an attribute, if wanted and if there is room beside *others*."""
    if not node.config.expose_pcie_roots:
        return {}
    roots = {root.name for root in node.machine.pci_roots if root.local_cpus & cpus}
    if not roots or len(roots) + others > _MOST_VALUES:
        return {}
    return {"resource.kubernetes.io/pcieRoot": Attribute(strings=tuple(sorted(roots)))}


def smt_attribute(machine: Machine) -> dict[str, Attribute]:
    """Whether cores run several threads."""
    return {"dra.cpu/smtEnabled": bool_attribute(machine.smt_active)}
