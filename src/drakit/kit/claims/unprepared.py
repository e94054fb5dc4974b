"""Which claims were unprepared a moment ago, so that a stale prepare does not bring them back.

A prepare that timed out at the kubelet may still be running when the pod is deleted and the claim
unprepared. If it then went on, it would hold devices for a claim nobody will ever unprepare again.
The two may run in different processes (rolling update), so the marks are in a file; they only have
to outlive calls, not the machine, so the file is not synced.

Releasing never requires disk space: a mark that cannot be written is kept in memory and written with
the next one. Until then another process does not see it. That matters only if a stale prepare runs
there at the same moment, and then the claim is held too long, never by two.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Final

import msgspec

from drakit.core import atomicfile

LIFETIME: Final = 120.0
"""Seconds a mark is kept: longer than a call the kubelet has given up on can go on."""

MOST: Final = 1000
"""Marks kept at most, the newest ones: the file is written anew for every claim that ends."""


_LOG = logging.getLogger(__name__)


class _Marks(msgspec.Struct, frozen=True):
    boot: str
    marks: dict[str, float]


class Tombstones:
    """Marks in the file *path*. Callers hold the checkpoint's lock around every method.

    Times are the monotonic clock's, which all processes of a boot share.
    """

    def __init__(self, path: str, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._unwritten: dict[str, float] = {}

    def mark(self, uid: str) -> None:
        """The claim is being unprepared now. Never fails: what cannot be written is remembered."""
        now = time.monotonic()
        self._unwritten = _newest({**self._unwritten, uid: now}, now)
        try:
            self._write(_newest(self._read() | self._unwritten, now))
        except OSError as error:
            _LOG.warning(
                "cannot write %s: %s; the mark of claim %s is kept in memory",
                self._path,
                error,
                uid,
            )
        else:
            self._unwritten = {}

    def marked_since(self, uid: str, started: float) -> bool:
        """Whether the claim was unprepared after *started* (``time.monotonic()``).

        Raises ``OSError`` when that cannot be found out.
        """
        if self._unwritten.get(uid, float("-inf")) >= started:
            return True
        return self._read().get(uid, float("-inf")) >= started

    def _write(self, marks: dict[str, float]) -> None:
        temporary = f"{self._path}.new"  # one name: the lock lets only one process write
        atomicfile.step("create", temporary)
        try:
            with open(temporary, "wb") as file:
                file.write(msgspec.json.encode(_Marks(boot=self._boot, marks=marks)))
            atomicfile.step("rename", self._path)
            os.replace(temporary, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # half a file takes the room that others need
            raise

    def _read(self) -> dict[str, float]:
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            with open(self._path, "rb") as file:
                stored = msgspec.json.decode(file.read(), type=_Marks)
            if stored.boot == self._boot:  # the clock starts anew with every boot
                return stored.marks
        return {}


def _newest(marks: dict[str, float], now: float) -> dict[str, float]:
    """Those that still count, oldest first, and not too many."""
    fresh = sorted(
        (item for item in marks.items() if now - item[1] < LIFETIME or item[1] == now),
        key=lambda item: item[1],
    )
    return dict(fresh[-MOST:])
