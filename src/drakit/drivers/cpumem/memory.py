"""Memory and hugepages as a grouped resource: amounts per NUMA node.

For each node::

    hugepages = pages of the pool - surplus + possible growth - max(reserved, held by others)
    memory    = MemTotal - hugetlb pools - growth - reserved

*Surplus* pages disappear when they are freed and cannot be promised. *Growth* are pages that can be added
on demand: they are offered as hugepages, hence not as memory. Only the *possible* part, which the kernel
is expected to provide, is offered; the rest is not offered as memory either, since it may become possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Attribute, bool_attribute, int_attribute, string_attribute
from drakit.drivers.cpumem.container_memory import container_memory, desired_memory, near_data
from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.drivers.cpumem.kinds import DRIVER, MEMORY, hugepages
from drakit.drivers.cpumem.reservation import Reservation
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.amounts import AmountResource, NodeAmounts
from drakit.drivers.models.cpus import NodeCpus
from drakit.drivers.models.groups import ResourceGroup
from drakit.drivers.models.memory_policy import MemoryQosPolicy
from drakit.drivers.models.resource import AllocatedAmounts, CapacityKind, GroupDevice, ResourceShare, node_of
from drakit.kit.driver import ContainerView, DesiredResources, PreparedClaims, RejectedError
from drakit.machine.model import HugepagePool, NumaNode

PAGES_READY: Final = f"{DRIVER}/HugepagesReady"
PAGES_UNAVAILABLE: Final = f"{DRIVER}/HugepagesUnavailable"
_MOST_DISTANCES: Final = 8
"""With more nodes, distances are left out: a device has 32 attributes and capacities at most."""

PagesByNode = Mapping[int, Mapping[int, int]]
"""Pages by NUMA node and page size in bytes."""


@dataclass(frozen=True)
class MemoryResource(AmountResource):
    """Memory and hugepages of a node under a configuration. Immutable; derived values are cached."""

    cpus: NodeCpus
    config: CpuMemConfig
    policy: MemoryQosPolicy = MemoryQosPolicy(mode="off")
    held_by_others: PagesByNode = field(default_factory=dict)
    """Hugepages in use when the driver started, except by its own claims."""
    growth: PagesByNode = field(default_factory=dict)
    """Hugepages that can still be added on demand."""
    possible_growth: PagesByNode | None = None
    """The part of the growth that the kernel is expected to provide; None for all of it."""

    @cached_property
    def kinds(self) -> tuple[CapacityKind, ...]:
        """Memory, then hugepages by size."""
        sizes = {p.size_bytes for node in self.cpus.machine.numa_nodes for p in node.hugepages}
        return (MEMORY, *map(hugepages, sorted(sizes)))

    @cached_property
    def reserved(self) -> Mapping[int, Mapping[CapacityKind, int]]:
        """Bytes reserved for the system on each NUMA node."""
        return self._reservation.on(self.cpus.machine)

    @cached_property
    def offered(self) -> Mapping[int, Mapping[CapacityKind, int]]:
        """What claims can get of each NUMA node."""
        return {node.id: self._offered(node) for node in self.cpus.machine.numa_nodes}

    def _offered(self, node: NumaNode) -> dict[CapacityKind, int]:
        growth = sum(size * pages for size, pages in self.growth.get(node.id, {}).items())
        memory = node.usable_bytes - growth - self.reserved[node.id].get(MEMORY, 0)
        found = {MEMORY: memory}
        found |= {hugepages(pool.size_bytes): self._pages(node, pool) for pool in node.hugepages}
        rounded = {kind: kind.rounded_down(amount) for kind, amount in found.items()}
        return {kind: amount for kind, amount in rounded.items() if amount}

    def _pages(self, node: NumaNode, pool: HugepagePool) -> int:
        """Hugepages of one size that claims can get, in bytes."""
        possible = self.growth if self.possible_growth is None else self.possible_growth
        growth = possible.get(node.id, {}).get(pool.size_bytes, 0)
        permanent = max(0, pool.total - pool.surplus)
        return pool.size_bytes * (permanent + growth - self.withheld(node.id, pool.size_bytes))

    def withheld(self, node: int, page_size: int) -> int:
        """Pages of a pool that claims never get: reserved, or in use by others at the start."""
        reserved = self.reserved.get(node, {}).get(hugepages(page_size), 0)
        others = self.held_by_others.get(node, {}).get(page_size, 0)
        return max(-(-reserved // page_size), others)

    @property
    def withheld_pages(self) -> dict[PoolKey, int]:
        """The same for all pools."""
        return {
            PoolKey(node.id, pool.size_bytes): self.withheld(node.id, pool.size_bytes)
            for node in self.cpus.machine.numa_nodes
            for pool in node.hugepages
        }

    @cached_property
    def _reservation(self) -> Reservation:
        return Reservation.parse(self.config.reserved_memory)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reservations that do not fit this machine."""
        return tuple(self._reservation.warnings(self.cpus.machine))

    def attributes(self, device: GroupDevice) -> Mapping[str, Attribute]:
        """What the device holds, where hugepages come from, and the distances to other nodes."""
        machine, group = self.cpus.machine, device.group
        accounting = machine.cgroups.memory_hugetlb_accounting
        distances = {node.id: node.distances for node in machine.numa_nodes}
        near = {} if group.numa_node is None else distances[group.numa_node]
        return {
            f"{DRIVER}/kind": string_attribute(device.label),
            f"{DRIVER}/memoryOnly": bool_attribute(group.memory_only),
            f"{DRIVER}/hugetlbAccounting": string_attribute("memory" if accounting else "separate"),
            f"{DRIVER}/provisioning": string_attribute(self._provisioning(group)),
        } | {
            f"{DRIVER}/distance{other}": int_attribute(distance)
            for other, distance in sorted(near.items())
            if 1 < len(near) <= _MOST_DISTANCES
        }

    def _provisioning(self, group: ResourceGroup) -> str:
        """Where the group's hugepages come from."""
        settings = self.config.hugepages
        if any(settings.growth.of(node) for node in group.nodes):
            return "onDemand"
        if any(settings.pools.of(node) for node in group.nodes):
            return "static"
        return "none"

    def binding_conditions(self, device: GroupDevice) -> tuple[str, str] | None:
        """Conditions for devices that can grow, by the settings: devices must not change with claims."""
        growing = {
            hugepages(size)
            for node in device.group.nodes
            for size, pages in self.config.hugepages.growth.of(node).items()
            if pages
        }
        waits = self.config.hugepage_binding and not growing.isdisjoint(device.amounts)
        return (PAGES_READY, PAGES_UNAVAILABLE) if waits else None

    def share(self, request: AllocatedAmounts, cpus: CpuSet, chosen: NodeAmounts) -> ResourceShare:
        """Also the nodes near its CPUs, whose unclaimed memory it may use; for adminAccess all nodes."""
        if request.allocated.admin_access:
            near = CpuSet(request.device.group.nodes) & self._memory_nodes
        else:
            near = self.cpus.memory_nodes(cpus)
        share = super().share(request, cpus, chosen)
        return share | ResourceShare(attributes=_nodes_of(share), data=near_data(near))

    @cached_property
    def _memory_nodes(self) -> CpuSet:
        """Nodes with memory: the kernel rejects others in ``cpuset.mems``."""
        return CpuSet(node.id for node in self.cpus.machine.numa_nodes if node.memory_bytes)

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        """NUMA nodes, limits and protection. Raises :class:`RejectedError` if the memory is gone."""
        wanted = container_memory(container.uses)
        desired = desired_memory(self.cpus.machine, self.policy, container, wanted)
        if not self.config.bind_memory or not wanted.nodes:
            return desired
        nodes = wanted.nodes & self._memory_nodes
        if not nodes:
            raise RejectedError(
                f"the memory of NUMA nodes {wanted.nodes}, which {container} has claimed, is "
                f"offline; bring it online, or delete the pod so that it gets other memory",
                reason="offline",
            )
        return replace(desired, mems=nodes)


def _nodes_of(share: ResourceShare) -> dict[str, Attribute]:
    nodes = CpuSet(map(node_of, share.amounts))
    return {f"{DRIVER}/memoryNodes": string_attribute(str(nodes))} if nodes else {}
