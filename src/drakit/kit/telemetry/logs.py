"""Log output as text or JSON, one line per record, with claim and pod as context fields.

:func:`about` adds fields such as the claim to every record logged inside it, in any module.
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
from typing import IO, Final

import msgspec

from drakit.core.log import LogFormat, LogLevel, Message, format_fields

_CONTROL: Final = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028\u2029]")
_subject: Final[contextvars.ContextVar[Mapping[str, str]]] = contextvars.ContextVar(
    "drakit_log_subject", default=MappingProxyType({})
)


@contextlib.contextmanager
def about(**identity: str) -> Iterator[None]:
    """Add *identity* (``claim="ns/name"``, ``uid=…``) to every record logged inside."""
    token = _subject.set({**_subject.get(), **{k: v for k, v in identity.items() if v}})
    try:
        yield
    finally:
        _subject.reset(token)


def _when(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _one_line(text: str) -> str:
    """Escape control characters, so that logged input cannot forge lines or terminal colors."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _parts(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """The constant message of a record, and its fields with the identity of :func:`about`."""
    if isinstance(record.msg, Message):
        return record.msg.text, {**record.msg.fields, **_subject.get()}
    return record.getMessage(), dict(_subject.get())


class TextFormatter(logging.Formatter):
    """``2026-11-16T02:30:50.123Z INFO kit.claims.preparer claim prepared claim=ns/name``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback, if any, follows indented."""
        message, fields = _parts(record)
        name = record.name.removeprefix("drakit.")
        line = f"{_when(record)} {record.levelname} {name} {_one_line(message)}{format_fields(fields)}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "\n" + "\n".join("    " + row for row in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message`` and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; fields never replace the four fixed keys."""
        message, fields = _parts(record)
        body: dict[str, object] = {
            **{key: _plain(value) for key, value in fields.items()},
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(body).decode()


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)


def configure(form: LogFormat, level: LogLevel, stream: IO[str] | None = None) -> None:
    """Send all logs of *level* and above to *stream* (default: standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # hpack logs every HTTP/2 header at debug level.
    logging.getLogger("hpack").setLevel(logging.WARNING)
