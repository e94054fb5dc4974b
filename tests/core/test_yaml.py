"""Whatever a text is, it is read or rejected with words."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.yaml import YamlError, load_strictly


def test_a_key_given_twice_is_rejected() -> None:
    assert load_strictly("a: {b: 1}\nc: [2]\n") == {"a": {"b": 1}, "c": [2]}
    with pytest.raises(YamlError, match="line 2: 'a' is given twice"):
        load_strictly("a: 1\na: 2\n")


@pytest.mark.parametrize(
    "text",
    [
        "a: [", "a: 2001-99-99", "a: !!bool perhaps", "a: !!int ''", "a: !!float x",
        "a: &a {x: 1}\nb: {<<: *a}", "a: !!timestamp then", "a: !!set [1]", "a: " + "9" * 5000,
        "\ud800", "a: !!python/name:os {}",
    ],
)  # fmt: skip
def test_what_is_no_value_is_rejected(text: str) -> None:
    with pytest.raises(YamlError):
        load_strictly(text)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_depth_is_rejected_and_does_not_end_the_process(opening: str) -> None:
    code = (
        "from drakit.core.yaml import *\n"
        f"try: load_strictly({opening!r} * 100_000)\n"
        "except YamlError as problem: print(problem)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "line 1: nested too deeply\n"
    assert load_strictly("[" * 100 + "]" * 100)


@given(st.text("{}[]:-,&*!?|>'\"#%@` \n\tabfnu0189.~<=") | st.text())
def test_every_text_is_read_or_rejected(text: str) -> None:
    with contextlib.suppress(YamlError):
        load_strictly(text)
