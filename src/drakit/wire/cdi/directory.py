"""Directory of CDI spec files, one per claim, that the runtime watches.

It is shared with other drivers and empty after a reboot; every file can be rebuilt from the
checkpoint. Only files of our own kind are written, listed or removed; they are named
``<vendor>-<class>_<id>.json``, the convention for transient files.
"""

from __future__ import annotations

import os
import re
from typing import Final

import msgspec

from drakit.core import atomicfile
from drakit.wire.cdi.spec import CdiError, Spec, check_kind, decode_spec, encode_spec

_MODE: Final = 0o644
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", re.ASCII)
_LONGEST_NAME: Final = 200  # of 255, so that the temporary file's name fits too


class CdiDirectoryError(OSError):
    """The directory cannot be used; the text gives the cause and a remedy."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file of our kind: its specification, or why it cannot be read."""

    path: str
    spec: Spec | None
    problem: str = ""


class CdiDirectory:
    """The files of one kind in one directory; has no state of its own.

    Every operation may be repeated, also after a crash. Several processes may write different files;
    the checkpoint's lock prevents two processes from handling one claim.
    """

    def __init__(self, path: str, kind: str) -> None:
        """*kind* is ``vendor/class``. Raises :class:`CdiError` if it is invalid."""
        check_kind(kind)
        self.path = path
        self.kind = kind
        self._prefix = kind.replace("/", "-") + "_"

    def file_of(self, id_: str) -> str:
        """The path of the file for *id_* (a claim UID). Raises :class:`CdiError` for an invalid id."""
        if not self._is_id(id_):
            raise CdiError(f"{id_!r} cannot be part of a CDI file name")
        return os.path.join(self.path, f"{self._prefix}{id_}.json")

    def write(self, id_: str, spec: Spec) -> str:
        """Write *spec* durably to the file for *id_*, unless it has that content; returns its path.

        Raises :class:`CdiError` or :class:`CdiDirectoryError`.
        """
        if spec.kind != self.kind:
            raise CdiError(f"CDI directory of {self.kind} cannot hold a device of {spec.kind}")
        path, data = self.file_of(id_), encode_spec(spec)
        try:
            if _content(path) != data:
                atomicfile.ensure_directory(self.path)
                atomicfile.write_atomic(path, data, _MODE)
        except OSError as error:
            raise self._explained(error, path) from error
        return path

    def remove(self, id_: str) -> bool:
        """Remove the file for *id_*; returns whether it existed."""
        path = self.file_of(id_)
        try:
            return atomicfile.remove_durably(path)
        except OSError as error:
            raise self._explained(error, path) from error

    def entries(self) -> dict[str, Entry]:
        """All files of our kind by id, including unreadable ones."""
        return {id_: self._entry(self.file_of(id_)) for id_ in self.ids()}

    def clean(self) -> list[str]:
        """Remove temporary files that a crashed writer left; returns their paths."""
        try:
            return atomicfile.clean_temporaries(self.path, self._prefix)
        except OSError as error:
            raise self._explained(error, self.path) from error

    def ids(self) -> list[str]:
        """The ids of our files, sorted."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._explained(error, self.path) from error
        ids = {name: name.removeprefix(self._prefix).removesuffix(".json") for name in sorted(names)}
        return [id_ for name, id_ in ids.items() if name == f"{self._prefix}{id_}.json" and self._is_id(id_)]

    def _is_id(self, id_: str) -> bool:
        name = f"{self._prefix}{id_}.json"
        return _ID.fullmatch(id_) is not None and len(name) <= _LONGEST_NAME

    def _entry(self, path: str) -> Entry:
        try:
            with open(path, "rb") as file:
                spec = decode_spec(file.read())
        except (OSError, CdiError) as error:
            return Entry(path=path, spec=None, problem=str(error))
        if spec.kind != self.kind:
            return Entry(path=path, spec=None, problem=f"holds devices of {spec.kind}")
        return Entry(path=path, spec=spec)

    @staticmethod
    def _explained(error: OSError, path: str) -> CdiDirectoryError:
        return CdiDirectoryError(
            error.errno,
            f"{error.strerror}; the CDI directory must be writable for the driver, have free space, "
            "and be one of the runtime's cdi_spec_dirs",
            path,
        )


def _content(path: str) -> bytes | None:
    """The file's bytes; ``None`` if it does not exist or cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
