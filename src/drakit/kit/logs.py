"""Structured logs: text for people, JSON for machines, with the claim and pod on every line.

Whoever works on a claim or a pod says so once, with :func:`about`; every line logged below it, in
whatever module, then carries the identity. Lines go to standard error.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import IO, Final, Literal

import msgspec

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_CONTROL: Final = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028\u2029]")
_subject: Final[contextvars.ContextVar[Mapping[str, str]]] = contextvars.ContextVar(
    "drakit_log_subject", default=MappingProxyType({})
)


@contextlib.contextmanager
def about(**identity: str) -> Iterator[None]:
    """Every line logged inside carries *identity*, e.g. ``claim="ns/name"``, ``uid=…``."""
    token = _subject.set({**_subject.get(), **{k: v for k, v in identity.items() if v}})
    try:
        yield
    finally:
        _subject.reset(token)


def _when(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _one_line(text: str) -> str:
    """Keep a line a line: what comes from outside must not forge further ones, nor color a terminal."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class TextFormatter(logging.Formatter):
    """``2026-11-16T02:30:50.123Z INFO kit.ledger message claim=ns/name``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback, if any, follows indented."""
        subject = "".join(f" {key}={_one_line(value)}" for key, value in _subject.get().items())
        name = record.name.removeprefix("drakit.")
        line = (
            f"{_when(record)} {record.levelname} {name} {_one_line(record.getMessage())}{subject}"
        )
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "\n" + "\n".join("    " + row for row in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message`` and the identity."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message contains."""
        body: dict[str, str] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_subject.get(),
        }
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(body).decode()


def configure(form: LogFormat, level: LogLevel, stream: IO[str] | None = None) -> None:
    """Send all logs to *stream* (standard error) in the given form, from *level* up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # h2 logs every frame at debug level; it tells about HTTP/2, not about us.
    logging.getLogger("hpack").setLevel(logging.WARNING)
