"""The contract between a driver and the kit.

A driver answers three questions, and nothing else; the kit does all the rest:

=========== ============================================= ====================================
verb        question                                      called
=========== ============================================= ====================================
``offer``   what do I have?                               at start, after hotplug, on reload
``assign``  what exactly does this claim get?             in NodePrepareResources
``enforce`` what must this container look like?           at every runtime event, for every one
=========== ============================================= ====================================

A :class:`Driver` is an immutable value and its verbs are pure functions: no I/O, no clock, no
globals. Everything a verb needs is in the driver (machine and configuration, read by the
:data:`Discover` function that made it) or in its arguments. The same verbs therefore serve the
daemons, ``drakit run``, ``drakit plan`` and the tests.

What may happen to a verb, and a driver must be prepared for:

* **twice**: the kubelet repeats calls after timeouts, restarts and reboots. The kit answers a repeat
  from the checkpoint without asking ``assign`` again, so a claim is assigned once in its life.
* **concurrently**: never within a process (one event loop, and prepare runs under a lock that holds
  across processes), but two *instances* of a driver may run during a rolling update. A verb that
  keeps to its arguments cannot notice.
* **after a crash**: ``assign`` may have answered and the process died before anything was written.
  The next call sees prepared claims without that answer. ``assign`` must therefore not count on having
  been listened to.
* **with a changed machine**: a CPU went offline, the reservation was changed. Claims made before
  stay in the prepared claims as they were; a verb must accept prepared claims it would not produce today.
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
    """A verb's honest no: the text says what is rejected, why, and the way out.

    From ``assign`` it becomes the claim's error (the pod's event shows it), from ``enforce`` the
    container is not created. ``reason`` is a short word for metrics (``capacity``, ``policy``, …).
    """

    def __init__(self, text: str, *, reason: str = "refused") -> None:
        super().__init__(text)
        self.reason = reason


# -- offer --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """The devices of one pool, in the order in which the scheduler shall prefer them."""

    devices: tuple[Device, ...]
    shared_counters: tuple[CounterSet, ...] = ()
    name: str | None = None
    """The pool's name; the node's name when not given."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How a device is, for the pod's status; devices not mentioned are healthy."""

    pool: str | None
    device: str
    healthy: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """All a driver has on this node."""

    pools: tuple[PoolOffer, ...]
    may_taint: bool = False
    """Whether devices may be tainted later: slices are then cut at 64 devices from the start."""
    health: tuple[DeviceHealth, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    """For each key of :attr:`PreparedDevice.amounts`: how much there is in all."""

    def named(self, node: str) -> Offer:
        """The same offer with every pool named: pools without a name get the node's."""
        pools = tuple(replace(pool, name=pool.name or node) for pool in self.pools)
        return replace(self, pools=pools)


# -- assign -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """Opaque parameters meant for this driver, from the class or the claim."""

    source: str
    """``FromClass`` or ``FromClaim``; class entries come first in a list of these."""
    parameters: Any


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device that the scheduler gave to a claim, of this driver."""

    request: str
    """As in the allocation: ``main`` or ``main/sub``."""
    pool: str
    device: str
    share_id: str | None = None
    consumed_capacity: Mapping[str, Quantity] = field(default_factory=dict)
    admin_access: bool = False
    config: tuple[OpaqueConfig, ...] = ()

    @property
    def base_request(self) -> str:
        """The request's name without the chosen alternative: what containers refer to."""
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
        """The prepared device that answers this allocated device; see :class:`PreparedDevice` for what a driver may add."""
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
    """An allocated claim, reduced to what concerns this driver."""

    uid: str
    namespace: str
    name: str
    devices: tuple[AllocatedDevice, ...]
    consumers: tuple[str, ...] = ()
    """UIDs of the pods the claim is reserved for."""
    pod_claim_name: str | None = None
    """For a claim made from a template: the name it has in the pod."""

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
    """What one allocated device became. Kept in the checkpoint, so it is plain data.

    ``exclusive`` and ``amounts`` are what the kit guards: no two live claims hold one number of one
    kind, and the amounts of all claims never exceed the offer's limits (``admin_access`` exempt).
    """

    request: str
    """Base request name."""
    pool: str
    device: str
    share_id: str | None = None
    admin_access: bool = False
    consumed_capacity: dict[str, Quantity] = {}
    exclusive: dict[str, CpuSet] = {}
    """Numbered things nobody else may hold, by kind: ``{"cpu": CpuSet("2-3")}``."""
    amounts: dict[str, int] = {}
    """Amounts drawn from shared limits, by key: ``{"numa0/memory": 268435456}``."""
    env: dict[str, str] = {}
    """For the container's information, through CDI."""
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    attributes: dict[str, Attribute] = {}
    """For the device metadata file (KEP-5304)."""
    data: dict[str, Any] = {}
    """The driver's own notes (JSON), handed back to ``enforce``."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The answer of ``assign``: one prepared device per allocated device, in the same order."""

    devices: tuple[PreparedDevice, ...]


class PreparedClaim(Struct, frozen=True):
    """One claim in the checkpoint: who, what, since which boot."""

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
        """All numbers of *kind* this claim holds exclusively."""
        return CpuSet.union(
            g.exclusive[kind] for g in self.devices if kind in g.exclusive and not g.admin_access
        )

    def for_request(self, request: str | None) -> tuple[PreparedDevice, ...]:
        """The prepared devices of one base request, or all when *request* is ``None``."""
        return tuple(g for g in self.devices if request is None or g.request == request)


class PreparedClaims:
    """Everything assigned on this node: an immutable view of the checkpoint.

    ``orphaned`` are claims whose record could not be read: what they are known to hold stays held.
    Questions are answered from indexes that are made when first asked for; :meth:`replacing` carries
    them over, so that one more claim does not cost a count of all others.
    """

    __slots__ = ("_devices", "_drawn", "_numbers", "entries", "orphaned")

    def __init__(
        self,
        entries: Iterable[PreparedClaim] = (),
        orphaned: Mapping[str, Mapping[str, CpuSet]] | None = None,
    ) -> None:
        self.entries: Mapping[str, PreparedClaim] = {entry.uid: entry for entry in entries}
        self.orphaned: Mapping[str, Mapping[str, CpuSet]] = dict(orphaned or {})
        self._numbers: dict[str, tuple[CpuSet, CpuSet]] = {}
        self._drawn: dict[str, int] | None = None
        self._devices: (
            dict[tuple[str, str], tuple[tuple[PreparedClaim, PreparedDevice], ...]] | None
        ) = None

    def __iter__(self) -> Iterator[PreparedClaim]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, uid: str) -> PreparedClaim | None:
        """The entry of a claim, if it has one."""
        return self.entries.get(uid)

    def exclusive(self, kind: str, *, excluding: str | None = None) -> CpuSet:
        """All numbers of *kind* held by anyone, or by anyone but the claim *excluding*."""
        held, by_several = self._held(kind)
        own = self._own(kind, excluding) if excluding is not None else CpuSet()
        return (held - own) | (own & by_several) if own else held

    def amount(self, key: str, *, excluding: str | None = None) -> int:
        """How much of *key* all claims together draw, or all but the claim *excluding*."""
        if self._drawn is None:
            self._drawn = {}
            for entry in self:
                _add_amounts(self._drawn, entry, 1)
        own = self.entries.get(excluding) if excluding is not None else None
        return self._drawn.get(key, 0) - (_amount(own, key) if own is not None else 0)

    def on_device(self, pool: str, device: str) -> tuple[tuple[PreparedClaim, PreparedDevice], ...]:
        """Who has the device or shares of it, without ``adminAccess``."""
        if self._devices is None:
            found: dict[tuple[str, str], list[tuple[PreparedClaim, PreparedDevice]]] = {}
            for entry in self:
                for prepared in entry.devices:
                    if not prepared.admin_access:
                        found.setdefault((prepared.pool, prepared.device), []).append(
                            (entry, prepared)
                        )
            self._devices = {where: tuple(users) for where, users in found.items()}
        return self._devices.get((pool, device), ())

    def holder(self, kind: str, numbers: CpuSet, *, excluding: str | None = None) -> str | None:
        """Who holds any of *numbers*, in words for an error message; ``None`` if nobody does."""
        for entry in self.entries.values():
            if entry.uid != excluding and not entry.exclusive(kind).isdisjoint(numbers):
                return str(entry)
        for uid, orphaned_claim in self.orphaned.items():
            if (
                uid != excluding
                and kind in orphaned_claim
                and not orphaned_claim[kind].isdisjoint(numbers)
            ):
                return f"claim {uid} (its record in the checkpoint is unreadable or lost)"
        return None

    def replacing(self, uid: str, entry: PreparedClaim | None) -> PreparedClaims:
        """The same with *entry* as all that the claim *uid* holds; ``None``: without the claim."""
        old = self.entries.get(uid)
        others = dict(self.entries)
        others.pop(uid, None)
        if entry is not None:
            others[uid] = entry
        made = PreparedClaims(
            (), {each: held for each, held in self.orphaned.items() if each != uid}
        )
        made.entries = others
        if uid in self.orphaned:
            return made  # rare: counted from the start
        for kind, (held, by_several) in self._numbers.items():
            gone = old.exclusive(kind) if old is not None else CpuSet()
            if gone.isdisjoint(by_several):
                come = entry.exclusive(kind) if entry is not None else CpuSet()
                left = held - gone
                made._numbers[kind] = (left | come, by_several | (left & come))
        if self._drawn is not None:
            made._drawn = dict(self._drawn)
            for each, sign in ((old, -1), (entry, 1)):
                if each is not None:
                    _add_amounts(made._drawn, each, sign)
        if self._devices is not None:
            made._devices = _moved(self._devices, old, entry)
        return made

    def _held(self, kind: str) -> tuple[CpuSet, CpuSet]:
        """The numbers held by any claim, and those by more than one (damage, never intended)."""
        found = self._numbers.get(kind)
        if found is None:
            held = by_several = CpuSet()
            for uid in (*self.entries, *(u for u in self.orphaned if u not in self.entries)):
                own = self._own(kind, uid)
                held, by_several = held | own, by_several | (held & own)
            found = self._numbers[kind] = held, by_several
        return found

    def _own(self, kind: str, uid: str) -> CpuSet:
        entry = self.entries.get(uid)
        own = entry.exclusive(kind) if entry is not None else CpuSet()
        return own | self.orphaned.get(uid, {}).get(kind, CpuSet())


def _amount(entry: PreparedClaim, key: str) -> int:
    return sum(
        prepared.amounts.get(key, 0) for prepared in entry.devices if not prepared.admin_access
    )


def _add_amounts(drawn: dict[str, int], entry: PreparedClaim, sign: int) -> None:
    for prepared in entry.devices:
        for key, amount in prepared.amounts.items() if not prepared.admin_access else ():
            drawn[key] = drawn.get(key, 0) + sign * amount


def _moved(
    devices: Mapping[tuple[str, str], tuple[tuple[PreparedClaim, PreparedDevice], ...]],
    old: PreparedClaim | None,
    new: PreparedClaim | None,
) -> dict[tuple[str, str], tuple[tuple[PreparedClaim, PreparedDevice], ...]]:
    """The index of devices with one claim's entry exchanged."""
    moved = dict(devices)
    for where in {(g.pool, g.device) for g in old.devices} if old is not None else ():
        left = tuple(user for user in moved.get(where, ()) if user[0] is not old)
        moved[where] = left
        if not left:
            del moved[where]
    come: dict[tuple[str, str], list[tuple[PreparedClaim, PreparedDevice]]] = {}
    for prepared in new.devices if new is not None else ():
        if new is not None and not prepared.admin_access:
            come.setdefault((prepared.pool, prepared.device), []).append((new, prepared))
    for where, users in come.items():
        moved[where] = (*moved.get(where, ()), *users)
    return moved


# -- enforce ------------------------------------------------------------------------------------------


class ClaimUse(NamedTuple):
    """A claim a container may use, and the prepared devices of it that are this container's.

    ``owner_uid`` is the pod the claim belongs to as long as that pod is here: the first it was
    reserved for, or the first that used it. A driver of things that cannot be shared rejects the
    containers of other pods; one whose devices can be shared pays no heed.
    """

    claim: PreparedClaim
    devices: tuple[PreparedDevice, ...]
    owner_uid: str = ""
    owner: str = ""
    """The owner as ``namespace/name``, for messages."""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container as the runtime reports it, with the claims the kit found to be its own.

    ``uses`` is settled by the kit: by the CDI device names that the runtime reports, or, where it
    reports none, by environment variables checked against the checkpoint and the pod's UID.
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
    """The limit the kubelet asked for, whatever a driver has made of it since."""
    hugepage_limits: Mapping[str, int] = field(default_factory=dict)
    """Those the kubelet asked for, by page size as the kernel spells it; without a driver's."""

    def __str__(self) -> str:
        return f"container {self.namespace}/{self.pod_name}/{self.name} ({self.id[:13]})"


@dataclass(frozen=True, slots=True)
class DesiredResources:
    """What a container must look like; ``None`` and empty leave a knob as it is.

    An empty :class:`CpuSet` for ``cpus`` or ``mems`` would mean "no change" to NRI, i.e. *anywhere*:
    the kit rejects it. Raise :class:`RejectedError` instead.
    """

    cpus: CpuSet | None = None
    mems: CpuSet | None = None
    lift_quota: bool = False
    """Remove the CFS quota, so that pinned CPUs are not throttled."""
    memory_limit: int | None = None
    hugepage_limits: Mapping[str, int] = field(default_factory=dict)
    """By page size as the kernel spells it (``2MB``, ``1GB``)."""
    unified: Mapping[str, str] = field(default_factory=dict)
    """cgroup v2 files to set, by name (``memory.min``)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment, at creation only."""


class Driver(Protocol):
    """A DRA driver: three pure functions and a name."""

    @property
    def name(self) -> str:
        """The DRA driver name: a DNS subdomain of at most 63 characters."""
        ...

    @property
    def cdi_kind(self) -> str:
        """Vendor and class of the CDI devices, e.g. ``dra.k8s.io/cpu``."""
        ...

    @property
    def cpuset_kinds(self) -> frozenset[str]:
        """The kinds in :attr:`PreparedDevice.exclusive` whose numbers are CPUs; usually none.

        The kit keeps containers without the claim off these CPUs (cpuset.cpus), before a prepare is
        answered and for claims whose record was lost.
        """
        ...

    def offer(self) -> Offer:
        """Say what this node has. Pure; equal drivers offer equal things in equal order."""
        ...

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        """Say exactly what *claim* gets, given everything already assigned.

        *prepared_claims* never contains *claim* itself. One prepared device per allocated device, in order. Raises
        :class:`RejectedError` when it cannot be given. The kit checks the answer against all other claims
        before it becomes true; an answer that overlaps is the driver's defect and is rejected.
        """
        ...

    def enforce(
        self, container: ContainerView, prepared_claims: PreparedClaims
    ) -> DesiredResources:
        """Say what *container* must look like now.

        Called for the container being created and again for every other one whenever prepared claims
        change: the answer for a container without claims typically depends on prepared claims alone.
        Raises :class:`RejectedError` when the container must not run.
        """
        ...


Discover = Callable[[], Driver]
"""Reads the world (machine, configuration) and makes the driver anew; called at start, on SIGHUP and
every so often: when the offer differs from the last, it is published again. May raise ``OSError`` or
``ValueError``: at start that ends the process with the message, later the last good driver stays."""
