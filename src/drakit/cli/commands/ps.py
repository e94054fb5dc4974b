"""``drakit ps``: the claims of ``drakit run`` on this machine and what they hold."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any, Final

from drakit.cli.errors import cli_errors
from drakit.cli.local_node import add_options, amounts_of, local_node, print_claims
from drakit.core.text import align, human_bytes
from drakit.draw.terminal import Terminal
from drakit.drivers.cpumem.kinds import DRIVER as CPUMEM
from drakit.kit.driver import PreparedClaim

EXAMPLES: Final = """\
examples:
  drakit ps                 list the claims and draw them on the topology of this machine
  drakit ps --output json   the same as JSON

Claims whose commands have ended are released.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--output", choices=("text", "json"), default="text")
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table and the drawing."""
    driver, node = local_node(options, driver_name=CPUMEM)
    with cli_errors(OSError, "give another --state-dir", "cannot read the claims: {}".format):
        prepared_claims = asyncio.run(node.look())
    claims = list(prepared_claims)
    free = driver.cpus.shared(prepared_claims)
    if options.output == "json":
        document = {"claims": [_row(claim) for claim in claims], "free": str(free)}
        print(json.dumps(document, indent=2))
        return 0
    terminal = Terminal.of(sys.stdout)
    rows: list[tuple[str, ...]] = [("CLAIM", "CPUS", "MEMORY", "HUGEPAGES", "PID", "SINCE", "COMMAND")]
    rows += [_cells(_row(claim)) for claim in claims]
    for line in align(rows, left=len(rows[0])):
        print(line[: terminal.width])
    print(f"free: {free or 'none'}")
    if claims:
        print_claims(driver, claims, terminal, bars=any(map(amounts_of, claims)))
    return 0


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["claim"],
        row["cpus"] or "-",
        human_bytes(row["memory"]) if row["memory"] else "-",
        human_bytes(sum(row["hugepages"].values())) if row["hugepages"] else "-",
        str(row["pid"] or "-"),
        row["since"],
        row["command"],
    )


def _row(claim: PreparedClaim) -> dict[str, Any]:
    pid = int(claim.consumers[-1].partition(":")[0]) if claim.consumers else None
    amounts = amounts_of(claim)
    return {
        "claim": claim.name,
        "uid": claim.uid,
        "cpus": str(claim.exclusive("cpu")),
        "memory": sum(n for key, n in amounts.items() if key.endswith("/memory")),
        "hugepages": {key: n for key, n in amounts.items() if "/hugepages" in key},
        "pid": pid,
        "since": claim.prepared_at,
        "command": _command(pid),
    }


def _command(pid: int | None) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return "-"
