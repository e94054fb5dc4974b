"""Which pages are ours: a small file that survives a crash at any instant, and not a reboot.

Without it a restarted driver could not tell the pages that it added from those of the administrator,
and would give back too much or nothing. The kernel makes its pools anew at boot, so the record of
another boot says nothing. Nor does one that cannot be read: pages that cannot be shown to be ours are
treated as somebody else's, and stay.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from drakit.core import atomicfile
from drakit.core.objects import Struct
from drakit.drivers.cpumem.hugepages.plan import Share
from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.machine.model import Machine

FILE_NAME: Final = "hugepages.json"
_FORMAT: Final = 1
_LOG = logging.getLogger(__name__)


class _Line(Struct, frozen=True):
    node: int
    size: int
    share: Share


class _File(Struct, frozen=True):
    format: int
    boot: str
    pools: tuple[_Line, ...] = ()
    served: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Books:
    """What is written down."""

    shares: Mapping[PoolKey, Share] = field(default_factory=dict)
    served: frozenset[str] = frozenset()
    """UIDs of the claims that got their pages: they may have them in use when they come again."""


class Record:
    """The books in *directory*, for the boot called *boot*."""

    def __init__(self, directory: str, boot: str) -> None:
        self.directory = directory
        self._path = os.path.join(directory, FILE_NAME)
        self._boot = boot

    def load(self) -> Books:
        """What is written down for this boot; empty when nothing is. Raises ``OSError``."""
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return Books()
        try:
            found = msgspec.json.decode(data, type=_File)
            if found.format != _FORMAT:
                raise ValueError(f"format {found.format} is not known here")
        except ValueError as error:
            _LOG.warning(
                "%s is unreadable (%s): hugepages made before are kept as they are",
                self._path,
                error,
            )
            return Books()
        if found.boot != self._boot:
            return Books()
        shares = {PoolKey(line.node, line.size): line.share for line in found.pools}
        return Books(shares, frozenset(found.served))

    def save(self, books: Books) -> None:
        """Write *books* down, durably. Raises ``OSError``."""
        lines = tuple(_Line(key.node, key.size, each) for key, each in sorted(books.shares.items()))
        atomicfile.ensure_directory(self.directory)
        written = _File(_FORMAT, self._boot, lines, tuple(sorted(books.served)))
        atomicfile.write_atomic(self._path, msgspec.json.encode(written))


def grown_pages(record: Record) -> dict[PoolKey, int]:
    """The grown pages of each pool; those of a growth under way are counted as there."""
    return {
        key: share.grown + (max(0, share.aim - share.seen) if share.purpose == "grow" else 0)
        for key, share in record.load().shares.items()
    }


def look_at_both(
    discover: Callable[[], Machine], record: Record
) -> tuple[Machine, dict[PoolKey, int]]:
    """The machine and the grown pages of its pools, for :func:`.settings.budget`.

    Pools may change between the two looks. The record is therefore read before and after, and the
    larger number taken: for a moment too little may be offered, never too much. Raises ``OSError``.
    """
    before = grown_pages(record)
    machine = discover()
    after = grown_pages(record)
    return machine, {k: max(before.get(k, 0), after.get(k, 0)) for k in {*before, *after}}
