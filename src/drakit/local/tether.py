"""Detection of local claims that no process uses any more, however their processes ended.

Each local claim has a tether: a file whose lock (``flock``) is held by an open descriptor that the
command and everything it starts inherit. The kernel releases the lock when the last of them ends, also
after ``kill -9``; if the lock can be taken, the claim is free. A process that closes all its descriptors
(a daemon) releases the tether, so the command's own process is checked too, by PID and start time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from typing import Final

from drakit.core.filelock import is_held

_SUFFIX: Final = ".tether"


def tether_path(directory: str, uid: str) -> str:
    """The file of a claim's tether."""
    return os.path.join(directory, f".{uid}{_SUFFIX}")


def fasten(directory: str, uid: str) -> int:
    """Create and lock the claim's tether; returns the descriptor, which children inherit."""
    path = tether_path(directory, uid)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_loose(directory: str, uid: str) -> bool:
    """Whether no process holds the claim's tether; a missing one is loose."""
    try:
        return not is_held(tether_path(directory, uid))
    except OSError:
        return False  # of another user: the process decides


def cut(directory: str, uid: str) -> None:
    """Remove the tether of a claim that ended."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(tether_path(directory, uid))


def identity_of(pid: int, proc: str = "/proc") -> str:
    """A process as ``pid:starttime``; empty if it does not exist.

    The start time is field 22 of ``/proc/<pid>/stat``; the command name before it may contain anything
    and is cut off at the last parenthesis.
    """
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            rest = file.read(4096).rpartition(")")[2].split()
    except OSError:
        return ""
    # state is field 3; a zombie has ended
    return "" if len(rest) < 20 or rest[0] in "ZX" else f"{pid}:{rest[19]}"


def is_alive(identity: str, proc: str = "/proc") -> bool:
    """Whether the process *identity* still runs."""
    found = re.fullmatch(r"(\d+):\d+", identity)
    return found is not None and identity_of(int(found[1]), proc) == identity
