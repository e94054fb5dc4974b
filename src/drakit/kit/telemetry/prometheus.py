"""Counters, histograms and gauges in Prometheus' text format.

Replaces the official client library, whose HTTP servers and clients, mail parsing and multi-process
files cost every node 3.4 MB and a tenth of a second at start. Not thread-safe: counting and scraping
happen in one event loop.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a name, labels, a value."""

    name: str
    labels: Labels
    value: float


class Count:
    """A value that only increases."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add *amount*."""
        self.value += amount

    def samples(self, name: str, labels: Labels) -> Iterator[Sample]:
        """The current value."""
        yield Sample(name, labels, self.value)


class Distribution:
    """Counts of observed values by bucket."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count *value*."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, name: str, labels: Labels) -> Iterator[Sample]:
        """The current counts; each bucket includes all values up to its bound."""
        total = 0
        for bound, total in zip(self._bounds, accumulate(self._counts), strict=True):
            yield Sample(f"{name}_bucket", (*labels, ("le", _number(bound))), total)
        yield Sample(f"{name}_count", labels, total)
        yield Sample(f"{name}_sum", labels, self._sum)


T = TypeVar("T", Count, Distribution)


class _Family(Generic[T]):
    """A metric with one value per combination of label values, or a single one without labels."""

    kind: str

    def __init__(self, name: str, text: str, labels: tuple[str, ...], make: Callable[[], T]) -> None:
        self.name = name
        self.help = text
        self.label_names = labels
        self._make: Callable[[], T] = make
        self._values: dict[tuple[str, ...], T] = {}
        if not labels:
            self.labels()

    def labels(self, *values: str) -> T:
        """The value with these labels, created on first use."""
        found = self._values.get(values)
        if found is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, not {values}")
            found = self._values[values] = self._make()
        return found

    def samples(self) -> Iterator[Sample]:
        """All values in the order of their creation."""
        for values, each in self._values.items():
            yield from each.samples(self.name, tuple(zip(self.label_names, values, strict=True)))


class CounterFamily(_Family[Count]):
    """Counts; ``_total`` is appended to the name."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = ()) -> None:
        super().__init__(f"{name}_total", text, labels, Count)

    def inc(self, amount: float = 1.0) -> None:
        """Add *amount* to the single value of a counter without labels."""
        self.labels().inc(amount)


class HistogramFamily(_Family[Distribution]):
    """Distributions over buckets with upper *bounds*, plus one without a bound."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Iterable[float], labels: tuple[str, ...] = ()) -> None:
        limits = (*bounds, math.inf)
        super().__init__(name, text, labels, lambda: Distribution(limits))

    def observe(self, value: float) -> None:
        """Count *value* in the single distribution of a histogram without labels."""
        self.labels().observe(value)


@dataclass(slots=True)
class GaugeFamily:
    """Values of one name that are computed at the scrape."""

    name: str
    help: str
    readings: list[tuple[Labels, float]]

    @property
    def kind(self) -> str:
        """``counter`` for names that end in ``_total``."""
        return "counter" if self.name.endswith("_total") else "gauge"

    def samples(self) -> Iterator[Sample]:
        """The values in their order."""
        for labels, value in self.readings:
            yield Sample(self.name, labels, value)


Metric = CounterFamily | HistogramFamily | GaugeFamily


def text_format(metrics: Iterable[Metric]) -> bytes:
    """All *metrics* in Prometheus' text format."""
    lines: list[str] = []
    for metric in metrics:
        text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines += (f"# HELP {metric.name} {text}", f"# TYPE {metric.name} {metric.kind}")
        lines += map(_line, metric.samples())
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(sample.labels))
    return f"{sample.name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    """A number as Go parses it (Prometheus is written in Go)."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
