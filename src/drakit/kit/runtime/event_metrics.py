"""Metrics, log fields and rejections of runtime events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from drakit.core.log import get_logger
from drakit.kit.driver import RejectedError
from drakit.kit.telemetry.logs import about
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.nri.handler import ContainerRejectedError
from drakit.wire.nri.values import NriContainer, PodSandbox

log = get_logger(__name__)


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
