"""Unsolicited updates to the runtime: several at a time, never two for one container, never a stale one.

What a container must be told is computed right before it is sent, so an update that became wrong while it
waited is not sent at all. An update that was sent may still wait in the runtime while an event is handled
and be applied after the answer to that event, although it is older; when it has been confirmed, the
container is compared again and corrected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.nri.plugin import NriPlugin, PushFailedError, UpdateRejectedError

_LOG = logging.getLogger(__name__)
_AT_ONCE: Final = 8
"""Updates that wait for the runtime at the same time. Each costs it a process or a system call."""


class Pusher:
    """Sends what is outdated in *enforcer* to the runtime of *plugin*."""

    def __init__(self, plugin: NriPlugin, enforcer: Enforcer, metrics: HostMetrics) -> None:
        self._plugin = plugin
        self._enforcer = enforcer
        self._metrics = metrics
        self._turn = asyncio.Lock()
        self._in_flight: dict[str, CpuSet] = {}
        self._urgent: list[str] = []
        self._progress = asyncio.Event()

    @property
    def possible(self) -> bool:
        """Whether the runtime takes unsolicited updates."""
        runtime = self._plugin.runtime
        return runtime is not None and runtime.features.unsolicited_updates

    async def push(self) -> None:
        """Push until nothing is outdated, or until it cannot go on now."""
        if not self.possible:
            return  # the next event's answer carries it
        async with self._turn:
            while waiting := self._enforcer.outdated():
                queue = iter(waiting)
                sent = await asyncio.gather(*(self._send(queue) for _ in range(_AT_ONCE)))
                if None in sent or not any(sent):
                    return

    def prefer(self, container_ids: Iterable[str]) -> None:
        """Send updates of these containers before those that wait already."""
        self._urgent.extend(container_ids)

    def _order(self, queue: Iterator[str]) -> Iterator[str]:
        while True:
            container_id = self._urgent.pop() if self._urgent else next(queue, None)
            if container_id is None:
                return
            if container_id not in self._in_flight:  # never two at once: it is compared again later
                yield container_id

    async def _send(self, queue: Iterator[str]) -> int | None:
        """Send one update after the other; returns how many, None if the runtime did not take all."""
        count, failed = 0, False
        for container_id in self._order(queue):
            update = self._enforcer.next_update(container_id)
            if update is None:
                continue
            sent = self._enforcer.containers[container_id].last_sent
            self._in_flight[container_id] = self._enforcer.allowed(container_id) or CpuSet()
            try:
                await self._plugin.push([update])
            except PushFailedError as error:
                self._enforcer.mark_unsent([container_id])
                _LOG.warning("update failed, will be retried: %s", error)
                failed = True
            except UpdateRejectedError as error:
                self._enforcer.mark_unsent([container_id])
                _LOG.info("update not sent: %s", error)
                return None
            else:
                count += 1
                self._metrics.container_updates.labels("pushed").inc()
                known = self._enforcer.containers.get(container_id)
                if (
                    known is not None and known.last_sent is not sent
                ):  # an event's answer came between
                    self._enforcer.mark_unsent([container_id])
            finally:
                del self._in_flight[container_id]
                self._progress.set()
        return None if failed else count

    def stale(self, cpus: CpuSet) -> list[str]:
        """Containers with an update on its way that allows some of *cpus*."""
        return [each for each, allowed in self._in_flight.items() if allowed & cpus]

    def is_in_flight(self, container_id: str) -> bool:
        """Whether an update of the container was sent and is not confirmed."""
        return container_id in self._in_flight

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until *condition* holds, looking again after each update; says whether it does."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return condition()
        return True
