"""ttrpc over the multiplexer, both directions, as a state machine over bytes.

A :class:`Session` is one end of the socket. Received bytes become :class:`RpcRequest` and
:class:`RpcResponse` values; calls and answers become bytes to send. It does no I/O, reads no clock, and
serves the plugin and the fake runtime.
"""

from __future__ import annotations

import contextlib
from enum import IntEnum
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from drakit.wire.nri import field_scan, ttrpc_pb2
from drakit.wire.nri.frames import (
    LONGEST_SENT,
    REQUEST,
    RESPONSE,
    Frame,
    FrameDecoder,
    MessageTooLongError,
    encode_frame,
)
from drakit.wire.nri.mux import MuxDecoder, mux_message

_HIGHEST_STREAM: Final = 0xFFFFFFFF
_LONGEST_STATUS: Final = 64 << 10
_LONGEST_COPIED: Final = 1 << 20
"""Longer requests are scanned, not parsed as a whole."""


class Code(IntEnum):
    """The gRPC status codes in use."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class StatusError(Exception):
    """A call that was answered with an error status; raised by a server to answer with one."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RpcRequest(NamedTuple):
    """A call from the peer. It must be answered exactly once.

    *timeout* is the caller's remaining time in seconds when it was sent: None if it set no timeout, zero or
    less if it has given up already. A long *payload* is a view of the received bytes.
    """

    stream: int
    service: str
    method: str
    payload: bytes | memoryview
    timeout: float | None


class RpcResponse(NamedTuple):
    """The peer's answer to our call on *stream*: a payload, or an error."""

    stream: int
    payload: bytes
    error: StatusError | None


def request_envelope(data: bytes | bytearray) -> tuple[str, str, bytes | memoryview, int]:
    """Service, method, payload and timeout in nanoseconds of a ttrpc request.

    A long payload is not copied. Raises ``DecodeError``.
    """
    if len(data) > _LONGEST_COPIED:
        with contextlib.suppress(field_scan.UnusualError, UnicodeDecodeError, DecodeError):
            return _scan_envelope(memoryview(data))
    envelope = ttrpc_pb2.Request()
    envelope.ParseFromString(data)  # type: ignore[arg-type]
    return envelope.service, envelope.method, envelope.payload, envelope.timeout_nano


def _scan_envelope(data: memoryview) -> tuple[str, str, memoryview, int]:
    service, method, payload, timeout = "", "", data[:0], 0
    for number, wire, value, content in field_scan.fields(data):
        match number, wire:
            case 1, field_scan.DELIMITED:
                service = str(content, "utf-8")
            case 2, field_scan.DELIMITED:
                method = str(content, "utf-8")
            case 3, field_scan.DELIMITED:
                payload = content
            case 4, field_scan.VARINT:
                timeout = field_scan.signed(value)
            case 5, field_scan.DELIMITED:
                ttrpc_pb2.KeyValue.FromString(bytes(content))  # checked, not used
            case _:
                if number <= 5:
                    raise field_scan.UnusualError(f"field {number} has wire type {wire}")
    return service, method, payload, timeout


class Session:
    """One end of an NRI socket, without the socket.

    *serve* is the logical connection on which the peer calls us, *call* the one on which we call.
    After every method that may produce bytes, :meth:`output` hands them over in the order in
    which they must be written.
    """

    def __init__(self, *, serve: int, call: int, longest_sent: int = LONGEST_SENT) -> None:
        self._serve = serve
        self._call = call
        self._longest_sent = longest_sent
        self._mux = MuxDecoder()
        self._decoders = {serve: FrameDecoder(), call: FrameDecoder()}
        self._output: list[bytes] = []
        self._open: set[int] = set()
        self._latest = 0
        self._next = 1

    def receive(self, data: bytes) -> list[RpcRequest | RpcResponse]:
        """Take bytes from the socket; returns the messages they complete.

        Requests that violate the protocol are answered here and not returned. Raises
        :class:`~drakit.wire.nri.mux.MuxError` when the stream cannot be decoded any more.
        """
        events: list[RpcRequest | RpcResponse] = []
        for connection, piece in self._mux.feed(data):
            decoder = self._decoders.get(connection)
            if decoder is None:  # never opened: discarded, as the Go side does
                continue
            for frame in decoder.feed(piece):
                event = self._request(frame) if connection == self._serve else self._response(frame)
                if event is not None:
                    events.append(event)
        return events

    @property
    def midway(self) -> bool:
        """Whether an end of file here would truncate a message."""
        return self._mux.pending or any(each.pending for each in self._decoders.values())

    def _request(self, frame: Frame) -> RpcRequest | None:
        if frame.kind != REQUEST:  # unary only; unknown types are reserved
            return None
        if frame.stream % 2 == 0 or frame.stream <= self._latest:
            self._reject(
                frame.stream,
                Code.INVALID_ARGUMENT,
                f"stream {frame.stream} is even or not above {self._latest}",
            )
            return None
        self._latest = frame.stream
        if frame.data is None:
            self._reject(frame.stream, Code.RESOURCE_EXHAUSTED, "request is too long")
            return None
        try:
            service, method, payload, nanoseconds = request_envelope(frame.data)
        except DecodeError as error:
            self._reject(frame.stream, Code.INVALID_ARGUMENT, f"request does not parse: {error}")
            return None
        self._open.add(frame.stream)
        timeout = nanoseconds / 1e9 if nanoseconds else None
        return RpcRequest(frame.stream, service, method, payload, timeout)

    def _response(self, frame: Frame) -> RpcResponse | None:
        if frame.kind != RESPONSE:
            return None
        if frame.data is None:
            error = StatusError(Code.RESOURCE_EXHAUSTED, "the answer is too long to be read")
            return RpcResponse(frame.stream, b"", error)
        envelope = ttrpc_pb2.Response()
        try:
            envelope.ParseFromString(frame.data)  # type: ignore[arg-type]
        except DecodeError as error:
            failure = StatusError(Code.INTERNAL, f"the answer does not parse: {error}")
            return RpcResponse(frame.stream, b"", failure)
        status = envelope.status
        if status.code:
            return RpcResponse(frame.stream, b"", StatusError(status.code, status.message))
        return RpcResponse(frame.stream, envelope.payload, None)

    def output(self) -> bytes:
        """The bytes to write now; empty if there are none."""
        data = b"".join(self._output)
        self._output.clear()
        return data

    def call(self, service: str, method: str, payload: bytes, timeout: float) -> int:
        """Queue a call that may take *timeout* seconds; returns its stream.

        Raises :class:`~drakit.wire.nri.frames.MessageTooLongError`, and ``ConnectionError`` when the
        connection has used up its streams.
        """
        if self._next > _HIGHEST_STREAM:
            raise ConnectionError("all streams of this connection are used; reconnect")
        envelope = ttrpc_pb2.Request(
            service=service, method=method, payload=payload, timeout_nano=int(timeout * 1e9)
        )
        stream = self._next
        data = envelope.SerializeToString()
        frame = encode_frame(stream, REQUEST, data, self._longest_sent)
        self._next += 2
        self._output.append(mux_message(self._call, frame))
        return stream

    def respond(self, stream: int, payload: bytes) -> bool:
        """Queue the answer to *stream*; False if it was answered before; then nothing is sent.

        An answer longer than the peer accepts becomes an error status: the peer would close the connection
        and run the container as if there were no plugin.
        """
        if stream not in self._open:
            return False
        envelope = ttrpc_pb2.Response(payload=payload)
        try:
            data = envelope.SerializeToString()
            frame = encode_frame(stream, RESPONSE, data, self._longest_sent)
        except MessageTooLongError as error:
            return self.fail(stream, Code.RESOURCE_EXHAUSTED, str(error))
        self._open.discard(stream)
        self._output.append(mux_message(self._serve, frame))
        return True

    def fail(self, stream: int, code: int, message: str) -> bool:
        """Queue an error status for *stream*; False if it was answered before."""
        if stream not in self._open:
            return False
        self._open.discard(stream)
        self._reject(stream, code, message)
        return True

    def _reject(self, stream: int, code: int, message: str) -> None:
        if len(message) > _LONGEST_STATUS:
            message = message[:_LONGEST_STATUS] + "…"
        message = message.encode("utf-8", "replace").decode()  # file names in messages may not be UTF-8
        status = ttrpc_pb2.Status(code=code, message=message)
        envelope = ttrpc_pb2.Response(status=status).SerializeToString()
        self._output.append(mux_message(self._serve, encode_frame(stream, RESPONSE, envelope)))
