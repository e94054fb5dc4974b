"""Prometheus metrics of a driver.

Names begin with the driver's name (``dra.cpu`` → ``dra_cpu_…``). Gauges are computed from the
driver's state at every scrape.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drakit.kit.telemetry.prometheus import CounterFamily, GaugeFamily, HistogramFamily, Metric, text_format

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value computed at the scrape: a counter if its name, without prefix, ends in ``_total``."""

    name: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class HostMetrics:
    """The metrics of one driver process."""

    def __init__(self, driver: str) -> None:
        prefix = re.sub(r"[^a-z0-9]", "_", driver.lower())
        self._prefix = prefix
        self._kept: list[Metric] = []
        self._sources: list[Callable[[], Iterable[Gauge]]] = []

        def counter(name: str, text: str, *labels: str) -> CounterFamily:
            made = CounterFamily(f"{prefix}_{name}", text, labels)
            self._kept.append(made)
            return made

        def histogram(name: str, text: str, *labels: str) -> HistogramFamily:
            made = HistogramFamily(f"{prefix}_{name}", text, _QUICK, labels)
            self._kept.append(made)
            return made

        self.prepares = counter("prepare_claims", "Claims in prepare calls.", "result")
        self.unprepares = counter("unprepare_claims", "Claims in unprepare calls.", "result")
        for result in ("success", "error"):
            self.prepares.labels(result)
            self.unprepares.labels(result)
        self.prepare_seconds = histogram("prepare_claim_duration_seconds", "Time to prepare a claim.")
        self.unprepare_seconds = histogram("unprepare_claim_duration_seconds", "Time to unprepare a claim.")
        self.rejections = counter("rejections", "Rejected claims and containers.", "operation", "reason")
        self.runtime_events = counter(
            "runtime_events", "Container runtime events handled.", "event", "result"
        )
        self.runtime_seconds = histogram(
            "runtime_event_duration_seconds", "Time to respond to the container runtime.", "event"
        )
        self.container_updates = counter(
            "container_updates", "Requested updates of running containers.", "way"
        )
        self.reconnects = counter("runtime_reconnects", "Lost connections to the runtime.")
        self.drift = counter("drift", "Containers whose cgroups differed from the desired state.", "result")
        self.slice_writes = counter("slice_writes", "ResourceSlice writes.", "operation", "result")
        self.http_dropped = counter(
            "http_connections_dropped", "HTTP connections closed because of limits.", "reason"
        )
        self.task_failures = counter("task_failures", "Failures of periodic tasks of the driver.", "task")
        self.undecodable = counter(
            "undecodable_objects", "API objects that could not be decoded and were skipped.", "resource"
        )
        self._last_contact: dict[str, float] = {}
        self.add_source(self._contacts)

    def add_source(self, source: Callable[[], Iterable[Gauge]]) -> None:
        """Call *source* for gauges at every scrape."""
        self._sources.append(source)

    def contact(self, peer: str) -> None:
        """Record contact with *peer* (``runtime``, ``kubelet``, ``apiserver``)."""
        self._last_contact[peer] = time.monotonic()

    def _contacts(self) -> Iterable[Gauge]:
        now = time.monotonic()
        for peer, when in sorted(self._last_contact.items()):
            yield Gauge(
                "last_contact_age_seconds",
                "Seconds since the last contact with a peer.",
                now - when,
                (("peer", peer),),
            )

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return text_format([*self._gauges(), *self._kept])

    def _gauges(self) -> Iterable[GaugeFamily]:
        families: dict[str, GaugeFamily] = {}
        for source in self._sources:
            for gauge in source():
                family = GaugeFamily(f"{self._prefix}_{gauge.name}", gauge.help, [])
                families.setdefault(gauge.name, family).readings.append((gauge.labels, gauge.value))
        return families.values()
