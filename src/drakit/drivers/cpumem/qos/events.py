"""What an administrator should know about who writes memory files, as events of the Node.

``kubectl describe node`` shows them. The log says the same, but nobody reads the logs of a daemon that
keeps quiet by design: one that yields.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.qos.ownership import Ownership
from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims
from drakit.kit.reconciler import PodView
from drakit.kit.telemetry.metrics import Gauge

if TYPE_CHECKING:
    from drakit.wire.kube import Client

_LOG = logging.getLogger(__name__)
YIELDED: Final = "MemoryQoSYielded"
CONFLICT: Final = "MemoryQoSConflict"
_NAMESPACE: Final = "default"
"""Where events of objects without a namespace are kept."""
_RETRY_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 2.0


class OwnershipEvents:
    """A reconciler that tells each sentence of *ownership* once, and again later if nobody listened."""

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
        self._told: set[str] = set()
        self._due = -math.inf
        self._telling: asyncio.Task[None] | None = None

    async def provide(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """Nothing: a claim changes nobody's ownership."""

    async def promise(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """Nothing: no pod is there yet."""

    async def settle(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """Tell what is new, in the background: a container that is created waits for this call."""
        if self._telling is not None and not self._telling.done():
            return
        found = self._ownership()
        events = [
            *(node_event(self._node, "Normal", YIELDED, words) for words in found.reasons),
            *(node_event(self._node, "Warning", CONFLICT, words) for words in found.conflicts),
        ]
        new = [event for event in events if event["metadata"]["name"] not in self._told]
        if new and self._clock() >= self._due:
            self._telling = asyncio.create_task(self._tell(new))

    async def restore(self) -> None:
        """Nothing: the server forgets events by itself."""

    def gauges(self) -> Iterable[Gauge]:
        """None: ownership has a metric already."""
        return ()

    async def _tell(self, events: Iterable[Mapping[str, Any]]) -> None:
        from drakit.wire.kube import EVENTS, AlreadyExistsError, KubeError

        try:
            async with asyncio.timeout(_PATIENCE_SECONDS), self._connect() as client:
                for event in events:
                    # Taken: an earlier instance told it, and the server has not forgotten.
                    with contextlib.suppress(AlreadyExistsError):
                        await client.create(EVENTS, dict(event), namespace=_NAMESPACE)
                    self._told.add(event["metadata"]["name"])
        except (KubeError, TimeoutError) as error:
            self._due = self._clock() + _RETRY_SECONDS
            _LOG.warning(
                "cannot write an event of the node: %s",
                str(error) or f"no answer in {_PATIENCE_SECONDS:g} seconds",
            )


def node_event(node: str, kind: str, reason: str, message: str) -> dict[str, Any]:
    """An event of the Node; equal ones have one name, so that the server keeps one of them."""
    digest = hashlib.sha256(f"{DRIVER}\n{reason}\n{message}".encode()).hexdigest()[:16]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node}.{digest}", "namespace": _NAMESPACE},
        # kubectl describe looks for events of a node by its name in the place of the UID.
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
