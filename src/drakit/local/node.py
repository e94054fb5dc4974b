"""One machine as a cluster of one node: offer, schedule, assign, and a checkpoint of who holds what.

The same functions as in a cluster decide: the driver's offer becomes slices, the model of
kube-scheduler picks devices, the driver assigns exact CPUs, and the checkpoint – locked across
processes – makes sure that no two commands ever hold one CPU.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from drakit.core.objects import (
    AllocatedConfiguration,
    Allocation,
    AllocationResult,
    CelSelector,
    DeviceAllocation,
    DeviceClass,
    DeviceClassSpec,
    DeviceSelector,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from drakit.core.pods import Node, Pod, PodResourceClaim, PodSpec
from drakit.drivers.cpumem.classes import combined_classes, split_classes
from drakit.drivers.cpumem.kinds import DRIVER as CPUMEM
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.claims.checkpoint import Checkpoint, Transaction, entry_of
from drakit.kit.claims.resource_claims import claim_for
from drakit.kit.driver import PreparedClaim, PreparedClaims
from drakit.kit.slices.preview import preview_slices
from drakit.local import tether
from drakit.scheduler.allocator.search import ClaimAllocation
from drakit.scheduler.errors import FatalError
from drakit.scheduler.explain import NodeReport, report, with_remedies
from drakit.scheduler.placement import (
    ClusterSnapshot,
    NodeResult,
    SchedulingCycle,
    check_node,
    prepare,
)

_TEMPORARY: Final = "/tmp"  # noqa: S108 - what is made there is checked
NODE_NAME: Final = "localhost"


class DoesNotFit(Exception):  # noqa: N818 - an answer, not a malfunction
    """The claims do not fit now; carries what is needed to explain why."""

    def __init__(
        self, scheduling: SchedulingCycle, answer: NodeResult, prepared_claims: PreparedClaims
    ) -> None:
        super().__init__(answer.reason)
        self.scheduling = scheduling
        self.answer = answer
        self.prepared_claims = prepared_claims

    def report(self) -> NodeReport:
        """Which request, which device, what short – and what would help."""
        (node,) = self.scheduling.cluster.nodes
        return with_remedies(self.scheduling, node, report(self.scheduling, node, self.answer))


def state_directory(environ: dict[str, str] | os._Environ[str] = os.environ) -> str:
    """Where local claims are kept: ``/run/drakit`` for root, else the user's runtime directory.

    Without one it is a directory in ``/tmp``, which is made here: others may have been there first.
    Raises ``PermissionError`` when somebody else could change what is kept there.
    """
    user = os.geteuid()
    if user == 0:
        return "/run/drakit/claims"
    base = environ.get("XDG_RUNTIME_DIR")
    if base:
        _check_private(base, user, forbidden=0o022)
    else:
        base = os.path.join(_TEMPORARY, f"drakit-{user}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(base, 0o700)
        _check_private(base, user, forbidden=0o077)
    return os.path.join(base, "drakit", "claims")


def _check_private(directory: str, user: int, forbidden: int) -> None:
    """Raise ``PermissionError`` unless *directory* is the user's own; a missing one will be."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & forbidden:
        return
    kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no directory"
    raise PermissionError(
        f"{directory} is not safe to keep claims in: it is {kind} of user {found.st_uid} with mode "
        f"{stat.S_IMODE(found.st_mode):04o}, and must be a directory of user {user} that nobody else "
        f"can write to; set XDG_RUNTIME_DIR to a directory of your own"
    )


def builtin_classes(driver: str) -> dict[str, DeviceClass]:
    """The DeviceClasses that the driver's chart installs, so that cluster manifests work here."""
    if driver == CPUMEM:
        return {made.metadata.name: made for made in (*split_classes(), *combined_classes())}
    selector = DeviceSelector(cel=CelSelector(expression=f'device.driver == "{driver}"'))
    made = DeviceClass(
        metadata=ObjectMeta(name=driver), spec=DeviceClassSpec(selectors=(selector,))
    )
    return {driver: made}


@dataclass(frozen=True)
class Taken:
    """A claim that is held now: its entry, and the descriptor that keeps it held."""

    entry: PreparedClaim
    descriptor: int


class LocalNode:
    """The machine as offered by *driver*, with the checkpoint in *directory*."""

    def __init__(
        self, driver: NodeDriver, directory: str, classes: Iterable[DeviceClass] = ()
    ) -> None:
        self.driver = driver
        self.checkpoint = Checkpoint(directory)
        self.classes = builtin_classes(driver.name) | {c.metadata.name: c for c in classes}
        self.offer = driver.offer().named(NODE_NAME)

    def slices(self) -> list[ResourceSlice]:
        """What this machine offers, as slices of a node called ``localhost``."""
        return preview_slices(self.driver, NODE_NAME)

    def allocated(self, prepared_claims: PreparedClaims) -> list[ResourceClaim]:
        """The claims held here, as the scheduler sees allocated ones.

        Claims of other devices (of another driver, or another grouping) are in the same checkpoint: they
        stand for as much of this driver's devices as they hold of what is behind these.
        """
        own = {device.name for pool in self.offer.pools for device in pool.devices}
        found = []
        for entry in prepared_claims:
            if all(prepared.device in own for prepared in entry.prepared_devices):
                found.append(_as_claim(self.driver.name, entry))
            else:
                found.append(_claim_of(entry, tuple(self._in_our_terms(entry))))
        return found

    def _in_our_terms(self, entry: PreparedClaim) -> Iterator[AllocationResult]:
        """What a claim of other devices holds, in shares of this driver's devices."""
        for device, consumed in self.driver.consumption(entry).items():
            if any(consumed.values()):
                yield AllocationResult(
                    request="held",
                    driver=self.driver.name,
                    pool=NODE_NAME,
                    device=device,
                    share_id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{entry.uid}/{device}")),
                    consumed_capacity=dict(consumed),
                )

    def schedule(
        self, claims: Sequence[ResourceClaim], prepared_claims: PreparedClaims
    ) -> tuple[SchedulingCycle, NodeResult]:
        """What kube-scheduler would answer a pod with *claims*; raises ``FatalError`` where it would."""
        uses = tuple(
            PodResourceClaim(name=c.metadata.name, resource_claim_name=c.metadata.name)
            for c in claims
        )
        pod = Pod(
            metadata=ObjectMeta(name="command", namespace="default"),
            spec=PodSpec(resource_claims=uses),
        )
        node = Node(metadata=ObjectMeta(name=NODE_NAME))
        cluster = ClusterSnapshot(
            nodes=(node,),
            slices=tuple(self.slices()),
            classes=tuple(self.classes.values()),
            claims=(*self.allocated(prepared_claims), *claims),
        )
        scheduling = prepare(cluster, pod)
        if scheduling.blocked:
            raise FatalError(scheduling.blocked)
        answer = check_node(scheduling, node)
        if answer.fatal:
            raise FatalError(answer.reason)
        return scheduling, answer

    async def look(self) -> PreparedClaims:
        """Who holds what now; claims whose users are gone are released on the way."""
        self.checkpoint.load()
        async with self.checkpoint.transaction() as transaction:
            self._sweep(transaction)
            return transaction.prepared_claims

    async def take(self, claims: Sequence[ResourceClaim]) -> tuple[Taken, ...]:
        """Give *claims* to the calling process and its children, all of them or none.

        Raises :class:`DoesNotFit`, ``RejectedError`` (the driver's no) or ``FatalError`` (a claim itself
        is wrong).
        """
        self.checkpoint.load()
        async with self.checkpoint.transaction() as transaction:
            self._sweep(transaction)
            scheduling, answer = self.schedule(claims, transaction.prepared_claims)
            if not answer.fits:
                raise DoesNotFit(scheduling, answer, transaction.prepared_claims)
            taken: list[Taken] = []
            try:
                for allocation in answer.allocations:
                    taken.append(self._take(transaction, allocation))  # noqa: PERF401 - see except
            except BaseException:
                for one in taken:
                    self._give_back(transaction, one)
                raise
            return tuple(taken)

    def assignment(
        self, claims: Sequence[ResourceClaim], prepared_claims: PreparedClaims
    ) -> list[PreparedClaim]:
        """What :meth:`take` would write down, without doing it; raises like it."""
        scheduling, answer = self.schedule(claims, prepared_claims)
        if not answer.fits:
            raise DoesNotFit(scheduling, answer, prepared_claims)
        entries: list[PreparedClaim] = []
        for allocation in answer.allocations:
            entries.append(
                self._entry(
                    allocation,
                    PreparedClaims([*prepared_claims, *entries], prepared_claims.orphaned),
                )
            )
        return entries

    def _entry(self, allocation: ClaimAllocation, prepared_claims: PreparedClaims) -> PreparedClaim:
        claim = as_allocated(allocation.claim, allocation, self.classes)
        wanted = claim_for(self.driver.name, claim, claim.metadata.uid)
        return entry_of(
            wanted,
            self.driver.assign(wanted, prepared_claims).prepared_devices,
            self.checkpoint.boot,
        )

    def _take(self, transaction: Transaction, allocation: ClaimAllocation) -> Taken:
        entry = self._entry(allocation, transaction.prepared_claims)
        me = tether.identity_of(os.getpid())
        entry = msgspec.structs.replace(entry, consumers=(me,))
        descriptor = tether.fasten(self.checkpoint.directory, entry.uid)
        taken = Taken(entry, descriptor)
        try:
            transaction.put(entry, self.offer)
        except BaseException:
            self._give_back(transaction, taken)
            raise
        return taken

    def _give_back(self, transaction: Transaction, taken: Taken) -> None:
        os.close(taken.descriptor)
        transaction.remove(taken.entry.uid)
        tether.cut(self.checkpoint.directory, taken.entry.uid)

    async def hand_over(self, uid: str, pid: int) -> None:
        """The command runs as process *pid*: the claim lives as long as it or its tether."""
        async with self.checkpoint.transaction() as transaction:
            entry = transaction.get(uid)
            if entry is not None:
                users = (*entry.consumers, tether.identity_of(pid))
                changed = msgspec.structs.replace(entry, consumers=tuple(filter(None, users)))
                transaction.put(changed, self.offer)

    async def release(self, taken: Taken) -> None:
        """The command ended: give the claim back, unless something it started still runs on it."""
        os.close(taken.descriptor)
        async with self.checkpoint.transaction() as transaction:
            self._sweep(transaction, ended=taken.entry.uid)

    def _sweep(self, transaction: Transaction, ended: str | None = None) -> None:
        """Release the claims nobody uses any more: their users crashed or the machine rebooted."""
        directory = self.checkpoint.directory
        for entry in list(transaction.prepared_claims):
            in_use = not tether.is_loose(directory, entry.uid) or (
                entry.uid != ended and any(map(tether.is_alive, entry.consumers))
            )
            if entry.boot_id == self.checkpoint.boot and in_use:
                continue
            transaction.remove(entry.uid)
            tether.cut(directory, entry.uid)


def fresh_claim(claim: ResourceClaim) -> ResourceClaim:
    """The claim with an identity of its own, as the API server would give it."""
    meta, uid = claim.metadata, str(uuid.uuid4())
    named = ObjectMeta(
        name=f"{meta.name or meta.generate_name.rstrip('-') or 'claim'}-{uid[:5]}",
        namespace="default",
        uid=uid,
        annotations=meta.annotations,
    )
    return ResourceClaim(metadata=named, spec=claim.spec)


def as_allocated(
    claim: ResourceClaim, allocation: ClaimAllocation, classes: dict[str, DeviceClass]
) -> ResourceClaim:
    """The claim as the scheduler would have written it: results, and configuration for them."""
    results = tuple(
        AllocationResult(
            request=str(pick.request),
            driver=pick.device.driver,
            pool=pick.device.pool,
            device=pick.device.device,
            admin_access=True if pick.admin else None,
            share_id=str(uuid.uuid4()) if pick.shared else None,
            consumed_capacity=pick.consumed if pick.shared else {},
        )
        for pick in allocation.picks
    )
    config = [
        AllocatedConfiguration(
            source="FromClass", requests=(str(pick.request),), opaque=entry.opaque
        )
        for pick in allocation.picks
        for entry in classes[pick.variant.spec.device_class_name].spec.config
    ] + [
        AllocatedConfiguration(source="FromClaim", requests=entry.requests, opaque=entry.opaque)
        for entry in claim.spec.devices.config
    ]
    devices = DeviceAllocation(results=results, config=tuple(config))
    return ResourceClaim(
        metadata=claim.metadata,
        spec=claim.spec,
        status=ResourceClaimStatus(allocation=Allocation(devices=devices)),
    )


def _as_claim(driver: str, entry: PreparedClaim) -> ResourceClaim:
    results = tuple(
        AllocationResult(
            request=prepared.request,
            driver=driver,
            pool=prepared.pool,
            device=prepared.device,
            admin_access=True if prepared.admin_access else None,
            share_id=prepared.share_id,
            consumed_capacity=prepared.consumed_capacity,
        )
        for prepared in entry.prepared_devices
    )
    return _claim_of(entry, results)


def _claim_of(entry: PreparedClaim, results: tuple[AllocationResult, ...]) -> ResourceClaim:
    return ResourceClaim(
        metadata=ObjectMeta(name=entry.name, namespace=entry.namespace, uid=entry.uid),
        status=ResourceClaimStatus(
            allocation=Allocation(devices=DeviceAllocation(results=results))
        ),
    )
