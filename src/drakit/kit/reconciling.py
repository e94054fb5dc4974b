"""When a reconciler works: after each change, once for many changes at a time, and every so often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims
from drakit.kit.reconciler import PodView, Reconciler
from drakit.kit.tasks import TaskRunner

_LOG = logging.getLogger(__name__)
_EVENT_SECONDS: Final = 1.0
"""How long an event of the runtime waits for the reconciler; the runtime waits two seconds in all."""


class ReconcilerRunner:
    """Calls a reconciler, one call at a time, with the state as it is then."""

    def __init__(
        self,
        reconciler: Reconciler,
        driver: Callable[[], Driver],
        pods: Callable[[], Sequence[PodView]],
        prepared_claims: Callable[[], PreparedClaims],
        work: TaskRunner | None = None,
    ) -> None:
        self._reconciler = reconciler
        self._driver = driver
        self._pods = pods
        self._prepared_claims = prepared_claims
        self._work = work or TaskRunner()
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._promised: dict[str, PreparedClaim] = {}
        self.problem: str | None = None
        """What the last look could not put in order; None when it could."""

    async def provide(self, entry: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        """See :meth:`Reconciler.provide`."""
        async with self._turn:
            await self._reconciler.provide(
                self._driver(), entry, self.owed(prepared_claims, entry.uid)
            )

    async def promise(self, entry: PreparedClaim) -> None:
        """See :meth:`Reconciler.promise`; the promise holds until :meth:`keep_only` forgets it."""
        async with self._turn:
            owed = self.owed(self._prepared_claims(), entry.uid)
            await self._reconciler.promise(self._driver(), entry, owed)
            self._promised[entry.uid] = entry

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all promises but those to these claims."""
        self._promised = {uid: entry for uid, entry in self._promised.items() if uid in uids}

    def owed(self, prepared_claims: PreparedClaims, excluding: str = "") -> PreparedClaims:
        """*prepared_claims* and what was promised beyond them, both without the claim *excluding*."""
        promised = (
            each for uid, each in self._promised.items() if uid not in prepared_claims.entries
        )
        entries = [each for each in (*prepared_claims, *promised) if each.uid != excluding]
        return PreparedClaims(entries, prepared_claims.orphaned)

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
                owed = self.owed(self._prepared_claims())
                await self._reconciler.settle(self._driver(), self._pods(), owed)
            except OSError as error:
                if self.problem != str(error):
                    _LOG.error("cannot put the node in order: %s; it is tried again", error)
                self.problem = str(error)
            except Exception as error:
                # A defect of a reconciler. Events of the runtime wait for this: it must not fail them.
                self.problem = str(error) or type(error).__name__
                self._work.failed("steward", error)
            else:
                self.problem = None
                self._work.succeeded("steward")
