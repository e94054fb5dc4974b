"""When a steward works: after each change, once for many changes at a time, and every so often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from drakit.kit.driver import Driver, Entry, Holdings
from drakit.kit.steward import PodView, Steward
from drakit.kit.work import Work

_LOG = logging.getLogger(__name__)
_EVENT_SECONDS: Final = 1.0
"""How long an event of the runtime waits for the steward; the runtime waits two seconds in all."""


class Tending:
    """Calls a steward, one call at a time, with the state as it is then."""

    def __init__(
        self,
        steward: Steward,
        driver: Callable[[], Driver],
        pods: Callable[[], Sequence[PodView]],
        holdings: Callable[[], Holdings],
        work: Work | None = None,
    ) -> None:
        self._steward = steward
        self._driver = driver
        self._pods = pods
        self._holdings = holdings
        self._work = work or Work()
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._promised: dict[str, Entry] = {}
        self.problem: str | None = None
        """What the last look could not put in order; None when it could."""

    async def provide(self, entry: Entry, holdings: Holdings) -> None:
        """See :meth:`Steward.provide`."""
        async with self._turn:
            await self._steward.provide(self._driver(), entry, self.owed(holdings, entry.uid))

    async def promise(self, entry: Entry) -> None:
        """See :meth:`Steward.promise`; the promise holds until :meth:`keep_only` forgets it."""
        async with self._turn:
            owed = self.owed(self._holdings(), entry.uid)
            await self._steward.promise(self._driver(), entry, owed)
            self._promised[entry.uid] = entry

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all promises but those to these claims."""
        self._promised = {uid: entry for uid, entry in self._promised.items() if uid in uids}

    def owed(self, holdings: Holdings, besides: str = "") -> Holdings:
        """*holdings* and what was promised beyond them, both without the claim *besides*."""
        promised = (each for uid, each in self._promised.items() if uid not in holdings.entries)
        entries = [each for each in (*holdings, *promised) if each.uid != besides]
        return Holdings(entries, holdings.ghosts)

    async def now(self) -> None:
        """Settle what is now; calls made while one is waiting for its turn share that one."""
        if self._next is None:
            self._next = asyncio.create_task(self._settle())
        await asyncio.shield(self._next)

    async def before_answering(self) -> None:
        """Like :meth:`now`, but only as long as a runtime's event can wait; the work goes on."""
        try:
            async with asyncio.timeout(_EVENT_SECONDS):
                await self.now()
        except TimeoutError:
            _LOG.warning("still at work on pods' cgroups; the runtime's event does not wait for it")

    async def close(self) -> None:
        """Wait until the work in progress is done."""
        if self._next is not None:
            await asyncio.gather(self._next, return_exceptions=True)

    async def _settle(self) -> None:
        async with self._turn:
            self._next = None
            try:
                owed = self.owed(self._holdings())
                await self._steward.settle(self._driver(), self._pods(), owed)
            except OSError as problem:
                if self.problem != str(problem):
                    _LOG.error("cannot put the node in order: %s; it is tried again", problem)
                self.problem = str(problem)
            except Exception as problem:
                # A defect of a steward. Events of the runtime wait for this: it must not fail them.
                self.problem = str(problem) or type(problem).__name__
                self._work.failed("steward", problem)
            else:
                self.problem = None
                self._work.succeeded("steward")
