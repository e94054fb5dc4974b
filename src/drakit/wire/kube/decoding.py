"""JSON decoding that tolerates objects nested too deeply.

Anyone who may create a ResourceClaim can nest opaque parameters thousands of levels deep; a decoder
that fails on such an object fails on the whole list. Values below :data:`DEEPEST` levels are
therefore cut out: the metadata stays readable, and :func:`is_cut` marks the object as unusable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

DEEPEST: Final = 200
"""Levels that are kept; no API type that we read has more than 20."""
_CUT: Final = "\u0000cut: nested too deep"
_CUT_JSON: Final = msgspec.json.encode(_CUT)
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def decode(data: bytes) -> Any:
    """Decode *data*; objects that are nested too deeply are marked as cut.

    Raises ``msgspec.DecodeError`` or ``UnicodeDecodeError`` for invalid JSON.
    """
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        document = msgspec.json.decode(b"".join(_shallow(data)))
    for each in _objects(document):
        if _is_cut(each):
            each[_CUT] = True
    return document


def is_cut(document: dict[str, Any]) -> bool:
    """Whether :func:`decode` cut something out of this object."""
    return _CUT in document


def _objects(document: Any) -> Iterator[dict[str, Any]]:
    """The API objects in a response: itself, the items of a list, the object of an event."""
    if isinstance(document, dict):
        items = document.get("items")
        for each in (document, document.get("object"), *(items if isinstance(items, list) else ())):
            if isinstance(each, dict):
                yield each


def _is_cut(document: Any) -> bool:
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif value == _CUT:
            return True
    return False


def _shallow(data: bytes) -> Iterator[bytes]:
    """The pieces of *data* with a mark in place of each value below the deepest level kept."""
    depth, kept = 0, 0
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                yield data[kept : token.start()]
                yield _CUT_JSON
        elif first in b"]}":
            if depth == DEEPEST + 1:
                kept = token.end()
            depth -= 1
    if depth <= DEEPEST:
        yield data[kept:]
