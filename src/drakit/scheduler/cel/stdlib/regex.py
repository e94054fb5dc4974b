"""RE2 regular expressions, the dialect of Go and Kubernetes, translated to Python's.

Patterns that RE2 rejects (look-around, back references, excessive repetition) are rejected. RE2 runs
in linear time but Python's engine backtracks, so patterns that could be slow are not supported.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.values import Overloads

_CLASSES: Final = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}
_ASSERTIONS: Final = {"b": r"\b", "B": r"\B", "A": r"\A", "z": r"\Z"}
_POSIX: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f", "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~",
    "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ", "upper": "A-Z", "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_LARGEST_REPETITION: Final = 1000
_REPETITION: Final = re.compile(r"\{([0-9]+)(,([0-9]*))?\}", re.ASCII)
_FLAGS: Final = re.compile(r"\(\?([imsU]*)(-[imsU]+)?([:)])")
_NAMED: Final = re.compile(r"\(\?P?<([A-Za-z_][A-Za-z0-9_]*)>")


class RegexError(ValueError):
    """RE2 rejects this pattern."""


class UnsafeRegexError(RegexError):
    """RE2 accepts this pattern, but drakit cannot run it in bounded time."""


class _Translator:
    """Recursive-descent translation of one pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._unbounded = 0

    def translate(self) -> str:
        text, _ = self._alternatives(0, "")
        if self._at < len(self._pattern):
            raise RegexError("unexpected )")
        if self._unbounded > 6:
            raise UnsafeRegexError("the pattern repeats without bound more than six times")
        return text

    def _alternatives(self, depth: int, flags: str) -> tuple[str, bool]:
        """Translate up to the closing parenthesis; also return whether any part repeats without bound."""
        if depth > 100:
            raise RegexError("expression nests too deeply")
        out: list[str] = []
        opened = 0
        repeats = False
        while self._at < len(self._pattern) and self._pattern[self._at] != ")":
            char = self._pattern[self._at]
            if char == "|":
                out.append("|")
                self._at += 1
                continue
            match = _FLAGS.match(self._pattern, self._at)
            if match is not None and match[3] == ")":
                # Python allows flags only on a group: open one that ends with the current group.
                flags = _changed(flags, match[1], match[2] or "")
                self._at = match.end()
                out.append(f"(?{_python(flags)}:")
                opened += 1
                continue
            atom, inner = self._atom(depth, flags)
            suffix, unbounded = self._quantifier()
            if unbounded:
                if inner:
                    raise UnsafeRegexError("nested unbounded repetition")
                self._unbounded += 1
            repeats = repeats or unbounded or inner
            out.append(atom + suffix)
        return "".join(out) + ")" * opened, repeats

    def _atom(self, depth: int, flags: str) -> tuple[str, bool]:
        char = self._pattern[self._at]
        if char in "*+?":
            raise RegexError(f"missing argument to repetition operator: `{char}`")
        if char == "(":
            return self._group(depth, flags)
        if char == "[":
            return self._class(), False
        if char == "{" and _REPETITION.match(self._pattern, self._at):
            raise RegexError("missing argument to repetition operator")
        self._at += 1
        if char == "\\":
            return self._escape(), False
        if char == "$":
            return ("$" if "m" in flags else r"\Z"), False
        return (char if char in ".^" else re.escape(char)), False

    def _group(self, depth: int, flags: str) -> tuple[str, bool]:
        start = "("
        match = _FLAGS.match(self._pattern, self._at)
        named = _NAMED.match(self._pattern, self._at)
        if match is not None:
            flags = _changed(flags, match[1], match[2] or "")
            start = f"(?{_python(flags)}:"
            self._at = match.end()
        elif named is not None:
            start = f"(?P<{named[1]}>"
            self._at = named.end()
        elif self._pattern.startswith("(?", self._at):
            raise RegexError("invalid or unsupported Perl syntax")
        else:
            self._at += 1
        body, repeats = self._alternatives(depth + 1, flags)
        if self._at >= len(self._pattern):
            raise RegexError("missing closing )")
        self._at += 1
        return start + body + ")", repeats

    def _quantifier(self) -> tuple[str, bool]:
        if self._at >= len(self._pattern):
            return "", False
        char = self._pattern[self._at]
        match = _REPETITION.match(self._pattern, self._at)
        if char not in "*+?" and match is None:
            return "", False
        if match is not None:
            low, high = int(match[1][:9]), match[3]
            top = low if match[2] is None else int(high[:9]) if high else low
            if max(low, top) > _LARGEST_REPETITION or top < low:
                raise RegexError("invalid repeat count")
            text, unbounded = match.group(), match[2] is not None and not high
            self._at = match.end()
        else:
            text, unbounded = char, char != "?"
            self._at += 1
        if self._at < len(self._pattern) and self._pattern[self._at] == "?":
            text += "?"
            self._at += 1
        following = self._pattern[self._at : self._at + 1]
        if following in tuple("*+?") or _REPETITION.match(self._pattern, self._at):
            raise RegexError("invalid nested repetition operator")
        return text, unbounded

    def _escape(self) -> str:
        if self._at >= len(self._pattern):
            raise RegexError("trailing backslash at end of expression")
        char = self._pattern[self._at]
        self._at += 1
        if char.lower() in _CLASSES:
            negated = "^" if char.isupper() else ""
            return f"[{negated}{_CLASSES[char.lower()]}]"
        if char in _ASSERTIONS:
            return _ASSERTIONS[char]
        if char == "Q":
            end = self._pattern.find("\\E", self._at)
            quoted = self._pattern[self._at :] if end < 0 else self._pattern[self._at : end]
            self._at = len(self._pattern) if end < 0 else end + 2
            return f"(?:{re.escape(quoted)})"
        if char in "pP":
            raise UnsafeRegexError("Unicode classes (\\p) are not supported by drakit")
        return self._character(char)

    def _character(self, char: str) -> str:
        """The character that an escape denotes, in Python syntax."""
        simple = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
        if char in simple:
            return re.escape(simple[char])
        if char == "x":
            match = re.compile(r"([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\}").match(self._pattern, self._at)
            if match is None:
                raise RegexError("invalid escape sequence")
            self._at = match.end()
            return re.escape(chr(int(match[1] or match[2], 16)))
        if char in "01234567":
            match = re.compile(r"[0-7]{1,2}").match(self._pattern, self._at)
            if char != "0" and match is None:
                raise RegexError("invalid escape sequence")  # a back reference
            digits = char + (match.group() if match else "")
            self._at += len(digits) - 1
            return re.escape(chr(int(digits, 8)))
        if char.isalnum() and char.isascii():
            raise RegexError(f"invalid escape sequence: `\\{char}`")
        return re.escape(char)

    def _class(self) -> str:
        self._at += 1
        negated = self._pattern.startswith("^", self._at)
        if negated:
            self._at += 1
        parts: list[str] = []
        while not (parts and self._pattern.startswith("]", self._at)):
            parts.append(self._class_item())  # raises at the end of the pattern
        self._at += 1
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def _class_item(self) -> str:
        posix = re.compile(r"\[:(\^?)([a-z]+):\]").match(self._pattern, self._at)
        if posix is not None:
            if posix[2] not in _POSIX:
                raise RegexError("invalid character class range")
            if posix[1]:
                raise UnsafeRegexError("negated POSIX classes are not supported by drakit")
            self._at = posix.end()
            return _POSIX[posix[2]]
        low = self._class_character()
        if len(low) > 1 and not low.startswith("\\"):
            return low  # a class such as \d
        following = self._pattern[self._at + 1 : self._at + 2]
        if self._pattern.startswith("-", self._at) and following not in ("", "]"):
            self._at += 1
            high = self._class_character()
            if _code(high) is None or _code(low) is None or _code(high) < _code(low):  # type: ignore[operator]
                raise RegexError("invalid character class range")
            return f"{low}-{high}"
        return low

    def _class_character(self) -> str:
        char = self._pattern[self._at : self._at + 1]
        if not char:
            raise RegexError("missing closing ]")
        self._at += 1
        if char != "\\":
            return "\\" + char if char in "[]^-\\&~|" else char
        if self._at >= len(self._pattern):
            raise RegexError("trailing backslash at end of expression")
        char = self._pattern[self._at]
        self._at += 1
        if char in _CLASSES:
            return _CLASSES[char]
        if char.lower() in _CLASSES or char in "pP":
            raise UnsafeRegexError(f"\\{char} inside a class is not supported by drakit")
        text = self._character(char)
        return text if len(text) > 1 else "\\" + text if text in "[]^-&~|" else text


def _code(text: str) -> int | None:
    plain = text[1:] if len(text) == 2 and text[0] == "\\" else text
    return ord(plain) if len(plain) == 1 else None


def _changed(flags: str, added: str, removed: str) -> str:
    return "".join(sorted((set(flags) | set(added)) - set(removed)))


def _python(flags: str) -> str:
    if "U" in flags:
        raise UnsafeRegexError("the flag U is not supported by drakit")
    on = "".join(f for f in "ims" if f in flags)
    off = "".join(f for f in "ims" if f not in flags)
    return f"{on}-{off}" if off else on


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile *pattern*. Raises :class:`RegexError`."""
    translated = _Translator(pattern).translate()
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise RegexError(str(error)) from None


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return compiled(text)
    except RegexError as error:
        raise CelRuntimeError(f"error parsing regexp: {error}") from None


def _find(text: str, pattern: str) -> str:
    match = _pattern(pattern).search(text)
    return match.group() if match else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [match.group() for match in _pattern(pattern).finditer(text)]
    return found if limit < 0 else found[:limit]


OVERLOADS: Final[Overloads] = {
    "matches": [(lambda text, pattern: _pattern(pattern).search(text) is not None, (str, str))],
    "find": [(_find, (str, str))],
    "findAll": [(_find_all, (str, str)), (_find_all, (str, str, int))],
}
