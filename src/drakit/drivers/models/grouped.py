"""One device per NUMA node, socket or machine: claims take amounts, the driver picks the CPUs.

Each device can be allocated many times; the scheduler keeps account of its capacity ``dra.cpu/cpu``
and, by the capacity's request policy, gives whole CPUs only and one where nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

from drakit.core.cpuset import CpuSet
from drakit.core.objects import (
    Attribute,
    Capacity,
    CapacityRange,
    Device,
    RequestPolicy,
    int_attribute,
    string_attribute,
)
from drakit.core.quantity import Quantity
from drakit.drivers.models.cpu_enforcement import desired, environment
from drakit.drivers.models.cpu_policy import wish
from drakit.drivers.models.cpu_share import Draw, by_request, share_out
from drakit.drivers.models.cpus import (
    CDI_KIND,
    DRIVER,
    KIND,
    Names,
    NodeCpus,
    node_id,
    numa_attributes,
    pcie_roots,
    smt_attribute,
)
from drakit.drivers.models.memory_policy import NO_MEMORY_QOS, MemoryQosPolicy
from drakit.drivers.models.node_driver import NodeAmount
from drakit.kit.driver import (
    AllocatedDevice,
    Assignment,
    Claim,
    ContainerView,
    DesiredResources,
    Offer,
    PoolOffer,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
)
from drakit.machine.model import Cpu

CAPACITY: Final = "dra.cpu/cpu"


@dataclass(frozen=True, slots=True)
class Group:
    """The CPUs behind one device, and where they are as far as that is one place."""

    device: str
    cpus: CpuSet
    """Those that the device offers: online, not reserved, not held back."""
    numa_node: int | None
    socket: int | None


def by_numa_node(node: NodeCpus) -> tuple[Group, ...]:
    """One group per NUMA node that has CPUs to give.

    A node that spans sockets is published under its lowest socket: selectors rely on the attribute.
    """
    names = Names(node.machine)
    return tuple(
        Group(f"cpudevnuma{numa:03d}", cpus, numa, min(_sockets(node, names, cpus)))
        for numa, cpus in _grouped(node, node_id)
    )


def by_socket(node: NodeCpus) -> tuple[Group, ...]:
    """One group per socket that has CPUs to give."""
    names = Names(node.machine)
    return tuple(
        Group(f"cpudevsocket{socket:03d}", cpus, _only(_nodes(node, cpus)), socket)
        for socket, cpus in _grouped(node, names.socket)
    )


def by_machine(node: NodeCpus) -> tuple[Group, ...]:
    """All CPUs there are to give."""
    names = Names(node.machine)
    return tuple(
        Group("cpudevmachine", cpus, _only(_nodes(node, cpus)), _only(_sockets(node, names, cpus)))
        for _, cpus in _grouped(node, lambda cpu: 0)
    )


def _grouped(node: NodeCpus, key: Callable[[Cpu], int]) -> list[tuple[int, CpuSet]]:
    members: dict[int, list[int]] = {}
    for cpu in node.machine.cpus:
        if cpu.id in node.offered:
            members.setdefault(key(cpu), []).append(cpu.id)
    return [(number, CpuSet(cpus)) for number, cpus in sorted(members.items())]


def _nodes(node: NodeCpus, cpus: CpuSet) -> set[int]:
    return {node_id(node.machine.by_id[cpu]) for cpu in cpus}


def _sockets(node: NodeCpus, names: Names, cpus: CpuSet) -> set[int]:
    return {names.socket(node.machine.by_id[cpu]) for cpu in cpus}


def _only(numbers: set[int]) -> int | None:
    """The number all CPUs agree on: without one, there is nothing to be matched by."""
    return min(numbers) if len(numbers) == 1 else None


Grouping = Callable[[NodeCpus], tuple[Group, ...]]


@dataclass(frozen=True)
class GroupedCpus:
    """The CPU driver whose devices are groups of CPUs."""

    cpus: NodeCpus
    grouping: Grouping = by_numa_node
    memory_policy: MemoryQosPolicy = NO_MEMORY_QOS
    node_amounts: tuple[NodeAmount, ...] = ()
    name: str = field(default=DRIVER, init=False)
    cdi_kind: str = field(default=CDI_KIND, init=False)
    cpuset_kinds: ClassVar[frozenset[str]] = frozenset({"cpu"})

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The devices and their CPUs."""
        return self.grouping(self.cpus)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that do not fit this machine."""
        return self.cpus.warnings

    def consumption(self, claim: PreparedClaim) -> dict[str, dict[str, Quantity]]:
        """How many CPUs of each device *claim* holds."""
        held = claim.exclusive(KIND)
        return {g.device: {CAPACITY: Quantity(len(g.cpus & held))} for g in self.groups}

    # -- offer -----------------------------------------------------------------------------------

    def offer(self) -> Offer:
        """One multi-allocatable device per group; groups without CPUs are left out."""
        return Offer(pools=(PoolOffer(tuple(map(self._device, self.groups))),))

    def _device(self, group: Group) -> Device:
        attributes = self._attributes(group)
        attributes |= pcie_roots(self.cpus, group.cpus, len(attributes))
        return Device(
            name=group.device,
            attributes=attributes,
            capacity={CAPACITY: _whole_cpus(len(group.cpus))},
            allow_multiple_allocations=True,
            node_allocatable_resources=self._mapping(),
        )

    def _attributes(self, group: Group) -> dict[str, Attribute]:
        machine = self.cpus.machine
        attributes = {
            "dra.cpu/numCPUs": int_attribute(len(group.cpus)),
            "dra.cpu/numIsolatedCPUs": int_attribute(len(group.cpus & machine.isolated)),
            **smt_attribute(machine),
        }
        if group.numa_node is not None:
            attributes |= numa_attributes(group.numa_node)
        if group.socket is not None:
            attributes["dra.cpu/socketID"] = int_attribute(group.socket)
        return attributes

    def _mapping(self) -> dict[str, Any]:
        if not self.cpus.config.publish_node_allocatable_resource_mapping:
            return {}
        return {"cpu": {"mapping": {"capacityKey": CAPACITY, "capacityMultiplier": "1"}}}

    # -- assign ----------------------------------------------------------------------------------

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        """The best CPUs of each device for the amounts that the scheduler gave."""
        draws = [self._draw(claim, allocated) for allocated in claim.devices]
        chosen = share_out(self.cpus, claim, draws, prepared_claims)
        together = by_request(zip(claim.devices, chosen, strict=True))
        return Assignment(
            tuple(
                self._prepared_device(claim, allocated, cpus, together[allocated.base_request])
                for allocated, cpus in zip(claim.devices, chosen, strict=True)
            )
        )

    def _draw(self, claim: Claim, allocated: AllocatedDevice) -> Draw:
        group = self._group(claim, allocated)
        asked = wish(allocated.config)
        if allocated.admin_access:
            return Draw(allocated, group.cpus, 0, asked, CAPACITY)
        count = _count(claim, allocated)
        if count < 1 and asked.cpuset is None:
            raise RejectedError(
                f"{claim}, request {allocated.request}, device {group.device}: {count} CPUs are no "
                f"amount of CPUs; ask for 1 or more",
                reason="policy",
            )
        return Draw(allocated, group.cpus, count, asked, CAPACITY)

    def _group(self, claim: Claim, allocated: AllocatedDevice) -> Group:
        for group in self.groups:
            if group.device == allocated.device:
                return group
        known = ", ".join(group.device for group in self.groups) or "none"
        raise RejectedError(
            f"this node has no device {allocated.device}, which {claim} was given (it has: {known}); "
            f"was the driver configured otherwise when the claim was allocated? Delete the pod and "
            f"the claim, then they are allocated anew",
            reason="unknown-device",
        )

    def _prepared_device(
        self, claim: Claim, allocated: AllocatedDevice, cpus: CpuSet, request_cpus: CpuSet
    ) -> PreparedDevice:
        group = self._group(claim, allocated)
        return allocated.prepare(
            exclusive={KIND: cpus},
            env=environment(claim.uid, request_cpus),
            attributes=self._attributes(group)
            | {
                "dra.cpu/allocatedNumCPUs": int_attribute(len(cpus)),
                "dra.cpu/cpuset": string_attribute(str(cpus)),
                "dra.cpu/numaNodes": string_attribute(str(self.cpus.machine.nodes_of(cpus))),
            },
        )

    # -- enforce ---------------------------------------------------------------------------------

    def enforce(
        self, container: ContainerView, prepared_claims: PreparedClaims
    ) -> DesiredResources:
        """Claimed CPUs for who has some, the shared pool for all others."""
        return desired(self.cpus, container, prepared_claims)


def _count(claim: Claim, allocated: AllocatedDevice) -> int:
    """How many CPUs the scheduler gave; a fraction, from before the request policy, rounds up."""
    amount = allocated.consumed_capacity.get(CAPACITY)
    if amount is None:
        raise RejectedError(
            f"{claim}, request {allocated.request} has no {CAPACITY} in its allocation: the "
            f"cluster's feature gate DRAConsumableCapacity is off; turn it on, or run the driver "
            f"with --cpu-device-mode individual",
            reason="capacity",
        )
    return amount.ceil()


def _whole_cpus(count: int) -> Capacity:
    """So many CPUs, of which a request gets whole ones only, and one if it does not say."""
    one, all_of_them = Quantity(1), Quantity(count)
    # The API server rejects a step that the capacity has no room for; one CPU needs none.
    step = one if count > 1 else None
    return Capacity(
        value=all_of_them,
        request_policy=RequestPolicy(
            default=one, valid_range=CapacityRange(min=one, max=all_of_them, step=step)
        ),
    )
