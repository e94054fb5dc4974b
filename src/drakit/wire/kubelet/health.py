"""The latest word on the health of all devices, for any number of listeners.

The kubelet measures freshness from the arrival of a report and calls a device Unknown once its
report is older than the time-out; so the same word is said again well before that. But not for
ever, where somebody is to look again and again: a look that hangs must not pass for good health.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from time import monotonic

from drakit.wire.kubelet.values import HEALTH_SECONDS, HealthReport

SHORTEST_REPEAT = 1.0


class HealthFeed:
    """Holds one report – the newest – and tells it to every listener.

    A slow listener misses reports in between, never the newest; nothing queues up.
    """

    def __init__(self) -> None:
        self._report: tuple[HealthReport, ...] | None = None
        self._until = math.inf
        self._changed = asyncio.Event()

    @property
    def report(self) -> tuple[HealthReport, ...]:
        """The newest report; empty before the first."""
        return self._report or ()

    def publish(self, devices: Iterable[HealthReport], holds: float = math.inf) -> None:
        """Replace the report by one on all devices. A device left out ages to Unknown.

        After *holds* seconds it is not said any more, so that all of them do.
        """
        self._report = tuple(devices)
        self._until = monotonic() + holds
        self._changed.set()
        self._changed = asyncio.Event()  # whoever waits holds the old one

    async def reports(self) -> AsyncIterator[tuple[HealthReport, ...]]:
        """The newest report now, on every change, and repeated at a third of its time-out.

        One that holds no longer is not told until it is replaced.
        """
        while True:
            changed, report = self._changed, self._report
            if report is not None and monotonic() < self._until:
                yield report
            if changed.is_set():
                continue  # replaced while the listener was busy
            try:
                async with asyncio.timeout(repeat_after(report or ())):
                    await changed.wait()
            except TimeoutError:
                continue


def repeat_after(devices: Iterable[HealthReport]) -> float:
    """Seconds until a report must be repeated; a time-out of zero means the kubelet's default."""
    shortest = min(
        (d.timeout_seconds if d.timeout_seconds > 0 else HEALTH_SECONDS for d in devices),
        default=HEALTH_SECONDS,
    )
    return max(shortest / 3, SHORTEST_REPEAT)
