"""Calls and answers over the multiplexer, without a socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.nri import nri_pb2, ttrpc_pb2
from drakit.wire.nri.frames import LONGEST_READ, LONGEST_SENT, REQUEST, RESPONSE, encode_frame
from drakit.wire.nri.mux import PLUGIN_SERVICE, RUNTIME_SERVICE, mux_message
from drakit.wire.nri.session import Code, RpcRequest, RpcResponse, Session, StatusError
from tests.wire.nri.wire import CONFIGURED, EMPTY_OK, NO_CPUS, REGISTER


def plugin() -> Session:
    return Session(serve=PLUGIN_SERVICE, call=RUNTIME_SERVICE)


def runtime(longest_sent: int = LONGEST_SENT) -> Session:
    return Session(serve=RUNTIME_SERVICE, call=PLUGIN_SERVICE, longest_sent=longest_sent)


def asked(session: Session, stream: int) -> None:
    """Make *stream* an open request of *session*."""
    request = ttrpc_pb2.Request(service="s", method="m").SerializeToString()
    (event,) = session.receive(mux_message(PLUGIN_SERVICE, encode_frame(stream, REQUEST, request)))
    assert isinstance(event, RpcRequest)


def test_golden_register() -> None:
    session = plugin()
    payload = nri_pb2.RegisterPluginRequest(plugin_name="demo", plugin_idx="10")
    session.call("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", payload.SerializeToString(), 5.0)
    assert session.output() == REGISTER


def test_golden_answers() -> None:
    session = plugin()
    asked(session, 1)
    session.respond(1, nri_pb2.ConfigureResponse(events=0x688).SerializeToString())
    assert session.output() == CONFIGURED
    asked(session, 5)
    session.fail(5, Code.FAILED_PRECONDITION, "no cpus")
    assert session.output() == NO_CPUS
    asked(session, 7)
    session.respond(7, b"")
    assert session.output() == EMPTY_OK


def test_golden_bytes_decode() -> None:
    (event,) = runtime().receive(REGISTER)
    assert isinstance(event, RpcRequest)
    assert (event.stream, event.method, event.timeout) == (1, "RegisterPlugin", 5.0)
    assert event.payload.hex() == "0a0464656d6f12023130"
    session = runtime()
    session.call("s", "m", b"", 1)
    events = session.receive(CONFIGURED + NO_CPUS + EMPTY_OK)
    assert [each.stream for each in events] == [1, 5, 7]
    rejection = events[1]
    assert isinstance(rejection, RpcResponse)
    assert rejection.error is not None
    assert (rejection.error.code, rejection.error.message) == (9, "no cpus")


calls = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9000), st.floats(0.001, 1e6)), max_size=5)


@given(calls, st.integers(1, 5000))
def test_two_sessions_exchange_messages_whatever_the_chunks(
    sent: list[tuple[str, bytes, float]], size: int
) -> None:
    one, other = plugin(), runtime()
    streams = [one.call("service", method, payload, timeout) for method, payload, timeout in sent]
    assert streams == list(range(1, 2 * len(sent), 2))
    data = one.output()
    received = [event for at in range(0, len(data), size) for event in other.receive(data[at : at + size])]
    assert [(e.method, e.payload) for e in received if isinstance(e, RpcRequest)] == [
        (method, payload) for method, payload, _ in sent
    ]
    for event in reversed(received):  # answers come in any order
        assert isinstance(event, RpcRequest)
        assert other.respond(event.stream, event.payload[::-1])
    answers = one.receive(other.output())
    assert {a.stream: a.payload for a in answers if isinstance(a, RpcResponse)} == {
        stream: payload[::-1] for stream, (_, payload, _) in zip(streams, sent, strict=True)
    }
    assert not one.midway
    assert not other.midway


def test_a_request_is_answered_once() -> None:
    session = plugin()
    asked(session, 1)
    assert session.fail(1, Code.DEADLINE_EXCEEDED, "late") is True
    session.output()
    assert session.respond(1, b"x") is False
    assert session.fail(1, Code.INTERNAL, "x") is False
    assert session.respond(99, b"never asked") is False
    assert session.output() == b""


@pytest.mark.parametrize("stream", [0, 2, 3, 1])
def test_streams_must_be_odd_and_ascend(stream: int) -> None:
    session = plugin()
    asked(session, 3)
    session.respond(3, b"")
    session.output()
    frame = encode_frame(stream, REQUEST, b"")
    assert session.receive(mux_message(PLUGIN_SERVICE, frame)) == []
    peer = runtime()
    (answer,) = peer.receive(session.output())
    assert isinstance(answer, RpcResponse)
    assert answer.error is not None
    assert answer.error.code == Code.INVALID_ARGUMENT
    assert answer.stream == stream


def test_garbage_in_an_envelope_is_answered_and_the_session_goes_on() -> None:
    session = plugin()
    frame = encode_frame(1, REQUEST, b"\xff\xff\xff")
    assert session.receive(mux_message(PLUGIN_SERVICE, frame)) == []
    (answer,) = runtime().receive(session.output())
    assert isinstance(answer, RpcResponse)
    assert answer.error is not None
    assert answer.error.code == Code.INVALID_ARGUMENT
    asked(session, 3)


def test_an_answer_that_does_not_parse_is_an_error_of_that_call() -> None:
    session = plugin()
    stream = session.call("s", "m", b"", 1)
    frame = encode_frame(stream, RESPONSE, b"\x0a\xff")
    (answer,) = session.receive(mux_message(RUNTIME_SERVICE, frame))
    assert isinstance(answer, RpcResponse)
    assert isinstance(answer.error, StatusError)


def test_an_oversize_answer_becomes_an_error_and_the_connection_stays_open() -> None:
    session = plugin()
    asked(session, 1)
    assert session.respond(1, bytes(LONGEST_SENT + 1))
    (answer,) = runtime().receive(session.output())
    assert isinstance(answer, RpcResponse)
    assert answer.error is not None
    assert answer.error.code == Code.RESOURCE_EXHAUSTED


def test_an_oversize_request_of_an_old_runtime_is_read() -> None:
    session, peer = plugin(), runtime(LONGEST_READ)
    peer.call("s", "Synchronize", bytes(5 << 20), 1)
    (event,) = session.receive(peer.output())
    assert isinstance(event, RpcRequest)
    assert len(event.payload) == 5 << 20


def test_a_request_that_is_too_long_is_rejected_on_its_stream() -> None:
    session = plugin()
    header = (LONGEST_READ + 1).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\x01\x00"
    frame = header + bytes(4096)
    session.receive(mux_message(PLUGIN_SERVICE, frame))
    rest = LONGEST_READ + 1 - 4096
    chunk = bytes(1 << 20)
    while rest:
        take = min(rest, len(chunk))
        message = len(chunk[:take]).to_bytes(4, "big")
        session.receive((1).to_bytes(4, "big") + message + chunk[:take])
        rest -= take
    (answer,) = runtime().receive(session.output())
    assert isinstance(answer, RpcResponse)
    assert answer.error is not None
    assert answer.error.code == Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("kind", [0, RESPONSE, 3, 77])
def test_other_message_types_are_ignored(kind: int) -> None:
    session = plugin()
    assert session.receive(mux_message(PLUGIN_SERVICE, encode_frame(1, kind, b"?"))) == []
    assert session.receive(mux_message(RUNTIME_SERVICE, encode_frame(1, REQUEST, b"?"))) == []
    assert session.output() == b""


def test_frames_for_connections_that_were_not_opened_are_discarded() -> None:
    session = plugin()
    assert session.receive(mux_message(9, encode_frame(1, REQUEST, b"?"))) == []
    asked(session, 1)


def test_timeouts_of_zero_are_none_and_of_less_are_over() -> None:
    session = plugin()
    for stream, nanoseconds, expected in [(1, 0, None), (3, -5, -5e-9), (5, 2 * 10**9, 2.0)]:
        request = ttrpc_pb2.Request(timeout_nano=nanoseconds).SerializeToString()
        frame = encode_frame(stream, REQUEST, request)
        (event,) = session.receive(mux_message(PLUGIN_SERVICE, frame))
        assert isinstance(event, RpcRequest)
        assert event.timeout == expected


def test_unknown_metadata_and_fields_are_ignored() -> None:
    request = ttrpc_pb2.Request(service="s", method="m", metadata=[{"key": "traceparent"}])
    frame = encode_frame(1, REQUEST, request.SerializeToString() + b"\xfa\x3f\x01x")
    (event,) = plugin().receive(mux_message(PLUGIN_SERVICE, frame))
    assert isinstance(event, RpcRequest)
    assert event.method == "m"


def test_an_end_inside_a_message_is_noticed() -> None:
    session = runtime()
    session.receive(REGISTER[:-1])
    assert session.midway
    session.receive(REGISTER[-1:])
    assert not session.midway


def test_streams_run_out_with_an_error_not_a_wrap() -> None:
    session = plugin()
    session._next = 2**32 + 1
    with pytest.raises(ConnectionError, match="reconnect"):
        session.call("s", "m", b"", 1)


def test_an_error_text_may_be_anything() -> None:
    session = plugin()
    asked(session, 1)
    session.fail(1, Code.INTERNAL, "file \udcff " + "x" * 100_000)
    (answer,) = runtime().receive(session.output())
    assert isinstance(answer, RpcResponse)
    assert answer.error is not None
    assert answer.error.message.startswith("file ? xxx")
