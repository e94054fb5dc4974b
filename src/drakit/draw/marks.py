"""Marks on CPUs: who holds them, in a letter and a color."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TERMINAL_HUES: Final = (39, 208, 77, 213, 220, 45, 203, 141, 114, 180)
"""Background colors (of the 256) that black digits are readable on."""

SVG_HUES: Final = (
    "#38bdf8", "#fb923c", "#4ade80", "#f472b6", "#facc15",
    "#22d3ee", "#f87171", "#a78bfa", "#a3e635", "#d6a77a",
)  # fmt: skip
"""The same order of colors for the SVG."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One holder of CPUs: shown as *symbol* beside the number and by its color, and in the legend.

    ``hue`` counts through the colors and may be any number; equal numbers look alike.
    """

    symbol: str
    name: str
    hue: int

    @property
    def terminal_style(self) -> str:
        """SGR code: black on this mark's color."""
        return f"30;48;5;{TERMINAL_HUES[self.hue % len(TERMINAL_HUES)]}"

    @property
    def fill(self) -> str:
        """The color as CSS."""
        return SVG_HUES[self.hue % len(SVG_HUES)]
