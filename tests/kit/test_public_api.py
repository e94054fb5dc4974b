"""The public API of the kit: sorted, documented, and exactly what the page for authors explains."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import drakit.kit

PAGE = Path(__file__).parents[2] / "docs/developers/writing-a-driver.md"
EXAMPLE = Path(__file__).parents[2] / "src/drakit/drivers/example"


def test_the_exported_names_are_sorted_and_unique() -> None:
    names = drakit.kit.__all__
    assert names == sorted(set(names))


@pytest.mark.parametrize("name", drakit.kit.__all__)
def test_every_exported_name_exists_and_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(drakit.kit, name))


@pytest.mark.parametrize("name", drakit.kit.__all__)
def test_the_page_for_authors_mentions_every_exported_name(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE.read_text())


def test_an_unknown_name_is_not_exported() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Preparer'"):
        drakit.kit.Preparer  # noqa: B018


def test_a_value_does_not_load_the_host() -> None:
    code = "import sys, drakit.kit as k; k.Offer; sys.exit('drakit.kit.host' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("path", [PAGE, *sorted(EXAMPLE.glob("*.py"))], ids=lambda path: path.name)
def test_the_examples_use_the_public_api_only(path: Path) -> None:
    imported = set(re.findall(r"^(?:from|import) (drakit[\w.]*)", path.read_text(), re.MULTILINE))
    private = {name for name in imported if not name.startswith("drakit.drivers.example")}
    assert private <= {"drakit.kit"}
