"""``drakit --help`` imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from drakit.cli import COMMANDS

HEAVY = {
    "argparse", "asyncio", "dataclasses", "google", "grpclib", "h11", "http", "inspect", "json",
    "logging", "msgspec", "prometheus_client", "rich", "shutil", "socket", "ssl", "subprocess",
    "tempfile", "urllib", "yaml",
}  # fmt: skip
"""Top-level modules, each of which costs milliseconds or megabytes."""

PROBE = """
import contextlib, io, sys
sys.path[:0] = {path!r}
before = set(sys.modules)
from drakit.cli import main
with contextlib.redirect_stdout(io.StringIO()) as out:
    code = main({arguments!r})
loaded = sorted(set(sys.modules) - before)
import json
print(json.dumps([code, out.getvalue(), loaded]))
"""


def probe(*arguments: str) -> tuple[int, str, set[str]]:
    """Exit code, output and imported modules of ``drakit ARGUMENTS`` in a fresh interpreter."""
    script = PROBE.format(path=sys.path, arguments=list(arguments))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    code, output, modules = json.loads(done.stdout)
    return code, output, set(modules)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["help"]])
def test_general_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code, output, modules = probe(*arguments)
    assert code == 0
    assert output
    assert not {name.split(".")[0] for name in modules} & HEAVY
    ours = {name for name in modules if name.startswith("drakit")}
    assert ours == {"drakit", "drakit.cli", "drakit.cli.errors", "drakit.core", "drakit.core.errors"}


def test_a_command_is_imported_without_the_others() -> None:
    """Commands may share code on purpose, but the frame never imports more than the chosen one."""
    _code, _output, modules = probe("topology", "--help")
    assert modules & {command.module for command in COMMANDS.values()} == {"drakit.cli.commands.topology"}


def test_topology_help_needs_no_parser_of_documents() -> None:
    _code, _output, modules = probe("topology", "--help")
    light = {"argparse", "shutil", "dataclasses", "inspect"}  # argparse formats with shutil
    assert not {name.split(".")[0] for name in modules} & (HEAVY - light)
