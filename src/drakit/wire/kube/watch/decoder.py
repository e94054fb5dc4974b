"""The watch stream, sans I/O: bytes in, events out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from drakit.wire.kube import decoding
from drakit.wire.kube.errors import Failure, ProtocolError, api_error, failure_from_status
from drakit.wire.kube.resources import Object, Resource

T = TypeVar("T")


class EventKind(Enum):
    """What happened to the object of an event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event; a bookmark's object carries nothing but a resource version."""

    kind: EventKind
    object: Object[T]


class LineSplitter:
    """Cuts a byte stream into lines, however the stream was cut before."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that *data* completes; empty ones are left out.

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
    """Read one line of a watch.

    An ``ERROR`` event is raised as the error its ``Status`` stands for (``GoneError`` for 410); anything
    that is no event raises :class:`ProtocolError`.
    """
    try:
        document: Any = decoding.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"watch of {target}: an event is no JSON: {error}") from error
    kind, body = (
        (document.get("type"), document.get("object"))
        if isinstance(document, dict)
        else (None, None)
    )
    if kind == "ERROR":
        failure: Failure = failure_from_status(body, verb="watch", target=target, code=200)
        raise api_error(failure)
    if not (isinstance(body, dict) and isinstance(kind, str) and kind in EventKind.__members__):
        raise ProtocolError(
            f"watch of {target}: neither ADDED, MODIFIED, DELETED, BOOKMARK nor ERROR"
        )
    return WatchEvent(EventKind(kind), Object(resource, body))
