"""Who holds what on this node: the truth, one file per claim.

A claim's file is written durably (temporary file, sync, rename, sync of the directory) before the
kubelet gets an answer, and removed before an unprepare is confirmed. CDI specs and cgroup contents
are derived from it. The rules:

* Every change runs inside :meth:`Ledger.transaction`, under a lock that also excludes other
  processes, on a view re-read from disk: during a rolling update two instances serve one ledger.
* No two claims hold one exclusive number, one whole device, or more of a capacity than there is.
  The check is here, always on, and its error names the other claim (``adminAccess`` exempt).
* A file that cannot be read is set aside (``<uid>.json.unreadable``) and fails that claim alone.
  What could be made out of it, or is later seen on a running container, stays held: a damaged
  record must not hand its CPUs to somebody else.

The format is versioned and carries a checksum, so that a flipped bit is noticed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from drakit.core import atomicfile
from drakit.core.cpuset import CpuSet
from drakit.core.filelock import FileLock
from drakit.core.objects import Struct
from drakit.core.quantity import Quantity
from drakit.kit.driver import Claim, Entry, Grant, Holdings, Offer, Refused

FORMAT: Final = 1
"""Version of the file format; a reader refuses what is newer than itself."""

_SUFFIX: Final = ".json"
_UNREADABLE: Final = ".unreadable"
_LARGEST_FILE: Final = 8 << 20
_LOG = logging.getLogger(__name__)

Signature = tuple[int, int, int]


class Conflict(Refused):
    """What a claim was to get is somebody else's. Names the other claim."""

    def __init__(self, text: str) -> None:
        super().__init__(text, reason="conflict")


class Unreadable(Refused):
    """The claim's own record is damaged, so it cannot be told what it holds."""

    def __init__(self, uid: str, path: str) -> None:
        super().__init__(
            f"the record of claim {uid} is unreadable and was set aside as {path}; "
            f"delete the pods that use the claim, then they can be created again",
            reason="unreadable",
        )


class _File(Struct, frozen=True):
    """What stands in a claim's file."""

    format: int
    checksum: int
    entry: msgspec.Raw


def encode(entry: Entry) -> bytes:
    """The bytes of a claim's file. Equal entries give equal bytes."""
    body = msgspec.json.encode(entry, enc_hook=_to_plain, order="deterministic")
    return msgspec.json.encode(
        _File(format=FORMAT, checksum=zlib.crc32(body), entry=msgspec.Raw(body))
    )


def decode(data: bytes) -> Entry:
    """Read the bytes of a claim's file; ``ValueError`` says what is wrong with them."""
    file = msgspec.json.decode(data, type=_File)
    if not 1 <= file.format <= FORMAT:
        raise ValueError(f"format {file.format} is not known here (this drakit knows 1..{FORMAT})")
    if zlib.crc32(bytes(file.entry)) != file.checksum:
        raise ValueError("checksum does not match the content")
    return msgspec.json.decode(file.entry, type=Entry, dec_hook=_from_plain)


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


def _salvage(data: bytes) -> dict[str, CpuSet]:
    """What a damaged record still tells of exclusive holdings; better too much than too little."""
    held: dict[str, CpuSet] = {}
    with contextlib.suppress(ValueError, AttributeError, TypeError, KeyError, RecursionError):
        for grant in msgspec.json.decode(data)["entry"]["grants"]:
            for kind, numbers in grant.get("exclusive", {}).items():
                with contextlib.suppress(ValueError):
                    held[kind] = held.get(kind, CpuSet()) | CpuSet.parse(numbers)
    return held


def boot_id(proc: str = "/proc") -> str:
    """The identity of the running boot; empty where the kernel does not tell."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def entry_of(claim: Claim, grants: tuple[Grant, ...], boot: str) -> Entry:
    """The ledger entry for what *claim* was given."""
    return Entry(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        grants=grants,
        consumers=claim.consumers,
        pod_claim_name=claim.pod_claim_name,
        boot_id=boot,
        prepared_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


class Ledger:
    """The claims of one driver on this node, kept in *directory* (made if missing, mode 0700).

    Reading the current view (:attr:`holdings`) is free and never blocks; :meth:`refresh` notices
    what another instance wrote. Changes go through :meth:`transaction`.
    """

    def __init__(self, directory: str, *, boot: str | None = None) -> None:
        self.directory = directory
        self.boot = boot_id() if boot is None else boot
        self._lock = FileLock(os.path.join(directory, ".lock"))
        self._known: dict[str, tuple[Signature, Entry]] = {}
        self._ghosts: dict[str, dict[str, CpuSet]] = {}
        self._stamp: Signature | None = None
        self._first_seen: tuple[Signature | None, float] = (None, 0.0)
        self.holdings = Holdings()
        self.unreadable: dict[str, str] = {}
        """Claims whose file could not be read: UID to the path it was set aside as."""

    # -- reading ---------------------------------------------------------------------------------

    def load(self) -> Holdings:
        """Make the directory, drop leftovers of crashed writers, read everything."""
        atomicfile.ensure_directory(self.directory, 0o700)
        atomicfile.clean_temporaries(self.directory)
        self._stamp = None
        self.refresh()
        stale = [entry for entry in self.holdings if entry.boot_id != self.boot]
        if stale:
            _LOG.info(
                "%d claims were prepared before the last boot; the kubelet prepares or drops them",
                len(stale),
            )
        return self.holdings

    def refresh(self) -> bool:
        """Re-read what changed on disk since the last look; says whether anything did.

        Costs one ``stat`` when nothing changed: renames and removals alter the directory's time.
        """
        stamp = _signature(os.stat(self.directory))
        if stamp == self._stamp:
            return False
        seen_for = self._seen_for(stamp)
        seen: set[str] = set()
        changed = False
        for name in sorted(os.listdir(self.directory)):
            if name.endswith(_SUFFIX) and not name.startswith("."):
                uid = name.removesuffix(_SUFFIX)
                seen.add(uid)
                changed |= self._reread(uid)
            elif name.endswith(_SUFFIX + _UNREADABLE):
                changed |= self._note_unreadable(name)
        for uid in [uid for uid in self._known if uid not in seen]:
            del self._known[uid]
            changed = True
        # A change within one tick of the file system's clock would leave the same stamp: trust
        # the stamp only once it was seen for longer than any such tick.
        settled = seen_for > _tick(stamp)
        self._stamp = stamp if settled else None
        if changed:
            self._rebuild()
        return changed

    def _seen_for(self, stamp: Signature) -> float:
        """For how many seconds the directory has had this stamp in our view.

        By the monotonic clock: the time of day, which the stamp is made of, may be set at any moment.
        """
        now = time.monotonic()
        if self._first_seen[0] != stamp:
            self._first_seen = stamp, now
        return now - self._first_seen[1]

    def _reread(self, uid: str) -> bool:
        path = self.path(uid)
        try:
            signature = _signature(os.stat(path))
            if uid in self._known and self._known[uid][0] == signature:
                return False
            data = _read(path)
        except FileNotFoundError:
            return self._known.pop(uid, None) is not None
        except OSError as problem:
            self._set_aside(uid, b"", str(problem))
            return True
        try:
            entry = decode(data)
            if entry.uid != uid:
                raise ValueError(f"the file speaks of claim {entry.uid}")
        except (ValueError, msgspec.MsgspecError, RecursionError) as problem:
            self._set_aside(uid, data, str(problem))
            return True
        self._known[uid] = (signature, entry)
        return True

    def _set_aside(self, uid: str, data: bytes, why: str) -> None:
        """Quarantine one damaged file: its claim fails, the others do not notice."""
        path = self.path(uid)
        aside = path + _UNREADABLE
        known = self._known.pop(uid, None)
        held = _salvage(data)
        if known:  # we read it when it was whole
            for grant in known[1].grants:
                for kind, numbers in grant.exclusive.items():
                    held[kind] = held.get(kind, CpuSet()) | numbers
        self._ghosts[uid] = held
        self.unreadable[uid] = aside
        try:
            os.rename(path, aside)
        except OSError as problem:
            _LOG.error("cannot set aside %s: %s", path, problem)
        _LOG.error(
            "the record of claim %s is unreadable (%s); set aside as %s, it is taken to hold %s",
            uid,
            why,
            aside,
            {k: str(v) for k, v in held.items()} or "nothing known",
        )

    def _note_unreadable(self, name: str) -> bool:
        uid = name.removesuffix(_UNREADABLE).removesuffix(_SUFFIX)
        if uid in self.unreadable:
            return False
        path = os.path.join(self.directory, name)
        self.unreadable[uid] = path
        with contextlib.suppress(OSError):
            self._ghosts[uid] = _salvage(_read(path))
        return True

    def hold_for_ghost(self, uid: str, kind: str, numbers: CpuSet) -> None:
        """Keep *numbers* for a claim whose record is damaged or gone: a running container has them.

        Until the claim is unprepared or prepared again.
        """
        if uid not in self._known:
            ghost = self._ghosts.setdefault(uid, {})
            ghost[kind] = ghost.get(kind, CpuSet()) | numbers
            self._rebuild()

    def _rebuild(self) -> None:
        ghosts = {uid: held for uid, held in self._ghosts.items() if uid not in self._known}
        self.holdings = Holdings((entry for _, entry in self._known.values()), ghosts)

    def path(self, uid: str) -> str:
        """Where the claim's file is. Raises ``ValueError`` for a UID that is no file name."""
        if not uid or len(uid) > 128 or not all(c.isalnum() or c in "-_." for c in uid):
            raise ValueError(f"{uid!r} is no claim UID")
        if uid.startswith("."):
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
            yield Transaction(self)

    def _put(self, entry: Entry) -> None:
        path = self.path(entry.uid)
        atomicfile.write_atomic(path, encode(entry))
        self._known[entry.uid] = (_signature(os.stat(path)), entry)
        self._forget_ghost(entry.uid)
        self._rebuild()

    def _remove(self, uid: str) -> bool:
        existed = atomicfile.remove_durably(self.path(uid))
        self._known.pop(uid, None)
        self._forget_ghost(uid)
        self._rebuild()
        return existed

    def _forget_ghost(self, uid: str) -> None:
        aside = self.unreadable.pop(uid, None)
        self._ghosts.pop(uid, None)
        if aside is not None:
            atomicfile.remove_durably(aside)


class Transaction:
    """What may be done while holding the ledger's lock."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def holdings(self) -> Holdings:
        """The truth as of now."""
        return self._ledger.holdings

    def get(self, uid: str) -> Entry | None:
        """The claim's entry. Raises :class:`Unreadable` when its record is damaged."""
        if uid in self._ledger.unreadable and uid not in self._ledger.holdings.entries:
            raise Unreadable(uid, self._ledger.unreadable[uid])
        return self._ledger.holdings.get(uid)

    def put(self, entry: Entry, offer: Offer) -> None:
        """Make *entry* true, durably. Raises :class:`Conflict` and changes nothing if it cannot be.

        Replaces an earlier entry of the same claim. The check does not trust the driver.
        """
        check_conflicts(entry, self._ledger.holdings, offer)
        self._ledger._put(entry)

    def remove(self, uid: str) -> bool:
        """Forget the claim, durably; says whether it was known. Unknown is fine."""
        return self._ledger._remove(uid)


def check_conflicts(entry: Entry, holdings: Holdings, offer: Offer) -> None:
    """Raise :class:`Conflict` if *entry* takes what is another claim's, or more than there is."""
    _check_numbers(entry, holdings)
    _check_devices(entry, holdings, _capacities(offer))
    for grant in entry.grants:
        for key in grant.amounts if not grant.admin_access else ():
            limit = offer.limits.get(key)
            drawn = sum(g.amounts.get(key, 0) for g in entry.grants if not g.admin_access)
            others = holdings.amount(key, besides=entry.uid)
            if limit is not None and others + drawn > limit:
                raise Conflict(
                    f"{entry} needs {drawn} of {key}, but of {limit} in all {others} are held by "
                    f"other claims on this node; it can be prepared when one of them ends"
                )


def _check_numbers(entry: Entry, holdings: Holdings) -> None:
    own: dict[str, CpuSet] = {}
    for grant in entry.grants:
        for kind, numbers in grant.exclusive.items() if not grant.admin_access else ():
            if not own.get(kind, CpuSet()).isdisjoint(numbers):
                raise Conflict(f"{entry} was to get {kind} {own[kind] & numbers} twice")
            own[kind] = own.get(kind, CpuSet()) | numbers
    for kind, numbers in own.items():
        taken = holdings.exclusive(kind, besides=entry.uid) & numbers
        if taken:
            other = holdings.holder(kind, taken, besides=entry.uid)
            raise Conflict(
                f"{kind} {taken} for {entry} is held by {other}; "
                f"it can be prepared when that claim ends"
            )


def _check_devices(
    entry: Entry, holdings: Holdings, capacities: Mapping[tuple[str, str], Mapping[str, Quantity]]
) -> None:
    for grant in entry.grants:
        if grant.admin_access:
            continue
        where = (grant.pool, grant.device)
        for other in holdings:
            if other.uid == entry.uid:
                continue
            for theirs in other.grants:
                if theirs.admin_access or (theirs.pool, theirs.device) != where:
                    continue
                if grant.share_id is None or theirs.share_id is None:
                    raise Conflict(
                        f"device {grant.device} of pool {grant.pool} for {entry} is held by "
                        f"{other}; it can be prepared when that claim ends"
                    )
        for key, limit in capacities.get((grant.pool, grant.device), {}).items():
            _check_capacity(entry, grant, key, limit, holdings)


def _check_capacity(
    entry: Entry, grant: Grant, key: str, limit: Quantity, holdings: Holdings
) -> None:
    def drawn(one: Entry) -> int:
        return sum(
            g.consumed_capacity[key].nanos
            for g in one.grants
            if key in g.consumed_capacity
            and not g.admin_access
            and (g.pool, g.device) == (grant.pool, grant.device)
        )

    others = sum(drawn(other) for other in holdings if other.uid != entry.uid)
    if others + drawn(entry) > limit.nanos:
        raise Conflict(
            f"{entry} needs {Quantity.from_nanos(drawn(entry))} of {key} on device {grant.device}, "
            f"but other claims on this node hold {Quantity.from_nanos(others)} of {limit}; "
            f"it can be prepared when one of them ends"
        )


def _capacities(offer: Offer) -> dict[tuple[str, str], dict[str, Quantity]]:
    return {
        (pool.name or "", device.name): {k: c.value for k, c in device.capacity.items()}
        for pool in offer.pools
        for device in pool.devices
        if device.allow_multiple_allocations
    }


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _tick(stamp: Signature) -> float:
    """Seconds within which two changes may leave one stamp: 4 ms on common kernels, with a margin.

    A file system that keeps whole seconds (ext4 with small inodes, for one) needs two of them.
    """
    return 0.05 if stamp[1] % 1_000_000_000 else 2.5


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise OSError(f"{path} is larger than {_LARGEST_FILE} bytes")
    return data
