"""Changing the size of one pool so that a crash at any instant leaves no page unaccounted for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from drakit.drivers.cpumem.hugepages.files import PoolFiles
from drakit.drivers.cpumem.hugepages.plan import Purpose, Share, begun, persistent, reconciled
from drakit.drivers.cpumem.hugepages.record import Books, Record
from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.machine.model import HugepagePool

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How hard to try: writes in all, and seconds after which no further one is begun."""

    tries: int = 3
    seconds: float = 8.0


USUAL: Final = Patience()


class Resizer:
    """All changes of pools go through here: announce, write, read back, write down.

    Not safe against another instance by itself; the caller holds a lock that is.
    """

    def __init__(
        self, files: PoolFiles, record: Record, clock: Callable[[], float], patience: Patience
    ) -> None:
        self.files = files
        self._record = record
        self._clock = clock
        self._patience = patience
        self.shares: dict[PoolKey, Share] = {}
        self.served: frozenset[str] = frozenset()

    def load(self) -> None:
        """Take up the record as it is on disk: another instance may have changed it."""
        books = self._record.load()
        self.shares = dict(books.shares)
        self.served = books.served

    def note_served(self, uids: frozenset[str]) -> None:
        """Write down which claims have their pages."""
        if uids != self.served:
            self.served = uids
            self._save()

    def _save(self) -> None:
        self._record.save(Books(self.shares, self.served))

    def look(self, key: PoolKey) -> tuple[HugepagePool, Share]:
        """The pool and our share of it, as of now."""
        pool = self.files.read(key)
        size = persistent(pool)
        share = reconciled(self.shares.get(key, Share(seen=size, aim=size)), size)
        self.shares[key] = share
        return pool, share

    def resize(self, key: PoolKey, target: int, purpose: Purpose) -> HugepagePool:
        """Bring the pool to *target* persistent pages as nearly as the kernel does; as it is then.

        Between tries the node's memory is compacted. Raises ``OSError``; the record is right then too.
        """
        pool, share = self.look(key)
        before = persistent(pool)
        if target == before:
            return pool
        self.shares[key] = begun(share, target, purpose)
        self._save()
        try:
            pool = self._write(key, target)
        finally:
            self.look(key)
            self._save()
        _LOG.info("%s: %d, were %d, asked for %d", key, persistent(pool), before, target)
        return pool

    def _write(self, key: PoolKey, target: int) -> HugepagePool:
        deadline = self._clock() + self._patience.seconds
        tries = self._patience.tries
        while True:
            self.files.write(key, target)
            pool = self.files.read(key)
            tries -= 1
            if persistent(pool) >= target or not tries or self._clock() >= deadline:
                return pool
            self._compact(key)

    def _compact(self, key: PoolKey) -> None:
        try:
            self.files.compact(key.node)
        except OSError as error:  # an aid only: the next write reclaims by itself
            _LOG.debug("memory of NUMA node %d was not compacted: %s", key.node, error)
