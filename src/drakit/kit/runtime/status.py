"""Status of the connection to the runtime, and the metrics, log fields and rejections of its events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from drakit.core.log import get_logger
from drakit.kit.driver import RejectedError
from drakit.kit.telemetry.logs import about
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.nri.handler import Cause, ContainerRejectedError, Disconnect
from drakit.wire.nri.values import NriContainer, PodSandbox

log = get_logger(__name__)


class RuntimeStatus:
    """Whether containers can be served now; *mode* is the option ``nri``."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._standby = False
        self._last_end: Disconnect | None = None
        self.synchronized = False
        self.ready = asyncio.Event()
        """Set once claims can be served: synchronized, standby, or NRI known to be off and optional."""

    @property
    def state(self) -> str:
        """``synchronized``, ``standby``, ``off`` or ``disconnected``."""
        if self._mode == "off" or self._standby:
            return "off" if self._mode == "off" else "standby"
        return "synchronized" if self.synchronized else "disconnected"

    @property
    def problem(self) -> str | None:
        """Why containers cannot be served now; None if they can, or if that is optional."""
        if self.state != "disconnected":
            return None
        if self._last_end is None:
            return "not yet synchronized with the container runtime"
        return None if self._is_optional(self._last_end) else str(self._last_end)

    def stand_by(self) -> None:
        """Wait while another instance serves the runtime."""
        if not self._standby:
            log.info("another instance serves the runtime, in standby until it ends")
        self._standby = True
        self.ready.set()

    def activate(self) -> None:
        """Serve the runtime from now on."""
        self._standby = False
        if self._mode == "required":
            self.ready.clear()

    def connect(self) -> None:
        """Record that the runtime is synchronized."""
        self.synchronized = True
        self.ready.set()

    def disconnect(self, end: Disconnect) -> None:
        """Record that the connection ended or cannot be made."""
        self.synchronized = False
        self._last_end = end
        if self._is_optional(end):
            log.warning("no NRI socket, not enforcing as configured (nri: optional)", error=end)
            self.ready.set()

    def _is_optional(self, end: Disconnect) -> bool:
        return self._mode == "optional" and end.cause is Cause.NO_SOCKET


@contextlib.contextmanager
def measured(event: str, metrics: HostMetrics, arguments: tuple[object, ...]) -> Iterator[None]:
    """Measure the handling of an event, log with its pod and container, convert rejections."""
    begin = time.perf_counter()
    metrics.contact("runtime")
    with about(**_identity(arguments)):
        try:
            yield
            metrics.runtime_events.labels(event, "success").inc()
        except RejectedError as error:
            metrics.runtime_events.labels(event, "refused").inc()
            metrics.rejections.labels("enforce", error.reason).inc()
            log.warning("container rejected", error=error)
            raise ContainerRejectedError(str(error)) from error
        except Exception:
            metrics.runtime_events.labels(event, "error").inc()
            raise
        finally:
            metrics.runtime_seconds.labels(event).observe(time.perf_counter() - begin)


def _identity(arguments: tuple[object, ...]) -> dict[str, str]:
    """The log fields of the pod and the container among the arguments of a handler."""
    identity: dict[str, str] = {}
    for each in arguments:
        if isinstance(each, PodSandbox):
            identity |= {"pod": f"{each.namespace}/{each.name}", "pod_uid": each.uid}
        elif isinstance(each, NriContainer):
            identity["container"] = each.name
    return identity
