"""A driver's checkpoint, looked at from outside: nothing is locked, moved or set aside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.kit.claims import checkpoint as checkpoint
from drakit.kit.driver import PreparedClaim, PreparedClaims

_LARGEST_FILE: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """The claims that could be read, and what is wrong with the other files."""

    entries: tuple[PreparedClaim, ...]
    unreadable: dict[str, str]
    """By path: why."""

    @property
    def prepared_claims(self) -> PreparedClaims:
        """As a driver gets them; claims that cannot be read hold nothing that is known."""
        orphaned: dict[str, dict[str, CpuSet]] = {
            os.path.basename(path).partition(".json")[0]: {} for path in self.unreadable
        }
        return PreparedClaims(self.entries, orphaned)


def look(directory: str) -> CheckpointView:
    """The checkpoint in *directory*; one that is not there has no claims. Raises ``OSError``."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        names = []
    entries, unreadable = [], {}
    for name in names:
        if name.startswith(".") or ".json" not in name:
            continue
        path = os.path.join(directory, name)
        try:
            with open(path, "rb") as file:
                entry = checkpoint.decode(file.read(_LARGEST_FILE))
        except FileNotFoundError:
            continue  # unprepared meanwhile
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            unreadable[path] = str(error)
        else:
            entries.append(entry)
    return CheckpointView(tuple(entries), unreadable)
