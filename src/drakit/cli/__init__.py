"""The command ``drakit``: a table of subcommands, each imported only when it runs.

A subcommand is a module in :mod:`drakit.cli.commands` with two functions::

    def configure(parser: argparse.ArgumentParser) -> None: ...  # adds options and examples
    def run(options: argparse.Namespace) -> int: ...             # returns the exit code

and a line in the table below. ``drakit --help`` imports none of them, so it is as fast as starting Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from drakit import __version__
from drakit.cli.errors import CliError
from drakit.core.errors import ActionableError

if TYPE_CHECKING:
    import argparse


class Command(NamedTuple):
    """Module of a subcommand and its line in ``drakit --help``."""

    module: str
    summary: str


class CommandModule(Protocol):
    """Functions of the module of a subcommand."""

    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


_SUMMARIES: Final = {
    "demo": "show the whole system in a minute, on any machine",
    "topology": "draw sockets, NUMA nodes, caches and cores of this machine",
    "inspect": "show total and allocatable CPUs, memory and hugepages",
    "run": "run a command with a claim on this machine, without a cluster",
    "ps": "list the claims of `drakit run` and what they hold",
    "plan": "show where a pod fits and which devices it gets",
    "explain": "explain why a pod or claim is pending, device by device",
    "lint": "find mistakes in manifests that only show at run time",
    "doctor": "check that this node meets the driver's requirements",
    "verify": "check that cgroups match the claims",
    "gather": "collect the state of this node in one file for a bug report",
}

COMMANDS: Final = {
    name: Command(f"drakit.cli.commands.{name}", summary) for name, summary in _SUMMARIES.items()
}
"""Subcommands, in the order of the help text."""

EXAMPLES: Final = (
    ("drakit topology", "draw this machine"),
    ("drakit topology --svg machine.svg", "the same as a picture"),
    ("drakit topology --output json", "the same as JSON"),
    ("drakit run --cpus 2 -- make -j2", "run a command on two CPUs of its own"),
)

_INTERRUPTED: Final = 128 + 2
_BROKEN_PIPE: Final = 128 + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``drakit`` with the given arguments (those of the process by default).

    Returns the exit code: that of the command, 2 for wrong arguments, and as a shell reports them 130
    for an interrupt and 141 if the reader of the output is gone.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except ActionableError as error:
        name = " ".join(["drakit", *[a for a in arguments[:1] if a in COMMANDS]])
        print(f"{name}: {error.message}\n  {error.remedy}", file=sys.stderr)
        return error.exit_code if isinstance(error, CliError) else 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code


def help_text() -> str:
    """Return the output of ``drakit --help``: a line for every command, and examples."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {c.summary}" for name, c in COMMANDS.items())
    widest = max(len(line) for line, _ in EXAMPLES)
    examples = "\n".join(f"  {line:<{widest}}  # {why}" for line, why in EXAMPLES)
    return f"""\
usage: drakit COMMAND [OPTIONS]

Dynamic Resource Allocation (DRA) of CPUs, memory and hugepages of Kubernetes nodes.

commands:
{commands}

examples:
{examples}

options:
  -h, --help     show this help; `drakit COMMAND --help` shows that of a command
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
    except SystemExit as stop:  # argparse has already printed the help or the error
        return stop.code if isinstance(stop.code, int) else 2
    return module.run(options)


def _unknown(name: str) -> CliError:
    from difflib import get_close_matches

    kind = "option" if name.startswith("-") else "command"
    close = ["--version"] if name == "version" else get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean `drakit {close[0]}`? " if close else ""
    return CliError(f"unknown {kind} {name!r}", f"{hint}`drakit --help` lists the commands")
