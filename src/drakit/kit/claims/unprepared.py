"""Tombstones of recently unprepared claims, so that a stale prepare does not prepare them again.

A prepare that timed out at the kubelet may still run when the pod is deleted and the claim unprepared. If
it succeeded later, it would hold devices for a claim that is never unprepared again. The two calls may run
in different processes (rolling update), so the tombstones are in a file. It is not synced: tombstones only
have to outlive calls. One that cannot be written (releasing never requires disk space) is kept in memory
and written with the next one. A stale prepare in another process, which does not see it until then, makes
the claim hold its devices too long, but never gives them to two claims.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from drakit.core.bootrecord import BootRecord
from drakit.core.log import get_logger

LIFETIME: Final = 120.0
"""Seconds a tombstone is kept: longer than a call that the kubelet has given up on can run."""
MOST: Final = 1000
"""Tombstones kept at most, the newest ones: the file is rewritten for every claim that ends."""
_NEVER: Final = float("-inf")
log = get_logger(__name__)


class _Marks(msgspec.Struct, frozen=True):
    boot: str
    marks: dict[str, float]


class Tombstones:
    """Tombstones in the file *path*. Callers hold the checkpoint's lock around every method.

    Times are of the monotonic clock, which all processes of a boot share.
    """

    def __init__(self, path: str, boot: str) -> None:
        self._record = BootRecord(path, _Marks, boot)
        self._unwritten: dict[str, float] = {}

    def mark(self, uid: str) -> None:
        """Mark the claim as unprepared now. Never fails: see the module."""
        now = time.monotonic()
        self._unwritten = _newest({**self._unwritten, uid: now}, now)
        try:
            marks = _newest(self._read() | self._unwritten, now)
            self._record.save_unsynced(_Marks(boot=self._record.boot, marks=marks))
        except OSError as error:
            log.warning("cannot write tombstone, kept in memory", path=self._record.path, error=error)
        else:
            self._unwritten = {}

    def marked_since(self, uid: str, started: float) -> bool:
        """Whether the claim was unprepared after *started* (``time.monotonic()``). Raises ``OSError``."""
        return self._unwritten.get(uid, _NEVER) >= started or self._read().get(uid, _NEVER) >= started

    def _read(self) -> dict[str, float]:
        try:
            stored = self._record.load()
        except ValueError:
            return {}
        return stored.marks if stored is not None else {}


def _newest(marks: dict[str, float], now: float) -> dict[str, float]:
    """The marks that have not expired, oldest first, at most :data:`MOST`."""
    fresh = (item for item in marks.items() if now - item[1] < LIFETIME or item[1] == now)
    return dict(sorted(fresh, key=lambda item: item[1])[-MOST:])
