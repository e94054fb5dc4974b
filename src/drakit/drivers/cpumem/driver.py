"""The CPU and memory driver: one inventory, a grouping and a layout, chosen once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final

from drakit.core.quantity import Quantity
from drakit.drivers.cpumem.assign import assign
from drakit.drivers.cpumem.combined import combined
from drakit.drivers.cpumem.enforce import container_resources
from drakit.drivers.cpumem.inventory import Inventory, PagesOfNodes
from drakit.drivers.cpumem.kinds import CDI_KIND, CPU, DRIVER, amount_key
from drakit.drivers.cpumem.offer import device
from drakit.drivers.cpumem.places import Layout, Place
from drakit.drivers.cpumem.settings import CpuMemConfig, LayoutName
from drakit.drivers.cpumem.split import split
from drakit.drivers.cpumem.zones import GROUPINGS, Grouping
from drakit.drivers.models.cpus import NodeCpus
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy
from drakit.drivers.models.node_driver import NodeAmount
from drakit.kit.driver import (
    Assignment,
    Claim,
    ContainerView,
    DesiredResources,
    Offer,
    PoolOffer,
    PreparedClaim,
    PreparedClaims,
)
from drakit.machine.model import Machine

LAYOUTS: Final[Mapping[LayoutName, Layout]] = {"combined": combined, "split": split}


@dataclass(frozen=True)
class CpuMem:
    """Hands out CPUs, memory and hugepages by NUMA node. Immutable; what is derived is kept."""

    inventory: Inventory
    grouping: Grouping
    layout: Layout
    memory_policy: MemoryQosPolicy = MemoryQosPolicy(mode="off")
    name: str = field(default=DRIVER, init=False)
    cdi_kind: str = field(default=CDI_KIND, init=False)
    cpuset_kinds: ClassVar[frozenset[str]] = frozenset({"cpu"})

    @property
    def cpus(self) -> NodeCpus:
        """The node's CPUs."""
        return self.inventory.cpus

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that do not fit this machine."""
        return self.inventory.warnings

    @property
    def node_amounts(self) -> tuple[NodeAmount, ...]:
        """Memory and hugepages offered, by NUMA node."""
        return tuple(
            NodeAmount(stock.node, kind.node_resource, amount_key(stock.node, kind), amount)
            for stock in self.inventory.stocks
            for kind, amount in stock.amounts.items()
            if kind != CPU
        )

    def consumption(self, claim: PreparedClaim) -> dict[str, dict[str, Quantity]]:
        """How much of each capacity of each device *claim* holds."""
        cpus, held = claim.exclusive(CPU.name), PreparedClaims([claim])
        return {
            place.device: {
                kind.key: kind.quantity(
                    len(place.zone.cpus & cpus)
                    if kind == CPU
                    else sum(held.amount(amount_key(s.node, kind)) for s in place.zone.stocks)
                )
                for kind in place.amounts
            }
            for place in self.places
        }

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The devices and what stands behind each."""
        return self.layout(self.grouping(self.inventory))

    def offer(self) -> Offer:
        """One multi-allocatable device per place, with the limits of every NUMA node."""
        devices = tuple(device(self.inventory, place) for place in self.places)
        return Offer(pools=(PoolOffer(devices),), limits=self.inventory.limits)

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        """CPUs as the CPU driver chooses them, memory and hugepages near them."""
        return assign(self.inventory, self.places, claim, prepared_claims)

    def enforce(
        self, container: ContainerView, prepared_claims: PreparedClaims
    ) -> DesiredResources:
        """What was claimed for who has claims; the shared CPUs for all others."""
        return container_resources(self.inventory, self.memory_policy, container, prepared_claims)


def cpumem_driver(
    config: CpuMemConfig,
    machine: Machine,
    *,
    held_by_others: PagesOfNodes | None = None,
    growth: PagesOfNodes | None = None,
    possible_growth: PagesOfNodes | None = None,
    policy: MemoryQosPolicy | None = None,
) -> CpuMem:
    """The driver for a machine. Pure: never fails, ``driver.warnings`` tells doubts.

    *held_by_others* are hugepages in use at start that are not of our claims, *growth* those that may
    be added on demand, *possible_growth* those of them that the kernel seems to have (all, if not
    given); by NUMA node and page size in bytes. *policy* is what the settings say
    about memory protection and limits, less what the kubelet does itself.
    """
    inventory = Inventory(machine, config, held_by_others or {}, growth or {}, possible_growth)
    return CpuMem(
        inventory,
        GROUPINGS[config.group_by],
        LAYOUTS[config.layout],
        policy or configured_policy(config, machine),
    )


def configured_policy(config: CpuMemConfig, machine: Machine) -> MemoryQosPolicy:
    """Memory protection and limits by the settings alone.

    Where claims are counted as the node's own (KEP-5517) the kubelet sets the hugepage limits.
    """
    mapped = config.publish_node_allocatable_resource_mapping
    return MemoryQosPolicy(
        mode=config.memory_qos,
        throttling_factor=config.memory_throttling_factor or None,
        page_limits=config.hugepage_limits,
        hugetlb_charged=machine.cgroups.memory_hugetlb_accounting,
        kubelets=frozenset({Knob.HUGEPAGES}) if mapped else frozenset(),
    )
