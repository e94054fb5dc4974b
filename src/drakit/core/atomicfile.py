"""Atomic, durable file writes: after a power failure a file is either the old or the new one.

A temporary file is written, synced and renamed (atomic in POSIX), and the directory is synced (makes it
durable). The temporary file is in the same directory: rename does not cross file systems, and the CDI
watchers of container runtimes notice a file only when it is moved *within* the directory they watch. Its
writer holds a lock (``flock``) on it, so :func:`clean_temporaries` can distinguish leftovers of a dead
process from files in use, even across PID namespaces.

Every file-system step is announced to :data:`observers` just before it happens: crash tests end the
process there at the n-th step, and so enumerate every state a crash can leave behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from typing import Final

TEMPORARY_SUFFIX: Final = ".drakit-tmp"
"""Suffix of temporary files: neither ``.json`` nor ``.yaml``, which runtimes would read as CDI."""

observers: list[Callable[[str, str], None]] = []
"""Called with (step name, path) before each file-system step. Empty outside tests."""


def step(name: str, path: str) -> None:
    """Announce that the file-system step *name* on *path* is about to happen.

    Code with further durable steps of its own calls this too, so that crash tests see them.
    """
    for observer in observers:
        observer(name, path)


def write_atomic(path: str, data: bytes, mode: int = 0o600) -> None:
    """Replace the content of *path* with *data*, durably, with permissions *mode* regardless of the umask.

    When this returns, the content survives a crash. When it raises ``OSError``, *path* is as
    before or already new (only the last sync failed), never a mixture, and no temporary file
    is left. Several processes may write the same path; the last rename wins.
    """
    directory, name = os.path.split(path)
    descriptor, temporary = _open_temporary(directory, name)
    try:
        os.fchmod(descriptor, mode)
        view = memoryview(data)
        while view:
            step("write", temporary)
            view = view[os.write(descriptor, view) :]
        step("sync", temporary)
        os.fsync(descriptor)
        step("rename", path)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)  # and with it the lock
    sync_directory(directory)


def remove_durably(path: str) -> bool:
    """Remove the file *path* so that it stays removed after a crash; returns whether it existed.

    A missing file is not an error, and the directory is synced in that case too: an earlier removal
    may have been interrupted between unlink and sync. A missing directory counts as missing.
    """
    step("unlink", path)
    try:
        os.unlink(path)
        existed = True
    except FileNotFoundError:
        existed = False
    with contextlib.suppress(FileNotFoundError):
        sync_directory(os.path.dirname(path))
    return existed


def ensure_directory(path: str, mode: int = 0o755) -> None:
    """Create the directory *path* and its missing parents, durably."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent and parent != path:
        ensure_directory(parent, mode)
    step("mkdir", path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    sync_directory(parent)


def sync_parents(path: str) -> None:
    """Make the name of the directory *path* durable, and those of its parents on its file system.

    Another process may have created them and died before the sync; their content would be lost with them.
    Parents that may not be opened are left out.
    """
    device = os.stat(path).st_dev
    parent = os.path.dirname(os.path.abspath(path))
    while os.stat(parent).st_dev == device:
        with contextlib.suppress(PermissionError):
            sync_directory(parent)
        if parent == os.path.dirname(parent):
            return
        parent = os.path.dirname(parent)


def clean_temporaries(directory: str, prefix: str = "") -> list[str]:
    """Remove temporary files that dead writers left in *directory*; returns their paths.

    Only files whose final name begins with *prefix* are considered, so that programs can share a
    directory. Files of running writers stay. A missing directory has no leftovers.
    """
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    removed = []
    for name in names:
        if name.startswith(f".{prefix}") and name.endswith(TEMPORARY_SUFFIX):
            path = os.path.join(directory, name)
            if _remove_if_abandoned(path):
                removed.append(path)
    if removed:
        sync_directory(directory)
    return removed


def sync_directory(directory: str) -> None:
    """Make the names in *directory* durable: a crash may otherwise undo renames and removals."""
    step("sync directory", directory)
    descriptor = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_temporary(directory: str, name: str) -> tuple[int, str]:
    """A new, locked, empty temporary file in *directory* for the file *name*."""
    while True:
        path = os.path.join(directory, f".{name}.{os.urandom(6).hex()}{TEMPORARY_SUFFIX}")
        step("create", path)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor, path
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # a cleaner removed it between open and lock: try again


def _remove_if_abandoned(path: str) -> bool:
    """Remove the temporary file unless its writer still holds the lock or finished meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return False
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        step("unlink", path)
        os.unlink(path)
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)
    return True
