"""Grouped model: devices of one or more resources per NUMA node, socket or machine.

Every device can be allocated many times. The scheduler accounts for its capacities and allocates whole
steps of them; the resources choose what exactly a claim gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import ClassVar

from drakit.core.objects import Attribute, Device, int_attribute
from drakit.core.quantity import Quantity
from drakit.drivers.models.cpu_enforcement import check_owner
from drakit.drivers.models.cpu_settings import GroupBy
from drakit.drivers.models.cpus import CPU_NUMBERS, NodeCpus, numa_attributes, pcie_roots
from drakit.drivers.models.groups import Locality, ResourceGroup, groups_of
from drakit.drivers.models.memory_policy import NO_MEMORY_QOS, MemoryQosPolicy
from drakit.drivers.models.node_driver import NodeAmount
from drakit.drivers.models.resource import (
    AllocatedAmounts,
    CapacityKind,
    GroupDevice,
    GroupedResource,
    ResourceShare,
)
from drakit.kit.config.settings import did_you_mean
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
    RejectedError,
)
from drakit.kit.telemetry.metrics import Gauge

Layout = Callable[[ResourceGroup, Mapping[CapacityKind, int]], Iterable[GroupDevice]]
"""How a group and its amounts become devices."""


def one_device(group: ResourceGroup, amounts: Mapping[CapacityKind, int]) -> Iterable[GroupDevice]:
    """One device with all amounts of the group: ``numa0``, ``socket0``, ``machine``."""
    yield GroupDevice(group.name, group, amounts, "combined")


@dataclass(frozen=True)
class GroupedDriver:
    """A driver over grouped resources. Immutable; derived values are cached."""

    name: str
    cdi_kind: str
    cpus: NodeCpus
    resources: tuple[GroupedResource, ...]
    localities: tuple[Locality, ...]
    group_by: GroupBy = "numanode"
    layout: Layout = one_device
    cpuset_kinds: ClassVar[frozenset[str]] = frozenset({CPU_NUMBERS})

    @cached_property
    def devices(self) -> tuple[GroupDevice, ...]:
        """The devices; groups that offer nothing have none."""
        return tuple(
            device
            for group in groups_of(self.localities, self.group_by)
            if (amounts := self._amounts(group))
            for device in self.layout(group, amounts)
        )

    def _amounts(self, group: ResourceGroup) -> dict[CapacityKind, int]:
        return {k: n for each in self.resources for k, n in each.amounts(group).items()}

    def offer(self) -> Offer:
        """The devices, and how much of each NUMA node all claims together may get."""
        limits = {each.key: each.offered for each in self.node_amounts}
        return Offer((PoolOffer(tuple(map(self._published, self.devices))),), limits=limits)

    def _published(self, device: GroupDevice) -> Device:
        attributes = self.attributes(device)
        attributes |= pcie_roots(self.cpus, device.group.cpus, len(attributes))
        binding = [pair for each in self.resources if (pair := each.binding_conditions(device))]
        mapped = self.cpus.config.publish_node_allocatable_resource_mapping
        return Device(
            name=device.name,
            attributes=attributes,
            capacity={kind.key: kind.capacity(n) for kind, n in device.amounts.items()},
            allow_multiple_allocations=True,
            binds_to_node=True if binding else None,
            binding_conditions=tuple(ready for ready, _ in binding),
            binding_failure_conditions=tuple(failed for _, failed in binding),
            node_allocatable_resources={
                kind.resource_name: {"mapping": {"capacityKey": kind.key, "capacityMultiplier": "1"}}
                for kind in (device.amounts if mapped else ())
                if kind.is_node_resource
            },
        )

    def attributes(self, device: GroupDevice) -> dict[str, Attribute]:
        """Attributes to select by, all except location on every device: a selector of a missing one fails."""
        attributes: dict[str, Attribute] = {}
        for resource in self.resources:
            attributes |= resource.attributes(device)
        if device.group.numa_node is not None:
            attributes |= numa_attributes(device.group.numa_node, self.name)
        if device.group.socket is not None:
            attributes[f"{self.name}/socketID"] = int_attribute(device.group.socket)
        return attributes

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        """What each resource chooses for the amounts that the scheduler allocated."""
        requests = [self._request(claim, allocated) for allocated in claim.devices]
        shares = [ResourceShare()] * len(requests)
        for resource in self.resources:
            chosen = resource.assign(requests, shares, prepared_claims)
            shares = [*map(or_, shares, chosen)]
        return Assignment(
            tuple(
                request.allocated.prepare(
                    exclusive=dict(share.exclusive),
                    amounts=dict(share.amounts),
                    env=dict(share.env),
                    attributes=self.attributes(request.device) | dict(share.attributes),
                    data=dict(share.data),
                )
                for request, share in zip(requests, shares, strict=True)
            )
        )

    def _request(self, claim: Claim, allocated: AllocatedDevice) -> AllocatedAmounts:
        device = self._device(claim, allocated)
        if allocated.admin_access:
            return AllocatedAmounts(claim, allocated, device, {})
        kinds = {kind.key: kind for kind in device.amounts}
        amounts: dict[CapacityKind, int] = {}
        for key, quantity in allocated.consumed_capacity.items():
            if key in kinds:
                amounts[kinds[key]] = kinds[key].rounded_up(quantity)
            elif quantity:
                # Zeros of kinds that the node has lost since the allocation are harmless.
                raise RejectedError(
                    f"{claim}, request {allocated.request} takes {quantity} of {key}, which device "
                    f"{device.name} does not have{did_you_mean(key, kinds)}; correct the claim, or "
                    f"check whether the node has lost hugepages",
                    reason="capacity",
                )
        request = AllocatedAmounts(claim, allocated, device, amounts)
        _check_amounts(request, list(kinds.values()))
        return request

    def _device(self, claim: Claim, allocated: AllocatedDevice) -> GroupDevice:
        found = {device.name: device for device in self.devices}
        if allocated.device in found:
            return found[allocated.device]
        known = ", ".join(found) or "none"
        raise RejectedError(
            f"this node has no device {allocated.device}, which was allocated to {claim} (it has: "
            f"{known}); if the driver's configuration has changed, delete the pod and the claim so "
            f"that they are allocated again",
            reason="unknown-device",
        )

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        """What each resource demands of the container; a later resource overrides an earlier one."""
        for use in container.uses:
            check_owner(container, use)
        desired = (each.enforce(container, prepared_claims) for each in self.resources)
        return reduce(_combined, desired, DesiredResources())

    @property
    def memory_policy(self) -> MemoryQosPolicy:
        """Off, unless a driver of memory overrides it."""
        return NO_MEMORY_QOS

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that do not fit this machine, one sentence each."""
        return tuple(warning for each in self.resources for warning in each.warnings)

    @property
    def node_amounts(self) -> tuple[NodeAmount, ...]:
        """What each NUMA node offers of resources accounted by amount."""
        return tuple(amount for each in self.resources for amount in each.node_amounts)

    def consumption(self, claim: PreparedClaim) -> dict[str, dict[str, Quantity]]:
        """How much of each device's capacities *claim* holds."""
        held = PreparedClaims([claim])

        def amount(kind: CapacityKind, group: ResourceGroup) -> Quantity:
            numbers = len(group.cpus & claim.exclusive(kind.name))
            amounts = sum(held.amount(kind.amount_key(node)) for node in group.nodes)
            return kind.quantity(numbers + amounts)

        return {
            device.name: {kind.key: amount(kind, device.group) for kind in device.amounts}
            for device in self.devices
        }

    def gauges(self, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
        """Metrics of all resources."""
        for resource in self.resources:
            yield from resource.gauges(prepared_claims)


def _check_amounts(request: AllocatedAmounts, kinds: Iterable[CapacityKind]) -> None:
    """Reject a request without amounts, or with less than a device hands out."""
    if not any(kind in request.amounts for kind in kinds):
        raise RejectedError(
            f"{request} has no amounts in its allocation: the cluster's feature gate "
            f"DRAConsumableCapacity is off; turn it on",
            reason="capacity",
        )
    for kind in kinds:
        if request.amounts.get(kind, 0) < kind.least:
            raise RejectedError(
                f"{request}: {request.amounts.get(kind, 0)} is not a valid amount of {kind.key}; "
                f"request {kind.least} or more",
                reason="policy",
            )
    if not any(request.amounts.values()):
        raise RejectedError(
            f"{request} asks for nothing; set amounts in the request's capacity.requests, with "
            f"these keys: {', '.join(kind.key for kind in kinds)}",
            reason="capacity",
        )


def _combined(one: DesiredResources, other: DesiredResources) -> DesiredResources:
    return DesiredResources(
        cpus=one.cpus if other.cpus is None else other.cpus,
        mems=one.mems if other.mems is None else other.mems,
        lift_quota=one.lift_quota or other.lift_quota,
        memory_limit=one.memory_limit if other.memory_limit is None else other.memory_limit,
        hugepage_limits={**one.hugepage_limits, **other.hugepage_limits},
        unified={**one.unified, **other.unified},
        env={**one.env, **other.env},
    )
