"""Bars of memory and hugepages: the share of every claim and the free rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from drakit.core.text import human_bytes
from drakit.draw.marks import Mark
from drakit.draw.terminal import Terminal

_WIDEST_BAR: Final = 32
_NARROWEST_BAR: Final = 8


class Bar(NamedTuple):
    """An amount in bytes and the parts of it that claims hold."""

    title: str
    total: int
    parts: Sequence[tuple[Mark, int]]


def memory_lines(bars: Sequence[Bar], terminal: Terminal) -> list[str]:
    """Draw each bar on a line with its title and amounts."""
    width = max((len(bar.title) for bar in bars), default=0)
    room = min(_WIDEST_BAR, max(_NARROWEST_BAR, terminal.width - width - 40))
    return [f"{bar.title:<{width}}  {_line(bar, room, terminal)}" for bar in bars]


def _line(bar: Bar, room: int, terminal: Terminal) -> str:
    taken = sum(amount for _, amount in bar.parts)
    words = [f"{mark.symbol} {human_bytes(amount)}" for mark, amount in bar.parts]
    words.append(f"free {human_bytes(max(0, bar.total - taken))}")
    drawn, used = "", 0
    for mark, amount in bar.parts:  # in proportion, but at least one letter while there is room
        cells = min(room - used, max(1, round(amount * room / max(bar.total, taken))))
        drawn += terminal.paint(mark.symbol * cells, mark.terminal_style)
        used += cells
    return f"[{drawn}{'.' * (room - used)}] {', '.join(words)}"
