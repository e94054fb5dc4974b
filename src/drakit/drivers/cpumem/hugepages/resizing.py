"""Changing the size of one pool so that a crash at any moment leaves no page unaccounted for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from drakit.core.log import get_logger
from drakit.drivers.cpumem.hugepages.files import SysfsPools
from drakit.drivers.cpumem.hugepages.plan import OwnPages, Purpose, persistent, reconciled
from drakit.drivers.cpumem.hugepages.record import PoolRecord, RecordedPages
from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.machine.model import HugepagePool

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ResizeLimits:
    """The number of writes, and the seconds after which no further one is started."""

    tries: int = 3
    seconds: float = 8.0


DEFAULT_LIMITS: Final = ResizeLimits()


class Resizer:
    """All changes of pools: record the target, write, read back, record the result.

    The caller holds a lock against other instances.
    """

    def __init__(
        self, files: SysfsPools, record: PoolRecord, clock: Callable[[], float], limits: ResizeLimits
    ) -> None:
        self.files = files
        self._record = record
        self._clock = clock
        self._limits = limits
        self.own: dict[PoolKey, OwnPages] = {}
        self.served: frozenset[str] = frozenset()

    def load(self) -> None:
        """Load the record from disk: another instance may have changed it."""
        recorded = self._record.load()
        self.own = dict(recorded.pools)
        self.served = recorded.served

    def note_served(self, uids: frozenset[str]) -> None:
        """Record the claims that have their pages."""
        if uids != self.served:
            self.served = uids
            self._save()

    def _save(self) -> None:
        self._record.save(RecordedPages(self.own, self.served))

    def read(self, key: PoolKey) -> tuple[HugepagePool, OwnPages]:
        """The current pool, and the pages of it that this driver added."""
        pool = self.files.read(key)
        size = persistent(pool)
        own = reconciled(self.own.get(key, OwnPages(seen=size, aim=size)), size)
        self.own[key] = own
        return pool, own

    def resize(self, key: PoolKey, target: int, purpose: Purpose) -> HugepagePool:
        """Resize the pool to *target* persistent pages as far as the kernel allows; the pool after it.

        The node's memory is compacted between tries. Raises ``OSError``; the record is correct then too.
        """
        pool, own = self.read(key)
        before = persistent(pool)
        if target == before:
            return pool
        self.own[key] = msgspec.structs.replace(own, aim=target, purpose=purpose)
        self._save()
        try:
            pool = self._write(key, target)
        finally:
            self.read(key)
            self._save()
        log.info("hugepage pool resized", pool=key, pages=persistent(pool), before=before, target=target)
        return pool

    def _write(self, key: PoolKey, target: int) -> HugepagePool:
        deadline = self._clock() + self._limits.seconds
        tries = self._limits.tries
        while True:
            self.files.write(key, target)
            pool = self.files.read(key)
            tries -= 1
            if persistent(pool) >= target or not tries or self._clock() >= deadline:
                return pool
            try:
                self.files.compact(key.node)
            except OSError as error:  # optional: the next write reclaims memory by itself
                log.debug("cannot compact memory", numa_node=key.node, error=error)
