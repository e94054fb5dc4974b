"""Numbers, sizes and lists as text."""

from __future__ import annotations

from collections.abc import Sequence

from drakit.core.cpuset import CpuSet


def count(number: int, noun: str) -> str:
    """Return ``1 core`` or ``2 cores``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def cpu_list(cpus: CpuSet) -> str:
    """Return ``CPU 3`` or ``CPUs 0-3``; ``no CPUs`` for an empty set."""
    return f"CPU{'' if len(cpus) == 1 else 's'} {cpus}" if cpus else "no CPUs"


def human_bytes(number: int) -> str:
    """Return ``31.3 GiB`` or ``2 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(number.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{number / 1024**power:.1f}".removesuffix(".0") + f" {units[power]}"


def align(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Join the cells of each row in columns: the first *left* to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def shortened(names: Sequence[str], most: int = 6) -> str:
    """Join *names* with commas; after *most* of them, only the number of the rest follows."""
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
