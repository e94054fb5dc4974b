"""``drakit topology``: drawing of this machine, or of a dump of another one."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from drakit.cli.errors import CliError, cli_errors
from drakit.core.text import align
from drakit.draw.layout import join_parts, wrap
from drakit.draw.machine_map import ascii_only, draw, legend
from drakit.draw.machine_words import distances, summary, system
from drakit.draw.terminal import BOLD, DIM, Terminal
from drakit.machine.discover import discover
from drakit.machine.model import Machine

NO_CPU_FOUND: Final = 1

EXAMPLES: Final = """\
examples:
  drakit topology                          a drawing that fits the terminal
  drakit topology --svg machine.svg        the same as a picture
  drakit topology --output json            the same as JSON (docs/topology.md)
  drakit topology --root ./dump            another machine: ./dump/sys and ./dump/proc
  drakit topology --warnings               inconsistencies in the kernel's topology files

Each cell is a core with the numbers of its CPUs. NO_COLOR=1 turns colors off, and COLUMNS
overrides the width. The exit code is 1 if no CPU was found.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--root", metavar="DIR", default="/", help="read DIR/sys and DIR/proc instead of this machine's"
    )
    parser.add_argument(
        "--output", choices=("text", "json", "yaml"), help="output format (default: text, or none with --svg)"
    )
    parser.add_argument("--svg", metavar="FILE", help="write the drawing as SVG (- for stdout)")
    parser.add_argument(
        "--warnings",
        action="store_true",
        help="list every missing or contradictory file and what was assumed instead",
    )


def run(options: argparse.Namespace) -> int:
    """Discover the machine and print it; returns 1 if no CPU was found."""
    machine = _machine(options.root)
    if options.svg is not None:
        _write_svg(machine, options.svg)
    output = options.output or ("text" if options.svg is None or options.warnings else "nothing")
    if output == "text":
        print(report(machine, Terminal.of(sys.stdout), list_warnings=options.warnings), end="")
    elif output != "nothing":
        from drakit.cli.documents import format_document
        from drakit.machine.document import topology_document

        print(format_document(topology_document(machine), output), end="")
    if not machine.cpus:
        print(
            f"drakit topology: no CPU found under {options.root}\n"
            f"  {os.path.join(options.root, 'sys/devices/system/cpu')} must list them; a dump "
            "needs sys/ (and proc/) directly below --root",
            file=sys.stderr,
        )
        return NO_CPU_FOUND
    return 0


def report(machine: Machine, terminal: Terminal, *, list_warnings: bool = False) -> str:
    """Return the heading, drawing, legend, NUMA distances, and the warnings or their number."""
    width = terminal.width
    blocks = [
        [terminal.paint(line, BOLD) for line in join_parts(summary(machine), width)]
        + join_parts(system(machine), width),
        draw(machine, terminal=terminal).splitlines(),
        [line for entry in legend(machine) for line in wrap(entry, width)],
        _distance_lines(machine, width),
        _warnings(machine, width)
        if list_warnings
        else [terminal.paint(line, DIM) for line in _warning_count(machine, width)],
    ]
    text = "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
    return text if terminal.unicode else ascii_only(text)


def _machine(root: str) -> Machine:
    if not os.path.isdir(root):
        raise CliError(
            f"--root {root!r} is not a directory",
            "give the directory with the sys/ (and proc/) of a machine, or omit it for this machine",
            exit_code=NO_CPU_FOUND,
        )
    return discover(root)


def _write_svg(machine: Machine, path: str) -> None:
    from drakit.draw.svg import draw_svg

    picture = draw_svg(machine)
    if path == "-":
        print(picture, end="")
        return
    remedy = "name a file in a writable directory, or use --svg - for standard output"
    with (
        cli_errors(OSError, remedy, lambda error: f"cannot write the SVG to {path!r}: {error.strerror}"),
        open(path, "w", encoding="utf-8") as file,
    ):
        file.write(picture)
    print(f"wrote {path}", file=sys.stderr)


def _distance_lines(machine: Machine, width: int) -> list[str]:
    table = distances(machine)
    if not table:
        return []
    lines = align(table, left=0)
    if max(map(len, lines)) > width:
        return wrap("NUMA distances: too many nodes for this width; see --output json", width)
    return ["NUMA distances", *lines]


def _warning_count(machine: Machine, width: int) -> list[str]:
    number = len(machine.warnings)
    if not number:
        return []
    text = "1 inconsistency" if number == 1 else f"{number} inconsistencies"
    return wrap(f"{text} in the kernel's topology files; see `drakit topology --warnings`", width)


def _warnings(machine: Machine, width: int) -> list[str]:
    if not machine.warnings:
        return wrap("no inconsistencies in the kernel's topology files", width)
    lines = wrap("inconsistencies in the kernel's topology files:", width)
    for warning in machine.warnings:
        lines += wrap(f"{warning.file}: {warning.reason}", width)
    return lines
