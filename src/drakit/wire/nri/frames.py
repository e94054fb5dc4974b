"""ttrpc frames as a state machine over bytes.

A frame is a ten-byte header (data length, stream, type, flags; big-endian) and the data.
The decoder takes the byte stream in chunks of any size and stores at most one frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

REQUEST: Final = 0x01
RESPONSE: Final = 0x02

HEADER: Final = struct.Struct(">IIBB")

LONGEST_SENT: Final = 4 << 20
"""The limit of a Go peer, which closes the connection on a longer message."""

LONGEST_READ: Final = 128 << 20
"""Runtimes with ttrpc before 1.2.6 (containerd up to 1.7.25) send a longer Synchronize on big nodes; the
reference implementation fails on it, this one reads it. It is in memory once (see
:mod:`drakit.wire.nri.field_scan`), which fits in half of the chart's memory limit."""


class Frame(NamedTuple):
    """One ttrpc message. *data* is None if it was longer than the limit and skipped."""

    stream: int
    kind: int
    flags: int
    data: bytes | bytearray | None


class MessageTooLongError(ValueError):
    """A message longer than the peer accepts; it was not sent."""


def encode_frame(stream: int, kind: int, data: bytes, limit: int = LONGEST_SENT) -> bytes:
    """The bytes of one frame. Raises :class:`MessageTooLongError` beyond what peers accept."""
    if len(data) > limit:
        raise MessageTooLongError(f"message of {len(data)} bytes is longer than ttrpc allows ({limit} bytes)")
    return HEADER.pack(len(data), stream, kind, 0) + data


class FrameDecoder:
    """Splits a byte stream into frames.

    Data longer than *limit* is skipped as it arrives, never stored, and returned as a frame without data,
    so that the peer can get an error.
    """

    __slots__ = ("_data", "_header", "_limit", "_missing")

    def __init__(self, limit: int = LONGEST_READ) -> None:
        self._limit = limit
        self._header = bytearray()
        self._data: bytearray | None = bytearray()
        self._missing = 0

    @property
    def pending(self) -> bool:
        """Whether the stream so far ends inside a frame."""
        return bool(self._header)

    def feed(self, piece: bytes | memoryview) -> Iterator[Frame]:
        """Take the next bytes; yields every frame they complete. Exhaust it before the next call."""
        at = 0
        while True:
            if len(self._header) < HEADER.size:
                take = min(HEADER.size - len(self._header), len(piece) - at)
                self._header += piece[at : at + take]
                at += take
                if len(self._header) < HEADER.size:
                    return
                self._missing = HEADER.unpack(self._header)[0]
                self._data = bytearray() if self._missing <= self._limit else None
            take = min(self._missing, len(piece) - at)
            if self._data is not None:
                self._data += piece[at : at + take]
            self._missing -= take
            at += take
            if self._missing:
                return
            _, stream, kind, flags = HEADER.unpack(self._header)
            frame = Frame(stream, kind, flags, self._data)
            self._header.clear()
            self._data = bytearray()
            yield frame
