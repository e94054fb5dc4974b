from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import drakit
from drakit.cli import COMMANDS, Command, help_text, main
from drakit.cli.errors import CliError


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists_and_explains_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(COMMANDS[name].module)
    assert callable(module.configure)
    assert callable(module.run)
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: drakit {name}")
    assert "examples:" in printed


def test_help_has_one_line_per_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert printed == help_text()
    for name, command in COMMANDS.items():
        assert [line for line in printed.splitlines() if line.split()[:1] == [name]] == [
            next(line for line in printed.splitlines() if command.summary in line)
        ]
    assert all(len(line) <= 100 for line in printed.splitlines())


def test_no_command_shows_the_help_and_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"drakit {drakit.__version__}\n"


def test_help_of_a_command_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "topology"]) == 0
    first = capsys.readouterr().out
    assert main(["topology", "--help"]) == 0
    assert capsys.readouterr().out == first


def test_a_mistyped_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topolgy"]) == 2
    printed = capsys.readouterr().err
    assert "unknown command 'topolgy'" in printed
    assert "did you mean `drakit topology`?" in printed


def test_an_unknown_option_points_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--frobnicate"]) == 2
    assert "`drakit --help` lists the commands" in capsys.readouterr().err


def test_wrong_arguments_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--output", "xml"]) == 2
    assert "invalid choice: 'xml'" in capsys.readouterr().err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command ``fail`` that raises what the test puts into the list."""
    raised: list[BaseException] = []
    monkeypatch.setitem(COMMANDS, "fail", Command("tests.cli.test_main", "fail on purpose"))
    monkeypatch.setattr(sys.modules[__name__], "_raised", raised, raising=False)
    return raised


_raised: list[BaseException] = []


def configure(_parser: argparse.ArgumentParser) -> None:
    """This module doubles as the command ``fail``."""


def run(_options: argparse.Namespace) -> int:
    raise _raised[0]


def test_errors_are_printed_with_their_remedy(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(CliError("the sky fell", "hold it up", exit_code=7))
    assert main(["fail"]) == 7
    assert capsys.readouterr().err == "drakit fail: the sky fell\n  hold it up\n"


def test_an_interrupt_is_quiet(failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    assert main(["fail"]) == 130


def test_a_broken_pipe_is_quiet(
    failing: list[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing.append(BrokenPipeError())
    with open(tmp_path / "output", "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["fail"]) == 141
        stream.write("goes nowhere")
    assert (tmp_path / "output").read_text() == ""


def test_a_closed_pipe_causes_no_error_message() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "drakit", "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    finally:
        os.close(write)
    assert done.stderr == b""
    assert done.returncode == 141


def test_version_as_a_command_points_to_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 2
    assert "did you mean `drakit --version`?" in capsys.readouterr().err
