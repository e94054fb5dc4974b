"""Unsolicited updates to the runtime: several at a time, never two for one container, never a stale one.

An update is computed right before it is sent, so one that became wrong while it waited is not sent at all.
An update that was sent may still wait in the runtime while an event is handled, and be applied after the
answer to that event although it is older; once it is confirmed, the container is compared again and
corrected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from drakit.cgroups.tree import CgroupTree
from drakit.core.cpuset import CpuSet
from drakit.core.log import get_logger
from drakit.kit.driver import PreparedClaim, RejectedError
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.nri.plugin import NriPlugin, PushFailedError, UpdateRejectedError

log = get_logger(__name__)
_CONCURRENT: Final = 8
"""Updates that wait for the runtime at the same time. Each costs it a process or a system call."""
_EVICTION_SECONDS: Final = 3.0
"""How long a prepare waits for containers to leave the claim's CPUs; then the kubelet retries."""


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


@dataclass(eq=False, slots=True)
class Evictor:
    """Moves containers off CPUs: in the kernel where cgroups can be written, else by the runtime."""

    _enforcer: Enforcer
    _pusher: Pusher
    _tree: CgroupTree | None

    async def evict_others(self, claim: PreparedClaim, cpus: CpuSet) -> None:
        """Move all containers off *cpus* except those of *claim*.

        Waits for updates in flight that would move a container back. Raises :class:`RejectedError` if that
        takes too long; the claim stays prepared, and the kubelet retries.
        """
        left = self._write_cgroups(cpus, self._others_on(cpus, claim.uid))
        self._pusher.prefer(left)  # for example the driver's own container, whose cgroup is read-only
        stale = self._pusher.stale(cpus)

        def clear() -> bool:
            return not self._pusher.stale(cpus) and not any(self._allows(each, cpus) for each in left)

        if self._pusher.possible and not await self._pusher.wait_until(clear, _EVICTION_SECONDS):
            raise RejectedError(
                f"{claim} is prepared, but the container runtime has not moved other containers off "
                f"its CPUs {cpus} within {_EVICTION_SECONDS:g} s; the kubelet retries",
                reason="runtime-busy",
            )
        self._write_cgroups(cpus, stale)

    def _others_on(self, cpus: CpuSet, claim_uid: str) -> list[str]:
        """Containers that may use some of *cpus*, except those of the claim."""
        users = {user.id for user in self._enforcer.users_of(claim_uid)}
        others = (each for each in self._enforcer.containers if each not in users)
        return [each for each in others if self._allows(each, cpus)]

    def _allows(self, container_id: str, cpus: CpuSet) -> bool:
        """Whether the container may use any of *cpus*, as far as the runtime has confirmed."""
        if container_id not in self._enforcer.containers:
            return False
        allowed = self._enforcer.last_sent_cpus(container_id)
        return allowed is None or bool(allowed & cpus) or self._pusher.is_in_flight(container_id)

    def _write_cgroups(self, cpus: CpuSet, container_ids: Iterable[str]) -> list[str]:
        """Write desired CPUs into the cgroups of containers; returns those where that failed."""
        if self._tree is None:
            return list(container_ids)
        left = []
        for container_id in container_ids:
            container = self._enforcer.containers.get(container_id)
            path = container.cgroup_path if container is not None else None
            if container is None or path is None:
                continue
            desired = self._enforcer.decide(container).desired
            if desired is None or desired.cpus is None or desired.cpus & cpus:
                continue
            try:
                self._tree.write("cpuset", path, "cpuset.cpus", str(desired.cpus))
            except FileNotFoundError:
                continue  # it ended, or has not started: its start compares again
            except OSError as error:
                log.warning("cannot write cpuset", container=container_id, error=error)
                left.append(container_id)
        return left
