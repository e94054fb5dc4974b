"""Which claims were unprepared a moment ago, so that a stale prepare does not bring them back.

A prepare that timed out at the kubelet may still be running when the pod is deleted and the claim
unprepared. If it then went on, it would hold devices for a claim nobody will ever unprepare again.
The two may run in different processes (rolling update), so the marks are in a file; they only have
to outlive calls, not the machine, so the file is not synced.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

import msgspec

from drakit.core import atomicfile

LIFETIME: Final = 120.0
"""Seconds a mark is kept: longer than a call the kubelet has given up on can go on."""

MOST: Final = 1000
"""Marks kept at most, the newest ones: the file is written anew for every claim that ends."""


class _Marks(msgspec.Struct, frozen=True):
    boot: str
    marks: dict[str, float]


class Tombstones:
    """Marks in the file *path*. Callers hold the ledger's lock around every method.

    Times are the monotonic clock's, which all processes of a boot share.
    """

    def __init__(self, path: str, boot: str) -> None:
        self._path = path
        self._boot = boot

    def mark(self, uid: str) -> None:
        """The claim is being unprepared now."""
        now = time.monotonic()
        marks = {u: at for u, at in self._read().items() if now - at < LIFETIME and u != uid}
        marks = {**dict(list(marks.items())[1 - MOST :]), uid: now}  # oldest first
        temporary = f"{self._path}.new"  # one name: the lock lets only one process write
        atomicfile.step("create", temporary)
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(_Marks(boot=self._boot, marks=marks)))
        atomicfile.step("rename", self._path)
        os.replace(temporary, self._path)

    def marked_since(self, uid: str, started: float) -> bool:
        """Whether the claim was unprepared after *started* (``time.monotonic()``)."""
        return self._read().get(uid, float("-inf")) >= started

    def _read(self) -> dict[str, float]:
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            with open(self._path, "rb") as file:
                stored = msgspec.json.decode(file.read(), type=_Marks)
            if stored.boot == self._boot:  # the clock starts anew with every boot
                return stored.marks
        return {}
