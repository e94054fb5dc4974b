"""Plain technical English: words that readers of Kubernetes projects do not expect."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.docs.pages import REPOSITORY

CHECKED = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "Containerfile"),
    *("docs", "deploy", "tools", "benchmarks", "src", "tests/e2e"),
)
"""Files and directories of the repository that are free of these words."""

PLAIN = {
    r"ledger": "checkpoint",
    r"allotments?": "allocated devices",
    r"stewards?": "reconciler",
    r"tend(?:ing|s)? to\b|\btending": "reconcile",
    r"ghosts?": "orphaned",
    r"untold|unheeded|heed(?:ed|s)?": "unsent, not enforced, respected",
    r"strangers?": "unconfirmed",
    r"vouch(?:ed|es|ing)?": "confirm",
    r"besides": "except, in addition",
    r"cannot be told": "is unknown",
    r"anew": "again",
    r"for ever": "forever",
    r"in vain": "without success",
    r"mend(?:ed|s|ing)?": "fix",
    r"amiss": "wrong",
    r"likewise": "also",
    r"shall": "must",
    r"the like": "similar",
    r"wish(?:es)?": "policy, request",
    r"quarrels?": "conflict",
    r"patience": "deadline, timeout",
    r"honest": "",
    r"test beds?": "test cluster",
    r"(?<!there )(?:is|are|was|were) no (?!longer|more|less|other)\w+": "is not a",
    r"whoever|whosoever|whosever": "any client, any process",
    r"to be had": "available",
    r"comes? again": "retries",
}
_WORDS = re.compile("|".join(rf"\b(?:{word})\b" for word in PLAIN), re.IGNORECASE)
_TEXT = (".md", ".py", ".yaml", ".tpl", ".json", ".toml", ".txt", "Makefile", "Containerfile")


def files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *CHECKED], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.splitlines() if name.endswith(_TEXT)]


def test_the_text_is_plain_english() -> None:
    found = []
    for name in files():
        path = REPOSITORY / name
        if path.is_symlink():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            text = re.sub(r"`[^`]*`", "", line) if name.endswith(".md") else line  # quoted messages
            text = text.replace('"ledger"', "")  # a key of the report of `drakit gather`
            found += [f"{name}:{number}: {match[0]}" for match in _WORDS.finditer(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["drawn anew", "is no pod", "retried for ever", "Steward"])
def test_a_private_word_is_found(text: str) -> None:
    assert _WORDS.search(text)


@pytest.mark.parametrize("text", ["is no longer used", "recommended", "newest", "the likelihood"])
def test_plain_words_are_not_reported(text: str) -> None:
    assert not _WORDS.search(text)
