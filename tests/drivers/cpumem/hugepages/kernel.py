"""A kernel's hugepage pools, in a dictionary: gives what it has, keeps the books, and can fail."""

from __future__ import annotations

from dataclasses import dataclass, field

from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.machine.model import HugepagePool


class CrashError(BaseException):
    """The process ends here. No ``except Exception`` may swallow it."""


@dataclass
class KernelPool:
    persistent: int = 0
    used: int = 0
    """Pages in use; those above ``persistent`` are surplus."""


@dataclass
class FakeKernel:
    """Pools over one amount of free contiguous memory per node, counted in pages of each size."""

    pools: dict[PoolKey, KernelPool]
    room: dict[PoolKey, int] = field(default_factory=dict)
    """How many pages more can be made just now; without an entry any number."""
    after_compaction: dict[PoolKey, int] = field(default_factory=dict)
    """What compaction adds to ``room``, once."""
    crash_in: int | None = None
    """Calls until the process dies."""
    reject_writes: bool = False
    writes: list[tuple[PoolKey, int]] = field(default_factory=list)
    compactions: list[int] = field(default_factory=list)

    def read(self, key: PoolKey) -> HugepagePool:
        self.tick()
        pool = self.pools[key]
        surplus = max(0, pool.used - pool.persistent)
        total = pool.persistent + surplus
        return HugepagePool(key.size, total, total - pool.used, surplus)

    def write(self, key: PoolKey, pages: int) -> None:
        self.tick()
        if self.reject_writes:
            raise PermissionError(1, "Operation not permitted")
        self.writes.append((key, pages))
        pool = self.pools[key]
        before = pool.persistent
        pool.persistent = min(pages, before + self.room.get(key, pages))
        if key in self.room:
            self.room[key] += before - pool.persistent
        self.tick()

    def compact(self, node: int) -> None:
        self.tick()
        self.compactions.append(node)
        for key, pages in list(self.after_compaction.items()):
            if key.node == node:
                self.room[key] = self.room.get(key, 0) + pages
                del self.after_compaction[key]

    def tick(self) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                raise CrashError
