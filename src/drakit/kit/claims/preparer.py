"""Prepare and unprepare: from the kubelet's call to checkpoint, CDI spec and answer.

Prepare is a reconcile. The first time it asks the driver what the claim gets and writes that down;
every time, also the first, it makes the derived files true again – after a reboot the CDI directory
is empty while the checkpoint is not. The order of the steps is what survives a crash: the checkpoint before
the files derived from it, those before the answer; and the other way round on the way out.

* **No call is answered before the runtime is synchronized**, nor while the connection to it is lost:
  without it nobody knows which containers run, so a claim could be given back that is in use. The
  kubelet repeats the call. That is checked at the beginning, where a call waits a few seconds because
  a rolling update or a runtime's restart is soon over, and again under the lock: waiting for the API
  server or the lock may take long, and nothing is awaited between that last look and the decision.
* **Releasing never requires disk space.** Unprepare unlinks; the one file it writes may fail to be
  written (:mod:`drakit.kit.claims.unprepared`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from drakit.core.filelock import LockTimeoutError
from drakit.core.objects import ResourceClaim
from drakit.kit.claims.checkpoint import Checkpoint, NotReady, Transaction, entry_of
from drakit.kit.claims.metadata import MetadataFiles, by_request
from drakit.kit.claims.resource_claims import claim_for
from drakit.kit.claims.unprepared import Tombstones
from drakit.kit.driver import (
    Claim,
    Driver,
    Mount,
    Offer,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
)
from drakit.kit.telemetry.logs import about
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.kit.telemetry.prometheus import Counter, Histogram
from drakit.wire.kubelet import ClaimError, ClaimRef, KubeletDevice, request_id

_LOG = logging.getLogger(__name__)

_READY_POLL_SECONDS: Final = 0.02
_REMEDIES: Final = {
    errno.ENOSPC: "make room on that file system",
    errno.EDQUOT: "make room in that quota",
    errno.EROFS: "the file system is mounted read-only, often after a disk error: see the kernel log",
    errno.EIO: "the disk reports errors: see the kernel log",
    errno.EMFILE: "the driver has too many files open",
    errno.ENFILE: "the node has too many files open",
    errno.ENOMEM: "the node is out of memory",
    errno.EACCES: "the driver must be allowed to read and write there",
}


class ClaimSourceError(Exception):
    """The API server could not be asked; says why and what to do."""


class ClaimSource(Protocol):
    """Where ResourceClaims are read."""

    async def get(self, namespace: str, name: str) -> ResourceClaim | None:
        """The claim as it is now, None when there is none.

        Raises :class:`ClaimSourceError` when that cannot be found out.
        """
        ...


class CdiSpecs(Protocol):
    """The CDI specs of this driver's claims, one per claim with one device per base request."""

    def write(self, entry: PreparedClaim, mounts: Mapping[str, Mount]) -> Mapping[str, str]:
        """Make the claim's spec true, durably; the same content is left alone.

        *mounts* are additional ones by base request. Returns the qualified CDI device ID of each
        base request. Raises ``OSError``.
        """
        ...

    def remove(self, uid: str) -> None:
        """Remove the claim's spec if there is one, durably. Raises ``OSError``."""
        ...

    def keep_only(self, uids: Iterable[str]) -> None:
        """Remove the specs of all claims of this driver but *uids*. Raises ``OSError``."""
        ...


class Preparer:
    """Answers the kubelet for one driver (a ``DraHandler``).

    *driver* and *offer* are asked anew for every claim: both change when the machine does. *offer*
    has its pools named. *changed* hears the new prepared claims after every change, still under the
    checkpoint's lock, so that what other containers look like can follow. *provide* is awaited before a
    claim is written down, also for a repeat, and may reject it. *in_line* is awaited before the
    kubelet is answered: until other containers have followed, as far as that is in our hands.
    *user_of* names a container that still uses a claim (by UID), if there is one. *not_ready* says
    what is missing before any call can be answered, ``None`` when nothing is; a call waits for that
    at most *patience* seconds.
    """

    def __init__(
        self,
        *,
        driver: Callable[[], Driver],
        offer: Callable[[], Offer],
        checkpoint: Checkpoint,
        source: ClaimSource,
        cdi: CdiSpecs,
        metadata: MetadataFiles | None = None,
        changed: Callable[[PreparedClaims], None] | None = None,
        provide: Callable[[PreparedClaim, PreparedClaims], Awaitable[None]] | None = None,
        in_line: Callable[[PreparedClaim], Awaitable[None]] | None = None,
        user_of: Callable[[str], str | None] = lambda uid: None,
        not_ready: Callable[[], str | None] = lambda: None,
        patience: float = 0.0,
        metrics: HostMetrics | None = None,
    ) -> None:
        self._driver = driver
        self._offer = offer
        self._checkpoint = checkpoint
        self._source = source
        self._cdi = cdi
        self._metadata = metadata
        self._changed = changed
        self._provide = provide
        self._in_line = in_line
        self._user_of = user_of
        self._not_ready = not_ready
        self._patience = patience
        self._last_told = checkpoint.prepared_claims
        self._metrics = metrics
        self._tombstones = Tombstones(
            os.path.join(checkpoint.directory, ".tombstones"), checkpoint.boot
        )
        # In front of the lock between processes, which is polled: here one waits one's turn.
        self._turn = asyncio.Lock()

    async def restore(self) -> None:
        """Make all derived files match the checkpoint; at start, before the kubelet is served.

        Files that cannot be removed or written are logged and left, for the next start or prepare.
        Nothing is removed that may belong to a claim whose checkpoint file is not understood now.
        """
        async with self._turn, self._checkpoint.transaction() as transaction:
            entries = list(transaction.prepared_claims)
            self._last_told = transaction.prepared_claims
            unseen = self._checkpoint.unseen
            try:
                self._cdi.keep_only({*transaction.prepared_claims.entries, *unseen})
                if self._metadata is not None and not unseen:
                    self._metadata.keep_only(entries)
            except OSError as error:
                _LOG.error("cannot remove files of claims that have ended: %s", error)
            for entry in entries:
                try:
                    self._derive(entry)
                except (OSError, RejectedError) as error:
                    _LOG.error("cannot restore the files of %s: %s", entry, error)

    async def prepare(self, claim: ClaimRef) -> list[KubeletDevice]:
        """See :class:`drakit.wire.kubelet.DraHandler`."""
        started = time.monotonic()
        with self._answering("prepare", claim):
            await self._until_ready("prepared", claim, started + self._patience)
            wanted = await self._fetch(claim)
            async with self._changing("prepared", claim) as transaction:
                if self._tombstones.marked_since(claim.uid, started):
                    raise RejectedError(
                        f"claim {claim} was unprepared while it was being prepared; "
                        f"a new call will prepare it again",
                        reason="unprepared",
                    )
                entry = await self._settle(transaction, wanted, claim)
                devices = self._derive(entry)
            if (
                self._in_line is not None
            ):  # without the lock: the runtime's events need the checkpoint
                await self._in_line(entry)
            _LOG.info("prepared: %s", ", ".join(d.device for d in devices))
        return devices

    async def unprepare(self, claim: ClaimRef) -> None:
        """See :class:`drakit.wire.kubelet.DraHandler`. Local state only.

        RejectedError while a container of the claim has not ended. Every minute the kubelet unprepares the
        claims of pods that are not there any more, also of one that was deleted by force and whose
        containers run, or are just being started (seen with 1.37.1). It comes again.
        """
        with self._answering("unprepare", claim):
            async with self._changing("unprepared", claim) as transaction:
                if user := self._user_of(claim.uid):
                    raise RejectedError(
                        f"claim {claim} is still used by {user}, which has not ended; "
                        f"it is given back when that has",
                        reason="in-use",
                    )
                transaction.check_removable(claim.uid)
                self._tombstones.mark(claim.uid)
                entry = transaction.prepared_claims.get(claim.uid)
                self._cdi.remove(claim.uid)
                if entry is not None and self._metadata is not None:
                    self._metadata.remove(entry)
                known = transaction.remove(claim.uid)
            _LOG.info("unprepared" if known else "unprepared: was not known here")

    async def _until_ready(self, verb: str, claim: ClaimRef, deadline: float) -> None:
        while self._not_ready() is not None:
            if time.monotonic() >= deadline:
                self._check_ready(verb, claim)
            await asyncio.sleep(_READY_POLL_SECONDS)

    def _check_ready(self, verb: str, claim: ClaimRef) -> None:
        missing = self._not_ready()
        if missing is not None:
            raise NotReady(
                f"claim {claim} cannot be {verb} now: {missing}; the kubelet tries again, and it "
                f"succeeds once that is over"
            )

    @contextlib.asynccontextmanager
    async def _changing(self, verb: str, claim: ClaimRef) -> AsyncIterator[Transaction]:
        """A transaction in which the runtime was there when it began.

        Others hear of it if the prepared claims are not what they last heard of. Also after a failure: the
        change may be on disk all the same, or be another instance's.
        """
        deadline = time.monotonic() + self._patience
        while True:
            await self._until_ready(verb, claim, deadline)
            async with self._turn, self._checkpoint.transaction() as transaction:
                if self._not_ready() is not None and time.monotonic() < deadline:
                    continue  # it went while this call waited for the lock: wait without the lock
                self._check_ready(verb, claim)
                try:
                    yield transaction
                finally:
                    self._tell_if_changed(transaction.prepared_claims)
                return

    def _tell_if_changed(self, prepared_claims: PreparedClaims) -> None:
        if prepared_claims is not self._last_told:
            self._last_told = prepared_claims
            if self._changed is not None:
                self._changed(prepared_claims)

    @contextlib.contextmanager
    def _answering(self, verb: str, claim: ClaimRef) -> Iterator[None]:
        """Turn what can go wrong into the claim's error text; count, and name it in every log."""
        started = time.monotonic()
        result = "error"
        call = str(request_id.get() or "")
        try:
            with about(claim=f"{claim.namespace}/{claim.name}", uid=claim.uid, request=call):
                yield
            result = "success"
        except (RejectedError, ClaimSourceError, LockTimeoutError) as reason:
            if isinstance(reason, RejectedError) and self._metrics is not None:
                part = "assign" if verb == "prepare" else "release"
                self._metrics.rejections.labels(part, reason.reason).inc()
            raise ClaimError(str(reason)) from reason
        except OSError as error:
            remedy = _REMEDIES.get(error.errno or 0)
            text = f"cannot {verb} claim {claim} on this node: {error}"
            _LOG.error("cannot %s: %s", verb, error)
            raise ClaimError(
                f"{text}{f' ({remedy})' if remedy else ''}; the kubelet tries again"
            ) from error
        finally:
            if self._metrics is not None:
                count, seconds = _instruments(self._metrics, verb)
                count.labels(result).inc()
                seconds.observe(time.monotonic() - started)

    async def _fetch(self, claim: ClaimRef) -> Claim | None:
        """The claim from the API server; None when it cannot be asked but the checkpoint knows it.

        A repeat needs nothing new: after a reboot, pods must come back without an API server
        that itself waits for them.
        """
        try:
            document = await self._source.get(claim.namespace, claim.name)
        except ClaimSourceError as error:
            self._checkpoint.refresh()
            if self._checkpoint.prepared_claims.get(claim.uid) is None:
                raise
            _LOG.warning("preparing %s from the checkpoint alone: %s", claim, error)
            return None
        except msgspec.ValidationError as error:
            raise RejectedError(
                f"claim {claim} cannot be understood: {error}", reason="malformed"
            ) from error
        if document is None:
            raise RejectedError(
                f"claim {claim} does not exist; delete the pod so that it is created again",
                reason="missing",
            )
        return claim_for(self._driver().name, document, claim.uid)

    async def _settle(
        self, transaction: Transaction, wanted: Claim | None, ref: ClaimRef
    ) -> PreparedClaim:
        """The claim's entry in the checkpoint: the one it has, or a new one from the driver."""
        uid = ref.uid
        entry = transaction.get(uid)
        if wanted is None:
            if entry is None:
                raise RejectedError(f"claim {uid} was unprepared meanwhile", reason="unprepared")
            wanted_entry = entry
        elif entry is not None and same_devices(entry, wanted):
            wanted_entry = entry_of(wanted, entry.prepared_devices, self._checkpoint.boot)
        else:
            if entry is not None:
                self._release_if_rebooted(transaction, entry)
            transaction.check_complete()
            wanted_entry = assigned(
                self._driver(), wanted, transaction.prepared_claims, self._checkpoint.boot
            )
        if self._provide is not None:
            await self._provide(wanted_entry, transaction.prepared_claims.replacing(uid, None))
            self._check_ready("prepared", ref)
        if entry is None or not _same_record(entry, wanted_entry):
            transaction.put(wanted_entry, self._offer())
            return wanted_entry
        transaction.confirm(uid)
        return entry

    def _release_if_rebooted(self, transaction: Transaction, entry: PreparedClaim) -> None:
        """A claim that was allocated anew while its old devices are still written down here.

        After a reboot no container of it can be left; within one boot it may still run on the old
        devices (force-deleted pod), and only the kubelet's unprepare says that it has ended.
        """
        if entry.boot_id == self._checkpoint.boot:
            held = ", ".join(prepared.device for prepared in entry.prepared_devices)
            raise RejectedError(
                f"{entry} was allocated anew but its earlier devices ({held}) are still in use on "
                f"this node; it can be prepared when the pods that use them have ended",
                reason="conflict",
            )
        _LOG.info("%s was allocated anew since the reboot; its old devices are released", entry)
        transaction.remove(entry.uid)

    def _derive(self, entry: PreparedClaim) -> list[KubeletDevice]:
        """Make the files that follow from *entry* true, and say what the kubelet shall know."""
        mounts = self._metadata.write(entry) if self._metadata is not None else {}
        cdi_ids = self._cdi.write(entry, mounts)
        devices = []
        for request, prepared_devices in by_request(entry).items():
            for prepared in prepared_devices:
                # One CDI device stands for the whole request. Named for each of its devices it
                # would be injected as many times.
                ids = (
                    (cdi_ids[request],)
                    if prepared is prepared_devices[0] and request in cdi_ids
                    else ()
                )
                devices.append(
                    KubeletDevice(
                        (request,), prepared.pool, prepared.device, ids, prepared.share_id
                    )
                )
        return devices


def assigned(
    driver: Driver, claim: Claim, prepared_claims: PreparedClaims, boot: str
) -> PreparedClaim:
    """What *driver* gives the claim beside *prepared_claims*. Raises :class:`RejectedError`."""
    assignment = driver.assign(claim, prepared_claims)
    asked, given = _asked(claim), _given(assignment.prepared_devices)
    if asked != given:
        raise RejectedError(
            f"the driver answered for {given} where {asked} was allocated to {claim}; "
            f"this is a defect of the driver",
            reason="defect",
        )
    return entry_of(claim, assignment.prepared_devices, boot)


def _instruments(metrics: HostMetrics, verb: str) -> tuple[Counter, Histogram]:
    if verb == "prepare":
        return metrics.prepares, metrics.prepare_seconds
    return metrics.unprepares, metrics.unprepare_seconds


def same_devices(entry: PreparedClaim, claim: Claim) -> bool:
    """Whether the claim still has the devices it was prepared with."""
    return _given(entry.prepared_devices) == _asked(claim)


def _asked(claim: Claim) -> list[tuple[str, str, str, str | None]]:
    return [(a.base_request, a.pool, a.device, a.share_id) for a in claim.allocated_devices]


def _given(prepared_devices: Iterable[PreparedDevice]) -> list[tuple[str, str, str, str | None]]:
    return [(g.request, g.pool, g.device, g.share_id) for g in prepared_devices]


def _same_record(one: PreparedClaim, other: PreparedClaim) -> bool:
    """Whether two entries differ in nothing but when they were made."""
    return msgspec.structs.replace(other, prepared_at=one.prepared_at) == one
