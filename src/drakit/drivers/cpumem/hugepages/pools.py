"""The reconciler of hugepage pools: keeps configured sizes, grows for claims, gives back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from drakit.core import atomicfile
from drakit.core.filelock import FileLock
from drakit.drivers.cpumem.hugepages.files import PoolFiles
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
from drakit.drivers.cpumem.hugepages.record import Record
from drakit.drivers.cpumem.hugepages.resizing import USUAL, Patience, Resizer
from drakit.drivers.cpumem.hugepages.settings import (
    HugepageSettings,
    PoolKey,
    static_pools,
)
from drakit.drivers.cpumem.hugepages.sizes import parse_size, size_name
from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims, PreparedDevice, RejectedError
from drakit.kit.reconciler import PodView, Reconciler
from drakit.kit.telemetry.metrics import Gauge
from drakit.machine.model import Machine

_LOG = logging.getLogger(__name__)
_LOCK: Final = "hugepages.lock"
_LOCK_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 60.0
_SHORTEST_SPARE: Final = 1.0
_DOUBT_SECONDS: Final = 300.0
"""How long pages that the kernel did not give are not offered: memory comes free by and by."""
_OURS: Final[tuple[Purpose, ...]] = ("grow", "raise")
_AMOUNT: Final = re.compile(r"numa(\d+)/hugepages(\d+[KMG]i)")

PagesOf = Callable[[PreparedDevice], Mapping[PoolKey, int]]
"""The pages that a prepared device holds, by pool."""
Withheld = Callable[[Driver], Mapping[PoolKey, int]]
"""The pages of each pool that the driver never offers: reserved, or held by others at its start."""
UsedPages = Callable[[Sequence[PodView]], Mapping[PoolKey, int]]
"""The pages of each pool that containers with claims have in use."""


def pages_by_amount(prepared: PreparedDevice) -> dict[PoolKey, int]:
    """The pages in a prepared device's amounts, whose keys are like ``numa0/hugepages2Mi`` and count bytes."""
    found: dict[PoolKey, int] = {}
    for name, amount in prepared.amounts.items():
        match = _AMOUNT.fullmatch(name)
        if match and amount > 0:
            key = PoolKey(int(match[1]), parse_size(match[2]))
            found[key] = found.get(key, 0) + -(-amount // key.size)
    return found


def nothing_withheld(driver: Driver) -> Mapping[PoolKey, int]:
    """For drivers that offer every page there is."""
    return {}


def none_seen_used(pods: Sequence[PodView]) -> Mapping[PoolKey, int]:
    """Where usage cannot be read: every claimed page may still be wanted."""
    return {}


@dataclass(frozen=True, slots=True)
class Shortage:
    """A pool that is smaller than configured."""

    key: PoolKey
    wanted: int
    obtained: int

    def __str__(self) -> str:
        return f"{self.obtained} of {self.wanted} {self.key}"


@dataclass(frozen=True, slots=True)
class _Doubt:
    """The kernel was asked for more pages than it gave."""

    largest: int
    """The persistent size that the pool came to."""
    until: float


class HugepagePools(Reconciler):
    """A :class:`~drakit.kit.reconciler.Reconciler` of the node's hugepage pools.

    Instances in several processes may share *record*'s directory: each call works on what is on disk,
    under a lock. *machine* tells the pools there can be, each time it is asked.
    """

    def __init__(
        self,
        settings: HugepageSettings,
        machine: Machine,
        files: PoolFiles,
        record: Record,
        *,
        pages_of: PagesOf = pages_by_amount,
        withheld: Withheld = nothing_withheld,
        used_pages: UsedPages = none_seen_used,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience = USUAL,
    ) -> None:
        self._settings = settings
        self._static = static_pools(settings, machine)
        self._resizer = Resizer(files, record, clock, patience)
        self._directory = record.directory
        self._pages_of = pages_of
        self._withheld = withheld
        self._used_pages = used_pages
        self._clock = clock
        self._shortages: dict[PoolKey, Shortage] = {}
        self._retry_at = 0.0
        self._spare_since: dict[PoolKey, float] = {}
        self._doubts: dict[PoolKey, _Doubt] = {}
        self._nothing_ours = False

    # -- the reconciler's part ---------------------------------------------------------------------------

    async def establish(self, prepared_claims: PreparedClaims) -> None:
        """Give every configured pool its size; pages of *prepared_claims* are not taken away."""
        await asyncio.to_thread(self.set_static_sizes, self._pages(prepared_claims))

    async def provision(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """Grow the pools until *entry*'s pages are there and free; all of them or none.

        Raises :class:`RejectedError` when the kernel does not give them or the budget does not allow them.
        """
        await self._fetch(
            driver, entry, prepared_claims, frozenset(prepared_claims.entries) | {entry.uid}
        )

    async def reserve(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """Grow the pools for a claim whose pod is not here yet; else like :meth:`provision`.

        The pages are not in use before the claim is provided for, and must still be free then.
        """
        await self._fetch(driver, entry, prepared_claims, None)

    async def _fetch(
        self,
        driver: Driver,
        entry: PreparedClaim,
        prepared_claims: PreparedClaims,
        living: frozenset[str] | None,
    ) -> None:
        wanted = self._pages([entry])
        if wanted:
            demands = self._demands(driver, [*prepared_claims, entry])
            await asyncio.to_thread(self._serve, entry, wanted, demands, living)

    async def reconcile(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """Raise pools that are short or were made smaller; give back what was spare long enough."""
        if not self._settings and self._nothing_ours:
            return
        demands = self._demands(driver, prepared_claims, self._used_pages(pods))
        await asyncio.to_thread(self._settle, demands, bool(prepared_claims.orphaned))

    async def restore(self) -> None:
        """Give back every page that was added, as far as it is free."""
        await asyncio.to_thread(self._restore)

    def gauges(self) -> Iterable[Gauge]:
        """Pages wanted, obtained and grown, by node and size."""
        for key, wanted in sorted(self._static.items()):
            short = self._shortages.get(key)
            yield _gauge("hugepages_wanted", "Configured size of the pool.", key, wanted)
            yield _gauge(
                "hugepages_obtained",
                "What the kernel gave of the configured size.",
                key,
                wanted if short is None else short.obtained,
            )
        for key, share in sorted(self._resizer.shares.items()):
            allowance = self._allowance(key)
            if allowance or share.grown:
                yield _gauge("hugepages_growth_budget", "Pages that may be grown.", key, allowance)
                yield _gauge("hugepages_grown", "Pages grown for claims.", key, share.grown)

    def believed(
        self, machine: Machine, growth: Mapping[int, Mapping[int, int]]
    ) -> dict[int, dict[int, int]]:
        """*growth* (pages that may still be added, by node and size) as far as it seems possible.

        Less where the kernel did not give pages lately: a scheduler that were told of them would
        choose them again.
        """
        return {
            node.id: {
                pool.size_bytes: self._possible(
                    PoolKey(node.id, pool.size_bytes),
                    persistent(pool),
                    growth.get(node.id, {}).get(pool.size_bytes, 0),
                )
                for pool in node.hugepages
            }
            for node in machine.numa_nodes
        }

    def _possible(self, key: PoolKey, size: int, growth: int) -> int:
        doubt = self._doubts.get(key)
        if doubt is None or doubt.until <= self._clock():
            return growth
        return min(growth, max(0, doubt.largest - size))

    # -- static pools -----------------------------------------------------------------------------------

    def set_static_sizes(
        self, claimed: Mapping[PoolKey, int] | None = None
    ) -> tuple[Shortage, ...]:
        """Give every configured pool its size, as far as the kernel does; what is short.

        For the start, before the node's offer is made from what was obtained. Blocks. *claimed* pages
        are not taken away where the configuration was lowered. Never raises ``OSError``: a pool that
        cannot be written is short, and the log says why.
        """
        demands = {key: Demand(pages) for key, pages in (claimed or {}).items()}
        with self._exclusively():
            self._establish(demands)
        return self.shortages

    @property
    def shortages(self) -> tuple[Shortage, ...]:
        """The pools that are smaller than configured, as of the last try."""
        return tuple(self._shortages[key] for key in sorted(self._shortages))

    def _establish(self, demands: Mapping[PoolKey, Demand]) -> None:
        for key, wanted in sorted(self._static.items()):
            obtained = 0
            try:
                pool, share = self._resizer.look(key)
                obtained = persistent(pool) - share.grown
                target = static_target(wanted, pool, share, demands.get(key, Demand()))
                pool = self._resizer.resize(key, target, "raise")
                obtained = persistent(pool) - self._resizer.shares[key].grown
            except OSError as error:
                _LOG.warning("the size of %s cannot be set: %s", key, error)
            self._note(key, wanted, obtained)
        self._retry_at = self._clock() + _RETRY_SECONDS

    def _note(self, key: PoolKey, wanted: int, obtained: int) -> None:
        if obtained >= wanted:
            if self._shortages.pop(key, None) is not None:
                _LOG.info("all %d %s are there now", wanted, key)
            return
        shortage = Shortage(key, wanted, obtained)
        if self._shortages.get(key) != shortage:
            _LOG.warning(
                "got %s: memory is fragmented or used up; only these are offered. Reserve them at "
                "boot (kernel parameter hugepages=) to be sure of them",
                shortage,
            )
        self._shortages[key] = shortage

    # -- on demand --------------------------------------------------------------------------------------

    def _serve(
        self,
        entry: PreparedClaim,
        wanted: Mapping[PoolKey, int],
        demands: Mapping[PoolKey, Demand],
        living: frozenset[str] | None,
    ) -> None:
        """Grow for one claim. One that comes again may have its pages in use: they need not be free.

        That it was served is written down, for the claims that are *living*; None for a promise.
        """
        with self._exclusively():
            known = entry.uid in self._resizer.served
            before: list[tuple[PoolKey, int]] = []
            try:
                for key, pages in sorted(wanted.items()):
                    before.append((key, persistent(self._resizer.look(key)[0])))
                    self._grow(entry, key, 0 if known else pages, demands[key])
                if living is not None:
                    self._resizer.note_served((self._resizer.served | {entry.uid}) & living)
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
        pool, share = self._resizer.look(key)
        allowance = self._allowance(key)
        target = growth_target(pool, share, demand, fresh, allowance)
        if target is None:
            raise RejectedError(
                f"{entry} does not get its {key}: claims hold {demand.claimed} with it, "
                f"{pool.free} of {pool.total} are free and {max(0, allowance - share.grown)} more may "
                f"be grown. Stop what uses pages without a claim, or raise hugepageGrowth",
                reason="hugepages",
            )
        got = self._resizer.resize(key, target, "grow")
        if persistent(got) < target or got.free < fresh:
            self._doubts[key] = _Doubt(persistent(got), self._clock() + _DOUBT_SECONDS)
            raise RejectedError(
                f"{entry} does not get its {key}: asked the kernel for a pool of {target}, got "
                f"{persistent(got)} with {got.free} free; memory is fragmented or used up. It is "
                f"tried again; free memory on the node, or let the pod go to another",
                reason="hugepages",
            )

    def _undo(self, before: Sequence[tuple[PoolKey, int]]) -> None:
        """Give back what a failed growth got, as far as nobody has taken it meanwhile."""
        for key, size in reversed(before):
            try:
                pool, share = self._resizer.look(key)
                least = max(size, in_use(pool), persistent(pool) - share.grown)
                self._resizer.resize(key, min(persistent(pool), least), "grow")
            except OSError as error:  # the record has it: settle gives it back later
                _LOG.warning("%s cannot be given back now: %s", key, error)

    def _settle(self, demands: Mapping[PoolKey, Demand], unknown_claims: bool) -> None:
        with self._exclusively():
            due = self._clock() >= self._retry_at
            if due and (self._shortages or self._made_smaller()):
                self._establish(demands)
            for key, demand in sorted(demands.items()):
                if demand.claimed and due:
                    self._make_good(key, demand)
            for key in sorted(self._resizer.shares) if not unknown_claims else ():
                self._give_back(key, demands.get(key, Demand()))
            shares = self._resizer.shares.values()
            self._nothing_ours = not any(share.grown or share.raised for share in shares)

    def _made_smaller(self) -> bool:
        """Whether somebody else took pages away from a pool that had its configured size."""
        found = False
        for key, wanted in sorted(self._static.items()):
            pool, share = self._resizer.look(key)
            standing = persistent(pool) - share.grown
            if standing < wanted:
                _LOG.warning(
                    "%s: the pool has %d, configured are %d: somebody else made it smaller; it is "
                    "raised again",
                    key,
                    standing,
                    wanted,
                )
                found = True
        return found

    def _make_good(self, key: PoolKey, demand: Demand) -> None:
        """Grow again what live claims were promised: a reboot empties the pools."""
        pool, share = self._resizer.look(key)
        missing = min(needed_growth(pool, share, demand), self._allowance(key)) - share.grown
        if missing > 0:
            target = persistent(pool) + missing
            got = persistent(self._resizer.resize(key, target, "grow"))
            if got < target:
                self._retry_at = self._clock() + _RETRY_SECONDS
                _LOG.warning("claims hold %d %s, but only %d are there", demand.claimed, key, got)

    def _give_back(self, key: PoolKey, demand: Demand) -> None:
        pool, share = self._resizer.look(key)
        target = shrink_target(pool, share, demand)
        if target >= persistent(pool):
            self._spare_since.pop(key, None)
            return
        since = self._spare_since.setdefault(key, self._clock())
        # A claim that was just provided for is not in the prepared claims before it is written down.
        if self._clock() - since >= max(_SHORTEST_SPARE, self._settings.shrink_after):
            del self._spare_since[key]
            self._resizer.resize(key, target, "grow")

    # -- what all need ----------------------------------------------------------------------------------

    def _restore(self) -> None:
        with self._exclusively():
            for key in sorted(self._resizer.shares):
                for purpose in _OURS:
                    pool, share = self._resizer.look(key)
                    pages = share.grown if purpose == "grow" else share.raised
                    least = min(persistent(pool), in_use(pool))
                    self._resizer.resize(key, max(least, persistent(pool) - pages), purpose)

    def _demands(
        self,
        driver: Driver,
        entries: Iterable[PreparedClaim],
        used: Mapping[PoolKey, int] | None = None,
    ) -> dict[PoolKey, Demand]:
        claimed, withheld, used = self._pages(entries), self._withheld(driver), used or {}
        return {
            key: Demand(claimed.get(key, 0), used.get(key, 0), withheld.get(key, 0))
            for key in {*claimed, *used, *withheld}
        }

    def _allowance(self, key: PoolKey) -> int:
        return self._settings.growth.of(key.node).get(key.size, 0)

    def _pages(self, entries: Iterable[PreparedClaim]) -> dict[PoolKey, int]:
        found: dict[PoolKey, int] = {}
        for entry in entries:
            for prepared in entry.devices:
                if not prepared.admin_access:
                    for key, pages in self._pages_of(prepared).items():
                        found[key] = found.get(key, 0) + pages
        return found

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Keep other instances out, and take up the record as the last one left it."""
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
