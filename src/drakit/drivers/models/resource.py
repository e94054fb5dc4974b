"""Grouped resource: what it measures, where it is, what is reserved, how a share is chosen and enforced.

:class:`~drakit.drivers.models.grouped.GroupedDriver` composes any number of these into devices. To add
one, subclass :class:`GroupedResource`, or :class:`~drakit.drivers.models.amounts.AmountResource` for an
amount per NUMA node, and add it to a driver's ``resources``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Attribute, Capacity, CapacityRange, RequestPolicy
from drakit.core.quantity import Quantity
from drakit.drivers.models.groups import ResourceGroup
from drakit.drivers.models.node_driver import NodeAmount
from drakit.kit.driver import AllocatedDevice, Claim, ContainerView, DesiredResources, PreparedClaims

if TYPE_CHECKING:
    from drakit.kit.telemetry.metrics import Gauge

_NODE: Final = "numa"


@dataclass(frozen=True, slots=True, order=True)
class CapacityKind:
    """One consumable capacity of a device. Claims are written with its key, which never changes."""

    driver: str
    name: str
    """``cpu``, ``memory``, ``hugepages2Mi``: the capacity's key without its domain."""
    step: int = 1
    """Amounts are multiples of this; a node with less than one step does not offer the kind."""
    least: int = 0
    """The smallest request, and what a request without an amount gets."""
    in_bytes: bool = False
    page_size: int | None = None
    """In bytes, of a hugepage kind."""
    node_resource: str = ""
    """Name among the node's resources: ``hugepages-2Mi``; empty where it is the same as *name*."""

    @property
    def key(self) -> str:
        """The capacity's key on devices and in requests."""
        return f"{self.driver}/{self.name}"

    @property
    def resource_name(self) -> str:
        """Name among the node's resources: ``cpu``, ``memory``, ``hugepages-2Mi``."""
        return self.node_resource or self.name

    @property
    def is_node_resource(self) -> bool:
        """Whether Kubernetes accounts for it as a resource of the node (KEP-5517)."""
        return self.resource_name in ("cpu", "memory") or self.page_size is not None

    @property
    def label(self) -> str:
        """Name in object names, which must be lower case: ``hugepages-2mi``."""
        return self.resource_name.lower()

    def quantity(self, amount: int) -> Quantity:
        """An amount as it is published."""
        return Quantity.from_bytes(amount) if self.in_bytes else Quantity(amount)

    def rounded_down(self, amount: int) -> int:
        """*amount*, down to whole steps."""
        return max(0, amount) // self.step * self.step

    def rounded_up(self, quantity: Quantity) -> int:
        """*quantity*, up to whole steps; claims allocated under an earlier step need it."""
        return -(-quantity.ceil() // self.step) * self.step

    def capacity(self, amount: int) -> Capacity:
        """The published capacity: requests get whole steps, and :attr:`least` without an amount.

        Without a default the scheduler would allocate the whole capacity to a request that names
        another one. The API server rejects a step for which the range has no room.
        """
        least = self.quantity(self.least)
        limits = CapacityRange(
            min=least,
            max=self.quantity(amount) if self.least else None,
            step=self.quantity(self.step) if self.least + self.step <= amount else None,
        )
        return Capacity(
            value=self.quantity(amount), request_policy=RequestPolicy(default=least, valid_range=limits)
        )

    def amount_key(self, numa_node: int) -> str:
        """Key in the checkpoint for the amount on a NUMA node: ``numa0/memory``."""
        return f"{_NODE}{numa_node}/{self.name}"


def node_of(key: str) -> int:
    """The NUMA node of an amount key. Raises ``ValueError`` for other texts."""
    return int(key.partition("/")[0].removeprefix(_NODE))


@dataclass(frozen=True, slots=True)
class GroupDevice:
    """A device and the amounts of its group that it offers."""

    name: str
    group: ResourceGroup
    amounts: Mapping[CapacityKind, int]
    label: str = ""
    """What the device holds, for DeviceClasses to select by: ``combined``, ``memory``, …"""


class AllocatedAmounts(NamedTuple):
    """An allocated device of a claim and how much of each kind was allocated."""

    claim: Claim
    allocated: AllocatedDevice
    device: GroupDevice
    amounts: Mapping[CapacityKind, int]

    def __str__(self) -> str:
        return f"{self.claim}, request {self.allocated.request}, device {self.device.name}"


@dataclass(frozen=True, slots=True)
class ResourceShare:
    """What one resource adds to a prepared device; see :class:`~drakit.kit.driver.PreparedDevice`."""

    exclusive: Mapping[str, CpuSet] = field(default_factory=dict)
    amounts: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)

    def __or__(self, other: ResourceShare) -> ResourceShare:
        return ResourceShare(
            {**self.exclusive, **other.exclusive},
            {**self.amounts, **other.amounts},
            {**self.env, **other.env},
            {**self.attributes, **other.attributes},
            {**self.data, **other.data},
        )


Requests = Sequence[AllocatedAmounts]
Shares = Sequence[ResourceShare]


class GroupedResource(ABC):
    """One resource of a machine. Immutable, like the driver it belongs to; all methods are pure."""

    @property
    @abstractmethod
    def kinds(self) -> tuple[CapacityKind, ...]:
        """What it measures: one capacity each, in the order in which they are published."""

    @abstractmethod
    def amounts(self, group: ResourceGroup) -> Mapping[CapacityKind, int]:
        """How much of each kind a group offers, without what is reserved."""

    @abstractmethod
    def assign(self, requests: Requests, shares: Shares, prepared_claims: PreparedClaims) -> Shares:
        """Choose this resource's share for each request of a claim, in order.

        *shares* are those of the resources before it: memory is chosen near the CPUs. Raises
        :class:`~drakit.kit.driver.RejectedError` where a request cannot be satisfied.
        """

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        """What a container must have, if anything. Raises ``RejectedError`` if it must not run."""
        return DesiredResources()

    def attributes(self, device: GroupDevice) -> Mapping[str, Attribute]:
        """Attributes of a device."""
        return {}

    def binding_conditions(self, device: GroupDevice) -> tuple[str, str] | None:
        """Conditions for ready and for failed that a claim waits for before its pod is bound."""
        return None

    @property
    def node_amounts(self) -> tuple[NodeAmount, ...]:
        """What each NUMA node offers of kinds that are accounted by amount."""
        return ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that do not fit this machine, one sentence each."""
        return ()

    def gauges(self, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
        """Metrics of this resource."""
        return ()
