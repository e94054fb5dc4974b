"""Compact boxes with lists of CPUs, for machines too large to draw core by core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.core.text import count, cpu_list
from drakit.draw.machine_tree import Box

Remarks = Callable[[CpuSet], Sequence[str]]
"""Further facts about some CPUs (``offline 3``, ``isolated 4-7``)."""

_RUN: Final = 16
"""More equal neighbors than this share one line."""


def fold(box: Box, remarks: Remarks) -> Box:
    """Replace the cores of *box* with lists of CPUs; inner boxes of cores become lines."""
    if box.cores:
        cpus = box.cpus()
        notes = (*box.notes, _size(box), cpu_list(cpus), *remarks(cpus))
        return replace(box, notes=notes, cores=())
    if box.children and all(child.cores and not child.notes for child in box.children):
        lines: list[str] = []
        for _equal, run in groupby(box.children, key=_appearance):
            lines.extend(_run_lines(list(run), remarks))
        return replace(box, notes=(*box.notes, *lines), children=())
    return replace(box, children=tuple(fold(child, remarks) for child in box.children))


def _appearance(box: Box) -> object:
    return box.level, box.title[1:], len(box.cores), tuple(len(core.cpus) for core in box.cores)


def _run_lines(run: Sequence[Box], remarks: Remarks) -> list[str]:
    """Describe neighbors that differ only in their numbers: their size, then the CPUs of each."""
    size = _size(run[0])
    if len(run) == 1:
        return _lines(f"{_name(run[0])}: {size},", run[0].cpus(), remarks)
    if len(run) <= _RUN:
        lines = [f"{len(run)} alike, each {size}:"]
        for box in run:
            lines += _lines(f"{_name(box)}:", box.cpus(), remarks)
        return lines
    last = f" … {run[-1].title[0]}" if run[-1].title else ""
    name = f"{_name(run[0])}{last}: {len(run)} alike, each {size},"
    return _lines(name, CpuSet.union(box.cpus() for box in run), remarks)


def _name(box: Box) -> str:
    return " ".join(box.title) or "cluster"


def _lines(name: str, cpus: CpuSet, remarks: Remarks) -> list[str]:
    return [f"{name} {cpu_list(cpus)}", *(f"– {remark}" for remark in remarks(cpus))]


def _size(box: Box) -> str:
    threads = {len(core.cpus) for core in box.cores}
    each = f" × {count(threads.pop(), 'thread')}" if len(threads) == 1 else ""
    return count(len(box.cores), "core") + each
