"""Read-only access to the checkpoint of a driver: no lock is taken and no file is changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from drakit.core.cpuset import CpuSet
from drakit.kit.claims.checkpoint import decode
from drakit.kit.driver import PreparedClaim, PreparedClaims

_LARGEST_FILE: Final = 8 << 20


class CheckpointFile(NamedTuple):
    """A file of a checkpoint: its claim, or the error that prevents reading it."""

    path: str
    data: bytes
    entry: PreparedClaim | None
    error: str = ""


def checkpoint_files(directory: str) -> Iterator[CheckpointFile]:
    """Yield the files of the checkpoint in *directory*. Raises ``OSError`` if it cannot be listed."""
    for name in sorted(os.listdir(directory)):
        if name.startswith(".") or ".json" not in name:
            continue
        path, data = os.path.join(directory, name), b""
        try:
            with open(path, "rb") as file:
                data = file.read(_LARGEST_FILE)
            yield CheckpointFile(path, data, decode(data))
        except FileNotFoundError:
            continue  # unprepared meanwhile
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            yield CheckpointFile(path, data, None, str(error))


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """Readable claims of a checkpoint, and the error of every unreadable file by path."""

    entries: tuple[PreparedClaim, ...]
    unreadable: dict[str, str]

    @property
    def prepared_claims(self) -> PreparedClaims:
        """The claims as a driver gets them; what unreadable claims hold is unknown."""
        orphaned: dict[str, dict[str, CpuSet]] = {
            os.path.basename(path).partition(".json")[0]: {} for path in self.unreadable
        }
        return PreparedClaims(self.entries, orphaned)


def read_checkpoint(directory: str) -> CheckpointView:
    """Read the checkpoint in *directory*; a missing one has no claims. Raises ``OSError``."""
    try:
        files = list(checkpoint_files(directory))
    except FileNotFoundError:
        files = []
    return CheckpointView(
        tuple(file.entry for file in files if file.entry is not None),
        {file.path: file.error for file in files if file.entry is None},
    )
