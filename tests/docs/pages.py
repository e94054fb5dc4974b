"""Parser of the documentation: pages, fenced blocks, tables, command lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *(REPOSITORY / n for n in ("README.md", "CONTRIBUTING.md"))])
OURS = ("drakit", "dra-driver-cpu", "dra-driver-cpumem")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def text_of(name: str) -> str:
    """A page by its path in the repository."""
    return (REPOSITORY / name).read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> list[str]:
    return [body for language, body in _FENCE.findall(text) if language in languages]


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", text)


def rows(text: str, *heads: str) -> list[list[str]]:
    """The rows of the tables whose heading cells are *heads*."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells == list(heads):
            inside = True
        elif inside and not set(line) <= set("|- :"):
            found.append(cells)
    return found


def codes(cell: str) -> list[str]:
    """The code spans of a text."""
    return re.findall(r"`([^`]+)`", cell)


@dataclass(frozen=True)
class CommandLine:
    """A command line of drakit in a page, as parsed by a shell."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def command_lines(page: Path) -> Iterator[CommandLine]:
    """Every ``drakit``, ``dra-driver-cpu`` and ``dra-driver-cpumem`` command line of a page."""
    text = page.read_text(encoding="utf-8")
    lines = []
    for block in blocks(text, "console"):
        lines += [row[2:] for row in block.splitlines() if row.startswith("$ ")]
    for block in blocks(text, "sh"):
        lines += block.splitlines()
    lines += [code for code in codes(prose(text)) if " " in code]
    for line in lines:
        for words in _ours(line):
            yield CommandLine(name_of(page), tuple(words))


def _ours(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&;")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return  # prose in backticks
    for index, word in enumerate(words):
        starts = index == 0 or words[index - 1] in ("--", "sudo", "&&", ";", "|")
        if word in OURS and starts:
            rest = words[index:]
            end = next((n for n, w in enumerate(rest) if set(w) <= set("|>&;")), len(rest))
            yield [w for w in rest[:end] if w != "…"]
