"""The command ``drakit``: a static table of subcommands, each imported only when it is asked for.

A subcommand is one module with two functions::

    def configure(parser: argparse.ArgumentParser) -> None: ...  # its options and examples
    def run(options: argparse.Namespace) -> int: ...             # its exit code

and one line in :data:`COMMANDS`. Nothing else is imported for ``drakit --help``, which therefore
costs little more than starting Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from drakit import __version__
from drakit.cli.errors import Problem

if TYPE_CHECKING:
    import argparse


class Command(NamedTuple):
    """Where a subcommand lives and the line that explains it in ``drakit --help``."""

    module: str
    summary: str


class CommandModule(Protocol):
    """What the module of a subcommand offers."""

    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS: Final[dict[str, Command]] = {
    "demo": Command("drakit.cli.commands.demo", "see the whole system in a minute, on any machine"),
    "topology": Command(
        "drakit.cli.commands.topology", "draw this machine: sockets, NUMA, caches, cores"
    ),
    "inspect": Command(
        "drakit.cli.commands.inspect", "CPUs, memory and hugepages: there, and to be had"
    ),
    "run": Command("drakit.cli.commands.run", "run a command on a claim, here, without a cluster"),
    "ps": Command(
        "drakit.cli.commands.ps", "who holds which CPUs, memory and hugepages of this machine"
    ),
    "plan": Command(
        "drakit.cli.commands.plan", "where a pod fits and which devices it gets, offline"
    ),
    "explain": Command(
        "drakit.cli.commands.explain", "why a pod or claim is pending, device by device"
    ),
    "lint": Command("drakit.cli.commands.lint", "mistakes in manifests that only show at run time"),
    "doctor": Command("drakit.cli.commands.doctor", "what this node lacks for a driver"),
    "verify": Command("drakit.cli.commands.verify", "whether cgroups are what the claims demand"),
    "gather": Command("drakit.cli.commands.gather", "one file about this node for a bug report"),
}
"""Subcommands in the order in which a newcomer meets them."""

EXAMPLES: Final = (
    ("drakit topology", "a picture of this machine"),
    ("drakit topology --svg machine.svg", "the same for a slide"),
    ("drakit topology --output json", "the same for a program"),
    ("drakit run --cpus 2 -- make -j2", "a command on two CPUs of its own"),
)

_INTERRUPTED: Final = 128 + 2
_BROKEN_PIPE: Final = 128 + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``drakit`` with the given arguments (those of the process by default).

    Returns the exit code: that of the command, 2 for arguments nobody understands, 130 when
    interrupted and 141 when the reader of our output went away, as a shell would report them.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except Problem as error:
        name = " ".join(["drakit", *[a for a in arguments[:1] if a in COMMANDS]])
        print(f"{name}: {error.what}\n  {error.way_out}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output once more on its way out: let it write nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code


def help_text() -> str:
    """What ``drakit --help`` prints: every command in one line, and examples."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {c.summary}" for name, c in COMMANDS.items())
    widest = max(len(line) for line, _ in EXAMPLES)
    examples = "\n".join(f"  {line:<{widest}}  # {why}" for line, why in EXAMPLES)
    return f"""\
usage: drakit COMMAND [OPTIONS]

Dynamic Resource Allocation for a Kubernetes node's own CPUs, memory and hugepages.

commands:
{commands}

examples:
{examples}

options:
  -h, --help     this text; `drakit COMMAND --help` explains one command
  -V, --version  print the version
"""


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if arguments[1:] and arguments[0] == "help":  # `drakit help topology`
            return _dispatch([arguments[1], "--help"])
        print(help_text(), end="")
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name in ("-V", "--version"):
        print(f"drakit {__version__}")
        return 0
    if name not in COMMANDS:
        raise _unknown(name)
    return _run(name, rest)


def _run(name: str, rest: list[str]) -> int:
    import argparse
    from importlib import import_module

    command = COMMANDS[name]
    module = cast("CommandModule", import_module(command.module))
    parser = argparse.ArgumentParser(
        prog=f"drakit {name}",
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    try:
        options = parser.parse_args(rest)
    except SystemExit as stop:  # argparse has printed its help or its complaint already
        return stop.code if isinstance(stop.code, int) else 2
    return module.run(options)


def _unknown(name: str) -> Problem:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1)
    way_out = f"did you mean `drakit {close[0]}`? " if close else ""
    what = f"unknown option {name!r}" if name.startswith("-") else f"there is no command {name!r}"
    return Problem(what, f"{way_out}`drakit --help` lists the commands")
