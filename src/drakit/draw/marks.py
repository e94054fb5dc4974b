"""Marks on CPUs: the letter and the color of the holder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TERMINAL_HUES: Final = (39, 208, 77, 213, 220, 45, 203, 141, 114, 180)
"""Background colors (of the 256) on which black digits are readable."""

SVG_HUES: Final = (
    "#38bdf8", "#fb923c", "#4ade80", "#f472b6", "#facc15",
    "#22d3ee", "#f87171", "#a78bfa", "#a3e635", "#d6a77a",
)  # fmt: skip
"""The same colors for the SVG."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Holder of CPUs: *symbol* follows the CPU number, *name* is in the legend, *hue* is the color.

    The hue may be any number; equal numbers are the same color.
    """

    symbol: str
    name: str
    hue: int

    @property
    def terminal_style(self) -> str:
        """SGR style: black on the color of the mark."""
        return f"30;48;5;{TERMINAL_HUES[self.hue % len(TERMINAL_HUES)]}"

    @property
    def fill(self) -> str:
        """The color in CSS."""
        return SVG_HUES[self.hue % len(SVG_HUES)]
