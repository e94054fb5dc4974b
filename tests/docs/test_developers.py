"""The pages for developers name paths, classes and commands that exist."""

from __future__ import annotations

import importlib

import pytest

from tests.docs.pages import REPOSITORY, codes, prose, text_of

PAGES = ("architecture", "how-to-add", "glossary", "grouped-resource")
ROOTS = ("src/", "tests/", "docs/", "deploy/", "tools/", "proto/", "benchmarks/")
TASKS = ("a CLI command", "a sysfs fact", "a grouped resource", "a Kubernetes minor version", "an NRI event")


def page(name: str) -> str:
    return text_of(f"docs/developers/{name}.md")


def named_paths(text: str) -> set[str]:
    """Paths of the repository in backticks, also within a command line."""
    words = {word for code in codes(prose(text)) for word in code.split()}
    paths = {word for word in words if word.startswith(ROOTS)}
    return {path.split("::")[0] for path in paths if "<" not in path and "…" not in path}


@pytest.mark.parametrize("name", PAGES)
def test_every_path_exists(name: str) -> None:
    missing = {path for path in named_paths(page(name)) if not (REPOSITORY / path).exists()}
    assert not missing


def test_the_pages_name_paths() -> None:
    assert len(named_paths(page("architecture"))) > 30
    assert len(named_paths(page("how-to-add"))) > 30


def resolves(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("name", PAGES)
def test_every_python_name_exists(name: str) -> None:
    dotted = {c.split("(")[0] for c in codes(prose(page(name))) if c.startswith("drakit.")}
    packages = {each for each in dotted if importable(each)}
    assert not {each for each in dotted - packages if not resolves(each)}


def importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def test_the_glossary_names_a_class_for_every_term() -> None:
    rows = [line for line in page("glossary").splitlines() if line.startswith("| ")]
    terms = [row for row in rows if not row.startswith("| term")]
    assert len(terms) > 30
    assert all("`drakit." in row for row in terms)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_one_click_from_the_readme(task: str) -> None:
    developing = text_of("README.md").partition("## Developing")[2]
    assert "(docs/developers/how-to-add.md)" in developing
    assert task in developing
    section = page("how-to-add").partition(f"\n## {task[0].upper()}{task[1:]}\n")[2]
    assert section.partition("\n## ")[0].count("\nCheck: `") == 1
