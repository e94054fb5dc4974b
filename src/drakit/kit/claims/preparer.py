"""NodePrepareResources and NodeUnprepareResources: checkpoint, CDI spec, answer to the kubelet.

The first prepare of a claim asks the driver what the claim gets and writes it to the checkpoint; every
call makes the derived files match the checkpoint: after a reboot the CDI directory is empty and the
checkpoint is not. The order survives a crash: the checkpoint before the derived files, those before the
answer, and the reverse for unprepare, which never requires disk space (:mod:`drakit.kit.claims.unprepared`).

No call is answered before the runtime is synchronized, nor while the connection to it is lost: it is then
unknown which containers run, and a claim in use could be released. A call waits a few seconds first,
because a rolling update or a restart of the runtime is soon over. The check is repeated with the lock held,
because waiting for the lock may take long; nothing is awaited between this check and the decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final, Protocol

import msgspec

from drakit.core.filelock import LockTimeoutError
from drakit.core.log import get_logger
from drakit.kit.claims.cdi_specs import ClaimSpecs
from drakit.kit.claims.checkpoint import Checkpoint, NotReadyError, Transaction, entry_of
from drakit.kit.claims.metadata import MetadataFiles, by_request
from drakit.kit.claims.resource_claims import ClaimSource, ClaimSourceError, claim_for
from drakit.kit.claims.unprepared import Tombstones
from drakit.kit.driver import (
    Claim,
    Driver,
    Offer,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
)
from drakit.kit.telemetry.logs import about
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.kubelet import ClaimError, ClaimRef, KubeletDevice, request_id

log = get_logger(__name__)
_READY_POLL_SECONDS: Final = 0.02
_REMEDIES: Final = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "free space in that quota",
    errno.EROFS: "the file system is mounted read-only, often after a disk error: see the kernel log",
    errno.EIO: "the disk reports errors: see the kernel log",
    errno.EMFILE: "the driver has too many files open",
    errno.ENFILE: "the node has too many files open",
    errno.ENOMEM: "the node is out of memory",
    errno.EACCES: "the driver must be allowed to read and write there",
}


class NodeState(Protocol):
    """The rest of the driver on this node, as prepare and unprepare need it; see ``Host``."""

    driver: Driver
    """The driver for the machine as last discovered."""
    offer: Offer
    """The driver's current offer, with named pools."""

    @property
    def not_ready(self) -> str | None:
        """Why no call can be answered now; ``None`` if calls can be answered."""

    def user_of(self, uid: str) -> str | None:
        """A container that still uses the claim, for messages; ``None`` if there is none."""

    async def provision(self, claim: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        """Make available what *claim* was assigned, or raise :class:`RejectedError`."""

    def claims_changed(self, prepared_claims: PreparedClaims, *, update_containers: bool) -> None:
        """Start to apply the changed claims to the node; called with the checkpoint locked.

        *update_containers* is False if :meth:`evict_others`, which updates them too, follows.
        """

    async def evict_others(self, claim: PreparedClaim) -> None:
        """Update the containers of other claims, and wait until they left the resources of *claim*."""


class Preparer:
    """Answers the kubelet's calls for one driver (a ``DraHandler``).

    A call waits at most *ready_timeout* seconds for *node* to become ready.
    """

    def __init__(
        self,
        node: NodeState,
        *,
        checkpoint: Checkpoint,
        source: ClaimSource,
        cdi: ClaimSpecs,
        metadata: MetadataFiles,
        metrics: HostMetrics | None = None,
        ready_timeout: float = 0.0,
    ) -> None:
        self._node = node
        self._checkpoint = checkpoint
        self._source = source
        self._cdi = cdi
        self._metadata = metadata
        self._metrics = metrics or HostMetrics(node.driver.name)
        self._ready_timeout = ready_timeout
        self._last_applied = checkpoint.prepared_claims
        self._tombstones = Tombstones(os.path.join(checkpoint.directory, ".tombstones"), checkpoint.boot)
        # Calls of this process wait here in order; the lock between processes is polled.
        self._turn = asyncio.Lock()

    async def restore(self) -> None:
        """Make all derived files match the checkpoint; at start, before the kubelet is served.

        Files that cannot be removed or written are logged and left for the next start or prepare.
        Nothing is removed that may belong to a claim whose checkpoint file cannot be read now.
        """
        async with self._turn, self._checkpoint.transaction() as transaction:
            claims = self._last_applied = transaction.prepared_claims
            unseen = self._checkpoint.unseen
            try:
                self._cdi.keep_only({*claims.entries, *unseen})
                if not unseen:
                    self._metadata.keep_only(claims)
            except OSError as error:
                log.error("cannot remove files of ended claims", error=error)
            for entry in claims:
                try:
                    self._write_files(entry)
                except (OSError, RejectedError) as error:
                    log.error("cannot restore files of claim", claim=entry, error=error)

    async def prepare(self, claim: ClaimRef) -> list[KubeletDevice]:
        """See :class:`drakit.wire.kubelet.DraHandler`."""
        started = time.monotonic()
        with self._answering("prepare", claim):
            await self._until_ready("prepared", claim, started + self._ready_timeout)
            wanted = await self._fetch(claim)
            async with self._changing("prepared", claim) as transaction:
                if self._tombstones.marked_since(claim.uid, started):
                    raise RejectedError(
                        f"claim {claim} was unprepared while it was being prepared; "
                        f"a new call will prepare it again",
                        reason="unprepared",
                    )
                entry = await self._record(transaction, wanted, claim)
                devices = self._write_files(entry)
            await self._node.evict_others(entry)  # without the lock: runtime events need it
            log.info("claim prepared", devices=", ".join(device.device for device in devices))
        return devices

    async def unprepare(self, claim: ClaimRef) -> None:
        """See :class:`drakit.wire.kubelet.DraHandler`. Uses local state only.

        Rejected while a container of the claim has not ended. The kubelet unprepares the claims of pods
        that no longer exist once a minute, also of a pod that was force-deleted while its containers
        run or are being started (seen with 1.37.1), and repeats the call.
        """
        with self._answering("unprepare", claim):
            async with self._changing("unprepared", claim) as transaction:
                if user := self._node.user_of(claim.uid):
                    raise RejectedError(
                        f"claim {claim} is still in use by {user}; unprepare is retried after it terminates",
                        reason="in-use",
                    )
                transaction.check_removable(claim.uid)
                self._tombstones.mark(claim.uid)
                entry = transaction.prepared_claims.get(claim.uid)
                self._cdi.remove(claim.uid)
                if entry is not None:
                    self._metadata.remove(entry)
                known = transaction.remove(claim.uid)
            log.info("claim unprepared", known=known)

    async def _until_ready(self, verb: str, claim: ClaimRef, deadline: float) -> None:
        while self._node.not_ready is not None:
            if time.monotonic() >= deadline:
                self._check_ready(verb, claim)
            await asyncio.sleep(_READY_POLL_SECONDS)

    def _check_ready(self, verb: str, claim: ClaimRef) -> None:
        if missing := self._node.not_ready:
            raise NotReadyError(
                f"claim {claim} cannot be {verb} now: {missing}; the kubelet retries until it succeeds"
            )

    @contextlib.asynccontextmanager
    async def _changing(self, verb: str, claim: ClaimRef) -> AsyncIterator[Transaction]:
        """A transaction that begins while the node is ready.

        Changed claims are applied to the node after a failure too: the change may be on disk all the
        same, or another instance made it.
        """
        deadline = time.monotonic() + self._ready_timeout
        while True:
            await self._until_ready(verb, claim, deadline)
            async with self._turn, self._checkpoint.transaction() as transaction:
                if self._node.not_ready is not None and time.monotonic() < deadline:
                    continue  # lost while this call waited for the lock: wait without the lock
                self._check_ready(verb, claim)
                succeeded = False
                try:
                    yield transaction
                    succeeded = True
                finally:
                    claims = transaction.prepared_claims
                    if claims is not self._last_applied:
                        self._last_applied = claims
                        evicts = succeeded and verb == "prepared"
                        self._node.claims_changed(claims, update_containers=not evicts)
                return

    @contextlib.contextmanager
    def _answering(self, verb: str, claim: ClaimRef) -> Iterator[None]:
        """Turn errors into the claim's error text, count the call, and name the claim in every log."""
        started = time.monotonic()
        result = "error"
        call = str(request_id.get() or "")
        count, seconds = self._metrics.prepares, self._metrics.prepare_seconds
        if verb == "unprepare":
            count, seconds = self._metrics.unprepares, self._metrics.unprepare_seconds
        try:
            with about(claim=f"{claim.namespace}/{claim.name}", uid=claim.uid, request=call):
                yield
            result = "success"
        except RejectedError as error:
            part = "assign" if verb == "prepare" else "release"
            self._metrics.rejections.labels(part, error.reason).inc()
            raise ClaimError(str(error)) from error
        except (ClaimSourceError, LockTimeoutError) as error:
            raise ClaimError(str(error)) from error
        except OSError as error:
            remedy = f" ({_REMEDIES[error.errno]})" if error.errno in _REMEDIES else ""
            log.error("kubelet call failed", call=verb, claim=claim, error=error)
            raise ClaimError(
                f"cannot {verb} claim {claim} on this node: {error}{remedy}; the kubelet retries"
            ) from error
        finally:
            count.labels(result).inc()
            seconds.observe(time.monotonic() - started)

    async def _fetch(self, claim: ClaimRef) -> Claim | None:
        """The claim from the API server; None if it is unreachable but the checkpoint has the claim.

        After a reboot, pods must start without an API server that may itself wait for them.
        """
        try:
            document = await self._source.get(claim.namespace, claim.name)
        except ClaimSourceError as error:
            self._checkpoint.refresh()
            if self._checkpoint.prepared_claims.get(claim.uid) is None:
                raise
            log.warning("preparing claim from the checkpoint alone", error=error)
            return None
        except msgspec.ValidationError as error:
            raise RejectedError(f"claim {claim} cannot be decoded: {error}", reason="malformed") from error
        if document is None:
            raise RejectedError(
                f"claim {claim} does not exist; delete the pod so that it is created again", reason="missing"
            )
        return claim_for(self._node.driver.name, document, claim.uid)

    async def _record(self, transaction: Transaction, wanted: Claim | None, ref: ClaimRef) -> PreparedClaim:
        """The claim in the checkpoint: as it was recorded before, or newly assigned by the driver."""
        uid = ref.uid
        entry = transaction.get(uid)
        if wanted is None:
            if entry is None:
                raise RejectedError(f"claim {uid} was unprepared meanwhile", reason="unprepared")
            new = entry
        elif entry is not None and same_devices(entry, wanted):
            new = entry_of(wanted, entry.devices, self._checkpoint.boot)
        else:
            if entry is not None:
                self._release_if_rebooted(transaction, entry)
            transaction.check_complete()
            new = assigned(self._node.driver, wanted, transaction.prepared_claims, self._checkpoint.boot)
        await self._node.provision(new, transaction.prepared_claims.replacing(uid, None))
        self._check_ready("prepared", ref)
        if entry is None or msgspec.structs.replace(new, prepared_at=entry.prepared_at) != entry:
            transaction.put(new, self._node.offer)
            return new
        transaction.confirm(uid)
        return entry

    def _release_if_rebooted(self, transaction: Transaction, entry: PreparedClaim) -> None:
        """Release the old devices of a claim that was reallocated, if none can be in use.

        After a reboot no container of the claim is left. Within one boot it may still run on the old
        devices (force-deleted pod), and only the kubelet's unprepare tells that it has ended.
        """
        if entry.boot_id == self._checkpoint.boot:
            held = ", ".join(prepared.device for prepared in entry.devices)
            raise RejectedError(
                f"{entry} was reallocated but its earlier devices ({held}) are still in use on "
                f"this node; it can be prepared when the pods that use them have ended",
                reason="conflict",
            )
        log.info("claim was reallocated since the reboot, releasing its old devices", claim=entry)
        transaction.remove(entry.uid)

    def _write_files(self, entry: PreparedClaim) -> list[KubeletDevice]:
        """Make the derived files match *entry*; returns the devices for the kubelet."""
        cdi_ids = self._cdi.write(entry, self._metadata.write(entry))
        devices = []
        for request, prepared_devices in by_request(entry).items():
            # One CDI device stands for the whole request: named for each of its devices, it would
            # be injected as many times.
            ids: tuple[str, ...] = (cdi_ids[request],) if request in cdi_ids else ()
            for each in prepared_devices:
                devices.append(KubeletDevice((request,), each.pool, each.device, ids, each.share_id))
                ids = ()
        return devices


def assigned(driver: Driver, claim: Claim, prepared_claims: PreparedClaims, boot: str) -> PreparedClaim:
    """The result of the driver's ``assign``, checked for completeness. Raises :class:`RejectedError`."""
    assignment = driver.assign(claim, prepared_claims)
    wanted, given = _allocated(claim), _prepared(assignment.devices)
    if wanted != given:
        raise RejectedError(
            f"the driver answered for {given} where {wanted} was allocated to {claim}; "
            f"this is a defect of the driver",
            reason="defect",
        )
    return entry_of(claim, assignment.devices, boot)


def same_devices(entry: PreparedClaim, claim: Claim) -> bool:
    """Whether the claim still has the devices it was prepared with."""
    return _prepared(entry.devices) == _allocated(claim)


def _allocated(claim: Claim) -> list[tuple[str, str, str, str | None]]:
    return [(each.base_request, each.pool, each.device, each.share_id) for each in claim.devices]


def _prepared(devices: Iterable[PreparedDevice]) -> list[tuple[str, str, str, str | None]]:
    return [(each.request, each.pool, each.device, each.share_id) for each in devices]
