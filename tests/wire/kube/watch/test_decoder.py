from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.kube import SLICES, ApiError, EventKind, GoneError, ProtocolError
from drakit.wire.kube.watch.decoder import LineSplitter, parse_event
from tests.wire.damage import damaged, survive


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 10_000), max_size=30))
def test_any_cut_of_the_stream_gives_the_same_lines(lines: list[bytes], places: list[int]) -> None:
    data = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    splitter = LineSplitter(1000)
    got = [line for part in cut(data, places) for line in splitter.feed(part)]
    assert got == [line for line in data.split(b"\n") if line.strip()]


@given(st.integers(1, 50), st.lists(st.integers(0, 10_000), max_size=30))
def test_a_line_beyond_the_limit_is_rejected_before_it_is_held(limit: int, places: list[int]) -> None:
    splitter = LineSplitter(limit)
    assert list(splitter.feed(b"x" * limit + b"\n")) == [b"x" * limit]
    with pytest.raises(ProtocolError, match="larger"):
        for part in cut(b"x" * (limit + 1), places):
            list(splitter.feed(part))


def event(kind: Any, body: Any) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode()


@pytest.mark.parametrize("kind", list(EventKind))
def test_events(kind: EventKind) -> None:
    got = parse_event(event(kind.value, {"metadata": {"name": "x"}}), SLICES, "slices")
    assert got.kind is kind
    assert got.object.name == "x"


@pytest.mark.parametrize(
    ("code", "reason", "error"), [(410, "Expired", GoneError), (410, "Gone", GoneError), (500, "X", ApiError)]
)
def test_error_events_are_raised(code: int, reason: str, error: type[ApiError]) -> None:
    status = {"kind": "Status", "code": code, "reason": reason, "message": "too old"}
    with pytest.raises(error, match="too old") as caught:
        parse_event(event("ERROR", status), SLICES, "slices")
    assert caught.value.code == code


@given(
    st.binary(max_size=60)
    | st.builds(
        event,
        st.sampled_from(["ADDED", "ERROR", "BOOKMARK", "", None, 1, {}]),
        st.none() | st.integers() | st.dictionaries(st.text(max_size=3), st.none()),
    )
)
def test_any_line_is_an_event_or_a_kube_error(line: bytes) -> None:
    try:
        got = parse_event(line, SLICES, "slices")
    except (ProtocolError, ApiError):
        return
    assert isinstance(got.object.raw, dict)
    assert isinstance(got.object.resource_version, str)


def test_fuzz_of_valid_events_with_flipped_bytes(scale: int) -> None:
    """A hundred thousand damaged events: an event, or an error of ours."""
    good = event("ADDED", {"metadata": {"name": "x", "resourceVersion": "7"}, "spec": {"a": [1]}})
    details = {"retryAfterSeconds": 1, "causes": [{"reason": "r", "message": "m", "field": "f"}]}
    gone = {"kind": "Status", "code": 410, "reason": "Gone", "message": "old", "details": details}
    outcomes = set()

    def work(data: bytes) -> None:
        try:
            parse_event(data, SLICES, "slices")
            outcomes.add("event")
        except (ProtocolError, ApiError) as error:
            assert str(error)
            outcomes.add(type(error).__name__)

    survive(work, (), damaged([good, event("ERROR", gone)], 4, 100_000 * scale))
    assert {"event", "ProtocolError", "GoneError"} <= outcomes
