"""``drakit ps``: who holds which CPUs, how much memory and how many hugepages of this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any, Final

from drakit.cli.errors import Problem
from drakit.cli.local_node import add_options, amounts_of, cpus_of, local_node, marks_for
from drakit.draw.machine_map import draw
from drakit.draw.machine_tree import human_bytes
from drakit.draw.memory_map import memory_lines
from drakit.draw.terminal import Terminal
from drakit.drivers.cpumem.kinds import DRIVER as CPUMEM
from drakit.kit.driver import PreparedClaim

EXAMPLES: Final = """\
examples:
  drakit ps                 claims of `drakit run` on this machine, drawn on its topology
  drakit ps --output json   the same for a program

Claims whose commands have ended are given back on the way.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--output", choices=("text", "json"), default="text")
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table and the picture."""
    driver, node = local_node(options, driver_name=CPUMEM)
    try:
        prepared_claims = asyncio.run(node.look())
    except OSError as error:
        raise Problem(f"cannot read the claims: {error}", "give another --state-dir") from None
    entries = list(prepared_claims)
    free = cpus_of(driver).shared(prepared_claims)
    if options.output == "json":
        document = {"claims": [_row(entry) for entry in entries], "free": str(free)}
        print(json.dumps(document, indent=2))
        return 0
    terminal = Terminal.of(sys.stdout)
    rows = [("CLAIM", "CPUS", "MEMORY", "HUGEPAGES", "PID", "SINCE", "COMMAND")]
    for told in map(_row, entries):
        memory, pages = human_bytes(told["memory"]), human_bytes(sum(told["hugepages"].values()))
        rows.append(
            (
                told["claim"],
                told["cpus"] or "-",
                memory if told["memory"] else "-",
                pages if told["hugepages"] else "-",
                str(told["pid"] or "-"),
                told["since"],
                told["command"],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row[:6], widths, strict=True))
        print(f"{line}  {row[6]}"[: terminal.width])
    print(f"free: {free or 'none'}")
    if entries:
        marks = marks_for(entries)
        print(
            draw(
                cpus_of(driver).machine,
                marks,
                width=terminal.width,
                color=terminal.color,
                unicode=terminal.unicode,
            ),
            end="",
        )
    if driver.node_amounts and any(map(amounts_of, entries)):
        print("\n".join(memory_lines(driver.node_amounts, entries, terminal)))
    return 0


def _row(entry: PreparedClaim) -> dict[str, Any]:
    pid = int(entry.consumers[-1].partition(":")[0]) if entry.consumers else None
    amounts = amounts_of(entry)
    return {
        "claim": entry.name,
        "uid": entry.uid,
        "cpus": str(entry.exclusive("cpu")),
        "memory": sum(n for key, n in amounts.items() if key.endswith("/memory")),
        "hugepages": {key: n for key, n in amounts.items() if not key.endswith("/memory")},
        "pid": pid,
        "since": entry.prepared_at,
        "command": _command(pid),
    }


def _command(pid: int | None) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return "-"
