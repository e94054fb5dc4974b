from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drakit.draw.layout import SEPARATOR, join_parts, wrap

words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


@given(st.lists(words, max_size=12), st.integers(1, 60))
def test_wrapped_lines_fit_and_keep_every_character(parts: list[str], width: int) -> None:
    lines = wrap(" ".join(parts), width)
    assert all(0 < len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(parts)


@given(st.lists(words, min_size=1, max_size=6), st.integers(10, 80))
def test_words_that_fit_are_not_broken(parts: list[str], width: int) -> None:
    short = [part for part in parts if len(part) <= width - 2]
    assert " ".join(wrap(" ".join(short), width)).split() == short


def test_lists_of_cpus_break_after_commas() -> None:
    assert wrap("CPUs 0-15,1024-1039,2048-2063", 22) == ["CPUs", "  0-15,1024-1039,", "  2048-2063"]


@given(st.lists(words, min_size=1, max_size=6), st.integers(10, 80))
def test_parts_are_joined_while_they_fit(parts: list[str], width: int) -> None:
    lines = join_parts(parts, width)
    assert all(len(line) <= width for line in lines)
    if len(SEPARATOR.join(parts)) <= width:
        assert lines == [SEPARATOR.join(parts)]
