"""Protocol of the drivers of a node's own resources: CPUs, and for some also memory and hugepages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from drakit.core.quantity import Quantity
from drakit.drivers.models.cpus import NodeCpus
from drakit.drivers.models.memory_policy import MemoryQosPolicy
from drakit.kit.driver import Driver, PreparedClaim


class NodeAmount(NamedTuple):
    """Amount of one resource that a NUMA node offers to claims."""

    numa_node: int
    resource: str
    """Name among the node's resources: ``memory``, ``hugepages-2Mi``."""
    key: str
    """Key in :attr:`~drakit.kit.driver.PreparedDevice.amounts`: ``numa0/memory``."""
    offered: int
    """Amount that all claims together can get; bytes for memory and hugepages."""


class NodeDriver(Driver, Protocol):
    """A driver of this node's own resources, whichever resources and device model it has.

    Callers ask for what they need and get a neutral value (empty, off) from a driver that does not
    have the resource: nobody has to know which driver it is.
    """

    @property
    def cpus(self) -> NodeCpus:
        """The node's CPUs: machine, reservation, shared pool."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that do not fit this machine, one sentence each."""
        ...

    @property
    def memory_policy(self) -> MemoryQosPolicy:
        """Memory protection and hugepage limits that the driver enforces."""
        ...

    @property
    def node_amounts(self) -> tuple[NodeAmount, ...]:
        """Memory and hugepages offered, by NUMA node; empty for a driver of CPUs alone."""
        ...

    def consumption(self, claim: PreparedClaim) -> Mapping[str, Mapping[str, Quantity]]:
        """Capacity of each device that *claim* uses, wherever the claim was prepared.

        By device and capacity key. Empty where devices have no consumable capacity.
        """
        ...
