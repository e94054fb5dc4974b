"""What was set in cgroups and what was there before, kept on disk until it is put back."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from drakit.core.atomicfile import ensure_directory, remove_durably, write_atomic
from drakit.core.objects import Struct

_LOG = logging.getLogger(__name__)


class FileKey(NamedTuple):
    """One file of one cgroup (its path below the mount)."""

    path: str
    file: str

    def __str__(self) -> str:
        return f"{self.path}/{self.file}"


class Kept(Struct, frozen=True):
    """One file that we set."""

    path: str
    file: str
    value: str
    before: str
    """What it said when we first came: to be put back."""
    identity: int
    """Of the cgroup; one made anew under the same name was not set by us."""

    @property
    def key(self) -> FileKey:
        """Which file it is."""
        return FileKey(self.path, self.file)


class _Document(Struct, frozen=True):
    boot_id: str
    files: tuple[Kept, ...] = ()


class Record:
    """All files we set, on disk at *path*. A record of another boot is void: so are the cgroups."""

    def __init__(self, path: str, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._files: dict[FileKey, Kept] = {kept.key: kept for kept in self._read()}

    def _read(self) -> Iterable[Kept]:
        try:
            with open(self._path, "rb") as file:
                document = msgspec.json.decode(file.read(), type=_Document)
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.MsgspecError) as error:
            _LOG.error(
                "%s cannot be read (%s): what was set in cgroups before is not known and will not be "
                "put back",
                self._path,
                error,
            )
            return ()
        return document.files if document.boot_id == self._boot_id else ()

    def __iter__(self) -> Iterator[Kept]:
        return iter(tuple(self._files.values()))

    def __len__(self) -> int:
        return len(self._files)

    def get(self, key: FileKey) -> Kept | None:
        """What is known of a file."""
        return self._files.get(key)

    def change(self, kept: Mapping[FileKey, Kept], dropped: Iterable[FileKey] = ()) -> None:
        """Note new values and forget files, durably. Raises ``OSError``, and then knows as before."""
        files = {**self._files, **kept}
        for key in dropped:
            files.pop(key, None)
        if files == self._files:
            return
        if files:
            document = _Document(boot_id=self._boot_id, files=tuple(files.values()))
            ensure_directory(os.path.dirname(self._path))
            write_atomic(self._path, msgspec.json.encode(document))
        else:
            with contextlib.suppress(FileNotFoundError):
                remove_durably(self._path)
        self._files = files
