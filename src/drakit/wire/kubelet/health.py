"""Latest health report of all devices, for any number of listeners.

The kubelet sets a device to Unknown when the last report is older than its timeout, so a report is
repeated well before that. A report that expires is no longer repeated: a health check that hangs must
not count as healthy.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from time import monotonic

from drakit.wire.kubelet.values import HEALTH_SECONDS, HealthReport

SHORTEST_REPEAT = 1.0


class HealthFeed:
    """The newest report; a slow listener misses older ones, and nothing is queued."""

    def __init__(self) -> None:
        self._report: tuple[HealthReport, ...] | None = None
        self._until = math.inf
        self._changed = asyncio.Event()

    @property
    def report(self) -> tuple[HealthReport, ...]:
        """The newest report; empty before the first."""
        return self._report or ()

    def publish(self, devices: Iterable[HealthReport], holds: float = math.inf) -> None:
        """Replace the report; omitted devices become Unknown, and all do after *holds* seconds."""
        self._report = tuple(devices)
        self._until = monotonic() + holds
        self._changed.set()
        self._changed = asyncio.Event()  # listeners wait for the old one

    async def reports(self) -> AsyncIterator[tuple[HealthReport, ...]]:
        """The newest report: now, on every change, and repeated at a third of its timeout."""
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
    """Seconds until a report must be repeated; a timeout of zero means the kubelet's default."""
    shortest = min(
        (d.timeout_seconds if d.timeout_seconds > 0 else HEALTH_SECONDS for d in devices),
        default=HEALTH_SECONDS,
    )
    return max(shortest / 3, SHORTEST_REPEAT)
