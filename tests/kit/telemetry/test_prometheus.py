"""What Prometheus reads is what was counted, and the same as its own client library would say."""

from __future__ import annotations

import math

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from drakit.kit.telemetry.metrics import Gauge, HostMetrics
from drakit.kit.telemetry.prometheus import CounterFamily, GaugeFamily, HistogramFamily, text_format

BOUNDS = (0.001, 0.5, 1, 30)
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]) | st.just("\n"))
PAIRS = st.tuples(TEXT, TEXT)
NUMBERS = st.floats(0, 1e12) | st.integers(0, 100) | st.sampled_from(BOUNDS)

prometheus_client.disable_created_metrics()


def understood(data: bytes) -> list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]:
    """What Prometheus' own reader makes of it."""
    return [
        (family.name, family.type, family.documentation, [(s[0], s[1], s[2]) for s in family.samples])
        for family in text_string_to_metric_families(data.decode())
    ]


@given(TEXT.map(str.strip), st.lists(st.tuples(PAIRS, NUMBERS)), st.lists(st.tuples(PAIRS, NUMBERS)))
def test_the_output_equals_that_of_the_official_client(text, counted, observed):
    registry = prometheus_client.CollectorRegistry()
    theirs = (
        prometheus_client.Counter("c", text, ("b", "a"), registry=registry),
        prometheus_client.Histogram("h", text, ("x", "m"), buckets=BOUNDS, registry=registry),
    )
    ours = CounterFamily("c", text, ("b", "a")), HistogramFamily("h", text, BOUNDS, ("x", "m"))
    for counter, histogram in (theirs, ours):
        for labels, number in counted:
            counter.labels(*labels).inc(number)
        for labels, number in observed:
            histogram.labels(*labels).observe(number)
    mine = text_format(ours)
    assert understood(mine) == understood(prometheus_client.generate_latest(registry))
    names = [line.split(b" ")[:3] for line in mine.splitlines() if line.startswith(b"# TYPE")]
    assert names == [[b"#", b"TYPE", b"c_total"], [b"#", b"TYPE", b"h"]]


@given(st.lists(st.tuples(TEXT, st.floats())))
def test_gauges_are_read_as_they_are(readings):
    family = GaugeFamily("g", "Some.", [((("l", text),), value) for text, value in readings])
    (read,) = understood(text_format([family]))
    assert read[:3] == ("g", "gauge", "Some.")
    assert [labels["l"] for _, labels, _ in read[3]] == [text for text, _ in readings]
    for (_, _, value), (_, wanted) in zip(read[3], readings, strict=True):
        assert value == wanted or (math.isnan(value) and math.isnan(wanted))


def test_without_labels_there_is_a_value_from_the_start():
    counter, histogram = CounterFamily("c", "C."), HistogramFamily("h", "H.", (1, 2))
    assert text_format([counter, histogram]).decode().splitlines() == [
        "# HELP c_total C.",
        "# TYPE c_total counter",
        "c_total 0.0",
        "# HELP h H.",
        "# TYPE h histogram",
        'h_bucket{le="1.0"} 0.0',
        'h_bucket{le="2.0"} 0.0',
        'h_bucket{le="+Inf"} 0.0',
        "h_count 0.0",
        "h_sum 0.0",
    ]
    counter.inc()
    histogram.observe(2)
    text = text_format([counter, histogram]).decode()
    assert "c_total 1.0\n" in text
    assert 'le="1.0"} 0.0' in text
    assert 'le="2.0"} 1.0' in text


def test_labels_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match=r"c_total has the labels \('a',\)"):
        CounterFamily("c", "C.", ("a",)).labels("x", "y")


def test_an_unencodable_label_does_not_break_the_page():
    counter = CounterFamily("c", "C.", ("a",))
    counter.labels("\udc80").inc()
    assert b"udc80" in text_format([counter])


def test_one_family_for_gauges_of_several_sources():
    metrics = HostMetrics("a.b")
    for number in range(2):
        metrics.add_source(lambda n=number: [Gauge("g", "G.", n, (("source", str(n)),))])
    text = metrics.exposition().decode()
    assert text.count("# TYPE a_b_g gauge") == 1
    assert 'a_b_g{source="0"} 0.0\na_b_g{source="1"} 1.0\n' in text
