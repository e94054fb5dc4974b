"""Lazy scan of protobuf messages, field by field, without copying their content.

A runtime that does not split its Synchronize sends all containers of a node, with all their environment
variables, in one message of up to 64 MiB. Parsed as a whole that message would be in memory four times.
Scanned, it is there once, and only one container at a time is parsed.

Only encodings that runtimes really send are supported. Anything else raises :class:`UnusualError`, and the
caller lets the protobuf library parse the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
DELIMITED: Final = 2
FIXED32: Final = 5

_HIGHEST_FIELD: Final = (1 << 29) - 1
_LONGEST_MESSAGE: Final = (1 << 31) - 1
_LONGEST_TAG: Final = 5
"""Bytes of a tag or a length; longer ones are padded, which no runtime does."""

Field = tuple[int, int, int, memoryview]
"""Number, wire type, the value of a varint (else 0), and the bytes of the value."""


class UnusualError(ValueError):
    """The encoding is not supported here; let the protobuf library parse the message."""


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message in their order. Raises :class:`UnusualError`."""
    at, end = 0, len(message)
    while at < end:
        begin = at
        tag, at = _varint(message, at, end)
        number, wire, value = tag >> 3, tag & 7, 0
        if not 1 <= number <= _HIGHEST_FIELD or at - begin > _LONGEST_TAG:
            raise UnusualError(f"field {number} at {begin}")
        begin = at
        if wire == VARINT:
            value, at = _varint(message, at, end)
        elif wire == DELIMITED:
            length, begin = _varint(message, at, end)
            if length > _LONGEST_MESSAGE or begin - at > _LONGEST_TAG:
                raise UnusualError(f"field {number} has {length} bytes")
            at = begin + length
        elif wire in (FIXED64, FIXED32):
            at += 8 if wire == FIXED64 else 4
        else:
            raise UnusualError(f"wire type {wire} at {begin}")
        if at > end:
            raise UnusualError(f"field {number} is truncated")
        yield number, wire, value, message[begin:at]


def signed(value: int) -> int:
    """A varint as a signed number of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def _varint(message: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= end:
            raise UnusualError("a number is truncated")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise UnusualError("a number has more than 64 bits")
            return value, at
    raise UnusualError("a number has more than ten bytes")
