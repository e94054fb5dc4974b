"""Events of the Node about the owners of memory files, shown by ``kubectl describe node``."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from drakit.core.log import get_logger
from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.qos.ownership import Ownership
from drakit.kit.driver import Driver, PreparedClaims
from drakit.kit.reconciler import PodView, Reconciler

if TYPE_CHECKING:
    from drakit.wire.kube import Client

log = get_logger(__name__)
YIELDED: Final = "MemoryQoSYielded"
CONFLICT: Final = "MemoryQoSConflict"
_NAMESPACE: Final = "default"
"""The namespace of events of cluster-scoped objects."""
_RETRY_SECONDS: Final = 60.0
_TIMEOUT_SECONDS: Final = 2.0


class OwnershipEvents(Reconciler):
    """A reconciler that writes each message of *ownership* once, with retries."""

    def __init__(
        self,
        connect: Callable[[], Client],
        node: str,
        ownership: Callable[[], Ownership],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._node = node
        self._ownership = ownership
        self._clock = clock
        self._written: set[str] = set()
        self._due = -math.inf
        self._task: asyncio.Task[None] | None = None

    async def reconcile(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """Write new events in the background: container creation waits for this call."""
        if self._task is not None and not self._task.done():
            return
        found = self._ownership()
        events = [
            *(node_event(self._node, "Normal", YIELDED, text) for text in found.reasons),
            *(node_event(self._node, "Warning", CONFLICT, text) for text in found.conflicts),
        ]
        new = [event for event in events if event["metadata"]["name"] not in self._written]
        if new and self._clock() >= self._due:
            self._task = asyncio.create_task(self._write(new))

    async def _write(self, events: Iterable[Mapping[str, Any]]) -> None:
        from drakit.wire.kube import EVENTS, AlreadyExistsError, KubeError

        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._connect() as client:
                for event in events:
                    # It may exist from an earlier instance.
                    with contextlib.suppress(AlreadyExistsError):
                        await client.create(EVENTS, dict(event), namespace=_NAMESPACE)
                    self._written.add(event["metadata"]["name"])
        except (KubeError, TimeoutError) as error:
            self._due = self._clock() + _RETRY_SECONDS
            reason = str(error) or f"no response in {_TIMEOUT_SECONDS:g} seconds"
            log.warning("cannot write an event of the node", node=self._node, error=reason)


def node_event(node: str, kind: str, reason: str, message: str) -> dict[str, Any]:
    """An event of the Node; equal events have the same name, so that the server keeps one of them."""
    digest = hashlib.sha256(f"{DRIVER}\n{reason}\n{message}".encode()).hexdigest()[:16]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.{digest}", "namespace": _NAMESPACE},
        # kubectl describe selects the events of a node by its name in place of the UID.
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": DRIVER, "host": node},
        "reportingComponent": DRIVER,
        "reportingInstance": node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
