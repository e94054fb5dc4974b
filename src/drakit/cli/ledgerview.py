"""A driver's ledger, looked at from outside: nothing is locked, moved or set aside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.kit import ledger
from drakit.kit.driver import Entry, Holdings

_LARGEST_FILE: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The claims that could be read, and what is wrong with the other files."""

    entries: tuple[Entry, ...]
    unreadable: dict[str, str]
    """By path: why."""

    @property
    def holdings(self) -> Holdings:
        """As a driver gets them; claims that cannot be read hold nothing that is known."""
        ghosts: dict[str, dict[str, CpuSet]] = {
            os.path.basename(path).partition(".json")[0]: {} for path in self.unreadable
        }
        return Holdings(self.entries, ghosts)


def look(directory: str) -> LedgerView:
    """The ledger in *directory*; one that is not there has no claims. Raises ``OSError``."""
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
                entry = ledger.decode(file.read(_LARGEST_FILE))
        except FileNotFoundError:
            continue  # unprepared meanwhile
        except (OSError, ValueError, RecursionError) as problem:  # msgspec's errors are ValueErrors
            unreadable[path] = str(problem)
        else:
            entries.append(entry)
    return LedgerView(tuple(entries), unreadable)
