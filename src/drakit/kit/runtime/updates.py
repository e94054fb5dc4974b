"""Unsolicited updates to the runtime: several at a time, never two for one container, never a stale one.

An update is computed right before it is sent, so one that became wrong while it waited is not sent at all.
An update that was sent may still wait in the runtime while an event is handled, and be applied after the
answer to that event although it is older; once it is confirmed, the container is compared again and
corrected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.core.log import get_logger
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.nri.plugin import NriPlugin, PushFailedError, UpdateRejectedError

log = get_logger(__name__)
_CONCURRENT: Final = 8
"""Updates that wait for the runtime at the same time. Each costs it a process or a system call."""


class Pusher:
    """Sends outdated resources of *enforcer*'s containers to the runtime of *plugin*."""

    def __init__(self, plugin: NriPlugin, enforcer: Enforcer, metrics: HostMetrics) -> None:
        self._plugin = plugin
        self._enforcer = enforcer
        self._metrics = metrics
        self._lock = asyncio.Lock()
        self._in_flight: dict[str, CpuSet] = {}
        self._urgent: list[str] = []
        self._progress = asyncio.Event()

    @property
    def possible(self) -> bool:
        """Whether the runtime accepts unsolicited updates."""
        runtime = self._plugin.runtime
        return runtime is not None and runtime.features.unsolicited_updates

    async def push(self) -> None:
        """Push until nothing is outdated, or the runtime accepts no more now."""
        if not self.possible:
            return  # the answer to the next event carries the updates
        async with self._lock:
            while waiting := self._enforcer.outdated():
                queue = iter(waiting)
                sent = await asyncio.gather(*(self._send(queue) for _ in range(_CONCURRENT)))
                if None in sent or not any(sent):
                    return

    def prefer(self, container_ids: Iterable[str]) -> None:
        """Send updates of these containers before those that are waiting."""
        self._urgent.extend(container_ids)

    def _order(self, queue: Iterator[str]) -> Iterator[str]:
        while True:
            container_id = self._urgent.pop() if self._urgent else next(queue, None)
            if container_id is None:
                return
            if container_id not in self._in_flight:  # it is compared again when confirmed
                yield container_id

    async def _send(self, queue: Iterator[str]) -> int | None:
        """Send one update after the other; returns the number, None if one was not accepted."""
        count, failed, enforcer = 0, False, self._enforcer
        for container_id in self._order(queue):
            update = enforcer.next_update(container_id)
            if update is None:
                continue
            sent = enforcer.last_sent(container_id)
            self._in_flight[container_id] = enforcer.last_sent_cpus(container_id) or CpuSet()
            try:
                await self._plugin.push([update])
            except PushFailedError as error:
                enforcer.mark_unsent([container_id])
                log.warning("update failed, retrying", container=container_id, error=error)
                failed = True
            except UpdateRejectedError as error:
                enforcer.mark_unsent([container_id])
                log.info("update not sent", container=container_id, reason=error)
                return None
            else:
                count += 1
                self._metrics.container_updates.labels("pushed").inc()
                if enforcer.last_sent(container_id) is not sent:  # an event was answered meanwhile
                    enforcer.mark_unsent([container_id])
            finally:
                del self._in_flight[container_id]
                self._progress.set()
        return None if failed else count

    def stale(self, cpus: CpuSet) -> list[str]:
        """Containers with an unconfirmed update that allows some of *cpus*."""
        return [each for each, allowed in self._in_flight.items() if allowed & cpus]

    def is_in_flight(self, container_id: str) -> bool:
        """Whether an update of the container was sent and is not confirmed."""
        return container_id in self._in_flight

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until *condition* holds, checking after each update; returns whether it holds."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return condition()
        return True
