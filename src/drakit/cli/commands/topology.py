"""``drakit topology``: what this machine (or the dump of another one) is made of."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from drakit.cli.errors import CliError
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
  drakit topology --output json            the same for a program (docs/topology.md)
  drakit topology --root ./dump            another machine: ./dump/sys and ./dump/proc
  drakit topology --warnings               what the kernel's files left in doubt

Cores are cells with the numbers of their CPUs. Colors follow the terminal; NO_COLOR=1 turns
them off, and COLUMNS overrides the width. The exit code is 1 if no CPU was found.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--root",
        metavar="DIR",
        default="/",
        help="read DIR/sys and DIR/proc instead of this machine's",
    )
    parser.add_argument(
        "--output",
        choices=("text", "json", "yaml"),
        help="what to print (default: text, or nothing with --svg)",
    )
    parser.add_argument("--svg", metavar="FILE", help="write the drawing as SVG (- for stdout)")
    parser.add_argument(
        "--warnings",
        action="store_true",
        help="list every missing or contradictory file and what was assumed instead",
    )


def run(options: argparse.Namespace) -> int:
    """Discover, print, and return 0 – or 1 if not a single CPU was found."""
    machine = _machine(options.root)
    if options.svg is not None:
        _write_svg(machine, options.svg)
    output = options.output or ("text" if options.svg is None or options.warnings else "nothing")
    if output == "json":
        import json

        from drakit.machine.document import topology_document

        print(json.dumps(topology_document(machine), indent=2))
    elif output == "yaml":
        import yaml

        from drakit.machine.document import topology_document

        # The dumper in C, where PyYAML was built with it, takes a tenth of the time.
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        print(yaml.dump(topology_document(machine), Dumper=dumper, sort_keys=False), end="")
    elif output == "text":
        terminal = Terminal.of(sys.stdout)
        print(report(machine, terminal, list_doubts=options.warnings), end="")
    if not machine.cpus:
        print(
            f"drakit topology: no CPU found under {options.root}\n"
            f"  {os.path.join(options.root, 'sys/devices/system/cpu')} has to list them; a dump "
            "needs its sys/ (and proc/) directly below --root",
            file=sys.stderr,
        )
        return NO_CPU_FOUND
    return 0


def report(machine: Machine, terminal: Terminal, *, list_doubts: bool = False) -> str:
    """The whole text: heading, drawing, legend, NUMA distances, and doubts or their number."""
    blocks: list[list[str]] = [
        [terminal.paint(line, BOLD) for line in join_parts(summary(machine), terminal.width)]
        + join_parts(system(machine), terminal.width)
    ]
    drawing = draw(
        machine, width=terminal.width, color=terminal.color, unicode=terminal.unicode
    ).splitlines()
    blocks.append(drawing)
    blocks.append([line for said in legend(machine) for line in wrap(said, terminal.width)])
    blocks.append(_distance_lines(machine, terminal.width))
    blocks.append(
        _doubts(machine, terminal.width)
        if list_doubts
        else [terminal.paint(line, DIM) for line in _doubt_count(machine, terminal.width)]
    )
    text = "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
    return text if terminal.unicode else ascii_only(text)


def _machine(root: str) -> Machine:
    if not os.path.isdir(root):
        raise CliError(
            f"--root {root!r} is not a directory",
            "give the folder that holds the sys/ (and proc/) of the machine; without --root this "
            "machine is read",
            exit_code=NO_CPU_FOUND,
        )
    return discover(root)


def _write_svg(machine: Machine, path: str) -> None:
    from drakit.draw.svg import draw_svg

    picture = draw_svg(machine)
    if path == "-":
        print(picture, end="")
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(picture)
    except OSError as error:
        raise CliError(
            f"cannot write the SVG to {path!r}: {error.strerror}",
            "name a file in a directory you may write to, or use --svg - for standard output",
        ) from error
    print(f"wrote {path}", file=sys.stderr)


def _distance_lines(machine: Machine, width: int) -> list[str]:
    table = distances(machine)
    if not table:
        return []
    widest = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.rjust(size) for cell, size in zip(row, widest, strict=True)) for row in table
    ]
    if max(map(len, lines)) > width:
        return wrap("NUMA distances: too many nodes for this width; see --output json", width)
    return ["NUMA distances", *lines]


def _doubt_count(machine: Machine, width: int) -> list[str]:
    count = len(machine.warnings)
    if not count:
        return []
    noun = "doubt" if count == 1 else "doubts"
    said = f"{count} {noun} about what the kernel says; `drakit topology --warnings` lists them"
    return wrap(said, width)


def _doubts(machine: Machine, width: int) -> list[str]:
    if not machine.warnings:
        return wrap("no doubts: every file was there and none contradicted another", width)
    lines = ["doubts:"]
    for doubt in machine.warnings:
        lines += wrap(f"{doubt.file}: {doubt.reason}", width)
    return lines
