"""What the place we print to can show: how wide it is, whether it has colors and box characters.

Commands ask :meth:`Terminal.of` once and pass the answer down; nothing below looks at the
environment, so that every drawing is a pure function of its arguments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TextIO

NARROWEST: Final = 40
WIDEST: Final = 400
USUAL: Final = 80
"""The width when nobody says: the output is piped and ``COLUMNS`` is not set."""

RESET: Final = "\x1b[0m"
BOLD: Final = "1"
DIM: Final = "2"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Width in characters, whether color codes are wanted, whether Unicode arrives intact."""

    width: int = USUAL
    color: bool = False
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] | None = None) -> Terminal:
        """Look at *stream* and the environment (``COLUMNS``, ``NO_COLOR``, ``TERM``).

        A stream that is no terminal gets no colors, and neither does one whose user has set
        ``NO_COLOR`` to anything but the empty text (the convention of no-color.org).
        """
        env = os.environ if environ is None else environ
        is_terminal = stream.isatty()
        quiet = bool(env.get("NO_COLOR")) or env.get("TERM") == "dumb"
        return cls(_width(stream, env), is_terminal and not quiet, _takes_unicode(stream))

    def paint(self, text: str, style: str) -> str:
        """*text* in *style* where colors are wanted, else as it is."""
        return paint(text, style) if self.color else text


def paint(text: str, style: str) -> str:
    """*text* in an SGR *style* (``"1;34"``); an empty style leaves it alone."""
    return f"\x1b[{style}m{text}{RESET}" if style else text


def _width(stream: TextIO, env: Mapping[str, str]) -> int:
    said = env.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and 0 < len(said) < 6 and int(said) > 0:
        columns = int(said)
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
