"""The checkpoint: the prepared claims of one driver on this node, one file per claim.

A claim's file is written durably (temporary file, fsync, rename, fsync of the directory) before the
kubelet gets an answer, and removed before an unprepare is confirmed. CDI specs and cgroup contents are
derived from it. The rules:

* Every change runs inside :meth:`Checkpoint.transaction`, under a lock that also excludes other
  processes, on a view re-read from disk: during a rolling update two instances use one checkpoint.
* No two claims hold one exclusive number, one whole device, or more of a capacity than there is
  (:mod:`drakit.kit.claims.conflicts`). The check is always on, and its error names the other claim.
* **A file is quarantined only because of its content**, and only under the lock: it is renamed to
  ``<uid>.json.unreadable`` and only its own claim fails. What can be recovered from it, or is later
  seen on a running container, stays held: a damaged record must not release its CPUs to others.
* **A file that could not be read is left as it is** (EIO, ENOMEM, EMFILE, EACCES, a symbolic link …).
  It may be intact, so what is known of it stays held and nothing new is assigned: what looks free may
  be its. It is read again at every refresh.
* **A file written by a newer version is never renamed, changed or removed.** Its claim is left to that
  version; what can be recovered from the file stays held, or else nothing new is assigned.
* **Releasing never requires disk space**: removing a claim only unlinks.
* **Acknowledged means durable.** A record found on disk may be from a writer that crashed or failed
  before its last fsync; :meth:`Transaction.confirm` syncs it before the kubelet is answered again.

The format is versioned and has a checksum. Unknown fields of a known format are ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from drakit.core import atomicfile
from drakit.core.bootrecord import boot_id
from drakit.core.cpuset import CpuSet
from drakit.core.filelock import FileLock
from drakit.core.log import get_logger
from drakit.core.objects import Struct
from drakit.core.quantity import Quantity
from drakit.kit.claims.conflicts import check_conflicts
from drakit.kit.driver import Claim, Offer, PreparedClaim, PreparedClaims, PreparedDevice, RejectedError

FORMAT: Final = 1
"""Version of the file format; files of a newer format are left alone."""

_SUFFIX: Final = ".json"
_UNREADABLE: Final = ".unreadable"
_LARGEST_FILE: Final = 8 << 20
_UID: Final = re.compile(r"[\w-][\w.-]{0,127}")
_EXCLUSIVE: Final = re.compile(rb'"exclusive"\s*:\s*\{([^{}]*)')
_NUMBERS: Final = re.compile(rb'"([^"\\]{1,64})"\s*:\s*"([0-9,-]*)"')
log = get_logger(__name__)

Signature = tuple[int, int, int]
Held = dict[str, CpuSet]


class UnreadableClaimError(RejectedError):
    """The claim's own record is damaged, so what it holds is unknown."""

    def __init__(self, uid: str, path: str) -> None:
        super().__init__(
            f"the record of claim {uid} is unreadable and was quarantined as {path}; "
            f"delete the pods that use the claim and create them again",
            reason="unreadable",
        )


class NotReadyError(RejectedError):
    """The driver cannot answer now; the text states what must happen first."""

    def __init__(self, text: str) -> None:
        super().__init__(text, reason="not-ready")


class NewerFormatError(ValueError):
    """A checkpoint file written by a newer version of drakit; it is not damaged."""

    def __init__(self, found: int) -> None:
        super().__init__(f"format {found} is not known (this version of drakit knows 1..{FORMAT})")
        self.found = found


class _Head(Struct, frozen=True):
    """The field that every format has."""

    format: int


class _File(Struct, frozen=True):
    """The content of a claim's file."""

    format: int
    checksum: int
    entry: msgspec.Raw


@dataclass(frozen=True, slots=True)
class _Newer:
    """A file of a newer format, and what could be recovered from it."""

    signature: Signature
    format: int
    held: Held
    complete: bool
    """Whether *held* is everything the claim holds, as far as this version can determine."""


def encode(entry: PreparedClaim) -> bytes:
    """The content of a claim's file. Equal claims give equal bytes."""
    body = msgspec.json.encode(entry, enc_hook=_to_plain, order="deterministic")
    return msgspec.json.encode(_File(format=FORMAT, checksum=zlib.crc32(body), entry=msgspec.Raw(body)))


def decode(data: bytes) -> PreparedClaim:
    """Decode a claim's file. Raises ``ValueError``, :class:`NewerFormatError` for a newer format."""
    found = msgspec.json.decode(data, type=_Head).format
    if found > FORMAT:
        raise NewerFormatError(found)
    if found < 1:
        raise ValueError(f"format {found} is not known (this version of drakit knows 1..{FORMAT})")
    file = msgspec.json.decode(data, type=_File)
    if zlib.crc32(bytes(file.entry)) != file.checksum:
        raise ValueError("checksum does not match the content")
    return msgspec.json.decode(file.entry, type=PreparedClaim, dec_hook=_from_plain)


def _to_plain(value: Any) -> Any:
    if isinstance(value, CpuSet | Quantity):
        return str(value)
    raise NotImplementedError(type(value))


def _from_plain(kind: type[Any], value: Any) -> Any:
    if kind is CpuSet and isinstance(value, str):
        return CpuSet.parse(value)
    if kind is Quantity and isinstance(value, str):
        return Quantity(value)
    raise ValueError(f"expected {kind.__name__}, got {value!r}")


def _salvage(data: bytes) -> Held:
    """The exclusive numbers in a damaged or newer record; rather too many than too few."""
    held: Held = {}
    for part in _EXCLUSIVE.findall(data):
        for kind, numbers in _NUMBERS.findall(part):
            with contextlib.suppress(ValueError):
                name = kind.decode()
                held[name] = held.get(name, CpuSet()) | CpuSet.parse(numbers.decode())
    return held


def _only_numbers(data: bytes) -> bool:
    """Whether a record of a newer format holds exclusive numbers only, so that salvaging is complete.

    Amounts and devices without numbers cannot be held for a claim that cannot be decoded.
    """
    try:
        devices = msgspec.json.decode(data)["entry"]["grants"]
        return bool(devices) and all(
            any(CpuSet.parse(numbers) for numbers in device["exclusive"].values())
            and not any((device.get("amounts") or {}).values())
            for device in devices
        )
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return False


def _exclusive_of(entry: PreparedClaim | None) -> Held:
    return _merged(*(each.exclusive for each in entry.devices)) if entry is not None else {}


def _merged(*parts: Mapping[str, CpuSet]) -> Held:
    held: Held = {}
    for part in parts:
        for kind, numbers in part.items():
            held[kind] = held.get(kind, CpuSet()) | numbers
    return held


def entry_of(claim: Claim, devices: tuple[PreparedDevice, ...], boot: str) -> PreparedClaim:
    """The checkpoint entry of *claim* with these devices."""
    return PreparedClaim(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        devices=devices,
        consumers=claim.consumers,
        pod_claim_name=claim.pod_claim_name,
        boot_id=boot,
        prepared_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def read_claims(directory: str) -> PreparedClaims:
    """The claims in a checkpoint directory, without changing anything; none if it does not exist."""
    checkpoint = Checkpoint(directory)
    if os.path.isdir(directory):
        checkpoint.refresh()
    return checkpoint.prepared_claims


class Checkpoint:
    """The claims of one driver on this node, kept in *directory* (created with mode 0700).

    Reading the current view (:attr:`prepared_claims`) is free and never blocks; :meth:`refresh` reads
    what another instance wrote. Changes go through :meth:`transaction`.
    """

    def __init__(self, directory: str, *, boot: str | None = None) -> None:
        self.directory = directory
        self.boot = boot_id() if boot is None else boot
        self._lock = FileLock(os.path.join(directory, ".lock"))
        self._known: dict[str, tuple[Signature, PreparedClaim]] = {}
        self._newer: dict[str, _Newer] = {}
        self._unread: dict[str, str] = {}
        self._unread_asides: dict[str, str] = {}
        self._damaged: dict[str, Signature] = {}  # not renamed yet: that needs the lock
        self._salvaged: dict[str, Held] = {}
        self._unsynced: set[str] = set()
        self._doubtful: set[str] = set()
        self.held_for_running: dict[str, Held] = {}
        """See :meth:`hold_for_running`."""
        self._stamp: Signature | None = None
        self._first_seen: tuple[Signature | None, float] = (None, 0.0)
        self.prepared_claims = PreparedClaims()
        self.unreadable: dict[str, str] = {}
        """Path of each damaged file by UID; quarantined as soon as this instance gets the lock."""

    # -- reading ---------------------------------------------------------------------------------

    def load(self) -> PreparedClaims:
        """Create the directory, remove leftovers of crashed writers, read everything.

        Raises ``OSError`` if the directory cannot be used. A single file that cannot be read is not an
        error here: see :attr:`problem`.
        """
        atomicfile.ensure_directory(self.directory, 0o700)
        atomicfile.sync_parents(self.directory)
        try:
            atomicfile.clean_temporaries(self.directory)
        except OSError as error:
            log.warning("cannot remove temporary files", path=self.directory, error=error)
        self._stamp = None
        self.refresh()
        stale = sum(entry.boot_id != self.boot for entry in self.prepared_claims)
        if stale:
            log.info("claims of an earlier boot wait for the kubelet", count=stale)
        return self.prepared_claims

    @property
    def unseen(self) -> frozenset[str]:
        """Claims with a file whose content is unknown: it cannot be read, or is of a newer version."""
        return frozenset((*self._unread, *self._unread_asides, *self._newer))

    @property
    def problem(self) -> str | None:
        """Why not every claim can be served; ``None`` if all can."""
        for uid, why in (*self._unread.items(), *self._unread_asides.items()):
            return (
                f"the checkpoint of claim {uid} cannot be read ({why}); no other claim is prepared until "
                f"it can, it is read again every few seconds. If the error persists, check the disk"
            )
        for uid, newer in self._newer.items():
            return self._why_newer(uid, newer)
        return None

    def refresh(self) -> bool:
        """Re-read what changed on disk; returns whether the prepared claims changed.

        Costs one ``stat`` when nothing changed: renames and removals alter the directory's time.
        Renames nothing. Raises ``OSError`` if the directory cannot be read; the view then stays.
        """
        stamp = _signature(os.stat(self.directory))
        if stamp == self._stamp:
            return False
        seen_for = self._seen_for(stamp)
        before = self._uncertain()
        changed = False
        files, asides = self._listed()
        for uid in [uid for uid in self._damaged if uid in asides and uid not in files]:
            del self._damaged[uid]  # another instance has quarantined it
            self.unreadable[uid] = self.path(uid) + _UNREADABLE
        for uid, signature in files.items():
            if not self._up_to_date(uid, signature):
                changed |= self._reread(uid, signature)
        tracked = (*self._known, *self._newer, *self._damaged, *self._unread)
        for uid in [uid for uid in tracked if uid not in files]:
            changed |= self._recheck(uid)
        self._read_quarantined(asides)
        # Two changes within one tick of the file system's clock leave the same stamp: trust it only
        # after it was seen for longer than a tick.
        unread = self._unread or self._unread_asides
        self._stamp = stamp if seen_for > _tick(stamp) and not unread else None
        if not changed and self._uncertain() == before:
            return False
        self._rebuild()
        return True

    def _seen_for(self, stamp: Signature) -> float:
        """For how long this instance has seen the directory with this stamp.

        By the monotonic clock: the wall clock, which the stamp is from, may be set at any time.
        """
        now = time.monotonic()
        if self._first_seen[0] != stamp:
            self._first_seen = stamp, now
        return now - self._first_seen[1]

    def _uncertain(self) -> tuple[object, ...]:
        """Everything but readable files that determines the prepared claims."""
        return dict(self._newer), self.unseen, dict(self._salvaged)

    def _listed(self) -> tuple[dict[str, Signature | None], set[str]]:
        """The claims' files with their signatures (None: unknown), and the quarantined claims."""
        files: dict[str, Signature | None] = {}
        asides = set()
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(descriptor):
                if name.endswith(_UNREADABLE):
                    uid = name.removesuffix(_UNREADABLE)
                    if uid.endswith(_SUFFIX) and _is_uid(uid.removesuffix(_SUFFIX)):
                        asides.add(uid.removesuffix(_SUFFIX))
                    continue
                uid = name[: -len(_SUFFIX)]
                if not name.endswith(_SUFFIX) or not (uid in self._known or _is_uid(uid)):
                    continue
                try:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except OSError:
                    files[uid] = None
                    continue
                if not stat.S_ISDIR(status.st_mode):  # a directory is not a record
                    files[uid] = _signature(status)
        finally:
            os.close(descriptor)
        return files, asides

    def _up_to_date(self, uid: str, signature: Signature | None) -> bool:
        if uid in self._unread or signature is None:
            return False
        known = self._known.get(uid)
        if known is not None:
            return known[0] == signature
        newer = self._newer.get(uid)
        return signature == (newer.signature if newer is not None else self._damaged.get(uid))

    def _recheck(self, uid: str) -> bool:
        """Check a file that the listing did not contain: forget it only if it does not exist."""
        try:
            signature = _signature(os.lstat(self.path(uid)))
        except FileNotFoundError:
            return self._forget_file(uid)
        except OSError as error:
            return self._note_unread(uid, error)
        return not self._up_to_date(uid, signature) and self._reread(uid, signature)

    def _forget_file(self, uid: str) -> bool:
        if self._damaged.pop(uid, None) is not None:
            self.unreadable.pop(uid, None)
            self._salvaged.pop(uid, None)
        self._doubtful.discard(uid)
        self._unsynced.discard(uid)
        self._unread.pop(uid, None)
        self._newer.pop(uid, None)
        return self._known.pop(uid, None) is not None

    def _reread(self, uid: str, signature: Signature | None) -> bool:
        """Read one file; if it cannot be read, what was known of it stays."""
        try:
            if signature is None:
                signature = _signature(os.lstat(self.path(uid)))
            data = _read(self.path(uid))
        except FileNotFoundError:
            return self._forget_file(uid)
        except OSError as error:
            return self._note_unread(uid, error)
        known = self._known[uid][1] if uid in self._known else None
        doubtful = uid in self._doubtful
        try:
            entry = decode(data)
            if entry.uid != uid:
                raise ValueError(f"the file is of claim {entry.uid}")
        except NewerFormatError as newer:
            self._forget_file(uid)
            self._note_newer(uid, signature, newer.found, known, data)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            self._forget_file(uid)
            self._note_damaged(uid, signature, known, data, str(error))
        else:
            self._forget_file(uid)
            self.held_for_running.pop(uid, None)
            self._known[uid] = (signature, entry)
            (self._doubtful if doubtful else self._unsynced).add(uid)
        return True

    def _note_unread(self, uid: str, error: OSError) -> bool:
        """Keep what is known of a file that exists and may be intact, and read it again later."""
        if uid not in self._unread:
            log.error(
                "cannot read checkpoint file, no other claim is prepared until it can be read",
                path=self.path(uid),
                error=error,
            )
        self._unread[uid] = str(error)
        return False

    def _note_newer(
        self, uid: str, signature: Signature, found: int, known: PreparedClaim | None, data: bytes
    ) -> None:
        salvaged = _salvage(data)
        held = _merged(salvaged, _exclusive_of(known))
        complete = bool(salvaged) and _only_numbers(data)
        self._newer[uid] = _Newer(signature, found, held, complete)
        log.error(
            "checkpoint file was written by a newer version",
            path=self.path(uid),
            format=found,
            supported_format=FORMAT,
            blocks_other_claims=not complete,
        )

    def _note_damaged(
        self, uid: str, signature: Signature, known: PreparedClaim | None, data: bytes, why: str
    ) -> None:
        """Note a damaged file: its claim fails, the others are not affected."""
        held = _merged(_salvage(data), _exclusive_of(known))
        self._salvaged[uid] = _merged(held, self._salvaged.get(uid, {}))
        self._damaged[uid] = signature
        self.unreadable[uid] = self.path(uid)
        log.error(
            "checkpoint file is damaged",
            path=self.path(uid),
            error=why,
            held={kind: str(numbers) for kind, numbers in held.items()},
        )

    def _quarantine(self) -> None:
        """Rename damaged files. Callers hold the lock."""
        for uid in list(self._damaged):
            path = self.path(uid)
            try:
                os.rename(path, path + _UNREADABLE)
            except OSError as error:
                log.error("cannot quarantine damaged file, will retry", path=path, error=error)
                continue
            del self._damaged[uid]
            self.unreadable[uid] = path + _UNREADABLE
            log.error("damaged file quarantined", path=self.unreadable[uid])

    def _read_quarantined(self, present: set[str]) -> None:
        """Hold what quarantined files contain; forget those that another instance removed."""
        for uid in present:
            # A claim with a readable record again had its damage earlier.
            readable = uid in self._known or uid in self._newer
            if not readable and (uid not in self._salvaged or uid in self._unread_asides):
                self._read_aside(uid)
        for uid in [uid for uid in self.unreadable if uid not in present | set(self._damaged)]:
            self._read_aside(uid)

    def _read_aside(self, uid: str) -> None:
        path = self.path(uid) + _UNREADABLE
        try:
            data = _read(path)
        except FileNotFoundError:
            self._unread_asides.pop(uid, None)
            self.unreadable.pop(uid, None)
            self._salvaged.pop(uid, None)
        except OSError as error:
            if uid not in self._unread_asides:
                log.error("cannot read quarantined file, will retry", path=path, error=error)
            self._unread_asides[uid] = str(error)
            self.unreadable[uid] = path
        else:
            self._unread_asides.pop(uid, None)
            self.unreadable[uid] = path
            self._salvaged[uid] = _merged(_salvage(data), self._salvaged.get(uid, {}))

    # -- claims without a readable record ----------------------------------------------------------

    def hold_for_running(self, held: Mapping[str, Held]) -> bool:
        """Hold numbers, by claim and kind, for running containers whose claim has no readable record.

        In memory only, replacing those of the previous call; returns whether anything changed. A claim
        that is unprepared or prepared again is no longer held; numbers in a damaged record stay held.
        """
        if dict(held) == self.held_for_running:
            return False
        self.held_for_running = dict(held)
        self._rebuild()
        return True

    def _rebuild(self) -> None:
        orphaned: dict[str, Held] = {uid: {} for uid in (*self._unread, *self._unread_asides)}
        for uid, newer in self._newer.items():
            orphaned[uid] = newer.held
        for more in (self._salvaged, self.held_for_running):
            for uid, held in more.items():
                orphaned[uid] = _merged(orphaned.get(uid, {}), held)
        for uid in self._known:
            orphaned.pop(uid, None)
        self.prepared_claims = PreparedClaims((entry for _, entry in self._known.values()), orphaned)

    def _why_newer(self, uid: str, newer: _Newer) -> str:
        return (
            f"the checkpoint {self.path(uid)} was written by a newer version of drakit (format "
            f"{newer.format}, this version reads up to {FORMAT}); it is not changed and only that "
            f"version can serve its claim"
            + ("" if newer.complete else "; until then this version prepares no other claim")
            + ". Return to the newer version, or use it to end the pods of the claim"
        )

    def _why_incomplete(self) -> str | None:
        """Why it is unknown what is free: a file that cannot be decoded may hold it."""
        for uid, why in (*self._unread.items(), *self._unread_asides.items()):
            return f"the checkpoint of claim {uid} cannot be read ({why}) and may hold the same resources"
        for uid, newer in self._newer.items():
            if not newer.complete:
                return self._why_newer(uid, newer)
        return None

    def _check_seen(self, uid: str) -> None:
        if uid in self._newer:
            raise NotReadyError(self._why_newer(uid, self._newer[uid]))
        if uid in self._unread and uid not in self._known:
            raise NotReadyError(
                f"the checkpoint of claim {uid} cannot be read ({self._unread[uid]}); it is not "
                f"changed, and read again when the kubelet repeats the call"
            )

    def path(self, uid: str) -> str:
        """The path of the claim's file. Raises ``ValueError`` for an invalid UID."""
        if not _is_uid(uid):
            raise ValueError(f"{uid!r} is not a valid claim UID")
        return os.path.join(self.directory, uid + _SUFFIX)

    # -- changing --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def transaction(self, timeout: float | None = 40.0) -> AsyncIterator[Transaction]:
        """Lock the checkpoint, also against other processes, and refresh the view.

        Raises ``LockTimeoutError`` if another instance holds the lock for longer than *timeout*
        seconds (below the kubelet's 45 s, so that this error arrives before its own timeout).
        """
        async with self._lock.hold(timeout):
            self.refresh()
            self._quarantine()
            yield Transaction(self)

    def _put(self, entry: PreparedClaim) -> None:
        path = self.path(entry.uid)
        with self._refreshing_on_error():
            self._doubtful.add(entry.uid)
            atomicfile.write_atomic(path, encode(entry))
            signature = _signature(os.lstat(path))
        self._doubtful.discard(entry.uid)
        self._unsynced.clear()  # the directory was synced after all of them had been read
        self._known[entry.uid] = (signature, entry)
        self._unread.pop(entry.uid, None)
        self._forget_orphaned(entry.uid)
        self.prepared_claims = self.prepared_claims.replacing(entry.uid, entry)

    def _remove(self, uid: str) -> bool:
        self._check_seen(uid)
        path = self.path(uid)
        with self._refreshing_on_error():
            if uid in self.unreadable or os.path.lexists(path + _UNREADABLE):
                atomicfile.remove_durably(path + _UNREADABLE)
            existed = atomicfile.remove_durably(path)
        self._forget_file(uid)
        self._forget_orphaned(uid)
        claims = self.prepared_claims
        if uid in claims.entries or uid in claims.orphaned:
            self.prepared_claims = claims.replacing(uid, None)
        return existed

    def _confirm(self, uid: str) -> None:
        """See :meth:`Transaction.confirm`."""
        if uid in self._doubtful:
            self._put(self._known[uid][1])  # another fsync after a failed one guarantees nothing
        elif uid in self._unsynced:
            atomicfile.sync_directory(self.directory)
            self._unsynced.clear()

    def _forget_orphaned(self, uid: str) -> None:
        self._unread_asides.pop(uid, None)
        self.unreadable.pop(uid, None)
        self._salvaged.pop(uid, None)
        self.held_for_running.pop(uid, None)

    @contextlib.contextmanager
    def _refreshing_on_error(self) -> Iterator[None]:
        """Read everything again after a change that failed half-way."""
        try:
            yield
        except BaseException:
            self._stamp = None
            raise


class Transaction:
    """The operations that need the checkpoint's lock."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def prepared_claims(self) -> PreparedClaims:
        """The current view."""
        return self._checkpoint.prepared_claims

    def get(self, uid: str) -> PreparedClaim | None:
        """The claim's entry, if it has one.

        Raises :class:`UnreadableClaimError` if its record is damaged, :class:`NotReadyError` if it
        cannot be read now or was written by a newer version.
        """
        checkpoint = self._checkpoint
        checkpoint._check_seen(uid)
        if uid in checkpoint._unread:
            raise NotReadyError(f"the checkpoint of claim {uid} cannot be read; the kubelet retries")
        entry = checkpoint.prepared_claims.get(uid)
        if entry is None and uid in checkpoint.unreadable:
            raise UnreadableClaimError(uid, checkpoint.unreadable[uid])
        return entry

    def check_removable(self, uid: str) -> None:
        """Raise :class:`NotReadyError` if its file has never been read, or is of a newer version."""
        self._checkpoint._check_seen(uid)

    def check_complete(self) -> None:
        """Raise :class:`NotReadyError` while an unread file may hold what looks free."""
        why = self._checkpoint._why_incomplete()
        if why is not None:
            raise NotReadyError(f"nothing new can be assigned on this node: {why}; the kubelet retries")

    def put(self, entry: PreparedClaim, offer: Offer) -> None:
        """Write *entry* durably, replacing an earlier entry of the same claim.

        Raises :class:`ClaimConflictError`, and changes nothing, if another claim holds the same.
        Devices that the claim already has are not compared with today's *offer*.
        """
        self._checkpoint._check_seen(entry.uid)
        known = self._checkpoint.prepared_claims.get(entry.uid)
        unchanged = known is not None and known.devices == entry.devices
        if not unchanged:
            self.check_complete()
        check_conflicts(entry, self._checkpoint.prepared_claims, offer, unchanged=unchanged)
        self._checkpoint._put(entry)

    def confirm(self, uid: str) -> None:
        """Make sure that the claim's record is durable, before it is acknowledged again."""
        self._checkpoint._confirm(uid)

    def remove(self, uid: str) -> bool:
        """Remove the claim durably; returns whether it was known. See also :meth:`check_removable`."""
        return self._checkpoint._remove(uid)


def _is_uid(text: str) -> bool:
    return _UID.fullmatch(text) is not None


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _tick(stamp: Signature) -> float:
    """Seconds in which two changes may leave the same stamp: 4 ms on common kernels, with a margin.

    File systems with a resolution of one second (ext4 with small inodes) need two seconds.
    """
    return 0.05 if stamp[1] % 1_000_000_000 else 2.5


def _read(path: str) -> bytes:
    """The file's content, truncated if it is too large to be valid."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read(_LARGEST_FILE + 1)
