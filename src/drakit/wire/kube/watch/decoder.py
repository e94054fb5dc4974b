"""Decoder of watch streams (no I/O): bytes in, events out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from drakit.wire.kube import decoding
from drakit.wire.kube.errors import ProtocolError, api_error, failure_from_status
from drakit.wire.kube.resources import Object, Resource

T = TypeVar("T")


class EventKind(Enum):
    """Type of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """A watch event; the object of a bookmark has only a resource version."""

    kind: EventKind
    object: Object[T]


class LineSplitter:
    """Splits a byte stream into lines."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The non-empty lines that *data* completes.

        Raises :class:`ProtocolError` when a line exceeds the limit.
        """
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._grow(line)
            whole = b"".join(self._parts)
            self._parts, self._size = [], 0
            if whole.strip():
                yield whole
        self._grow(rest)

    def _grow(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        if self._size > self._limit:
            raise ProtocolError(f"a watch event is larger than {self._limit} bytes")
        self._parts.append(part)


def parse_event(line: bytes, resource: Resource[T], target: str) -> WatchEvent[T]:
    """Decode one line of a watch.

    An ``ERROR`` event is raised as the error of its ``Status`` (``GoneError`` for 410); an invalid event
    raises :class:`ProtocolError`.
    """
    try:
        document: Any = decoding.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"watch of {target}: an event is not valid JSON: {error}") from error
    document = document if isinstance(document, dict) else {}
    kind, body = document.get("type"), document.get("object")
    if kind == "ERROR":
        raise api_error(failure_from_status(body, verb="watch", target=target, code=200))
    if not (isinstance(body, dict) and isinstance(kind, str) and kind in EventKind.__members__):
        raise ProtocolError(f"watch of {target}: neither ADDED, MODIFIED, DELETED, BOOKMARK nor ERROR")
    return WatchEvent(EventKind(kind), Object(resource, body))
