"""Hugepage pool reconciler: keeps configured sizes, grows pools for claims, returns spare pages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from drakit.core import atomicfile
from drakit.core.filelock import FileLock
from drakit.core.log import get_logger
from drakit.drivers.cpumem.hugepages.files import SysfsPools
from drakit.drivers.cpumem.hugepages.plan import (
    Demand,
    Purpose,
    growth_target,
    in_use,
    needed_growth,
    persistent,
    shrink_target,
    static_target,
)
from drakit.drivers.cpumem.hugepages.record import PoolRecord
from drakit.drivers.cpumem.hugepages.resizing import DEFAULT_LIMITS, ResizeLimits, Resizer
from drakit.drivers.cpumem.hugepages.settings import HugepageSettings, PoolKey, static_pools
from drakit.drivers.cpumem.hugepages.sizes import parse_size, size_name
from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims, PreparedDevice, RejectedError
from drakit.kit.reconciler import PodView, Reconciler
from drakit.kit.telemetry.metrics import Gauge
from drakit.machine.model import Machine

log = get_logger(__name__)
_LOCK: Final = "hugepages.lock"
_LOCK_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 60.0
_SHORTEST_SPARE: Final = 1.0
_UNAVAILABLE_SECONDS: Final = 300.0
"""How long pages that the kernel could not allocate are not offered."""
_PURPOSES: Final[tuple[Purpose, ...]] = ("grow", "raise")
_AMOUNT: Final = re.compile(r"numa(\d+)/hugepages(\d+[KMG]i)")

Withheld = Callable[[Driver], Mapping[PoolKey, int]]
"""The pages of each pool that the driver never offers: reserved, or held by others at its start."""
UsedPages = Callable[[Sequence[PodView]], Mapping[PoolKey, int]]
"""The pages of each pool that containers with claims have in use."""


def pages_by_amount(prepared: PreparedDevice) -> dict[PoolKey, int]:
    """The pages in a prepared device's amounts, whose keys are like ``numa0/hugepages2Mi`` (bytes)."""
    found: Counter[PoolKey] = Counter()
    for name, amount in prepared.amounts.items():
        match = _AMOUNT.fullmatch(name)
        if match and amount > 0:
            key = PoolKey(int(match[1]), parse_size(match[2]))
            found[key] += -(-amount // key.size)
    return found


def pages_of_claims(entries: Iterable[PreparedClaim]) -> Counter[PoolKey]:
    """The pages that claims hold; devices with admin access hold none."""
    found: Counter[PoolKey] = Counter()
    for entry in entries:
        for prepared in entry.devices:
            if not prepared.admin_access:
                found.update(pages_by_amount(prepared))
    return found


def nothing_withheld(driver: Driver) -> Mapping[PoolKey, int]:
    """For drivers that offer every page."""
    return {}


@dataclass(frozen=True, slots=True)
class PoolShortage:
    """A pool that is smaller than configured."""

    key: PoolKey
    wanted: int
    obtained: int

    def __str__(self) -> str:
        return f"{self.obtained} of {self.wanted} {self.key}"


class HugepagePools(Reconciler):
    """The :class:`~drakit.kit.reconciler.Reconciler` of the node's hugepage pools.

    Instances in several processes may share *record*'s directory: each call works on what is on disk,
    under a lock. *machine* has the pools that can be configured.
    """

    def __init__(
        self,
        settings: HugepageSettings,
        machine: Machine,
        files: SysfsPools,
        record: PoolRecord,
        *,
        withheld: Withheld = nothing_withheld,
        used_pages: UsedPages = lambda _pods: {},
        clock: Callable[[], float] = time.monotonic,
        limits: ResizeLimits = DEFAULT_LIMITS,
    ) -> None:
        self._settings = settings
        self._static = static_pools(settings, machine)
        self._resizer = Resizer(files, record, clock, limits)
        self._directory = record.directory
        self._withheld = withheld
        self._used_pages = used_pages
        self._clock = clock
        self._shortages: dict[PoolKey, PoolShortage] = {}
        self._retry_at = 0.0
        self._spare_since: dict[PoolKey, float] = {}
        self._growth_limits: dict[PoolKey, tuple[int, float]] = {}
        """The largest size that the kernel allowed recently, and until when that counts."""
        self._owns_no_pages = False

    async def establish(self, prepared_claims: PreparedClaims) -> None:
        """Give every configured pool its size, without removing pages of *prepared_claims*."""
        await asyncio.to_thread(self.set_static_sizes, pages_of_claims(prepared_claims))

    async def provision(self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        """Grow the pools until all pages of *entry* are free, or not at all.

        Raises :class:`RejectedError` if the kernel cannot allocate them or the budget does not allow them.
        """
        known = frozenset(prepared_claims.entries) | {entry.uid}
        await self._fetch(driver, entry, prepared_claims, known)

    async def reserve(self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        """As :meth:`provision`, for a claim whose pod is not on this node yet.

        The pages are not in use before :meth:`provision` is called, and must still be free then.
        """
        await self._fetch(driver, entry, prepared_claims, None)

    async def _fetch(
        self,
        driver: Driver,
        entry: PreparedClaim,
        prepared_claims: PreparedClaims,
        known: frozenset[str] | None,
    ) -> None:
        wanted = pages_of_claims([entry])
        if wanted:
            demands = self._demands(driver, [*prepared_claims, entry])
            await asyncio.to_thread(self._serve, entry, wanted, demands, known)

    async def reconcile(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """Raise pools that are too small; return pages that were spare for long enough."""
        if not self._settings and self._owns_no_pages:
            return
        demands = self._demands(driver, prepared_claims, self._used_pages(pods))
        await asyncio.to_thread(self._settle, demands, bool(prepared_claims.orphaned))

    async def restore(self) -> None:
        """Return every page that was added, as far as it is free."""
        await asyncio.to_thread(self._restore)

    def gauges(self) -> Iterable[Gauge]:
        """Pages wanted, obtained and grown, by node and size."""
        for key, wanted in sorted(self._static.items()):
            short = self._shortages.get(key)
            obtained = wanted if short is None else short.obtained
            yield _gauge("hugepages_wanted", "Configured size of the pool.", key, wanted)
            text = "Pages of the configured size that the kernel allocated."
            yield _gauge("hugepages_obtained", text, key, obtained)
        for key, own in sorted(self._resizer.own.items()):
            allowance = self._allowance(key)
            if allowance or own.grown:
                yield _gauge("hugepages_growth_budget", "Pages that may be grown.", key, allowance)
                yield _gauge("hugepages_grown", "Pages grown for claims.", key, own.grown)

    def believed(
        self, machine: Machine, growth: Mapping[int, Mapping[int, int]]
    ) -> dict[int, dict[int, int]]:
        """*growth* (pages that may still be added, by node and size) as far as it seems possible.

        Less where the kernel recently allocated fewer pages than requested: a scheduler that knew of
        the others would choose them again.
        """
        found: dict[int, dict[int, int]] = {node.id: {} for node in machine.numa_nodes}
        for node in machine.numa_nodes:
            for pool in node.hugepages:
                pages = growth.get(node.id, {}).get(pool.size_bytes, 0)
                largest, until = self._growth_limits.get(PoolKey(node.id, pool.size_bytes), (0, 0.0))
                if until > self._clock():
                    pages = min(pages, max(0, largest - persistent(pool)))
                found[node.id][pool.size_bytes] = pages
        return found

    def set_static_sizes(self, claimed: Mapping[PoolKey, int] | None = None) -> tuple[PoolShortage, ...]:
        """Give every configured pool its size as far as the kernel allows; returns the shortages. Blocks.

        *claimed* pages are kept if the configured size was lowered. Never raises ``OSError``: a pool that
        cannot be written is short, and the error is logged.
        """
        demands = {key: Demand(pages) for key, pages in (claimed or {}).items()}
        with self._exclusively():
            self._establish(demands)
        return self.shortages

    @property
    def shortages(self) -> tuple[PoolShortage, ...]:
        """The pools that are smaller than configured, as of the last attempt."""
        return tuple(self._shortages[key] for key in sorted(self._shortages))

    def _establish(self, demands: Mapping[PoolKey, Demand]) -> None:
        for key, wanted in sorted(self._static.items()):
            obtained = 0
            try:
                pool, own = self._resizer.read(key)
                obtained = persistent(pool) - own.grown
                target = static_target(wanted, pool, own, demands.get(key, Demand()))
                pool = self._resizer.resize(key, target, "raise")
                obtained = persistent(pool) - self._resizer.own[key].grown
            except OSError as error:
                log.warning("cannot set hugepage pool size", pool=key, error=error)
            self._note(key, wanted, obtained)
        self._retry_at = self._clock() + _RETRY_SECONDS

    def _note(self, key: PoolKey, wanted: int, obtained: int) -> None:
        if obtained >= wanted:
            if self._shortages.pop(key, None) is not None:
                log.info("hugepage pool has its configured size", pool=key, pages=wanted)
            return
        shortage = PoolShortage(key, wanted, obtained)
        if self._shortages.get(key) != shortage:
            log.warning(
                "hugepage pool is smaller than configured: memory is fragmented or used up; reserve "
                "the pages at boot (kernel parameter hugepages=)",
                pool=key,
                wanted=wanted,
                obtained=obtained,
            )
        self._shortages[key] = shortage

    def _serve(
        self,
        entry: PreparedClaim,
        wanted: Mapping[PoolKey, int],
        demands: Mapping[PoolKey, Demand],
        known: frozenset[str] | None,
    ) -> None:
        """Grow the pools for one claim; a claim served before may have its pages in use.

        The claim is recorded as served, and those that are not *known* any more are dropped; with
        None (a promise) nothing is recorded.
        """
        with self._exclusively():
            repeated = entry.uid in self._resizer.served
            before: list[tuple[PoolKey, int]] = []
            try:
                for key, pages in sorted(wanted.items()):
                    before.append((key, persistent(self._resizer.read(key)[0])))
                    self._grow(entry, key, 0 if repeated else pages, demands[key])
                if known is not None:
                    self._resizer.note_served((self._resizer.served | {entry.uid}) & known)
            except RejectedError:
                self._undo(before)
                raise
            except OSError as error:
                self._undo(before)
                raise RejectedError(
                    f"{entry}: hugepages cannot be grown: {error}; the driver must be allowed to "
                    f"write to /sys and to its own directory",
                    reason="hugepages",
                ) from error

    def _grow(self, entry: PreparedClaim, key: PoolKey, fresh: int, demand: Demand) -> None:
        pool, own = self._resizer.read(key)
        allowance = self._allowance(key)
        target = growth_target(pool, own, demand, fresh, allowance)
        if target is None:
            raise RejectedError(
                f"{entry} does not get its {key}: claims including this one hold {demand.claimed}, "
                f"{pool.free} of {pool.total} are free and {max(0, allowance - own.grown)} more may "
                f"be grown. Stop processes that use pages without a claim, or raise hugepageGrowth",
                reason="hugepages",
            )
        got = self._resizer.resize(key, target, "grow")
        if persistent(got) < target or got.free < fresh:
            self._growth_limits[key] = (persistent(got), self._clock() + _UNAVAILABLE_SECONDS)
            raise RejectedError(
                f"{entry} does not get its {key}: requested a pool of {target} from the kernel, got "
                f"{persistent(got)} with {got.free} free; memory is fragmented or used up. The kubelet "
                f"retries; free memory on the node, or schedule the pod to another node",
                reason="hugepages",
            )

    def _undo(self, before: Sequence[tuple[PoolKey, int]]) -> None:
        """Return the pages of a failed growth, as far as nobody uses them meanwhile."""
        for key, size in reversed(before):
            try:
                pool, own = self._resizer.read(key)
                least = max(size, in_use(pool), persistent(pool) - own.grown)
                self._resizer.resize(key, min(persistent(pool), least), "grow")
            except OSError as error:  # it is on record: settle returns them later
                log.warning("cannot return hugepages now", pool=key, error=error)

    def _settle(self, demands: Mapping[PoolKey, Demand], unknown_claims: bool) -> None:
        with self._exclusively():
            due = self._clock() >= self._retry_at
            if due and (self._shortages or self._made_smaller()):
                self._establish(demands)
            for key, demand in sorted(demands.items()):
                if demand.claimed and due:
                    self._grow_again(key, demand)
            for key in sorted(self._resizer.own) if not unknown_claims else ():
                self._return_spare(key, demands.get(key, Demand()))
            pools = self._resizer.own.values()
            self._owns_no_pages = not any(own.grown or own.raised for own in pools)

    def _made_smaller(self) -> bool:
        """Whether somebody else removed pages from a pool that had its configured size."""
        found = False
        for key, wanted in sorted(self._static.items()):
            pool, own = self._resizer.read(key)
            standing = persistent(pool) - own.grown
            if standing < wanted:
                log.warning(
                    "another process made a hugepage pool smaller; raising it again",
                    pool=key,
                    pages=standing,
                    configured=wanted,
                )
                found = True
        return found

    def _grow_again(self, key: PoolKey, demand: Demand) -> None:
        """Grow a pool for prepared claims: a reboot empties the pools."""
        pool, own = self._resizer.read(key)
        missing = min(needed_growth(pool, own, demand), self._allowance(key)) - own.grown
        if missing > 0:
            target = persistent(pool) + missing
            got = persistent(self._resizer.resize(key, target, "grow"))
            if got < target:
                self._retry_at = self._clock() + _RETRY_SECONDS
                log.warning("fewer hugepages than claims hold", pool=key, claimed=demand.claimed, pages=got)

    def _return_spare(self, key: PoolKey, demand: Demand) -> None:
        pool, own = self._resizer.read(key)
        target = shrink_target(pool, own, demand)
        if target >= persistent(pool):
            self._spare_since.pop(key, None)
            return
        since = self._spare_since.setdefault(key, self._clock())
        # A claim that was just provided for is not among the prepared claims before it is stored.
        if self._clock() - since >= max(_SHORTEST_SPARE, self._settings.shrink_after):
            del self._spare_since[key]
            self._resizer.resize(key, target, "grow")

    def _restore(self) -> None:
        with self._exclusively():
            for key in sorted(self._resizer.own):
                for purpose in _PURPOSES:
                    pool, own = self._resizer.read(key)
                    pages = own.grown if purpose == "grow" else own.raised
                    least = min(persistent(pool), in_use(pool))
                    self._resizer.resize(key, max(least, persistent(pool) - pages), purpose)

    def _demands(
        self, driver: Driver, entries: Iterable[PreparedClaim], used: Mapping[PoolKey, int] | None = None
    ) -> dict[PoolKey, Demand]:
        claimed, withheld, used = pages_of_claims(entries), self._withheld(driver), used or {}
        return {
            key: Demand(claimed[key], used.get(key, 0), withheld.get(key, 0))
            for key in {*claimed, *used, *withheld}
        }

    def _allowance(self, key: PoolKey) -> int:
        return self._settings.growth.of(key.node).get(key.size, 0)

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Lock out other instances, and load the record as the last one left it."""
        atomicfile.ensure_directory(self._directory)
        lock = FileLock(os.path.join(self._directory, _LOCK))
        lock.acquire(_LOCK_SECONDS)
        try:
            self._resizer.load()
            yield
        finally:
            lock.release()


def _gauge(name: str, help_text: str, key: PoolKey, value: int) -> Gauge:
    labels = (("numa_node", str(key.node)), ("size", size_name(key.size)))
    return Gauge(name, help_text, value, labels)
