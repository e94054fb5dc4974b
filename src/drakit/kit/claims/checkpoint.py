"""Who holds what on this node: the truth, one checkpoint file per claim.

A claim's file is written durably (temporary file, sync, rename, sync of the directory) before the
kubelet gets an answer, and removed before an unprepare is confirmed. CDI specs and cgroup contents
are derived from it. The rules:

* Every change runs inside :meth:`Checkpoint.transaction`, under a lock that also excludes other
  processes, on a view re-read from disk: during a rolling update two instances serve one checkpoint.
* No two claims hold one exclusive number, one whole device, or more of a capacity than there is
  (:mod:`drakit.kit.claims.conflicts`). The check is always on, and its error names the other claim.
* **A checkpoint file is quarantined only because of what it contains**, and only under the lock: it is
  renamed to ``<uid>.json.unreadable`` and fails that claim alone. What could be made out of it, or is
  later seen on a running container, stays held: a damaged record must not hand its CPUs to others.
* **A file that could not be read is left as it is** (EIO, ENOMEM, EMFILE, EACCES, a symbolic link …).
  It may be intact, so what is known of it stays held and nothing new is assigned: its CPUs might be
  among what looks free. It is read again at every look, and all goes on when that succeeds.
* **A file written by a newer version is never renamed, changed or removed.** Its claim is that
  version's business; what can be made out of the file is held, or else nothing new is assigned.
* **Releasing never requires disk space**: removing a claim only unlinks.
* **Acknowledged means durable.** A record that this instance found on disk may stem from a writer that
  died, or failed, before its last sync; :meth:`Transaction.confirm` makes up for that before the
  kubelet is answered again.

The format is versioned and carries a checksum, so that a flipped bit is noticed. Unknown fields of a
record with a known format are ignored.
"""

from __future__ import annotations

import contextlib
import logging
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
from drakit.core.cpuset import CpuSet
from drakit.core.filelock import FileLock
from drakit.core.objects import Struct
from drakit.core.quantity import Quantity
from drakit.kit.claims.conflicts import check_conflicts
from drakit.kit.driver import (
    Claim,
    Offer,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
)

FORMAT: Final = 1
"""Version of the file format; a reader leaves alone what is newer than itself."""

_SUFFIX: Final = ".json"
_UNREADABLE: Final = ".unreadable"
_LARGEST_FILE: Final = 8 << 20
_UID: Final = re.compile(r"[\w-][\w.-]{0,127}")
_EXCLUSIVE: Final = re.compile(rb'"exclusive"\s*:\s*\{([^{}]*)')
_NUMBERS: Final = re.compile(rb'"([^"\\]{1,64})"\s*:\s*"([0-9,-]*)"')
_LOG = logging.getLogger(__name__)

Signature = tuple[int, int, int]
Held = dict[str, CpuSet]


class UnreadableClaimError(RejectedError):
    """The claim's own record is damaged, so it cannot be told what it holds."""

    def __init__(self, uid: str, path: str) -> None:
        super().__init__(
            f"the record of claim {uid} is unreadable and was set aside as {path}; "
            f"delete the pods that use the claim, then they can be created again",
            reason="unreadable",
        )


class NotReadyError(RejectedError):
    """The driver cannot answer now and will later, without anybody's help or with the help named."""

    def __init__(self, text: str) -> None:
        super().__init__(text, reason="not-ready")


class NewerFormatError(ValueError):
    """A checkpoint file of a newer version of drakit. Not damage: that version can read it."""

    def __init__(self, found: int) -> None:
        super().__init__(f"format {found} is not known here (this drakit knows 1..{FORMAT})")
        self.found = found


class _Head(Struct, frozen=True):
    """What every format has in common."""

    format: int


class _File(Struct, frozen=True):
    """What stands in a claim's file."""

    format: int
    checksum: int
    entry: msgspec.Raw


@dataclass(frozen=True, slots=True)
class _Newer:
    """A file of a newer format: which, and what could be made out of it."""

    signature: Signature
    format: int
    held: Held
    complete: bool
    """Whether *held* is all that the claim can hold, as far as this version can tell."""


def encode(entry: PreparedClaim) -> bytes:
    """The bytes of a claim's file. Equal entries give equal bytes."""
    body = msgspec.json.encode(entry, enc_hook=_to_plain, order="deterministic")
    return msgspec.json.encode(
        _File(format=FORMAT, checksum=zlib.crc32(body), entry=msgspec.Raw(body))
    )


def decode(data: bytes) -> PreparedClaim:
    """Read the bytes of a claim's file; ``ValueError`` says what is wrong with them.

    Raises :class:`NewerFormatError` for a file that a newer version wrote.
    """
    found = msgspec.json.decode(data, type=_Head).format
    if found > FORMAT:
        raise NewerFormatError(found)
    if found < 1:
        raise ValueError(f"format {found} is not known here (this drakit knows 1..{FORMAT})")
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
    """What a damaged or newer record tells of exclusive prepared claims; better too much than too little."""
    held: Held = {}
    for part in _EXCLUSIVE.findall(data):
        for kind, numbers in _NUMBERS.findall(part):
            with contextlib.suppress(ValueError):
                name = kind.decode()
                held[name] = held.get(name, CpuSet()) | CpuSet.parse(numbers.decode())
    return held


def _only_numbers(data: bytes) -> bool:
    """Whether a record of a newer format seems to hold exclusive numbers and nothing else.

    Then what :func:`_salvage` finds is all of it. Amounts and devices without numbers cannot be held
    for a claim that is not understood.
    """
    try:
        prepared_devices = msgspec.json.decode(data)["entry"]["grants"]
        return bool(prepared_devices) and all(
            any(CpuSet.parse(numbers) for numbers in prepared["exclusive"].values())
            and not any((prepared.get("amounts") or {}).values())
            for prepared in prepared_devices
        )
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return False


def _exclusive_of(entry: PreparedClaim | None) -> Held:
    return _merged(*(prepared.exclusive for prepared in entry.devices)) if entry is not None else {}


def _merged(*parts: Mapping[str, CpuSet]) -> Held:
    held: Held = {}
    for part in parts:
        for kind, numbers in part.items():
            held[kind] = held.get(kind, CpuSet()) | numbers
    return held


def boot_id(proc: str = "/proc") -> str:
    """The identity of the running boot; empty where the kernel does not tell."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def entry_of(
    claim: Claim, prepared_devices: tuple[PreparedDevice, ...], boot: str
) -> PreparedClaim:
    """The checkpoint entry for what *claim* was given."""
    return PreparedClaim(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        devices=prepared_devices,
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
    """The claims of one driver on this node, kept in *directory* (made if missing, mode 0700).

    Reading the current view (:attr:`prepared_claims`) is free and never blocks; :meth:`refresh` notices
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
        """Claims whose file is damaged: UID to the path, in quarantine as soon as we had the lock."""

    # -- reading ---------------------------------------------------------------------------------

    def load(self) -> PreparedClaims:
        """Make the directory, drop leftovers of crashed writers, read everything.

        Raises ``OSError`` when the directory cannot be used. A single file that cannot be read is no
        error here: see :attr:`problem`.
        """
        atomicfile.ensure_directory(self.directory, 0o700)
        atomicfile.sync_parents(self.directory)
        try:
            atomicfile.clean_temporaries(self.directory)
        except OSError as error:
            _LOG.warning("cannot remove leftovers in %s: %s", self.directory, error)
        self._stamp = None
        self.refresh()
        stale = [entry for entry in self.prepared_claims if entry.boot_id != self.boot]
        if stale:
            _LOG.info(
                "%d claims were prepared before the last boot; the kubelet prepares or drops them",
                len(stale),
            )
        return self.prepared_claims

    @property
    def unseen(self) -> frozenset[str]:
        """Claims that have a file whose content is not known: not read, or of a newer version."""
        return frozenset((*self._unread, *self._unread_asides, *self._newer))

    @property
    def problem(self) -> str | None:
        """Why not every claim can be served; ``None`` when all can."""
        for uid, why in (*self._unread.items(), *self._unread_asides.items()):
            return (
                f"the checkpoint of claim {uid} cannot be read ({why}); no other claim is prepared "
                f"until it can, it is read again every few seconds. If it stays so, check the disk"
            )
        for uid, newer in self._newer.items():
            return self._why_newer(uid, newer)
        return None

    def refresh(self) -> bool:
        """Re-read what changed on disk since the last look; says whether anything did.

        Costs one ``stat`` when nothing changed: renames and removals alter the directory's time.
        Nothing is renamed here. Raises ``OSError`` when the directory cannot be read; what was known
        stays.
        """
        stamp = _signature(os.stat(self.directory))
        if stamp == self._stamp:
            return False
        seen_for = self._seen_for(stamp)
        before = self._uncertain()
        changed = False
        files, asides = self._listed()
        for uid in [uid for uid in self._damaged if uid in asides and uid not in files]:
            del self._damaged[uid]  # another instance has set it aside
            self.unreadable[uid] = self.path(uid) + _UNREADABLE
        for uid, signature in files.items():
            if not self._up_to_date(uid, signature):
                changed |= self._reread(uid, signature)
        for uid in [uid for uid in self._tracked() if uid not in files]:
            changed |= self._look_for(uid)
        self._look_at_asides(asides)
        # A change within one tick of the file system's clock would leave the same stamp: trust
        # the stamp only once it was seen for longer than any such tick.
        settled = seen_for > _tick(stamp)
        unread = self._unread or self._unread_asides
        self._stamp = stamp if settled and not unread else None
        if not changed and self._uncertain() == before:
            return False
        self._rebuild()
        return True

    def _seen_for(self, stamp: Signature) -> float:
        """For how many seconds the directory has had this stamp in our view.

        By the monotonic clock: the time of day, which the stamp is made of, may be set at any moment.
        """
        now = time.monotonic()
        if self._first_seen[0] != stamp:
            self._first_seen = stamp, now
        return now - self._first_seen[1]

    def _uncertain(self) -> tuple[object, ...]:
        """What decides about the prepared claims except the files that can be read."""
        return dict(self._newer), self.unseen, dict(self._salvaged)

    def _listed(self) -> tuple[dict[str, Signature | None], set[str]]:
        """The claims' files with their signatures (None: cannot be had), and those set aside."""
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
                if not stat.S_ISDIR(status.st_mode):  # a directory is nobody's record
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

    def _tracked(self) -> list[str]:
        return [*self._known, *self._newer, *self._damaged, *self._unread]

    def _look_for(self, uid: str) -> bool:
        """A file that the listing did not show: forget it only if it really is not there."""
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
        """Read one file; what it was taken for before stays when it cannot be read."""
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
                raise ValueError(f"the file speaks of claim {entry.uid}")
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

    def _note_unread(self, uid: str, problem: OSError) -> bool:
        """The file is there and may be intact: keep what is known of it, and try again."""
        if uid not in self._unread:
            _LOG.error(
                "cannot read the checkpoint of claim %s: %s; it is left as it is and read again, "
                "no other claim is prepared until then",
                uid,
                problem,
            )
        self._unread[uid] = str(problem)
        return False

    def _note_newer(
        self, uid: str, signature: Signature, found: int, known: PreparedClaim | None, data: bytes
    ) -> None:
        told = _salvage(data)
        held = _merged(told, _exclusive_of(known))
        self._newer[uid] = _Newer(signature, found, held, bool(told) and _only_numbers(data))
        _LOG.error("%s", self._why_newer(uid, self._newer[uid]))

    def _note_damaged(
        self, uid: str, signature: Signature, known: PreparedClaim | None, data: bytes, why: str
    ) -> None:
        """A file that was read and is wrong: its claim fails, the others do not notice."""
        held = _merged(_salvage(data), _exclusive_of(known))
        self._salvaged[uid] = _merged(held, self._salvaged.get(uid, {}))
        self._damaged[uid] = signature
        self.unreadable[uid] = self.path(uid)
        _LOG.error(
            "the record of claim %s is unreadable (%s); it is taken to hold %s",
            uid,
            why,
            {k: str(v) for k, v in held.items()} or "nothing known",
        )

    def _quarantine(self) -> None:
        """Rename damaged files, for the next look and for people. Callers hold the lock."""
        for uid in list(self._damaged):
            path = self.path(uid)
            try:
                os.rename(path, path + _UNREADABLE)
            except OSError as error:
                _LOG.error("cannot set aside %s: %s; it is tried again", path, error)
                continue
            del self._damaged[uid]
            self.unreadable[uid] = path + _UNREADABLE
            _LOG.error("the damaged record %s was set aside as %s", path, self.unreadable[uid])

    def _look_at_asides(self, present: set[str]) -> None:
        """Hold what the files in quarantine tell; forget those that another instance removed."""
        for uid in present:
            if uid in self._known or uid in self._newer:
                continue  # an older incident: the claim has a record again
            if uid in self._salvaged and uid not in self._unread_asides:
                continue
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
                _LOG.error("cannot read %s: %s; it is read again", path, error)
            self._unread_asides[uid] = str(error)
            self.unreadable[uid] = path
        else:
            self._unread_asides.pop(uid, None)
            self.unreadable[uid] = path
            self._salvaged[uid] = _merged(_salvage(data), self._salvaged.get(uid, {}))

    # -- claims without a readable record ----------------------------------------------------------

    def hold_for_running(self, held: Mapping[str, Held]) -> bool:
        """Keep numbers, by claim and kind, for running containers whose claim has no readable record.

        In memory only, in place of what was held so before; says whether that changes anything. A claim
        that is unprepared or prepared again is held no longer; what a damaged record tells stays held.
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
        self.prepared_claims = PreparedClaims(
            (entry for _, entry in self._known.values()), orphaned
        )

    def _why_newer(self, uid: str, newer: _Newer) -> str:
        return (
            f"the checkpoint {self.path(uid)} was written by a newer version of drakit (format "
            f"{newer.format}, this version reads up to {FORMAT}); it is left as it is and its claim "
            f"can be served by that version only"
            + ("" if newer.complete else "; no other claim is prepared by this version meanwhile")
            + ". Go back to the newer version, or end the pods of the claim with it"
        )

    def _why_incomplete(self) -> str | None:
        """Why it is not known what is free: a file may hold it that could not be understood."""
        for uid, why in (*self._unread.items(), *self._unread_asides.items()):
            return f"the checkpoint of claim {uid} cannot be read ({why}) and may hold the same"
        for uid, newer in self._newer.items():
            if not newer.complete:
                return self._why_newer(uid, newer)
        return None

    def _check_seen(self, uid: str) -> None:
        if uid in self._newer:
            raise NotReadyError(self._why_newer(uid, self._newer[uid]))
        if uid in self._unread and uid not in self._known:
            raise NotReadyError(
                f"the checkpoint of claim {uid} cannot be read ({self._unread[uid]}); it is left as "
                f"it is and read again when the kubelet repeats the call"
            )

    def path(self, uid: str) -> str:
        """Where the claim's file is. Raises ``ValueError`` for a UID that is no file name."""
        if not _is_uid(uid):
            raise ValueError(f"{uid!r} is no claim UID")
        return os.path.join(self.directory, uid + _SUFFIX)

    # -- changing --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def transaction(self, timeout: float | None = 40.0) -> AsyncIterator[Transaction]:
        """Exclude everybody else (also other processes), and look at what is true now.

        Raises ``LockTimeoutError`` when another instance keeps the lock for longer than *timeout*
        seconds (below the kubelet's 45 s, so that our error arrives and not its time-out).
        """
        async with self._lock.hold(timeout):
            self.refresh()
            self._quarantine()
            yield Transaction(self)

    def _put(self, entry: PreparedClaim) -> None:
        path = self.path(entry.uid)
        with self._looking_again():
            self._doubtful.add(entry.uid)
            atomicfile.write_atomic(path, encode(entry))
            signature = _signature(os.lstat(path))
        self._doubtful.discard(entry.uid)
        self._unsynced.clear()  # the directory was synced after all of them had been read
        self._known[entry.uid] = (signature, entry)
        self._unread.pop(entry.uid, None)
        quick = entry.uid not in self.prepared_claims.orphaned
        self._forget_orphaned(entry.uid)
        if quick:
            self.prepared_claims = self.prepared_claims.replacing(entry.uid, entry)
        else:
            self._rebuild()

    def _remove(self, uid: str) -> bool:
        self._check_seen(uid)
        path = self.path(uid)
        with self._looking_again():
            if uid in self.unreadable or os.path.lexists(path + _UNREADABLE):
                atomicfile.remove_durably(path + _UNREADABLE)
            existed = atomicfile.remove_durably(path)
        quick = uid not in self.prepared_claims.orphaned
        self._forget_file(uid)
        self._forget_orphaned(uid)
        if not quick:
            self._rebuild()
        elif uid in self.prepared_claims.entries:
            self.prepared_claims = self.prepared_claims.replacing(uid, None)
        return existed

    def _confirm(self, uid: str) -> None:
        """See :meth:`Transaction.confirm`."""
        if uid in self._doubtful:
            self._put(self._known[uid][1])  # a sync that failed cannot be made up for by another
        elif uid in self._unsynced:
            atomicfile.sync_directory(self.directory)
            self._unsynced.clear()

    def _forget_orphaned(self, uid: str) -> None:
        self._unread_asides.pop(uid, None)
        self.unreadable.pop(uid, None)
        self._salvaged.pop(uid, None)
        self.held_for_running.pop(uid, None)

    @contextlib.contextmanager
    def _looking_again(self) -> Iterator[None]:
        """After a change that failed half-way only the disk knows what is true."""
        try:
            yield
        except BaseException:
            self._stamp = None
            raise


class Transaction:
    """What may be done while holding the checkpoint's lock."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def prepared_claims(self) -> PreparedClaims:
        """The truth as of now."""
        return self._checkpoint.prepared_claims

    def get(self, uid: str) -> PreparedClaim | None:
        """The claim's entry.

        Raises :class:`UnreadableClaimError` when its record is damaged, :class:`NotReadyError` when it could not be
        read now or was written by a newer version.
        """
        self._checkpoint._check_seen(uid)
        if uid in self._checkpoint._unread:
            raise NotReadyError(
                f"the checkpoint of claim {uid} cannot be read; the kubelet tries again"
            )
        if (
            uid in self._checkpoint.unreadable
            and uid not in self._checkpoint.prepared_claims.entries
        ):
            raise UnreadableClaimError(uid, self._checkpoint.unreadable[uid])
        return self._checkpoint.prepared_claims.get(uid)

    def check_removable(self, uid: str) -> None:
        """Raise :class:`NotReadyError` where :meth:`remove` would; before anything else is removed."""
        self._checkpoint._check_seen(uid)

    def check_complete(self) -> None:
        """Raise :class:`NotReadyError` while a file may hold what looks free (see the module)."""
        why = self._checkpoint._why_incomplete()
        if why is not None:
            raise NotReadyError(
                f"nothing new can be assigned on this node: {why}; the kubelet tries again"
            )

    def put(self, entry: PreparedClaim, offer: Offer) -> None:
        """Make *entry* true, durably. Raises :class:`ClaimConflictError` and changes nothing if it cannot be.

        Replaces an earlier entry of the same claim. The check does not trust the driver. Grants that
        the claim already has are checked against other claims only, not against today's *offer*.
        """
        self._checkpoint._check_seen(entry.uid)
        known = self._checkpoint.prepared_claims.get(entry.uid)
        unchanged = known is not None and known.devices == entry.devices
        if not unchanged:
            self.check_complete()
        check_conflicts(entry, self._checkpoint.prepared_claims, offer, unchanged=unchanged)
        self._checkpoint._put(entry)

    def confirm(self, uid: str) -> None:
        """Make sure that the claim's record survives a power loss, before it is acknowledged again."""
        self._checkpoint._confirm(uid)

    def remove(self, uid: str) -> bool:
        """Forget the claim, durably; says whether it was known. Unknown is fine.

        Raises :class:`NotReadyError` for a claim whose file has never been read, or is a newer version's.
        """
        return self._checkpoint._remove(uid)


def _is_uid(text: str) -> bool:
    return _UID.fullmatch(text) is not None


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _tick(stamp: Signature) -> float:
    """Seconds within which two changes may leave one stamp: 4 ms on common kernels, with a margin.

    A file system that keeps whole seconds (ext4 with small inodes, for one) needs two of them.
    """
    return 0.05 if stamp[1] % 1_000_000_000 else 2.5


def _read(path: str) -> bytes:
    """The file's bytes, at most so many that a file too large is noticed by what it contains."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        return file.read(_LARGEST_FILE + 1)
