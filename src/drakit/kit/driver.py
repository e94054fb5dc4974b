"""The contract between a driver and the kit.

A :class:`Driver` has three pure functions over immutable values: ``offer`` (what does this node have?),
``assign`` (what exactly does this claim get?) and ``enforce`` (which resources must this container have?).
They use no I/O, clock or globals, only the driver's own values (machine and configuration, read by the
:data:`Discover` function that made it) and their arguments. The same functions therefore serve the daemons,
``drakit run``, ``drakit plan`` and the tests. The optional part with side effects is the reconciler
(:mod:`drakit.kit.reconciler`). A driver must expect:

* **Repeated calls.** The kubelet repeats calls after timeouts, restarts and reboots. The kit answers a
  repeat from the checkpoint, so ``assign`` is called once in the life of a claim.
* **Two instances.** Calls never overlap within a process, and prepare holds a lock across processes,
  but two instances run during a rolling update.
* **Crashes.** The process may end after ``assign`` returned and before anything was written. The next
  call passes prepared claims without that assignment.
* **A changed machine.** Prepared claims stay as they were when a CPU goes offline or the reservation
  changes, so they may hold what ``assign`` would not assign today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import msgspec

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Attribute, CounterSet, Device, Struct
from drakit.core.quantity import Quantity


class RejectedError(Exception):
    """Raised by a driver to reject a claim or a container.

    The text states what is rejected, why, and what to do about it. Raised by ``assign`` it becomes the
    claim's error (shown in the pod's event); raised by ``enforce`` the container is not created.
    ``reason`` is one word for metrics (``capacity``, ``policy``, …).
    """

    def __init__(self, text: str, *, reason: str = "refused") -> None:
        super().__init__(text)
        self.reason = reason


# -- offer --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """The devices of one pool, in the order in which the scheduler should prefer them."""

    devices: tuple[Device, ...]
    shared_counters: tuple[CounterSet, ...] = ()
    name: str = ""
    """The pool's name; empty for the node's name."""


@dataclass(frozen=True, slots=True)
class UnhealthyDevice:
    """A device that the pod's status reports as unhealthy."""

    device: str
    message: str = ""
    pool: str = ""
    """The device's pool; empty for the pool with the node's name."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Everything a driver offers on this node."""

    pools: tuple[PoolOffer, ...]
    may_taint: bool = False
    """Whether devices may be tainted later: slices then have at most 64 devices from the start."""
    unhealthy: tuple[UnhealthyDevice, ...] = ()
    """All other devices are healthy."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The total for each key of :attr:`PreparedDevice.amounts`."""

    def named(self, node: str) -> Offer:
        """The same offer with the node's name for every pool without a name."""
        return replace(
            self,
            pools=tuple(replace(pool, name=pool.name or node) for pool in self.pools),
            unhealthy=tuple(replace(each, pool=each.pool or node) for each in self.unhealthy),
        )


# -- assign -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """Opaque parameters for this driver, from the DeviceClass or the ResourceClaim."""

    source: str
    """``FromClass`` or ``FromClaim``; those of the class come first."""
    parameters: Any


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of this driver that the scheduler allocated to a claim."""

    request: str
    """As in the allocation result: ``main`` or ``main/sub``."""
    pool: str
    device: str
    share_id: str | None = None
    consumed_capacity: Mapping[str, Quantity] = field(default_factory=dict)
    admin_access: bool = False
    config: tuple[OpaqueConfig, ...] = ()

    @property
    def base_request(self) -> str:
        """The request's name without the chosen subrequest: the name that containers refer to."""
        return self.request.partition("/")[0]

    def prepare(
        self,
        *,
        exclusive: dict[str, CpuSet] | None = None,
        amounts: dict[str, int] | None = None,
        env: dict[str, str] | None = None,
        mounts: tuple[Mount, ...] = (),
        device_nodes: tuple[DeviceNode, ...] = (),
        attributes: dict[str, Attribute] | None = None,
        data: dict[str, Any] | None = None,
    ) -> PreparedDevice:
        """The prepared device for this allocated device; for the fields see :class:`PreparedDevice`."""
        return PreparedDevice(
            request=self.base_request,
            pool=self.pool,
            device=self.device,
            share_id=self.share_id,
            admin_access=self.admin_access,
            consumed_capacity=dict(self.consumed_capacity),
            exclusive=exclusive or {},
            amounts=amounts or {},
            env=env or {},
            mounts=mounts,
            device_nodes=device_nodes,
            attributes=attributes or {},
            data=data or {},
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """An allocated ResourceClaim, reduced to the devices of this driver."""

    uid: str
    namespace: str
    name: str
    devices: tuple[AllocatedDevice, ...]
    consumers: tuple[str, ...] = ()
    """UIDs of the pods in ``status.reservedFor``."""
    pod_claim_name: str | None = None
    """For a claim made from a template: its name in the pod."""

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name} ({self.uid})"


class Mount(Struct, frozen=True):
    """A bind mount for the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "bind")


class DeviceNode(Struct, frozen=True):
    """A device node for the container."""

    path: str
    host_path: str = ""
    permissions: str = ""


class PreparedDevice(Struct, frozen=True):
    """The result of ``assign`` for one allocated device; plain data, stored in the checkpoint.

    The kit guards ``exclusive`` and ``amounts``: two claims never hold the same number of one kind, and
    the amounts of all claims never exceed the offer's limits (devices with ``admin_access`` exempt).
    """

    request: str
    """Base request name."""
    pool: str
    device: str
    share_id: str | None = None
    admin_access: bool = False
    consumed_capacity: dict[str, Quantity] = {}
    exclusive: dict[str, CpuSet] = {}
    """Numbers that no other claim may hold, by kind: ``{"cpu": CpuSet("2-3")}``."""
    amounts: dict[str, int] = {}
    """Amounts counted against :attr:`Offer.limits`, by key: ``{"numa0/memory": 268435456}``."""
    env: dict[str, str] = {}
    """Environment variables for the container, through CDI."""
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    attributes: dict[str, Attribute] = {}
    """For the device metadata file (KEP-5304)."""
    data: dict[str, Any] = {}
    """JSON data of the driver, passed back to ``enforce``."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The result of ``assign``: one prepared device per allocated device, in the same order."""

    devices: tuple[PreparedDevice, ...]


class PreparedClaim(Struct, frozen=True):
    """A claim in the checkpoint: its prepared devices, its pods, and the boot it was prepared in."""

    uid: str
    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...] = msgspec.field(name="grants")
    """Stored as ``grants``: the format of checkpoint files does not change."""
    consumers: tuple[str, ...] = ()
    pod_claim_name: str | None = None
    boot_id: str = ""
    prepared_at: str = ""

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name} ({self.uid})"

    def exclusive(self, kind: str) -> CpuSet:
        """All numbers of *kind* that this claim holds exclusively."""
        return CpuSet.union(
            device.exclusive[kind]
            for device in self.devices
            if kind in device.exclusive and not device.admin_access
        )

    def amounts(self) -> Iterator[tuple[str, int]]:
        """The amounts of all devices, by key; a key may be repeated."""
        for device in self.devices:
            if not device.admin_access:
                yield from device.amounts.items()

    def for_request(self, request: str | None) -> tuple[PreparedDevice, ...]:
        """The prepared devices of one base request, or all when *request* is ``None``."""
        return tuple(each for each in self.devices if request is None or each.request == request)


DeviceUser = tuple[PreparedClaim, PreparedDevice]


class PreparedClaims:
    """All claims prepared on this node: an immutable view of the checkpoint.

    ``orphaned`` are claims whose record cannot be read: what they are known to hold stays held. Indexes
    are built on first use; :meth:`replacing` reuses the one that every runtime event needs.
    """

    __slots__ = ("_all_exclusive", "_amounts", "_devices", "_exclusive", "entries", "orphaned")

    def __init__(
        self,
        entries: Iterable[PreparedClaim] = (),
        orphaned: Mapping[str, Mapping[str, CpuSet]] | None = None,
    ) -> None:
        self.entries: Mapping[str, PreparedClaim] = {entry.uid: entry for entry in entries}
        self.orphaned: Mapping[str, Mapping[str, CpuSet]] = dict(orphaned or {})
        self._exclusive: dict[str, dict[str, CpuSet]] = {}
        self._all_exclusive: dict[str, CpuSet] = {}
        self._amounts: dict[str, int] | None = None
        self._devices: dict[tuple[str, str], tuple[DeviceUser, ...]] | None = None

    def __iter__(self) -> Iterator[PreparedClaim]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, uid: str) -> PreparedClaim | None:
        """The claim with this UID, if it is prepared."""
        return self.entries.get(uid)

    def exclusive(self, kind: str, *, excluding: str | None = None) -> CpuSet:
        """All numbers of *kind* held by any claim except *excluding*."""
        held = self._held(kind)
        if excluding in held:
            return CpuSet.union(numbers for uid, numbers in held.items() if uid != excluding)
        if kind not in self._all_exclusive:
            self._all_exclusive[kind] = CpuSet.union(held.values())
        return self._all_exclusive[kind]

    def amount(self, key: str, *, excluding: str | None = None) -> int:
        """The total amount of *key* that all claims except *excluding* hold."""
        if self._amounts is None:
            self._amounts = {}
            for entry in self:
                for each, amount in entry.amounts():
                    self._amounts[each] = self._amounts.get(each, 0) + amount
        own = self.entries.get(excluding or "")
        held = sum(amount for each, amount in own.amounts() if each == key) if own else 0
        return self._amounts.get(key, 0) - held

    def on_device(self, pool: str, device: str) -> tuple[DeviceUser, ...]:
        """The claims that have the device or a share of it, without ``adminAccess``."""
        if self._devices is None:
            self._devices = {}
            for entry in self:
                for each in entry.devices:
                    if not each.admin_access:
                        users = self._devices.get((each.pool, each.device), ())
                        self._devices[each.pool, each.device] = (*users, (entry, each))
        return self._devices.get((pool, device), ())

    def holder(self, kind: str, numbers: CpuSet, *, excluding: str | None = None) -> str | None:
        """A claim that holds any of *numbers*, as text for an error message; ``None`` if none does."""
        for uid, held in self._held(kind).items():
            if uid != excluding and not held.isdisjoint(numbers):
                unreadable = f"claim {uid} (its record in the checkpoint is unreadable or lost)"
                return str(self.entries.get(uid, unreadable))
        return None

    def replacing(self, uid: str, entry: PreparedClaim | None) -> PreparedClaims:
        """The same claims with *entry* as the claim *uid*; ``None``: without that claim."""
        others = [each for each in self if each.uid != uid]
        orphaned = {each: held for each, held in self.orphaned.items() if each != uid}
        made = PreparedClaims(others if entry is None else [*others, entry], orphaned)
        for kind, held in self._exclusive.items():
            made._exclusive[kind] = {each: own for each, own in held.items() if each != uid}
            if entry is not None:
                made._exclusive[kind][uid] = entry.exclusive(kind)
        return made

    def _held(self, kind: str) -> Mapping[str, CpuSet]:
        """The numbers of *kind* that each claim holds."""
        if kind not in self._exclusive:
            held = {entry.uid: entry.exclusive(kind) for entry in self}
            for uid, kinds in self.orphaned.items():
                held[uid] = held.get(uid, CpuSet()) | kinds.get(kind, CpuSet())
            self._exclusive[kind] = held
        return self._exclusive[kind]


# -- enforce ------------------------------------------------------------------------------------------


class ClaimUse(NamedTuple):
    """A claim that a container may use, with the prepared devices of the container's requests.

    ``owner_uid`` is the pod that owns the claim as long as the pod exists: the first one the claim was
    reserved for, or the first that used it. A driver whose devices cannot be shared rejects the
    containers of other pods.
    """

    claim: PreparedClaim
    devices: tuple[PreparedDevice, ...]
    owner_uid: str = ""
    owner: str = ""
    """The owner as ``namespace/name``, for messages."""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container as the runtime reports it, with the claims it may use.

    The kit determines ``uses`` from the CDI device names that the runtime reports or, if it reports
    none, from environment variables checked against the checkpoint and the pod's UID.
    """

    id: str
    name: str
    pod_uid: str
    pod_name: str
    namespace: str
    uses: tuple[ClaimUse, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_path: str = ""
    cgroup_parent: str = ""
    memory_limit: int | None = None
    """The limit set by the kubelet, without changes by a driver."""
    hugepage_limits: Mapping[str, int] = field(default_factory=dict)
    """The limits set by the kubelet, by page size in the kernel's spelling."""

    def __str__(self) -> str:
        return f"container {self.namespace}/{self.pod_name}/{self.name} ({self.id[:13]})"


@dataclass(frozen=True, slots=True)
class DesiredResources:
    """The resources a container must have; ``None`` and empty values change nothing.

    The kit rejects an empty :class:`CpuSet` for ``cpus`` or ``mems``: NRI takes it as "no change", so
    the container would run anywhere. Raise :class:`RejectedError` instead.
    """

    cpus: CpuSet | None = None
    mems: CpuSet | None = None
    lift_quota: bool = False
    """Remove the CFS quota, so that pinned CPUs are not throttled."""
    memory_limit: int | None = None
    hugepage_limits: Mapping[str, int] = field(default_factory=dict)
    """By page size in the kernel's spelling (``2MB``, ``1GB``)."""
    unified: Mapping[str, str] = field(default_factory=dict)
    """cgroup v2 files to write, by name (``memory.min``)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, applied at creation only."""


class Driver(Protocol):
    """A DRA driver: its names and three pure functions."""

    @property
    def name(self) -> str:
        """The DRA driver name: a DNS subdomain of at most 63 characters."""

    @property
    def cdi_kind(self) -> str:
        """Vendor and class of the CDI devices, e.g. ``dra.k8s.io/cpu``."""

    @property
    def cpuset_kinds(self) -> frozenset[str]:
        """The kinds in :attr:`PreparedDevice.exclusive` whose numbers are CPUs; usually none.

        The kit keeps containers without the claim off these CPUs (``cpuset.cpus``), before a prepare
        is answered and for claims whose record was lost.
        """

    def offer(self) -> Offer:
        """What this node has. Equal drivers make equal offers, in the same order."""

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        """Decide exactly what *claim* gets, given all other prepared claims.

        Returns one prepared device per allocated device, in order. Raises :class:`RejectedError` if
        that is not possible. The kit checks the result against all other claims and rejects a result
        that overlaps: this is a defect of the driver.
        """

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        """The resources that *container* must have now.

        Called for a container that is created, and for all others whenever prepared claims change: the
        result for a container without claims typically depends on the prepared claims alone. Raises
        :class:`RejectedError` if the container must not run.
        """


Discover = Callable[[], Driver]
"""Reads machine and configuration, writes nothing, and returns a new driver.

Called at start, on SIGHUP and periodically; a changed offer is published again. May raise ``OSError`` or
``ValueError``: at start the process exits with the message, later the last good driver stays."""
