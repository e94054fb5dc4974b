"""SVG of a machine: self-contained, without scripts, style sheets or references.

The boxes are those of the terminal drawing, at the width whose picture is nearest to the shape of a
slide. Presentation attributes are used because slide programs often ignore style sheets. The font is any
sans serif of the viewer, so there is room for the widest usual one (DejaVu Sans); see :data:`WIDTHS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, NamedTuple

from drakit.draw.folding import fold
from drakit.draw.layout import SEPARATOR, Drawing, Placed, Sizes, arrange, join_parts, wrap
from drakit.draw.machine_map import remarks
from drakit.draw.machine_tree import KIND_NAMES, Box, BoxLevel, Core, machine_boxes
from drakit.draw.machine_words import distances, summary, system
from drakit.draw.marks import Mark
from drakit.machine.model import CoreType, Cpu, Machine

LARGEST_DRAWN: Final = 2048
"""Machines with more CPUs are drawn folded: lists of CPUs instead of cells."""

FONTS: Final = "Inter, 'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
WIDTHS: Final = {"heading": 12, "title": 9, "text": 8, "number": 8}
"""Pixels reserved for one character of each class of text."""
_FONT: Final = {
    "heading": 'font-size="18" font-weight="700" fill="#0f172a"',
    "title": 'font-size="13" font-weight="700" fill="#1e293b"',
    "text": 'font-size="12" fill="#475569"',
    "number": 'font-size="12" fill="#0f172a" text-anchor="middle"',
}

CORE_FILLS: Final = {
    CoreType.PERFORMANCE: "#6366f1",
    CoreType.EFFICIENCY: "#14a38b",
    CoreType.STANDARD: "#4f86c6",
}
OFFLINE_FILL: Final = "#cbd5e1"
_BOX_STYLE: Final = {
    BoxLevel.SOCKET: 'fill="#f1f5f9" stroke="#94a3b8" stroke-width="1.5" rx="12"',
    BoxLevel.NUMA: 'fill="#ffffff" stroke="#a5b4cb" rx="10"',
    BoxLevel.DIE: 'fill="#f8fafc" stroke="#94a3b8" stroke-dasharray="5 4" rx="10"',
    BoxLevel.CACHE: 'fill="#fff8ee" stroke="#f0b878" rx="8"',
    BoxLevel.UNPLACED: 'fill="#f8fafc" stroke="#94a3b8" stroke-dasharray="3 3" rx="8"',
    BoxLevel.KIND: 'fill="#0f172a" fill-opacity="0.04" rx="6"',
    BoxLevel.CLUSTER: 'fill="#0f172a" fill-opacity="0.04" rx="6"',
}

_MARGIN: Final = 28
_PILL_HEIGHT: Final = 22
_PILL_GAP: Final = 3
_CELL_PAD: Final = 4
_LINE: Final = 18
_HEADING_LINE: Final = 26
_SLIDE: Final = 1.6
_LEAST_WIDTH: Final = 640
_MOST_DISTANCES: Final = 16


def draw_svg(machine: Machine, marks: Mapping[int, Mark] | None = None) -> str:
    """Return the text of an SVG file that shows *machine* with *marks* on its CPUs."""
    pills = _Pills.of(machine, marks or {})
    table = _table(machine)
    drawing = _best_shape(_boxes(machine, marks or {}), pills, 160 + 24 * len(table))
    page = _Page(drawing.width)
    page.heading(summary(machine), system(machine))
    top = page.bottom
    for placed in drawing.walk():
        _paint_box(page, placed, top)
        for cell in placed.cells:
            _paint_core(page, pills, cell.core, _MARGIN + cell.x, top + cell.y)
    page.bottom = top + drawing.height
    page.legend(_legend(machine, marks or {}))
    page.table(table)
    return page.text(SEPARATOR.join(summary(machine)))


def _boxes(machine: Machine, marks: Mapping[int, Mark]) -> Sequence[Box]:
    boxes = machine_boxes(machine)
    if len(machine.cpus) <= LARGEST_DRAWN:
        return boxes
    return [fold(box, lambda cpus: remarks(machine, marks, cpus)) for box in boxes]


def _best_shape(boxes: Sequence[Box], pills: _Pills, around: int) -> Drawing:
    """Return the drawing that, with *around* more pixels of height, is nearest to a slide's shape.

    Of equally good ones the smaller wins, because its text is larger on the slide.
    """
    widths = [int(_LEAST_WIDTH * 1.13**step) for step in range(24)]

    def deviation(width: int, height: int) -> float:
        whole = height + around
        return abs(math.log(width / whole / _SLIDE)) + 0.3 * math.log(width * whole)

    return arrange(boxes, widths, pills.sizes(), deviation, _LEAST_WIDTH)


@dataclass(frozen=True, slots=True)
class _Pills:
    """CPUs of a core within its cell: numbers in rows."""

    width: int
    marks: Mapping[int, Mark]

    @classmethod
    def of(cls, machine: Machine, marks: Mapping[int, Mark]) -> _Pills:
        symbols = max((len(mark.symbol) for mark in marks.values()), default=0)
        digits = len(str(machine.cpus[-1].id)) if machine.cpus else 1
        return cls(WIDTHS["number"] * (digits + symbols) + 12, marks)

    @staticmethod
    def columns(threads: int) -> int:
        """How many of a core's threads stand beside each other: 2 × 2 for SMT4, 4 × 2 for SMT8."""
        return next(n for most, n in ((1, 1), (4, 2), (16, 4), (math.inf, 8)) if threads <= most)

    def cell(self, threads: int) -> tuple[int, int]:
        """Return the width and height of a core with this many threads."""
        columns = self.columns(threads)
        width = _span(columns, self.width) + 2 * _CELL_PAD
        return width, _span(-(-threads // columns), _PILL_HEIGHT) + 2 * _CELL_PAD

    def largest_cell(self, box: Box) -> tuple[int, int]:
        sizes = [self.cell(threads) for threads in {len(core.cpus) for core in box.cores}]
        return max((w for w, _h in sizes), default=1), max((h for _w, h in sizes), default=1)

    def sizes(self) -> Sizes:
        return Sizes(
            char=WIDTHS["text"], line=_LINE, title_char=WIDTHS["title"], title_height=36,
            title_margin=28, pad=14, bottom=14, gap_x=14, gap_y=14, light_title=30, light_gap_x=12,
            light_gap_y=10, light_pad=8, section=8, cell=self.largest_cell, cell_gap_x=7,
            cell_gap_y=7, least_chars=20, even_percent=50,
        )  # fmt: skip


def _span(count: int, size: int) -> int:
    return count * size + (count - 1) * _PILL_GAP


def _paint_core(page: _Page, pills: _Pills, core: Core, x: int, y: int) -> None:
    columns = pills.columns(len(core.cpus))
    width, height = pills.cell(len(core.cpus))
    online = any(cpu.online for cpu in core.cpus)
    fill = CORE_FILLS[core.kind] if online else OFFLINE_FILL
    page.add(f"<g><title>{escape(_tooltip(core), quote=False)}</title>")
    page.rect("core", _Area(x, y, width, height), f'fill="{fill}" rx="6"')
    for index, cpu in enumerate(core.cpus):
        row, column = divmod(index, columns)
        at_x = x + _CELL_PAD + column * (pills.width + _PILL_GAP)
        at_y = y + _CELL_PAD + row * (_PILL_HEIGHT + _PILL_GAP)
        _paint_cpu(page, pills, cpu, at_x, at_y)
    page.add("</g>")


def _paint_cpu(page: _Page, pills: _Pills, cpu: Cpu, x: int, y: int) -> None:
    mark = pills.marks.get(cpu.id)
    page.rect("cpu", _Area(x, y, pills.width, _PILL_HEIGHT), _cpu_style(cpu, mark))
    extra = "" if cpu.online else ' fill-opacity="0.55" text-decoration="line-through"'
    page.words("number", x + pills.width // 2, y + 16, f"{cpu.id}{mark.symbol if mark else ''}", extra)


def _cpu_style(cpu: Cpu, mark: Mark | None) -> str:
    if not cpu.online:
        return 'fill="#f1f5f9" stroke="#64748b" stroke-dasharray="3 2" rx="4"'
    fill = mark.fill if mark else "#fde68a" if cpu.isolated else "#ffffff"
    edge = ' stroke="#b45309" stroke-width="1.5"' if cpu.isolated else ""
    return f'fill="{fill}"{edge} rx="4"'


def _tooltip(core: Core) -> str:
    cpu = core.cpus[0]
    facts = [
        ("core", cpu.core),
        ("socket", cpu.socket),
        ("NUMA node", cpu.numa_node),
        ("last-level cache", cpu.llc),
    ]
    known = [f"{name} {value}" for name, value in facts if value is not None]
    numbers = ", ".join(str(cpu.id) for cpu in core.cpus)
    return SEPARATOR.join([f"CPU {numbers}", *known, str(cpu.core_type)])


def _paint_box(page: _Page, placed: Placed, top: int) -> None:
    level = placed.box.level
    x, y = _MARGIN + placed.x, top + placed.y
    page.rect("box", _Area(x, y, placed.width, placed.height), _BOX_STYLE[level])
    if placed.title:
        inset, baseline = (14, 23) if level.framed else (8, 18)
        page.words("title", x + inset, y + baseline, placed.title)
    for line in placed.lines:
        text = line.text.lstrip()
        indent = (len(line.text) - len(text)) * WIDTHS["text"]
        page.words("text", _MARGIN + line.x + indent, top + line.y + 13, text)


def _table(machine: Machine) -> Sequence[Sequence[str]]:
    """Return the NUMA distances, unless there are too many for a slide."""
    table = distances(machine)
    return table if len(table) <= _MOST_DISTANCES + 1 else ()


def _legend(machine: Machine, marks: Mapping[int, Mark]) -> list[tuple[str, str]]:
    """Return the swatches of the legend with their meaning: only those that occur."""
    kinds = [kind for kind in CoreType if any(c.core_type is kind for c in machine.cpus)]
    names = {kind: KIND_NAMES[kind].removesuffix("s") for kind in kinds}
    if len(kinds) == 1:
        names[kinds[0]] = "core" if kinds[0] is CoreType.STANDARD else names[kinds[0]]
    items = [(f'fill="{CORE_FILLS[kind]}" rx="4"', names[kind]) for kind in kinds]
    if kinds:
        items.append(('fill="#ffffff" stroke="#94a3b8" rx="4"', "CPU (hardware thread)"))
    isolated = [cpu for cpu in machine.cpus if cpu.isolated and cpu.online]
    offline = [cpu for cpu in machine.cpus if not cpu.online]
    items += [(_cpu_style(cpu, None), "isolated CPU") for cpu in isolated[:1]]
    items += [(_cpu_style(cpu, None), "offline CPU") for cpu in offline[:1]]
    held = {marks[cpu.id]: None for cpu in machine.cpus if cpu.id in marks}
    return items + [(f'fill="{mark.fill}" rx="4"', f"{mark.symbol} {mark.name}") for mark in held]


class _Area(NamedTuple):
    x: int
    y: int
    width: int
    height: int


class _Page:
    """SVG elements from top to bottom, and the lower edge of the last one."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.bottom = _MARGIN
        self._elements: list[str] = []

    def add(self, element: str) -> None:
        self._elements.append(element)

    def rect(self, kind: str, area: _Area, style: str) -> None:
        x, y, width, height = area
        self.add(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" {style}/>')

    def words(self, kind: str, x: int, y: int, text: str, extra: str = "") -> None:
        style = f'class="{kind}" x="{x}" y="{y}" {_FONT[kind]}{extra}'
        self.add(f"<text {style}>{escape(text, quote=False)}</text>")

    def heading(self, first: Sequence[str], second: Sequence[str]) -> None:
        for kind, parts, step in (("heading", first, _HEADING_LINE), ("text", second, _LINE)):
            for line in join_parts(parts, self.width // WIDTHS[kind]):
                self.words(kind, _MARGIN, self.bottom + step * 2 // 3, line)
                self.bottom += step
        self.bottom += 14

    def legend(self, items: Sequence[tuple[str, str]]) -> None:
        x, step = 0, 26
        self.bottom += 22
        for style, name in items:
            lines = wrap(name, (self.width - 26) // WIDTHS["text"])
            needed = 26 + max(map(len, lines)) * WIDTHS["text"]
            if x and x + needed > self.width:
                x, self.bottom = 0, self.bottom + step
            self.rect("swatch", _Area(_MARGIN + x, self.bottom, 18, 18), style)
            for index, line in enumerate(lines):
                self.bottom += _LINE if index else 0
                self.words("text", _MARGIN + x + 26, self.bottom + 13, line)
            x += needed + 22
        self.bottom += step if items else 0

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Add the NUMA distances, darker for longer ones."""
        if not rows:
            return
        values = [int(cell) for row in rows[1:] for cell in row[1:] if cell.isdigit()]
        nearest, farthest = min(values, default=0), max(values, default=0)
        self.bottom += 10
        self.words("title", _MARGIN, self.bottom + 13, "NUMA distances")
        self.bottom += 24
        cell = 8 + WIDTHS["number"] * max(4, *(len(text) for row in rows for text in row))
        for index, row in enumerate(rows):
            for column, text in enumerate(row):
                x, y = _MARGIN + column * (cell + 2), self.bottom
                if index and column:
                    share = _share(text, nearest, farthest)
                    style = f'fill="#4f86c6" fill-opacity="{share}" rx="3"'
                    self.rect("distance", _Area(x, y, cell, 22), style)
                self.words("number", x + cell // 2, y + 16, text)
            self.bottom += 24
        self.width = max(self.width, len(rows[0]) * (cell + 2))

    def text(self, description: str) -> str:
        width, height = self.width + 2 * _MARGIN, self.bottom + _MARGIN
        size = f'width="{width}" height="{height}"'
        name = 'xmlns="http://www.w3.org/2000/svg"'
        return "\n".join(
            [
                f'<svg {name} {size} viewBox="0 0 {width} {height}" role="img" font-family="{FONTS}">',
                f"<title>{escape(description, quote=False)}</title>",
                f'<rect class="page" {size} fill="#ffffff"/>',
                *self._elements,
                "</svg>\n",
            ]
        )


def _share(text: str, nearest: int, farthest: int) -> str:
    if not text.isdigit() or farthest == nearest:
        return "0.08"
    return f"{0.08 + 0.5 * (int(text) - nearest) / (farthest - nearest):.2f}"
