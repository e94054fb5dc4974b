from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.scheduler.cel.stdlib.regex import RegexError, UnsafeRegexError, compiled


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?<!a)", r"(a)\1", "a**", "*", "a{1001}", "a{2,1}", "[z-a]", "[a", "(a", "a)", r"\y",
     "[[:nope:]]"],
)  # fmt: skip
def test_patterns_that_re2_rejects(pattern: str) -> None:
    with pytest.raises(RegexError) as caught:
        compiled(pattern)
    assert not isinstance(caught.value, UnsafeRegexError)


@pytest.mark.parametrize("pattern", ["(a+)+", "(a*)*b", r"\pL", "(?U)a", "a*b*c*d*e*f*g*", "[[:^alpha:]]"])
def test_patterns_that_could_be_slow_or_differ_are_not_supported(pattern: str) -> None:
    with pytest.raises(UnsafeRegexError):
        compiled(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("a$", "a\n", False),  # $ is the end of the text, not of a line
        ("(?m)a$", "a\n", True),
        (r"\d", "٣", False),
        (r"\x{41}\x42", "AB", True),
        ("[]a]", "]", True),
        ("a{,2}", "a{,2}", True),
        ("(?i:A)b", "ab", True),
        ("(?i:A)b", "aB", False),
        ("a|b|", "", True),
    ],
)
def test_translation(pattern: str, text: str, found: bool) -> None:
    assert (compiled(pattern).search(text) is not None) == found


@given(st.text(max_size=8))
def test_quoted_text_matches_itself(text: str) -> None:
    with contextlib.suppress(UnsafeRegexError):
        quoted = text.replace("\\E", "")
        assert compiled(rf"^\Q{quoted}\E$").search(quoted) is not None
