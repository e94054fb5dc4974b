"""What a machine has to give, per NUMA node: CPUs, memory, hugepages.

One inventory stands under every layout: layouts only cut it into devices. Memory is anonymous: it is
a number per node, never a list of blocks.

For each node::

    hugepages = pages of the pool - surplus + possible growth - max(reserved, held by others)
    memory    = MemTotal - hugetlb pools - growth - reserved

*Surplus* pages vanish when they are freed, so nobody can be promised them. *Growth* are the pages that
may yet be added on demand: they are offered as hugepages, hence not as memory. *Possible* is what of
them the kernel is believed to have; the rest is not offered as memory either, for it may come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.drivers.cpumem.kinds import CPU, MEMORY, Kind, amount_key, hugepages
from drakit.drivers.cpumem.reservation import Reservation
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.cpus import Names, NodeCpus
from drakit.machine.model import HugepagePool, Machine, NumaNode

PagesOfNodes = Mapping[int, Mapping[int, int]]
"""Pages by NUMA node and page size in bytes."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What one NUMA node offers."""

    node: int
    cpus: CpuSet
    amounts: Mapping[Kind, int]
    """What is offered of each kind; kinds of which there is less than one step are not there."""
    socket: int | None
    """The socket of its CPUs; the lowest if there are several."""
    distances: Mapping[int, int]
    memory_only: bool
    """A node without any CPU online: its memory is remote to everybody (CXL, HBM, a GPU's)."""


@dataclass(frozen=True)
class Inventory:
    """A machine, the settings, and what they leave for claims. Immutable; what is derived is kept."""

    machine: Machine
    config: CpuMemConfig
    held_by_others: PagesOfNodes = field(default_factory=dict)
    """Hugepages that were in use when the driver started, by others than its own claims."""
    growth: PagesOfNodes = field(default_factory=dict)
    """Hugepages that may still be added on demand."""
    possible_growth: PagesOfNodes | None = None
    """Of these the ones that the kernel is believed to give; None for all."""

    @cached_property
    def cpus(self) -> NodeCpus:
        """The CPUs, as the CPU driver sees them."""
        return NodeCpus(self.machine, self.config)

    @cached_property
    def offered_cpus(self) -> CpuSet:
        """CPUs that claims may get: none where another driver has them."""
        return self.cpus.offered if self.config.manage_cpus else EMPTY

    @cached_property
    def reservation(self) -> Reservation:
        """What the settings keep for the system."""
        return Reservation.parse(self.config.reserved_memory)

    @cached_property
    def reserved(self) -> Mapping[int, Mapping[Kind, int]]:
        """What is kept for the system on each node, in bytes."""
        return self.reservation.on(self.machine)

    @cached_property
    def stocks(self) -> tuple[Stock, ...]:
        """What each NUMA node offers, by node number; nodes with nothing to offer included."""
        return tuple(self._stock(node) for node in self.machine.numa_nodes)

    @cached_property
    def stock_of(self) -> Mapping[int, Stock]:
        """The same by node number."""
        return {stock.node: stock for stock in self.stocks}

    @cached_property
    def limits(self) -> Mapping[str, int]:
        """How much all claims together may draw, by the checkpoint's keys. CPUs are guarded by number."""
        return {
            amount_key(stock.node, kind): amount
            for stock in self.stocks
            for kind, amount in stock.amounts.items()
            if kind != CPU
        }

    @cached_property
    def memory_nodes(self) -> CpuSet:
        """Nodes that may stand in ``cpuset.mems``: the kernel rejects those without memory."""
        return CpuSet(node.id for node in self.machine.numa_nodes if node.memory_bytes)

    def withheld(self, node: int, page_size: int) -> int:
        """Pages of a pool that claims never get: reserved, or in others' hands at the start."""
        reserved = self.reserved.get(node, {}).get(hugepages(page_size), 0)
        others = self.held_by_others.get(node, {}).get(page_size, 0)
        return max(-(-reserved // page_size), others)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the operator should know about the configuration on this very machine."""
        cpus = self.cpus.warnings if self.config.manage_cpus else ()
        return (*cpus, *self.reservation.doubts(self.machine))

    # -- one node --------------------------------------------------------------------------------

    @cached_property
    def _names(self) -> Names:
        return Names(self.machine)

    def _stock(self, node: NumaNode) -> Stock:
        cpus = self._cpus_of(node)
        found = {CPU: len(cpus), MEMORY: self._memory(node)}
        found |= {hugepages(pool.size_bytes): self._pages(node, pool) for pool in node.hugepages}
        offered = {kind: kind.whole(amount) for kind, amount in found.items()}
        online = self.machine.node_cpus.get(node.id, EMPTY)
        sockets = {self._names.socket(self.machine.by_id[cpu]) for cpu in online}
        return Stock(
            node=node.id,
            cpus=cpus,
            amounts={kind: amount for kind, amount in offered.items() if amount},
            socket=min(sockets) if sockets else None,
            distances=node.distances,
            memory_only=not online,
        )

    def _cpus_of(self, node: NumaNode) -> CpuSet:
        return self.offered_cpus & self.machine.node_cpus.get(node.id, EMPTY)

    def _memory(self, node: NumaNode) -> int:
        growth = sum(size * pages for size, pages in self.growth.get(node.id, {}).items())
        return node.usable_bytes - growth - self.reserved[node.id].get(MEMORY, 0)

    def _pages(self, node: NumaNode, pool: HugepagePool) -> int:
        """Hugepages of one size that claims may have, in bytes."""
        possible = self.growth if self.possible_growth is None else self.possible_growth
        growth = possible.get(node.id, {}).get(pool.size_bytes, 0)
        lasting = max(0, pool.total - pool.surplus)
        return pool.size_bytes * (lasting + growth - self.withheld(node.id, pool.size_bytes))
