"""Walked messages are what the protobuf library makes of them, and are in memory once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from drakit.wire.nri import events, field_scan, nri_pb2, session, ttrpc_pb2
from drakit.wire.nri.events import Synchronize
from drakit.wire.nri.frames import REQUEST, encode_frame
from drakit.wire.nri.mux import mux_message
from drakit.wire.nri.values import container_from, pod_from

PREFIXES = ("DRA_",)
TEXT = st.text(max_size=5)
MAPS = st.dictionaries(TEXT, TEXT, max_size=2)
PODS = st.builds(nri_pb2.PodSandbox, id=TEXT, name=TEXT, uid=TEXT, labels=MAPS, annotations=MAPS)
CONTAINERS = st.builds(
    nri_pb2.Container,
    id=TEXT,
    pod_sandbox_id=TEXT,
    state=st.integers(0, 4),
    labels=MAPS,
    env=st.lists(TEXT | TEXT.map("DRA_{}".format), max_size=4),
)
MESSAGES = st.builds(
    nri_pb2.SynchronizeRequest,
    pods=st.lists(PODS, max_size=3),
    containers=st.lists(CONTAINERS, max_size=3),
    more=st.booleans(),
)
# Fields of other numbers and wire types, also groups, padded numbers and the numbers that are known.
ODD = st.sampled_from(
    [
        b"\x18\x00",
        b"\x18\x05",
        b"\x1a\x01x",
        b"\x08\x01",
        b"\x0d1234",
        b"\x0912345678",
        b"\x2212",
        b"\x22\x03abc",
        b"\x23\x24",
        b"\x23\x08\x01\x24",
        b"\x23",
        b"\x24",
        b"\x98\x80\x00\x01",
        b"\x98\x80\x80\x80\x80\x80\x00\x01",
        b"\x18" + b"\xff" * 9 + b"\x01",
        b"\x18" + b"\xff" * 9 + b"\x7f",
        b"\x18" + b"\xff" * 11,
        b"\x20" + b"\xff" * 9 + b"\x7f",
        b"\x00\x00",
        b"\x0a\x02\x0a\xff",
        b"\x12\x00",
        b"\x0a\x80\x80\x80\x80\x80\x00",
    ]
)
PIECES = MESSAGES.map(lambda message: message.SerializeToString()) | ODD
PAYLOADS = st.lists(PIECES, max_size=4).map(b"".join)


def spoiled(data: bytes, draw: Any) -> bytes:
    """A byte changed or the end cut off."""
    if not data:
        return data
    at = draw(st.integers(0, len(data) - 1))
    return draw(st.sampled_from([data[:at], data[:at] + b"\xff" + data[at + 1 :]]))


def by_library(payload: bytes) -> Synchronize | str:
    message = nri_pb2.SynchronizeRequest()
    try:
        message.ParseFromString(payload)
    except DecodeError:
        return "does not parse"
    return Synchronize(
        pods=tuple(map(pod_from, message.pods)),
        containers=tuple(container_from(each, PREFIXES) for each in message.containers),
        more=message.more,
    )


def by_us(payload: bytes | memoryview) -> Any:
    try:
        return events.decode_call(events.PLUGIN_SERVICE_NAME, "Synchronize", payload, PREFIXES)
    except session.StatusError as error:
        assert "does not parse" in error.message
        return "does not parse"


@settings(max_examples=300, deadline=None)
@given(PAYLOADS, st.data())
def test_a_scanned_synchronize_equals_a_parsed_one(payload: bytes, data: Any) -> None:
    for each in (payload, spoiled(payload, data.draw)):
        assert by_us(each) == by_us(memoryview(each)) == by_library(each)


@settings(max_examples=300)
@given(st.binary(max_size=30))
def test_so_is_anything(payload: bytes) -> None:
    assert by_us(payload) == by_library(payload)


def test_messages_of_runtimes_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("parsed as a whole")

    monkeypatch.setattr(events, "_parse", forbidden)
    message = nri_pb2.SynchronizeRequest(more=True)
    message.pods.add(id="p")
    message.containers.add(id="c", env=["DRA_X=1", "OTHER=2"])
    call = by_us(message.SerializeToString())
    assert [pod.id for pod in call.pods] == ["p"]
    assert [each.env for each in call.containers] == [("DRA_X=1",)]
    assert call.more


ENVELOPES = st.builds(
    ttrpc_pb2.Request,
    service=TEXT,
    method=TEXT,
    payload=st.binary(max_size=9),
    timeout_nano=st.integers(-(1 << 63), (1 << 63) - 1),
    metadata=st.lists(st.builds(ttrpc_pb2.KeyValue, key=TEXT, value=TEXT), max_size=2),
).map(lambda message: message.SerializeToString())


def envelope_by_library(data: bytes) -> Any:
    message = ttrpc_pb2.Request()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return "does not parse"
    return message.service, message.method, message.payload, message.timeout_nano


@settings(max_examples=300, deadline=None)
@given(st.lists(ENVELOPES | ODD, max_size=3).map(b"".join) | st.binary(max_size=30), st.data())
def test_a_scanned_envelope_equals_a_parsed_one(data: bytes, more: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_LONGEST_COPIED", -1)
        for each in (data, spoiled(data, more.draw)):
            try:
                found: Any = session.request_envelope(each)
            except DecodeError:
                found = "does not parse"
            assert found == envelope_by_library(each)


def test_a_field_that_is_cut_off_is_not_walked() -> None:
    for data in (b"\x0a\x05abc", b"\x0a", b"\x80", b"\x0d123", b"\x09123", b"\x18\x80"):
        with pytest.raises(field_scan.UnusualError):
            list(field_scan.fields(memoryview(data)))


READER = """
import sys
sys.path[:0] = {path!r}
from drakit.wire.nri.events import decode_call
from drakit.wire.nri.session import Session

def status(name):
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith(name + ":")]
    return int(line.split()[1]) << 10

session, requests = Session(serve=1, call=2), []
before = status("VmRSS")
with open({file!r}, "rb", buffering=0) as file:
    while piece := file.read(256 << 10):
        requests += session.receive(piece)
(request,) = requests
call = decode_call(request.service, request.method, request.payload, ("DRA_CLAIM_",))
print(len(call.containers), sum(len(each.env) for each in call.containers))
print(status("VmHWM") - before)
"""


def test_a_long_synchronize_is_in_memory_once(tmp_path: Path) -> None:
    """Measured where nothing else was: the high-water mark of a process of its own."""
    one = nri_pb2.SynchronizeRequest()
    variables = [f"SERVICE_{number}_PORT_TCP_ADDR=10.96.{number % 256}.1" for number in range(1500)]
    one.containers.add(id="c", pod_sandbox_id="p", env=[*variables, "DRA_CLAIM_u_r=kind"])
    payload = one.SerializeToString() * 700
    request = ttrpc_pb2.Request(service=events.PLUGIN_SERVICE_NAME, method="Synchronize", payload=payload)
    frame = encode_frame(1, REQUEST, request.SerializeToString(), 1 << 30)
    file = tmp_path / "synchronize"
    file.write_bytes(mux_message(1, frame))
    assert len(frame) > 30 << 20
    script = READER.format(path=sys.path, file=str(file))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    counted, grown = done.stdout.splitlines()
    assert counted == "700 700", "one variable of each container is kept"
    assert int(grown) < 1.4 * len(frame), "once, and one container at a time"
