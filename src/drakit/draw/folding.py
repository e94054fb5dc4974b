"""Words instead of cores: the compact form of boxes for machines too large to draw CPU by CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.draw.machine_tree import Box, counted

Remarks = Callable[[CpuSet], Sequence[str]]
"""What else is to be said about some CPUs (``offline 3``, ``isolated 4-7``)."""

_RUN: Final = 16
"""More alike neighbors than this are told in one line."""


def fold(box: Box, remarks: Remarks) -> Box:
    """*box* with lists of CPUs in place of its cores; inner boxes of cores become lines of it."""
    if box.cores:
        cpus = box.cpus()
        notes = (*box.notes, _size(box), f"CPUs {cpus}", *remarks(cpus))
        return replace(box, notes=notes, cores=())
    if box.children and all(child.cores and not child.notes for child in box.children):
        lines: list[str] = []
        for _alike, run in groupby(box.children, key=_likeness):
            lines.extend(_run_lines(list(run), remarks))
        return replace(box, notes=(*box.notes, *lines), children=())
    return replace(box, children=tuple(fold(child, remarks) for child in box.children))


def _likeness(box: Box) -> object:
    return box.level, box.title[1:], len(box.cores), tuple(len(core.cpus) for core in box.cores)


def _run_lines(run: Sequence[Box], remarks: Remarks) -> list[str]:
    """Neighbors that differ only in their numbers: their size once, then the CPUs of each."""
    size = _size(run[0])
    if len(run) == 1:
        return _lines(f"{_name(run[0])}: {size}, CPUs", run[0].cpus(), remarks)
    if len(run) <= _RUN:
        lines = [f"{len(run)} alike, each {size}:"]
        for box in run:
            lines += _lines(f"{_name(box)}: CPUs", box.cpus(), remarks)
        return lines
    last = f" … {run[-1].title[0]}" if run[-1].title else ""
    name = f"{_name(run[0])}{last}: {len(run)} alike, each {size}, CPUs"
    return _lines(name, CpuSet.union(box.cpus() for box in run), remarks)


def _name(box: Box) -> str:
    return " ".join(box.title) or "cluster"


def _lines(name: str, cpus: CpuSet, remarks: Remarks) -> list[str]:
    return [f"{name} {cpus}", *(f"– {remark}" for remark in remarks(cpus))]


def _size(box: Box) -> str:
    threads = {len(core.cpus) for core in box.cores}
    each = f" × {counted(threads.pop(), 'thread')}" if len(threads) == 1 else ""
    return counted(len(box.cores), "core") + each
