"""Examples and fields of docs/topology.md, compared with the output of the command."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from drakit.machine.discover import discover
from drakit.machine.document import Document, topology_document
from drakit.testing.sysfs_writer import write_tree

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "topology.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def load_pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_pictures", DOCS / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pictures = load_pictures()


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dumps of the examples, and a ``drakit`` to read them with."""
    folder = tmp_path_factory.mktemp("dumps")
    for name, machine in pictures.MACHINES.items():
        write_tree(machine(), str(folder / name))
    command = folder / "bin" / "drakit"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m drakit "$@"\n')
    command.chmod(0o755)
    return folder


@pytest.mark.parametrize("example", blocks("console"))
def test_examples_print_what_the_page_shows(example: str, dumps: Path) -> None:
    command, _newline, expected = example.partition("\n")
    assert command.startswith("$ ")
    path = f"{dumps / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command.removeprefix("$ ")],
        cwd=dumps,
        env={"PATH": path, "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    assert done.stdout == expected
    assert done.stderr == ""


def test_the_objects_of_the_page_are_those_of_the_server(dumps: Path) -> None:
    document = topology_document(discover(str(dumps / "server")))
    cpu, node = (json.loads(block) for block in blocks("json"))
    assert cpu == document["cpus"][cpu["id"]]
    assert node == document["numaNodes"][node["id"]]


def documented(member: str) -> set[str]:
    """Names in the first column of the table that has *member* among them."""
    tables = re.findall(r"^\| field \| \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    names = [
        {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
        for table in tables
    ]
    (found,) = (those for those in names if member in those)
    return found


@pytest.fixture(scope="module")
def document(dumps: Path) -> Document:
    return topology_document(discover(str(dumps / "laptop")))


def test_every_field_is_documented_and_every_documented_field_exists(document: Document) -> None:
    assert documented("warnings") == set(document)
    assert documented("siblings") == set(document["cpus"][0])
    assert documented("distances") == set(document["numaNodes"][0])
    for inner in [document["caches"][0], document["cgroups"], document["cpus"][0]["raw"]]:
        for name in inner:
            assert f"`{name}`" in PAGE


def test_the_python_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python")
    exec(compile(example, "docs/topology.md", "exec"), {})
    assert len(discover("server").cpus) == 128


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_current(name: str) -> None:
    committed = (DOCS / "images" / name).read_text(encoding="utf-8")
    again = "redraw them with `python docs/pictures.py`"
    assert committed == pictures.draw_svg(pictures.PICTURES[name]()), again


def test_every_option_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    from drakit.cli import main

    main(["topology", "--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help"}
    assert options
    assert all(f"`{option}" in PAGE for option in options)
