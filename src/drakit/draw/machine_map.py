"""Drawing of a machine in characters, with marks on its CPUs.

Every core is a cell with the numbers of its threads. Letters after the number show its state, so that
nothing depends on color: ``x`` offline, ``*`` isolated, and the symbol of the mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby, zip_longest
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.draw.folding import fold
from drakit.draw.layout import Drawing, Placed, Sizes, arrange
from drakit.draw.machine_tree import Box, BoxLevel, Core, machine_boxes
from drakit.draw.marks import Mark
from drakit.draw.terminal import BOLD, DIM, Terminal, paint
from drakit.machine.model import CoreType, Cpu, Machine

LARGEST_DRAWN: Final = 512
"""Machines with more CPUs are drawn folded: lists of CPUs instead of cells."""

KIND_STYLES: Final = {CoreType.PERFORMANCE: "36", CoreType.EFFICIENCY: "32", CoreType.STANDARD: ""}
OFFLINE_STYLE: Final = "2;9"
ISOLATED_STYLE: Final = "33"

_FRAMES: Final = {
    BoxLevel.SOCKET: "┏━┓┃┗┛",
    BoxLevel.NUMA: "┌─┐│└┘",
    BoxLevel.DIE: "┌─┐│└┘",
    BoxLevel.CACHE: "╭─╮│╰╯",
    BoxLevel.UNPLACED: "┌╌┐╎└┘",
}
_ASCII: Final = str.maketrans(
    {"·": "-", "×": "x", "–": "-", "…": "."}
    | dict.fromkeys("┏┓┗┛┌┐└┘╭╮╰╯", "+")
    | dict.fromkeys("━─╌", "-")
    | dict.fromkeys("┃│╎", "|")
)


def draw(
    machine: Machine,
    marks: Mapping[int, Mark] | None = None,
    terminal: Terminal = Terminal(),  # noqa: B008 - immutable
) -> str:
    """Draw *machine* for *terminal*, with *marks* by CPU number; lines end in newlines.

    Every CPU appears; above 512 CPUs (or if one core is wider than the drawing) in lists, not cells.
    """
    cells = _Cells(machine, marks or {})
    drawing = _arrange(machine, cells, terminal.width)
    canvas = _Canvas(drawing.width, drawing.height)
    for placed in drawing.walk():
        _paint_box(canvas, placed)
        for cell, segments in zip(placed.cells, cells.segments(placed.box), strict=True):
            canvas.write_all(cell.x, cell.y, segments)
    text = canvas.colored() if terminal.color else canvas.plain()
    return text if terminal.unicode else ascii_only(text)


def ascii_only(text: str) -> str:
    """Replace the characters of drawings with their nearest ASCII."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def legend(machine: Machine, marks: Mapping[int, Mark] | None = None) -> tuple[str, ...]:
    """Explain the letters that occur in the drawing."""
    letters = remarks(machine, marks or {}, CpuSet(cpu.id for cpu in machine.cpus))
    return (*letters, *([f"nohz_full: {machine.nohz_full}"] if machine.nohz_full else ()))


def remarks(machine: Machine, marks: Mapping[int, Mark], cpus: CpuSet) -> list[str]:
    """Describe the states and holders of some CPUs."""
    members = [cpu for cpu in machine.cpus if cpu.id in cpus]
    offline = CpuSet(cpu.id for cpu in members if not cpu.online)
    isolated = CpuSet(cpu.id for cpu in members if cpu.isolated)
    found = [f"x offline: {offline}"] if offline else []
    found += [f"* isolated: {isolated}"] if isolated else []
    held: dict[Mark, list[int]] = {}
    for cpu in members:
        if cpu.id in marks:
            held.setdefault(marks[cpu.id], []).append(cpu.id)
    return found + [f"{mark.symbol} {mark.name}: {CpuSet(ids)}" for mark, ids in held.items()]


def _arrange(machine: Machine, cells: _Cells, width: int) -> Drawing:
    boxes = machine_boxes(machine)
    if len(machine.cpus) > LARGEST_DRAWN or cells.widest > max(width // 2, 16):
        boxes = tuple(fold(b, lambda cpus: remarks(machine, cells.marks, cpus)) for b in boxes)
    sizes = Sizes(
        char=1, line=1, title_char=1, title_height=1, title_margin=6, pad=2, bottom=1,
        gap_x=1, gap_y=0, light_title=1, light_gap_x=3, light_gap_y=0, light_pad=0,
        section=0, cell=cells.size, cell_gap_x=1, cell_gap_y=0,
    )  # fmt: skip
    return arrange(boxes, [width], sizes)


Segment = tuple[str, str]
"""Text and its SGR style."""


class _Cells:
    """Cores as text: the numbers of their threads in columns, in brackets if there are several.

    Columns have the same width in the whole machine, so that boxes line up.
    """

    def __init__(self, machine: Machine, marks: Mapping[int, Mark]) -> None:
        self.marks = marks
        cores = (core for box in machine_boxes(machine) for part in box.walk() for core in part.cores)
        widths = [[len(text) for text, _style in self._threads(core)] for core in cores]
        self._slots = [max(column) for column in zip_longest(*widths, fillvalue=0)]
        self.widest = self._width(len(self._slots))

    def _width(self, slots: int) -> int:
        return sum(self._slots[:slots]) + max(slots - 1, 0) + (2 if slots > 1 else 0)

    def _slots_of(self, box: Box) -> int:
        return max((len(self._threads(core)) for core in box.cores), default=0)

    def size(self, box: Box) -> tuple[int, int]:
        """Return the width and height of the cores of *box*."""
        return max(self._width(self._slots_of(box)), 1), 1

    def segments(self, box: Box) -> Iterable[list[Segment]]:
        """Yield the cells of *box*, all of the same width."""
        slots = self._slots_of(box)
        for core in box.cores:
            inner: list[Segment] = []
            for index, (text, style) in enumerate(self._threads(core)):
                gap = self._slots[index] - len(text) + (1 if index else 0)
                inner += [(" " * gap, ""), (text, style)]
            missing = self._width(slots) - 2 - sum(len(text) for text, _style in inner)
            yield [("[", DIM), *inner, (" " * missing, ""), ("]", DIM)] if slots > 1 else inner

    def _threads(self, core: Core) -> list[Segment]:
        """Return each thread, or runs of equal neighbors if there are more than two."""
        if len(core.cpus) <= 2:
            return [(f"{cpu.id}{self._suffix(cpu)}", self._style(cpu)) for cpu in core.cpus]
        runs = groupby(
            enumerate(core.cpus),
            key=lambda item: (item[1].id - item[0], self._suffix(item[1]), self._style(item[1])),
        )
        found: list[Segment] = []
        for (_offset, suffix, style), members in runs:
            ids = CpuSet(cpu.id for _index, cpu in members)
            found.append((f"{ids}{suffix}", style))
        return found

    def _suffix(self, cpu: Cpu) -> str:
        mark = self.marks.get(cpu.id)
        state = ("" if cpu.online else "x") + ("*" if cpu.isolated else "")
        return (mark.symbol if mark else "") + state

    def _style(self, cpu: Cpu) -> str:
        if cpu.id in self.marks:
            return self.marks[cpu.id].terminal_style
        if not cpu.online:
            return OFFLINE_STYLE
        return ISOLATED_STYLE if cpu.isolated else KIND_STYLES[cpu.core_type]


def _paint_box(canvas: _Canvas, placed: Placed) -> None:
    if placed.box.level.framed:
        canvas.frame(placed, _FRAMES[placed.box.level])
        if placed.title:
            canvas.write_all(placed.x + 2, placed.y, [(f" {placed.title} ", BOLD)])
    elif placed.title:
        canvas.write_all(placed.x, placed.y, [(placed.title, BOLD)])
    for line in placed.lines:
        canvas.write_all(line.x, line.y, [(line.text, "")])


class _Canvas:
    """Characters in rows, each with an SGR style."""

    def __init__(self, width: int, height: int) -> None:
        self._chars = [[" "] * width for _ in range(height)]
        self._styles = [[""] * width for _ in range(height)]

    def write_all(self, x: int, y: int, segments: Iterable[Segment]) -> None:
        for text, style in segments:
            self._chars[y][x : x + len(text)] = text
            self._styles[y][x : x + len(text)] = [style] * len(text)
            x += len(text)

    def frame(self, placed: Placed, shape: str) -> None:
        upper_left, across, upper_right, down, lower_left, lower_right = tuple(shape)
        middle = across * (placed.width - 2)
        last = placed.y + placed.height - 1
        self.write_all(placed.x, placed.y, [(upper_left + middle + upper_right, DIM)])
        self.write_all(placed.x, last, [(lower_left + middle + lower_right, DIM)])
        for y in range(placed.y + 1, last):
            self.write_all(placed.x, y, [(down, DIM)])
            self.write_all(placed.x + placed.width - 1, y, [(down, DIM)])

    def plain(self) -> str:
        return "".join("".join(row).rstrip() + "\n" for row in self._chars)

    def colored(self) -> str:
        lines = []
        for row, styles in zip(self._chars, self._styles, strict=True):
            runs = groupby(zip(row, styles, strict=True), key=lambda pair: pair[1])
            painted = [paint("".join(char for char, _ in run), style) for style, run in runs]
            lines.append("".join(painted).rstrip() + "\n")
        return "".join(lines)
