"""Background tasks of a driver: failures are logged, counted, reported if they persist, and retried.

A defect in one periodic task must not end a process that keeps containers on their CPUs. It must not be
silent either: the log has the traceback, ``task_failures_total`` counts, and readiness reports a task
that failed several times in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from drakit.core.log import get_logger

log = get_logger(__name__)
PERSISTS: Final = 3
"""This many failures in a row are reported by readiness."""
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
        """Which tasks keep failing, and why; None if none does."""
        lasting = (
            f"{name} failed {times} times in a row: {reason}"
            for name, (times, reason) in sorted(self._failures.items())
            if times >= PERSISTS
        )
        return "; ".join(lasting) or None

    async def once(self, name: str, task: Task) -> bool:
        """Run the task now; returns whether it succeeded."""
        try:
            await task()
        except Exception as error:
            self.failed(name, error)
            return False
        self.succeeded(name)
        return True

    async def every(self, seconds: float, name: str, task: Task) -> None:
        """Run the task periodically, with a pause before each run, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            await self.once(name, task)

    async def until_done(self, name: str, task: Task) -> None:
        """Run the task until it succeeds, with increasing pauses."""
        pause = self._pause
        while not await self.once(name, task):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def forever(self, name: str, task: Task) -> None:
        """Run a task that should never end, and start it again when it does."""

        async def run() -> None:
            await task()
            raise RuntimeError("the task ended")

        await self.until_done(name, run)

    def failed(self, name: str, error: Exception) -> None:
        """Note a failure, while its exception is handled. The same failure in a row is logged once."""
        times, before = self._failures.get(name, (0, ""))
        reason = str(error) or type(error).__name__
        self._failures[name] = (times + 1, reason)
        self._count(name)
        if reason == before:
            log.debug("task failed again", task=name, error=reason)
        elif isinstance(error, OSError):  # caused by the environment: a traceback does not help
            log.warning("task failed, will retry", task=name, error=reason)
        else:
            log.exception("task failed, will retry", task=name, error=reason)  # noqa: LOG004 - see the docstring

    def succeeded(self, name: str) -> None:
        """Note a success after failures."""
        if self._failures.pop(name, None) is not None:
            log.info("task succeeded again", task=name)
