"""Structured logging: a constant message plus key=value fields.

``log.info("claim prepared", claim="default/a", cpus="2-3")`` makes a record whose message is always
``claim prepared``, so operators can alert on it, and whose fields carry what varies. Any handler prints
``claim prepared claim=default/a cpus=2-3``; the formatters in :mod:`drakit.kit.telemetry.logs` write the
fields in the configured format (text or JSON).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final, Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_PLAIN: Final = re.compile(r"[^\s\"=\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_CONTROL: Final = re.compile(r"[\\\"\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Message:
    """A constant text and its fields; as a string, both on one line."""

    __slots__ = ("fields", "text")

    def __init__(self, text: str, fields: Mapping[str, object]) -> None:
        self.text = text
        self.fields = fields

    def __str__(self) -> str:
        return self.text + format_fields(self.fields)


class Logger:
    """The logger of one module; every method takes a constant message and fields."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: object) -> None:
        """Log details for developers."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        """Log a normal change of state."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Log something that may need attention but does not stop the driver from working."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, **fields: object) -> None:
        """Log a failure."""
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, **fields: object) -> None:
        """Log a failure with the traceback of the exception that is being handled."""
        self._write(logging.ERROR, message, fields, exc_info=True)

    def log(self, level: int, message: str, **fields: object) -> None:
        """Log *message* at *level*."""
        self._write(level, message, fields)

    def _write(
        self, level: int, message: str, fields: Mapping[str, object], *, exc_info: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, Message(message, fields), exc_info=exc_info, stacklevel=3)


get_logger = Logger
"""Makes the structured logger of a module from its ``__name__``."""


def format_fields(fields: Mapping[str, object]) -> str:
    """Fields as `` key=value key="two words"``; control characters are escaped, so a line stays one line."""
    return "".join(f" {key}={_quoted(str(value))}" for key, value in fields.items())


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    return '"' + _CONTROL.sub(lambda found: repr(found[0])[1:-1] if found[0] != '"' else '\\"', value) + '"'
