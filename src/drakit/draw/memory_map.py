"""Memory and hugepages of NUMA nodes as bars: how much is there, and who holds what of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drakit.cli.local_node import amounts_of, entry_marks
from drakit.draw.machine_tree import human_bytes
from drakit.draw.marks import Mark
from drakit.draw.terminal import Terminal
from drakit.drivers.models.node_driver import NodeAmount
from drakit.kit.driver import PreparedClaim

_WIDEST_BAR: Final = 32
_NARROWEST_BAR: Final = 8


def memory_lines(
    amounts: Sequence[NodeAmount], entries: Sequence[PreparedClaim], terminal: Terminal
) -> list[str]:
    """A line for each kind on each node that is offered or held; CPUs are drawn elsewhere."""
    marks = entry_marks(entries)
    held: dict[str, list[tuple[Mark, int]]] = {}
    for entry, mark in zip(entries, marks, strict=True):
        for key, amount in amounts_of(entry).items():
            held.setdefault(key, []).append((mark, amount))
    rows = [
        (f"node {each.numa_node} {each.resource}", held.get(each.key, []), each.offered)
        for each in amounts
    ]
    width = max((len(title) for title, _, _ in rows), default=0)
    room = min(_WIDEST_BAR, max(_NARROWEST_BAR, terminal.width - width - 40))
    return [
        f"{title:<{width}}  {_line(parts, total, room, terminal)}" for title, parts, total in rows
    ]


def _line(parts: Sequence[tuple[Mark, int]], total: int, room: int, terminal: Terminal) -> str:
    taken = sum(amount for _, amount in parts)
    said = [f"{mark.symbol} {human_bytes(amount)}" for mark, amount in parts]
    said.append(f"free {human_bytes(max(0, total - taken))}")
    return f"[{_bar(parts, max(total, taken), room, terminal)}] {', '.join(said)}"


def _bar(parts: Sequence[tuple[Mark, int]], total: int, room: int, terminal: Terminal) -> str:
    """Letters in proportion; whoever holds anything has at least one, as far as there is room."""
    drawn, used = "", 0
    for mark, amount in parts:
        cells = min(room - used, max(1, round(amount * room / total)))
        drawn += terminal.paint(mark.symbol * cells, mark.terminal_style)
        used += cells
    return drawn + "." * (room - used)
