"""Reading and writing single files of a cgroup.

The kernel takes a value in one write, and what it says when it does not is worth telling apart. A
cgroup is opened part by part, never through a symbolic link, and nothing is ever created: a cgroup
that is gone stays gone.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
from collections.abc import Iterable, Iterator
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST_FILE: Final = 1 << 16


class Outcome(enum.Enum):
    """What became of a write."""

    WRITTEN = "written"
    GONE = "the cgroup is gone"
    ABSENT = "the cgroup has no such file; is the controller enabled for it?"
    BUSY = "the kernel refuses it now: more is in use"
    INVALID = "the kernel does not take this value"
    DENIED = "not permitted; is the cgroup file system mounted writable in the driver's container?"
    FAILED = "it failed"


_BY_ERROR: Final = {
    errno.ENOENT: Outcome.ABSENT,
    errno.ENODEV: Outcome.GONE,  # removed after it was opened
    errno.EBUSY: Outcome.BUSY,
    errno.EINVAL: Outcome.INVALID,
    errno.ERANGE: Outcome.INVALID,
    errno.EPERM: Outcome.DENIED,
    errno.EACCES: Outcome.DENIED,
    errno.EROFS: Outcome.DENIED,
}


class Cgroup:
    """A cgroup that is open: its files, whatever happens to its name meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.identity = os.fstat(descriptor).st_ino
        """A cgroup made anew under the same name has another."""

    def read(self, file: str) -> str | None:
        """The file's content; None when there is none."""
        try:
            descriptor = os.open(
                file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._descriptor
            )
        except OSError:
            return None
        try:
            return os.read(descriptor, _LARGEST_FILE).decode("ascii", "replace")
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def value(self, file: str) -> str | None:
        """The one value of a file; None when there is none."""
        text = self.read(file)
        return None if text is None else text.partition("\n")[0].strip()

    def write(self, file: str, value: str) -> Outcome:
        """Set a file in one write."""
        try:
            descriptor = os.open(
                file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._descriptor
            )
            try:
                os.write(descriptor, f"{value}\n".encode("ascii"))
            finally:
                os.close(descriptor)
        except OSError as error:
            return _BY_ERROR.get(error.errno or 0, Outcome.FAILED)
        return Outcome.WRITTEN


@contextlib.contextmanager
def open_cgroup(root: str, path: str) -> Iterator[Cgroup | None]:
    """The cgroup *path* below the mount *root*; None when it is not there.

    Raises ``ValueError`` for a path that is not plain.
    """
    parts = path.split("/")
    if not all(part not in ("", ".", "..") for part in parts):
        raise ValueError(f"{path!r} is no plain path of a cgroup")
    descriptor = _walk(root, parts)
    if descriptor is None:
        yield None
        return
    try:
        yield Cgroup(descriptor)
    finally:
        os.close(descriptor)


def _walk(root: str, parts: Iterable[str]) -> int | None:
    """A descriptor of the directory that *parts* lead to, one by one; None when one is missing."""
    try:
        descriptor = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)
        for part in parts:
            above = descriptor
            try:
                descriptor = os.open(part, _DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
    except OSError:
        return None
    return descriptor
