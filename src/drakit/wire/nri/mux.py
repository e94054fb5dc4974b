"""NRI multiplexer: several logical byte streams over one socket.

A mux frame is an eight-byte header (connection, payload length; big-endian) and the payload.
Opening a connection sends nothing; there are two, one for each direction of calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from drakit.wire.nri.frames import HEADER as TTRPC_HEADER
from drakit.wire.nri.frames import LONGEST_READ

PLUGIN_SERVICE: Final = 1
"""The runtime calls the plugin here."""

RUNTIME_SERVICE: Final = 2
"""The plugin calls the runtime here."""

HEADER: Final = struct.Struct(">II")

FIRST_FRAME: Final = 4096
"""The Go side reads a connection through a buffer of this size, and a mux frame longer than the
buffer makes that read fail and disconnects the plugin. After the ttrpc header it reads the rest with a
buffer of the right size, so the length of the second frame is not limited."""

_LONGEST_FRAME: Final = LONGEST_READ + TTRPC_HEADER.size


class MuxError(ValueError):
    """The byte stream is not multiplexed NRI. Close the socket."""


def mux_message(connection: int, message: bytes) -> bytes:
    """One ttrpc message as mux frames: the first short enough for a Go peer, then the rest."""
    first, rest = message[:FIRST_FRAME], message[FIRST_FRAME:]
    frames = HEADER.pack(connection, len(first)) + first
    if rest:
        frames += HEADER.pack(connection, len(rest)) + rest
    return frames


class MuxDecoder:
    """Splits the socket's bytes into chunks of the logical connections.

    Payload is passed on as it arrives: a connection is a byte stream, in which frame boundaries have no
    meaning.
    """

    __slots__ = ("_connection", "_header", "_missing")

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._missing = 0

    @property
    def pending(self) -> bool:
        """Whether the stream so far ends inside a mux frame."""
        return bool(self._header)

    def feed(self, chunk: bytes) -> Iterator[tuple[int, memoryview]]:
        """Take the next bytes; yields (connection, piece). Raises :class:`MuxError`."""
        view, at = memoryview(chunk), 0
        while at < len(view):
            if len(self._header) < HEADER.size:
                take = min(HEADER.size - len(self._header), len(view) - at)
                self._header += view[at : at + take]
                at += take
                if len(self._header) < HEADER.size:
                    return
                self._connection, self._missing = HEADER.unpack(self._header)
                if self._missing > _LONGEST_FRAME:
                    raise MuxError(
                        f"mux frame of {self._missing} bytes on connection {self._connection}; "
                        f"more than {_LONGEST_FRAME} cannot be NRI"
                    )
            take = min(self._missing, len(view) - at)
            if take:
                yield self._connection, view[at : at + take]
            self._missing -= take
            at += take
            if not self._missing:
                self._header.clear()
