"""One CDI file per claim, kept in a directory the runtime watches.

The directory is shared with other drivers, and after a reboot it is empty: it holds nothing that
could not be made again from the checkpoint. Only files of our own kind are ever written, listed or
removed; their name is ``<vendor>-<class>_<id>.json``, the convention for transient files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from drakit.core import atomicfile
from drakit.wire.cdi.spec import CdiError, Spec, check_kind, decode_spec, encode_spec

DEFAULT_DIRECTORY: Final = "/var/run/cdi"

_MODE: Final = 0o644
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", re.ASCII)
_LONGEST_NAME: Final = 200  # of 255, so that the temporary file's name fits too


class CdiDirectoryError(OSError):
    """The directory cannot be used; says why and what to look at."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file of ours: its specification, or why it has none."""

    path: str
    spec: Spec | None
    problem: str = ""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What :meth:`CdiDirectory.reconcile` did, as ids."""

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class CdiDirectory:
    """The files of one kind in one directory. Holds no state besides the disk's.

    Everything may be repeated, also after a crash in the middle. Writing several files at once
    from several processes is safe; the checkpoint's lock keeps two from deciding about one claim.
    """

    def __init__(self, path: str, kind: str) -> None:
        """*kind* is ``vendor/class``. Raises :class:`CdiError` when it cannot be one."""
        check_kind(kind)
        self.path = path
        self.kind = kind
        self._prefix = kind.replace("/", "-") + "_"

    def file_of(self, id_: str) -> str:
        """The path of the file for *id_* (a claim UID). Raises :class:`CdiError` for a bad id."""
        if not self._is_id(id_):
            raise CdiError(f"{id_!r} cannot be part of the name of a CDI file")
        return os.path.join(self.path, f"{self._prefix}{id_}.json")

    def write(self, id_: str, spec: Spec) -> str:
        """Make the file for *id_* say *spec*; returns its path. Nothing happens if it does.

        A file that cannot be read is written again: it is derived.

        When this returns, the file is complete and durable. The runtime notices it a little
        later: it watches the directory. Raises :class:`CdiError` or :class:`CdiDirectoryError`.
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
        """Remove the file for *id_*; says whether there was one. A missing one is no error."""
        path = self.file_of(id_)
        try:
            return atomicfile.remove_durably(path)
        except OSError as error:
            raise self._explained(error, path) from error

    def entries(self) -> dict[str, Entry]:
        """All files of ours by id, also those that nobody can read. Others are not looked at."""
        return {id_: self._entry(self.file_of(id_)) for id_ in self.ids()}

    def reconcile(self, wanted: Mapping[str, Spec]) -> Changes:
        """Make our files exactly *wanted*: missing and damaged ones anew, others away.

        Cleans what a crash left behind, too.
        """
        self.clean()
        present = self.ids()
        written = []
        for id_, spec in wanted.items():
            before = _content(self.file_of(id_))
            self.write(id_, spec)
            if before != encode_spec(spec):
                written.append(id_)
        removed = [id_ for id_ in present if id_ not in wanted]
        for id_ in removed:
            self.remove(id_)
        return Changes(written=tuple(written), removed=tuple(removed))

    def clean(self) -> list[str]:
        """Remove temporary files that a dead writer of this kind left; returns their paths."""
        try:
            return atomicfile.clean_temporaries(self.path, self._prefix)
        except OSError as error:
            raise self._explained(error, self.path) from error

    def ids(self) -> list[str]:
        """The ids of our files, sorted. What cannot be an id was not written by us."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._explained(error, self.path) from error
        ids = []
        for name in sorted(names):
            id_ = name.removeprefix(self._prefix).removesuffix(".json")
            if name == f"{self._prefix}{id_}.json" and self._is_id(id_):
                ids.append(id_)
        return ids

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
    def _explained(problem: OSError, path: str) -> CdiDirectoryError:
        return CdiDirectoryError(
            problem.errno,
            f"{problem.strerror}; the CDI directory must be writable for the driver, have room, "
            "and be one of the runtime's cdi_spec_dirs",
            path,
        )


def _content(path: str) -> bytes | None:
    """The file's bytes, None if there is no such file or it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
