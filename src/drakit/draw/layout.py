"""Layout of a drawing: the position of every box and core, in characters or in pixels.

The terminal and the SVG share it and differ only in :class:`Sizes`. Boxes of one parent flow in rows of
equal columns; the number of columns is the one that makes the drawing lowest within the given width.
Text that does not fit is wrapped, and a title that is too long for its border continues below it, so
nothing overlaps and nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Generic, TypeVar

from drakit.draw.machine_tree import Box, Core

SEPARATOR: Final = " · "
_LEAST_WORD: Final = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the parts of a drawing, in any unit; *light* boxes are those without a frame."""

    char: int  # width of a character of a note
    line: int  # height of a line of notes
    title_char: int
    title_height: int  # from the upper edge of a framed box to its content
    title_margin: int  # width of a title in addition to its characters
    pad: int  # from the left and right edges of a framed box to its content
    bottom: int
    gap_x: int  # between framed boxes
    gap_y: int
    light_title: int
    light_gap_x: int
    light_gap_y: int
    light_pad: int  # around the content of a light box
    section: int  # between the notes of a box and its content
    cell: Callable[[Box], tuple[int, int]]  # width and height of the cores of a box
    cell_gap_x: int
    cell_gap_y: int
    least_chars: int = 16  # minimum width of a box
    even_percent: int = 70  # rows of cells become equally long if they use this much of the width


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text and its upper left corner."""

    x: int
    y: int
    text: str


@dataclass(frozen=True, slots=True)
class PlacedCore:
    """A core and its upper left corner."""

    x: int
    y: int
    core: Core


@dataclass(frozen=True, slots=True)
class Placed:
    """A box with its position and content."""

    box: Box
    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[Line, ...] = ()
    cells: tuple[PlacedCore, ...] = ()
    children: tuple[Placed, ...] = ()

    def walk(self) -> Iterator[Placed]:
        """Yield the box and all boxes within, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Drawing:
    """All boxes with their positions, and the size of the whole."""

    boxes: tuple[Placed, ...]
    width: int
    height: int

    def walk(self) -> Iterator[Placed]:
        """Yield every box, parents first."""
        for box in self.boxes:
            yield from box.walk()


def arrange(
    boxes: Sequence[Box],
    widths: Sequence[int],
    sizes: Sizes,
    cost: Callable[[int, int], float] = lambda _width, height: height,
    least: int = 0,
) -> Drawing:
    """Place *boxes* within the one of *widths* that minimizes the *cost* of width and height.

    The drawing is stretched to *least*, and wider than allowed only if a single core does not fit.
    """
    engine = _Engine(sizes)
    flows = [engine.flow(boxes, width) for width in widths]
    flow = min(flows, key=lambda flow: cost(max(flow.width, least), flow.height))
    width = max(flow.width, least)
    return Drawing(engine.place_flow(boxes, flow, 0, 0, width), width, flow.height)


@dataclass(frozen=True, slots=True)
class _Flow:
    """Arrangement of boxes in columns of equal width and rows as high as their highest box."""

    width: int
    height: int
    columns: int = 1
    column_width: int = 0
    rows: tuple[int, ...] = ()
    breaks: int = 0  # wrapped lines, counting the worst box of every row


@dataclass(frozen=True, slots=True)
class _Plan:
    """Size and content of a box for a given maximum width."""

    width: int
    height: int
    cell_columns: int
    flow: _Flow
    breaks: int


_Fit = TypeVar("_Fit", _Plan, _Flow)


class _FitCache(Generic[_Fit]):
    """Cache of arrangements by shape; one found for a width serves every width it still fits in.

    The lowest arrangement within 100 characters that needs only 70 is also the lowest within 80, so
    a shape has few plans however many widths are tried.
    """

    def __init__(self) -> None:
        self._found: dict[object, list[tuple[int, _Fit]]] = {}

    def get(self, shape: object, width: int) -> _Fit | None:
        for asked, fit in self._found.get(shape, ()):
            if fit.width <= width <= asked or width == asked:
                return fit
        return None

    def put(self, shape: object, width: int, fit: _Fit) -> _Fit:
        self._found.setdefault(shape, []).append((width, fit))
        return fit


@dataclass(slots=True)
class _Engine:
    """Plans and places boxes; plans are cached by shape, because most boxes of a machine are equal."""

    sizes: Sizes
    _shapes: dict[object, int] = field(default_factory=dict)
    _shape_of: dict[int, int] = field(default_factory=dict)
    _plans: _FitCache[_Plan] = field(default_factory=_FitCache)
    _flows: _FitCache[_Flow] = field(default_factory=_FitCache)

    def shape(self, box: Box) -> int:
        """Return a number that is equal for boxes of the same size."""
        known = self._shape_of.get(id(box))
        if known is not None:
            return known
        key = (
            box.level.framed,
            tuple(tuple(map(len, part.split())) for part in box.title),
            tuple(tuple(map(len, note.split())) for note in box.notes),
            len(box.cores),
            self.sizes.cell(box),
            tuple(self.shape(child) for child in box.children),
        )
        shape = self._shapes.setdefault(key, len(self._shapes))
        self._shape_of[id(box)] = shape
        return shape

    def plan(self, box: Box, width: int) -> _Plan:
        """Return the size of *box* within *width*."""
        shape = self.shape(box)
        known = self._plans.get(shape, width)
        return known or self._plans.put(shape, width, self._plan(box, width))

    def _plan(self, box: Box, width: int) -> _Plan:
        m = self.sizes
        left, top, bottom = self._margins(box)
        room = max(width - 2 * left, 0)
        title, notes = self.words(box, width)
        cell_width, cell_height = m.cell(box)
        fitting = (room + m.cell_gap_x) // (cell_width + m.cell_gap_x)
        columns = _columns(len(box.cores), fitting, m.even_percent)
        rows = -(-len(box.cores) // columns)
        flow = self.flow(box.children, room)
        sections = [len(notes) * m.line, _span(rows, cell_height, m.cell_gap_y), flow.height]
        filled = [height for height in sections if height]
        inner = max(
            max((len(line) * m.char for line in notes), default=0),
            _span(min(columns, len(box.cores)), cell_width, m.cell_gap_x),
            flow.width,
            m.least_chars * m.char - 2 * left if box.level.framed else 0,
        )
        needed = max(inner + 2 * left, len(title) * m.title_char + self._title_margin(box))
        height = top + sum(filled) + m.section * max(len(filled) - 1, 0) + bottom
        breaks = len(notes) - len(box.notes) + flow.breaks
        return _Plan(needed, height, columns, flow, breaks)

    def flow(self, boxes: Sequence[Box], width: int) -> _Flow:
        """Return the lowest arrangement of *boxes* in rows within *width*; fewer columns if equal.

        A wrapped line counts twice, because it is hard to read.
        """
        if not boxes:
            return _Flow(0, 0)
        shapes = tuple(map(self.shape, boxes))
        known = self._flows.get(shapes, width)
        if known:
            return known
        gap = self._gap(boxes)[0]
        least = min(self._least_width(box) for box in boxes)
        most = max(1, min(len(boxes), (width + gap) // (least + gap)))
        options = [self._flow(boxes, width, columns) for columns in range(1, most + 1)]
        fitting = [option for option in options if option.width <= width] or options[:1]
        line = self.sizes.line
        best = min(fitting, key=lambda option: option.height + option.breaks * line)
        return self._flows.put(shapes, width, best)

    def _flow(self, boxes: Sequence[Box], width: int, columns: int) -> _Flow:
        gap_x, gap_y = self._gap(boxes)
        allowed = (width - (columns - 1) * gap_x) // columns
        column = max(self.plan(box, allowed).width for box in boxes)
        chunks = [[self.plan(box, column) for box in row] for row in _rows(boxes, columns)]
        rows = tuple(max(plan.height for plan in chunk) for chunk in chunks)
        return _Flow(
            width=_span(min(columns, len(boxes)), column, gap_x),
            height=sum(rows) + gap_y * (len(rows) - 1),
            columns=columns,
            column_width=column,
            rows=rows,
            breaks=sum(max(plan.breaks for plan in chunk) for chunk in chunks),
        )

    def words(self, box: Box, width: int) -> tuple[str, list[str]]:
        """Return the title as far as it fits on its line, and its rest and the notes as lines."""
        m = self.sizes
        room = max((width - self._title_margin(box)) // m.title_char, 1)
        fitting = 0
        while fitting < len(box.title) and len(SEPARATOR.join(box.title[: fitting + 1])) <= room:
            fitting += 1
        chars = max((width - 2 * self._margins(box)[0]) // m.char, 1)
        lines = join_parts(box.title[fitting:], chars)
        lines += [line for note in box.notes for line in wrap(note, chars)]
        return SEPARATOR.join(box.title[:fitting]), lines

    def _least_width(self, box: Box) -> int:
        m = self.sizes
        return m.least_chars * m.char if box.level.framed else m.cell(box)[0]

    def _gap(self, boxes: Sequence[Box]) -> tuple[int, int]:
        m = self.sizes
        if any(box.level.framed for box in boxes):
            return m.gap_x, m.gap_y
        return m.light_gap_x, m.light_gap_y

    def _margins(self, box: Box) -> tuple[int, int, int]:
        """Return the left (and right), upper and lower margin of the content of a box."""
        m = self.sizes
        if box.level.framed:
            return m.pad, m.title_height, m.bottom
        return m.light_pad, m.light_title if box.title else m.light_pad, m.light_pad

    def _title_margin(self, box: Box) -> int:
        return self.sizes.title_margin if box.level.framed else 2 * self.sizes.light_pad

    def place(self, box: Box, x: int, y: int, size: tuple[int, int], planned: int) -> Placed:
        """Place *box* with the content planned for the width *planned*, which *size* may exceed."""
        m = self.sizes
        plan = self.plan(box, planned)
        title, notes = self.words(box, planned)
        left, top, _bottom = self._margins(box)
        at_x, at_y = x + left, y + top
        lines = tuple(Line(at_x, at_y + i * m.line, text) for i, text in enumerate(notes))
        at_y += len(notes) * m.line + (m.section if notes else 0)
        cells = []
        cell_width, cell_height = m.cell(box)
        for index, core in enumerate(box.cores):
            row, column = divmod(index, plan.cell_columns)
            cell_x = at_x + column * (cell_width + m.cell_gap_x)
            cells.append(PlacedCore(cell_x, at_y + row * (cell_height + m.cell_gap_y), core))
        if box.cores:
            rows = -(-len(box.cores) // plan.cell_columns)
            at_y += _span(rows, cell_height, m.cell_gap_y) + m.section
        room = size[0] - 2 * left
        children = self.place_flow(box.children, plan.flow, at_x, at_y, room)
        return Placed(box, x, y, *size, title, lines, tuple(cells), children)

    def place_flow(self, boxes: Sequence[Box], flow: _Flow, x: int, y: int, room: int) -> tuple[Placed, ...]:
        """Place *boxes* in rows of equal height; framed ones fill the *room*."""
        placed = []
        gap_x, gap_y = self._gap(boxes)
        column_width = flow.column_width
        if any(box.level.framed for box in boxes):
            column_width = (room - (flow.columns - 1) * gap_x) // flow.columns
        for row, height in zip(_rows(boxes, flow.columns), flow.rows, strict=True):
            for column, box in enumerate(row):
                at_x = x + column * (column_width + gap_x)
                size = (column_width, height)
                placed.append(self.place(box, at_x, y, size, flow.column_width))
            y += height + gap_y
        return tuple(placed)


def _rows(boxes: Sequence[Box], columns: int) -> list[Sequence[Box]]:
    """Split into rows of at most *columns* boxes; boxes with only text get rows of their own."""
    rows: list[Sequence[Box]] = []
    for _same, group in groupby(boxes, key=lambda box: bool(box.cores or box.children)):
        alike = list(group)
        rows += [alike[start : start + columns] for start in range(0, len(alike), columns)]
    return rows


def wrap(text: str, width: int) -> list[str]:
    """Break *text* into lines of at most *width* characters: at spaces, and longer words anywhere.

    Lines after the first are indented where there is room, to separate notes.
    """
    indent = "  " if width > 2 * _LEAST_WORD else ""
    lines: list[str] = []
    current = ""
    for word in text.split():
        joined = f"{current} {word}" if current.strip() else current + word
        if len(joined) <= width:
            current = joined
            continue
        if current.strip():
            lines.append(current)
            current = indent
        while len(current) + len(word) > width:
            room = width - len(current)
            cut = word.rfind(",", 1, room) + 1 or room  # lists of CPUs between items if possible
            lines.append(current + word[:cut])
            current, word = indent, word[cut:]
        current += word
    return [*lines, current] if current.strip() else lines


def join_parts(parts: Sequence[str], width: int) -> list[str]:
    """Join *parts* with dots, in lines of at most *width* characters, broken between parts."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(SEPARATOR) + len(part) <= width:
            lines[-1] += SEPARATOR + part
        else:
            lines += wrap(part, width)
    return lines


def _columns(count: int, most: int, even_percent: int) -> int:
    """Return the cells per row: an even division if it wastes little room, else balanced rows.

    64 cores where 11 fit are drawn as 8 × 8, but 25 where 12 fit as 9 + 9 + 7.
    """
    most = max(most, 1)
    if count <= most:
        return max(count, 1)
    rows = -(-count // most)
    even = next(columns for columns in range(most, 0, -1) if count % columns == 0)
    costs_little = even * 100 >= most * even_percent and count // even <= rows + (rows + 2) // 4
    return even if costs_little or count // even == rows else -(-count // rows)


def _span(count: int, size: int, gap: int) -> int:
    return count * size + max(count - 1, 0) * gap
