"""Safe access to single cgroup files.

A path below the mount is opened without following a symbolic link in any of its parts, and nothing is
ever created: a cgroup that was removed stays removed. ``openat2`` (Linux 5.6) does that in one system
call; where it is not available, each part is opened relative to the one before.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import functools
import os
import struct
from collections.abc import Iterator
from typing import Final

from drakit.cgroups.paths import is_plain

LARGEST_FILE: Final = 1 << 16
MISSING: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
"""Errors for a cgroup or file that does not exist; ENODEV: it was removed after the open."""
READ: Final = os.O_RDONLY | os.O_CLOEXEC
WRITE: Final = os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC
"""Truncation matters for trees of plain files only; the kernel ignores it for cgroup files."""
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ROOT: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OPENAT2: Final = 437  # the same on all architectures that Kubernetes supports
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS = 0x02, 0x04
_syscall: Final = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)


def open_beneath(root: str, path: str, flags: int) -> int:
    """A descriptor of *path* below the mount *root*. Raises ``OSError``; ELOOP for a symbolic link.

    *root* itself may be a link: it is configuration. An empty *path* is the root.
    """
    if path and not is_plain(path):
        raise OSError(errno.EINVAL, "not a valid cgroup path", path)
    if not path:
        return os.open(root, flags)
    above = os.open(root, _ROOT)
    try:
        descriptor = _openat2(above, path, flags)
        return _walk(above, path, flags) if descriptor is None else descriptor
    finally:
        os.close(above)


def _openat2(above: int, path: str, flags: int) -> int | None:
    """``openat2`` without symbolic links; None where it is missing or forbidden (seccomp)."""
    how = _open_how(flags)
    descriptor: int = _syscall(_OPENAT2, above, path.encode("utf-8", "surrogateescape"), how, 24)
    if descriptor >= 0:
        return descriptor
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM):
        return None
    raise OSError(code, os.strerror(code), path)


@functools.cache
def _open_how(flags: int) -> bytes:
    """``struct open_how`` of ``linux/openat2.h``."""
    return struct.pack("QQQ", flags, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)


def _walk(above: int, path: str, flags: int) -> int:
    *parents, name = path.split("/")
    descriptor = os.dup(above)
    try:
        for part in parents:
            below = os.open(part, DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
    except NotADirectoryError as error:  # of O_DIRECTORY with O_NOFOLLOW, for a link
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from error
    finally:
        os.close(descriptor)


def read_file(root: str, path: str) -> str:
    """The content of a cgroup file without the final newline. Raises ``OSError``."""
    return _content(open_beneath(root, path, READ))


def write_file(root: str, path: str, value: str) -> None:
    """Set a cgroup file in one write, as the kernel requires. Raises ``OSError``."""
    _set(open_beneath(root, path, WRITE), value)


def _content(descriptor: int) -> str:
    try:
        return os.read(descriptor, LARGEST_FILE).decode("ascii", "replace").rstrip("\n")
    finally:
        os.close(descriptor)


def _set(descriptor: int, value: str) -> None:
    try:
        os.write(descriptor, value.encode("ascii"))
    finally:
        os.close(descriptor)


class WriteOutcome(enum.Enum):
    """The result of a write."""

    WRITTEN = "written"
    GONE = "the cgroup was removed"
    ABSENT = "the cgroup has no such file; is the controller enabled for it?"
    BUSY = "rejected by the kernel: more is in use than the new limit"
    INVALID = "rejected by the kernel: not a valid value"
    DENIED = "not permitted; is the cgroup file system mounted writable in the driver's container?"
    FAILED = "the write failed"


_BY_ERROR: Final = {
    errno.ENOENT: WriteOutcome.ABSENT,
    errno.ENODEV: WriteOutcome.GONE,
    errno.EBUSY: WriteOutcome.BUSY,
    errno.EINVAL: WriteOutcome.INVALID,
    errno.ERANGE: WriteOutcome.INVALID,
    errno.EPERM: WriteOutcome.DENIED,
    errno.EACCES: WriteOutcome.DENIED,
    errno.EROFS: WriteOutcome.DENIED,
}


class Cgroup:
    """An open cgroup: its files, even if another cgroup gets its name meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.identity = os.fstat(descriptor).st_ino
        """A cgroup created later under the same name has another one."""

    def read(self, file: str) -> str | None:
        """The content of a file; None if it cannot be read."""
        try:
            return _content(os.open(file, READ | os.O_NOFOLLOW, dir_fd=self._descriptor))
        except OSError:
            return None

    def value(self, file: str) -> str | None:
        """The first line of a file; None if it cannot be read."""
        text = self.read(file)
        return None if text is None else text.partition("\n")[0].strip()

    def set(self, file: str, value: str) -> None:
        """Set a file in one write. Raises ``OSError``."""
        _set(os.open(file, WRITE | os.O_NOFOLLOW, dir_fd=self._descriptor), value)

    def write(self, file: str, value: str) -> WriteOutcome:
        """As :meth:`set`, with the kind of error as the result."""
        try:
            self.set(file, value)
        except OSError as error:
            return _BY_ERROR.get(error.errno or 0, WriteOutcome.FAILED)
        return WriteOutcome.WRITTEN

    def children(self) -> list[str]:
        """The names of the cgroups directly below. Raises ``OSError``."""
        with os.scandir(self._descriptor) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def create_child(self, name: str) -> None:
        """Create a cgroup below this one. Raises ``OSError``."""
        os.mkdir(name, dir_fd=self._descriptor)

    def remove_child(self, name: str) -> None:
        """Remove a cgroup below this one. Raises ``OSError``, also if it has processes."""
        os.rmdir(name, dir_fd=self._descriptor)


@contextlib.contextmanager
def opened(root: str, path: str) -> Iterator[Cgroup]:
    """The cgroup *path* below the mount *root*. Raises ``OSError``."""
    descriptor = open_beneath(root, path, DIRECTORY)
    try:
        yield Cgroup(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_cgroup(root: str, path: str) -> Iterator[Cgroup | None]:
    """The cgroup *path* below the mount *root*; None if it does not exist or cannot be opened.

    Raises ``ValueError`` for a path that is not valid.
    """
    if not (path and is_plain(path)):
        raise ValueError(f"{path!r} is not a valid cgroup path")
    with contextlib.ExitStack() as stack:
        cgroup = None
        with contextlib.suppress(OSError):
            cgroup = stack.enter_context(opened(root, path))
        yield cgroup
