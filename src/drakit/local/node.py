"""One machine as a cluster of one node: offer, schedule, assign, checkpoint.

As in a cluster, the driver's offer becomes slices, the model of kube-scheduler picks devices, the driver
assigns exact CPUs, and the checkpoint, locked across processes, ensures that no two commands hold one CPU.
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

from drakit.cluster import pod_using
from drakit.core.objects import (
    AllocatedConfiguration,
    AllocationResult,
    DeviceAllocationResult,
    DeviceClass,
    DeviceRequestAllocationResult,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from drakit.core.pods import Node
from drakit.drivers.cpumem.kinds import DRIVER as CPUMEM
from drakit.drivers.cpumem.layouts import combined_classes, device_class, split_classes
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.claims.checkpoint import Checkpoint, Transaction, entry_of
from drakit.kit.claims.resource_claims import claim_for
from drakit.kit.driver import PreparedClaim, PreparedClaims
from drakit.kit.slices.preview import preview_slices
from drakit.local import tether
from drakit.scheduler.allocator.search import ClaimAllocation
from drakit.scheduler.errors import FatalError
from drakit.scheduler.explain import NodeReport, report, with_remedies
from drakit.scheduler.placement import ClusterSnapshot, NodeResult, SchedulingCycle, check_node, prepare

_TEMPORARY: Final = "/tmp"  # noqa: S108 - what is made there is checked
NODE_NAME: Final = "localhost"


class DoesNotFitError(Exception):
    """The claims do not fit now; has the data to explain why."""

    def __init__(
        self, scheduling: SchedulingCycle, answer: NodeResult, prepared_claims: PreparedClaims
    ) -> None:
        super().__init__(answer.reason)
        self.scheduling = scheduling
        self.answer = answer
        self.prepared_claims = prepared_claims

    def report(self) -> NodeReport:
        """The request and device that do not fit, with remedies."""
        (node,) = self.scheduling.cluster.nodes
        return with_remedies(self.scheduling, node, report(self.scheduling, node, self.answer))


def state_directory(environ: dict[str, str] | os._Environ[str] = os.environ) -> str:
    """The directory of local claims: ``/run/drakit`` for root, else in the user's runtime directory.

    Without one it is created in ``/tmp``. Raises ``PermissionError`` if another user could change it.
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
    """Raise ``PermissionError`` if *directory* exists and is not private to the user."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & forbidden:
        return
    kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a directory"
    raise PermissionError(
        f"{directory} is not safe for claims: it is {kind}, has owner {found.st_uid} and mode "
        f"{stat.S_IMODE(found.st_mode):04o}, and must be a directory of user {user} that no other user "
        f"can write to; set XDG_RUNTIME_DIR to a directory of your own"
    )


def builtin_classes(driver: str) -> dict[str, DeviceClass]:
    """The DeviceClasses that the driver's Helm chart installs."""
    if driver == CPUMEM:
        return {made.metadata.name: made for made in (*split_classes(), *combined_classes())}
    return {driver: device_class(driver, f'device.driver == "{driver}"')}


@dataclass(frozen=True)
class Taken:
    """A claim in use: its checkpoint entry, and the descriptor of its tether."""

    entry: PreparedClaim
    descriptor: int


class LocalNode:
    """The machine as offered by *driver*, with the checkpoint in *directory*."""

    def __init__(self, driver: NodeDriver, directory: str, classes: Iterable[DeviceClass] = ()) -> None:
        self.driver = driver
        self.checkpoint = Checkpoint(directory)
        self.classes = builtin_classes(driver.name) | {c.metadata.name: c for c in classes}
        self.offer = driver.offer().named(NODE_NAME)

    def slices(self) -> list[ResourceSlice]:
        """The ResourceSlices of this machine, as a node called ``localhost``."""
        return preview_slices(self.driver, NODE_NAME)

    def allocated(self, prepared_claims: PreparedClaims) -> list[ResourceClaim]:
        """The prepared claims as allocated ResourceClaims.

        Claims of other devices (of another driver, or another grouping) are in the same checkpoint; they
        count as the share of this driver's devices that they use.
        """
        own = {device.name for pool in self.offer.pools for device in pool.devices}
        found = []
        for entry in prepared_claims:
            ours = all(prepared.device in own for prepared in entry.devices)
            results = self._results(entry) if ours else self._consumed(entry)
            meta = ObjectMeta(name=entry.name, namespace=entry.namespace, uid=entry.uid)
            status = _status(DeviceAllocationResult(results=tuple(results)))
            found.append(ResourceClaim(metadata=meta, status=status))
        return found

    def _results(self, entry: PreparedClaim) -> Iterator[DeviceRequestAllocationResult]:
        for prepared in entry.devices:
            yield DeviceRequestAllocationResult(
                request=prepared.request,
                driver=self.driver.name,
                pool=prepared.pool,
                device=prepared.device,
                admin_access=True if prepared.admin_access else None,
                share_id=prepared.share_id,
                consumed_capacity=prepared.consumed_capacity,
            )

    def _consumed(self, entry: PreparedClaim) -> Iterator[DeviceRequestAllocationResult]:
        """The shares of this driver's devices that a claim of other devices uses."""
        for device, consumed in self.driver.consumption(entry).items():
            if any(consumed.values()):
                yield DeviceRequestAllocationResult(
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
        """The result of kube-scheduler for a pod with *claims*. Raises ``FatalError``."""
        node = Node(metadata=ObjectMeta(name=NODE_NAME))
        cluster = ClusterSnapshot(
            nodes=(node,),
            slices=tuple(self.slices()),
            classes=tuple(self.classes.values()),
            claims=(*self.allocated(prepared_claims), *claims),
        )
        scheduling = prepare(cluster, pod_using("command", "default", claims))
        if scheduling.blocked:
            raise FatalError(scheduling.blocked)
        answer = check_node(scheduling, node)
        if answer.fatal:
            raise FatalError(answer.reason)
        return scheduling, answer

    async def look(self) -> PreparedClaims:
        """The prepared claims, after releasing those whose processes have ended."""
        self.checkpoint.load()
        async with self.checkpoint.transaction() as transaction:
            self._sweep(transaction)
            return transaction.prepared_claims

    async def take(self, claims: Sequence[ResourceClaim]) -> tuple[Taken, ...]:
        """Give *claims* to the calling process and its children, all of them or none.

        Raises :class:`DoesNotFitError`, ``RejectedError`` (driver) or ``FatalError`` (invalid claim).
        """
        self.checkpoint.load()
        async with self.checkpoint.transaction() as transaction:
            self._sweep(transaction)
            scheduling, answer = self.schedule(claims, transaction.prepared_claims)
            if not answer.fits:
                raise DoesNotFitError(scheduling, answer, transaction.prepared_claims)
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
        """The checkpoint entries that :meth:`take` would write; raises as it does."""
        scheduling, answer = self.schedule(claims, prepared_claims)
        if not answer.fits:
            raise DoesNotFitError(scheduling, answer, prepared_claims)
        entries: list[PreparedClaim] = []
        for allocation in answer.allocations:
            held = PreparedClaims([*prepared_claims, *entries], prepared_claims.orphaned)
            entries.append(self._entry(allocation, held))
        return entries

    def _entry(self, allocation: ClaimAllocation, prepared_claims: PreparedClaims) -> PreparedClaim:
        claim = as_allocated(allocation.claim, allocation, self.classes)
        wanted = claim_for(self.driver.name, claim, claim.metadata.uid)
        assigned = self.driver.assign(wanted, prepared_claims)
        return entry_of(wanted, assigned.devices, self.checkpoint.boot)

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
        """Bind the claim to the process *pid* of the command, in addition to its tether."""
        async with self.checkpoint.transaction() as transaction:
            entry = transaction.get(uid)
            if entry is not None:
                users = (*entry.consumers, tether.identity_of(pid))
                changed = msgspec.structs.replace(entry, consumers=tuple(filter(None, users)))
                transaction.put(changed, self.offer)

    async def release(self, taken: Taken) -> None:
        """Release the claim of a command that ended, unless its children still run."""
        os.close(taken.descriptor)
        async with self.checkpoint.transaction() as transaction:
            self._sweep(transaction, ended=taken.entry.uid)

    def _sweep(self, transaction: Transaction, ended: str | None = None) -> None:
        """Release claims without processes: these ended, crashed, or the machine rebooted."""
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
    """The claim with a new name and UID, as from the API server."""
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
    """The claim with the allocation that the scheduler would write: results and configuration."""
    results = tuple(
        DeviceRequestAllocationResult(
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
        AllocatedConfiguration(source="FromClass", requests=(str(pick.request),), opaque=entry.opaque)
        for pick in allocation.picks
        for entry in classes[pick.variant.spec.device_class_name].spec.config
    ] + [
        AllocatedConfiguration(source="FromClaim", requests=entry.requests, opaque=entry.opaque)
        for entry in claim.spec.devices.config
    ]
    devices = DeviceAllocationResult(results=results, config=tuple(config))
    return ResourceClaim(metadata=claim.metadata, spec=claim.spec, status=_status(devices))


def _status(devices: DeviceAllocationResult) -> ResourceClaimStatus:
    return ResourceClaimStatus(allocation=AllocationResult(devices=devices))
