"""Properties of the output terminal: width, colors and Unicode.

Commands call :meth:`Terminal.of` once and pass the value down; drawings do not read the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TextIO

NARROWEST: Final = 40
WIDEST: Final = 400
USUAL: Final = 80
"""Width if the output is piped and ``COLUMNS`` is not set."""

RESET: Final = "\x1b[0m"
BOLD: Final = "1"
DIM: Final = "2"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Width in characters, and whether to use colors and Unicode."""

    width: int = USUAL
    color: bool = False
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] | None = None) -> Terminal:
        """Inspect *stream* and the environment (``COLUMNS``, ``NO_COLOR``, ``TERM``).

        Colors need a terminal and an empty or unset ``NO_COLOR`` (the convention of no-color.org).
        """
        env = os.environ if environ is None else environ
        is_terminal = stream.isatty()
        quiet = bool(env.get("NO_COLOR")) or env.get("TERM") == "dumb"
        return cls(_width(stream, env), is_terminal and not quiet, _takes_unicode(stream))

    def paint(self, text: str, style: str) -> str:
        """Apply an SGR *style* to *text* if colors are used."""
        return paint(text, style) if self.color else text


def paint(text: str, style: str) -> str:
    """Apply an SGR *style* (``"1;34"``) to *text*; an empty style changes nothing."""
    return f"\x1b[{style}m{text}{RESET}" if style else text


def _width(stream: TextIO, env: Mapping[str, str]) -> int:
    given = env.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and 0 < len(given) < 6 and int(given) > 0:
        columns = int(given)
    else:
        try:
            columns = os.get_terminal_size(stream.fileno()).columns or USUAL
        except (OSError, ValueError):  # a pipe, a file, or a stream in memory
            columns = USUAL
    return max(NARROWEST, min(columns, WIDEST))


def _takes_unicode(stream: TextIO) -> bool:
    try:
        "─│╭·×".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
