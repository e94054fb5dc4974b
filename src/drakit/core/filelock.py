"""An exclusive lock between processes, on a file.

Two instances of a driver share one data directory during a rolling update, and the kubelet may call
either. The lock is ``flock(2)``: the kernel releases it when its holder dies, so a lock file left
behind never blocks another process.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05


class LockTimeoutError(TimeoutError):
    """Another holder did not release the lock before the timeout."""


class FileLock:
    """Exclusive among all processes, and among all ``FileLock`` objects and tasks of one process.

    Not re-entrant. A file that is missing is created (mode 0666 less the umask, because another
    instance may run as another user); its directory must exist. The file is never removed: a
    removed file could be locked by its old and its new name at once. The descriptor is closed on
    ``exec``; a child made by ``fork`` alone would share the lock, so do not fork while holding it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._held: int | None = None
        self._owner: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock now."""
        return self._held is not None

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for the lock, blocking the thread; *timeout* in seconds, None waits forever.

        Raises :class:`LockTimeoutError`, ``OSError`` when the file cannot be opened, and
        ``RuntimeError`` when this thread already holds the lock (it would wait for itself).
        """
        if self._owner == threading.get_ident():
            raise RuntimeError(f"lock {self.path} is already held by this thread")
        if timeout is None:
            while not self._attempt(fcntl.LOCK_EX):
                pass  # the file was replaced meanwhile: wait for the new one
            return
        for pause in self._attempts(timeout):
            time.sleep(pause)

    async def acquire_async(self, timeout: float | None = None) -> None:
        """Wait for the lock without blocking the event loop; cancellation leaves nothing held.

        Polls, because a blocking ``flock`` in a thread could not be cancelled. Raises like
        :meth:`acquire`, except that a task may wait for another task of its thread.
        """
        for pause in self._attempts(timeout):
            await asyncio.sleep(pause)

    def _attempts(self, timeout: float | None) -> Iterator[float]:
        """Try until the lock is taken; yields the seconds to wait before the next attempt."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while not self.try_acquire():
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._timed_out(timeout)
            yield min(pause, left)
            pause = min(pause * 2, _LONGEST_PAUSE)

    @asynccontextmanager
    async def hold(self, timeout: float | None = None) -> AsyncIterator[None]:
        """``async with lock.hold(5):`` – acquire without blocking the loop, release at the end."""
        await self.acquire_async(timeout)
        try:
            yield
        finally:
            self.release()

    def try_acquire(self) -> bool:
        """Take the lock if it is free; never waits."""
        if self._held is not None:
            return False
        try:
            return self._attempt(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False

    def release(self) -> None:
        """Release the lock. Raises ``RuntimeError`` if it is not held."""
        if self._held is None:
            raise RuntimeError(f"lock {self.path} is not held")
        descriptor, self._held, self._owner = self._held, None, None
        os.close(descriptor)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _attempt(self, operation: int) -> bool:
        """Lock a fresh descriptor; False when the path meanwhile names another file.

        A fresh one each time: ``flock`` belongs to the open file, so locking the same descriptor
        twice would succeed.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, operation)
            if not _names(self.path, descriptor):
                os.close(descriptor)
                return False
        except BaseException:
            os.close(descriptor)
            raise
        self._held = descriptor
        self._owner = threading.get_ident()
        return True

    def _timed_out(self, timeout: float | None) -> LockTimeoutError:
        holder = lock_holder(self.path)
        who = f"process {holder}" if holder else "another instance or task"
        return LockTimeoutError(
            f"{self.path} is locked by {who} and was not released within {timeout} s; "
            f"retry, or end that process if it is stuck"
        )


def _names(path: str, descriptor: int) -> bool:
    """Whether *path* still is the file behind *descriptor*."""
    mine = os.fstat(descriptor)
    try:
        current = os.stat(path)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (current.st_dev, current.st_ino)


def lock_holder(path: str) -> int | None:
    """The process that holds *path* according to ``/proc/locks``, for error texts; None if unknown.

    The kernel shows 0 for a holder in another PID namespace, and layered file systems show
    another device number than ``stat``: both read as unknown here.
    """
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks", encoding="ascii") as table:
            rows = [line.split() for line in table]
    except OSError:
        return None
    for row in rows:
        # "7: FLOCK  ADVISORY  WRITE 4711 08:01:131090 0 EOF"; a waiter's row has "->" second.
        if len(row) >= 6 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == str(inode):
            return int(row[4]) or None
    return None


def is_held(path: str) -> bool:
    """Whether a process holds a lock on the file; False if it is missing. Raises other ``OSError``."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
