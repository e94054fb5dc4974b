"""The driver's own work: what fails is logged, counted, reported when it persists, and done again.

A defect in one periodic look must not end a process that keeps containers on their CPUs. It must
not be silent either: the log has the traceback, ``task_failures_total`` counts, and readiness
reports a task that failed several times in a row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

_LOG = logging.getLogger(__name__)
PERSISTS: Final = 3
"""So many failures in a row are reported by readiness."""
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0

Task = Callable[[], Awaitable[None]]


class TaskRunner:
    """Runs tasks by name. *count* is called with the name for each failure."""

    def __init__(
        self, count: Callable[[str], None] = lambda name: None, pause: float = _PAUSE_SECONDS
    ) -> None:
        self._count = count
        self._pause = pause
        self._failures: dict[str, tuple[int, str]] = {}

    @property
    def problem(self) -> str | None:
        """Which tasks keep failing, and why; None while none does."""
        lasting = (
            f"{name} failed {times} times in a row: {reason}"
            for name, (times, reason) in sorted(self._failures.items())
            if times >= PERSISTS
        )
        return "; ".join(lasting) or None

    async def once(self, name: str, task: Task) -> bool:
        """Do it now; says whether it succeeded."""
        try:
            await task()
        except Exception as error:
            self.failed(name, error)
            return False
        self.succeeded(name)
        return True

    async def every(self, seconds: float, name: str, task: Task) -> None:
        """Do it again and again, with a pause before each time; until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            await self.once(name, task)

    async def until_done(self, name: str, task: Task) -> None:
        """Do it until it succeeds, with longer and longer pauses."""
        pause = self._pause
        while not await self.once(name, task):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def forever(self, name: str, task: Task) -> None:
        """Keep a task running that should never end; start it again when it does."""

        async def run() -> None:
            await task()
            raise RuntimeError("it ended by itself")

        await self.until_done(name, run)

    def failed(self, name: str, problem: Exception) -> None:
        """Note a failure. The same one in a row is logged once."""
        times, before = self._failures.get(name, (0, ""))
        reason = str(problem) or type(problem).__name__
        self._failures[name] = (times + 1, reason)
        self._count(name)
        if reason == before:
            _LOG.debug("%s failed again: %s", name, reason)
        elif isinstance(problem, OSError):  # the environment's fault: where in our code is no help
            _LOG.warning("%s failed and is tried again: %s", name, reason)
        else:
            _LOG.error("%s failed and is tried again: %s", name, reason, exc_info=problem)

    def succeeded(self, name: str) -> None:
        """Note that all is well again."""
        if self._failures.pop(name, None) is not None:
            _LOG.info("%s succeeds again", name)
