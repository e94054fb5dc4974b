"""What all pages have in common: links resolve, commands parse, YAML is understood, targets exist."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakit.cli import COMMANDS
from drakit.cluster.manifests import objects_of
from drakit.core.objects import DeviceClaim, from_builtins
from drakit.drivers.cpu.program import PROGRAM as CPU
from drakit.drivers.cpumem.program import PROGRAM as CPUMEM
from drakit.drivers.models.cpu_policy import wish
from drakit.kit.config.settings import add_flags, settings_of
from drakit.kit.driver import OpaqueConfig
from drakit.kit.program import Program, _parser
from drakit.scheduler.lint import Published, lint_claim
from tests.docs.pages import (
    OURS,
    PAGES,
    REPOSITORY,
    CommandLine,
    blocks,
    command_lines,
    name_of,
    prose,
    text_of,
)

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=name_of)
LINES = [line for page in PAGES for line in command_lines(page)]
DRIVERS: dict[str, Program[Any]] = {each.name: each for each in (CPU, CPUMEM)}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    found = set()
    for line in prose(page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("#"):
            title = line.lstrip("#").strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


@EVERY_PAGE
def test_every_link_resolves(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


def test_the_index_lists_every_page() -> None:
    index = REPOSITORY / "docs/README.md"
    linked = {(index.parent / t).resolve() for t in LINK.findall(index.read_text(encoding="utf-8"))}
    pages = {page for page in PAGES if page.is_relative_to(index.parent) and page != index}
    assert {name_of(page) for page in pages - linked} == set()


def test_there_are_command_lines() -> None:
    assert len(LINES) > 30
    assert {line.words[0] for line in LINES} == set(OURS)


@pytest.mark.parametrize("line", LINES, ids=str)
def test_every_command_line_parses(line: CommandLine) -> None:
    program, *words = line.words
    if program in DRIVERS:
        parser = _parser(DRIVERS[program])
        add_flags(parser, DRIVERS[program].config, prefix=DRIVERS[program].prefix)
    else:
        if words[0].startswith("-"):
            assert words[0] in ("--help", "--version")
            return
        name, *words = words
        assert name in COMMANDS, line
        if not words:
            return  # a mention, `drakit run`, not a whole command line
        parser = argparse.ArgumentParser(allow_abbrev=False)
        importlib.import_module(COMMANDS[name].module).configure(parser)
    try:
        options = parser.parse_args(words)
    except SystemExit as stop:
        assert stop.code == 0, f"{line} is not understood"
        return
    for source in getattr(options, "sources", ()):  # --from takes all that follows, also a name
        assert source.endswith((".json", ".yaml", "/", "-")), f"{line}: --from takes {source}"


TARGETS = set(
    re.findall(r"^([a-z0-9-]+):", text_of("Makefile") + text_of("tests/e2e/e2e.mk"), re.MULTILINE)
)


@EVERY_PAGE
def test_every_make_target_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z0-9-]+)`", text))
    for block in blocks(text, "sh", "console"):
        named |= set(re.findall(r"^(?:\$ )?make ([a-z0-9-]+)", block, re.MULTILINE))
    assert named <= TARGETS


def value_at(values: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


@EVERY_PAGE
def test_every_chart_value_exists(page: Path) -> None:
    """Of the chart that the line names, and of the first chart where it names none."""
    for line in page.read_text(encoding="utf-8").splitlines():
        name = CPUMEM.name if CPUMEM.name in line else CPU.name
        values = yaml.safe_load(text_of(f"deploy/helm/{name}/values.yaml"))
        keys = keys_of(DRIVERS[name])
        for given in re.findall(r"--set(?:-string)? '?([\w.]+)=", line):
            first, *rest = given.split(".")
            known = rest[0] in keys if first == "driverConfig" else value_at(values, [first, *rest])
            assert known, given


def keys_of(program: Program[Any]) -> set[str]:
    return {one.key for one in settings_of(program.config, program.prefix)}


@EVERY_PAGE
def test_every_yaml_block_is_understood(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "yaml"):
        for document in yaml.safe_load_all(block):
            check_yaml(document, name_of(page))


CHART_VALUES = set(yaml.safe_load(text_of("deploy/helm/dra-driver-cpu/values.yaml")))
"""What both charts know except the configuration of the driver."""


def check_yaml(document: Any, page: str) -> None:
    if "kind" in document:
        assert list(objects_of(document, page, 1, "default"))
    elif set(document) <= {"requests", "constraints", "config"}:
        claim = from_builtins({"requests": [], **document}, DeviceClaim)
        if claim.requests:
            assert not list(lint_claim(claim, Published((), ())))
        for entry in document.get("config", ()):
            wish([OpaqueConfig(parameters=entry["opaque"]["parameters"], source="FromClaim")])
    elif "driverConfig" not in document and set(document) <= CHART_VALUES:
        return
    else:
        settings = set(document.get("driverConfig", document))  # alone, or in a chart's values
        assert any(settings <= keys_of(program) for program in DRIVERS.values())


def test_no_page_names_a_package_registry() -> None:
    for page in PAGES:
        assert not re.search(r"pypi\.org|proxy\.golang|deb\.debian", page.read_text("utf-8"))
