"""Values of cgroup files: comparing what was written with what the kernel keeps."""

from __future__ import annotations

import math
import os
import re
from typing import Final

from drakit.core.cpuset import CpuSet

PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED: Final = (1 << 63) - (1 << 34)
"""Amounts from here on mean "no limit": the greatest number, rounded down to any page size."""
_HUGE_SIZE: Final = re.compile(r"hugetlb\.(\d+)([KMG])B\.")
_PER_NODE: Final = re.compile(r"(?<!\S)N([0-9]+)=([0-9]+)(?!\S)")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def same_value(file: str, found: str, meant: str, page_size: int = PAGE_SIZE) -> bool:
    """Whether a cgroup file that reads *found* has the value *meant*.

    The kernel does not keep the text it is given: it sorts CPU lists, rounds amounts of memory down
    to whole pages and hugepage limits down to whole hugepages, spells a very large amount ``max``,
    and completes ``cpu.max`` with the period and keyed files with the keys that were not named.
    """
    if found == meant:
        return True
    if file.startswith("cpuset.") and ".partition" not in file:
        cpus = parse_list(found)
        return cpus is not None and cpus == parse_list(meant)
    there, wanted = amount(found), amount(meant)
    if not math.isnan(there) and not math.isnan(wanted):
        unit = page_size if file.startswith("memory.") else hugepage_size(file) or 1
        return there == wanted or (wanted < math.inf and there == wanted // unit * unit)
    return bool(meant.strip()) and all(
        any(set(line.split()) <= set(other.split()) for other in found.splitlines())
        for line in meant.splitlines()
    )


def amount(text: str | None) -> float:
    """The value of a file as a number: infinity for no limit, NaN for anything else.

    A limit that was never set reads as the greatest number of whole pages, and as ``max`` once that
    number was written.
    """
    text = (text or "").strip()
    if text in ("max", "-1"):
        return math.inf
    if not (text.isascii() and text.isdigit()) or len(text) > 20:
        return math.nan
    number = int(text)
    return number if number < _UNLIMITED else math.inf


def parse_list(text: str | None) -> CpuSet | None:
    """The CPUs or memory nodes that a file lists; None if it is empty or not valid."""
    try:
        return CpuSet.parse(text or "") or None
    except ValueError:
        return None


def hugepage_size(file: str) -> int | None:
    """The page size in bytes of a hugetlb file; None for other files."""
    found = _HUGE_SIZE.match(file)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def parse_numa_stat(text: str) -> dict[int, int]:
    """Amounts by NUMA node, from a row like ``total=3 N0=1 N1=2``; other words are ignored."""
    return {int(node): int(number) for node, number in _PER_NODE.findall(text)}
