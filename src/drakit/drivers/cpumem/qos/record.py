"""Cgroup files that were set, with their original values, on disk until they are restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from drakit.core.bootrecord import BootRecord
from drakit.core.log import get_logger
from drakit.core.objects import Struct

log = get_logger(__name__)


class FileKey(NamedTuple):
    """One file of one cgroup (its path below the mount)."""

    path: str
    file: str

    def __str__(self) -> str:
        return f"{self.path}/{self.file}"


class ManagedFile(Struct, frozen=True):
    """One file that the driver has set."""

    path: str
    file: str
    value: str
    before: str
    """The original value, to be restored."""
    identity: int
    """The inode of the cgroup: one created later under the same name was not set by the driver."""

    @property
    def key(self) -> FileKey:
        """The file."""
        return FileKey(self.path, self.file)


class _RecordedFiles(Struct, frozen=True):
    boot: str = msgspec.field(name="bootId")
    files: tuple[ManagedFile, ...] = ()


class CgroupRecord:
    """All files that the driver has set in this boot, stored in the file *path*."""

    def __init__(self, path: str, boot: str) -> None:
        self._record = BootRecord(path, _RecordedFiles, boot)
        self._files: dict[FileKey, ManagedFile] = {file.key: file for file in self._load()}

    def _load(self) -> Iterable[ManagedFile]:
        try:
            document = self._record.load()
        except (OSError, ValueError) as error:
            log.error(
                "cannot read the record of cgroup files; values set before will not be restored",
                path=self._record.path,
                error=error,
            )
            return ()
        return document.files if document is not None else ()

    def __iter__(self) -> Iterator[ManagedFile]:
        return iter(tuple(self._files.values()))

    def __len__(self) -> int:
        return len(self._files)

    def get(self, key: FileKey) -> ManagedFile | None:
        """The entry of a file, if the driver has set it."""
        return self._files.get(key)

    def change(self, added: Mapping[FileKey, ManagedFile], dropped: Iterable[FileKey] = ()) -> None:
        """Add and drop entries, durably. Raises ``OSError`` and is then unchanged."""
        files = {**self._files, **added}
        for key in dropped:
            files.pop(key, None)
        if files == self._files:
            return
        if files:
            self._record.save(_RecordedFiles(boot=self._record.boot, files=tuple(files.values())))
        else:
            self._record.remove()
        self._files = files
