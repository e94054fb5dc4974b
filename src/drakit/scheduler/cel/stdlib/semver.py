"""Semantic versions (2.0.0), parsed and ordered as by the API server."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_PRE: Final = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_STRICT: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-({_PRE}(?:\.{_PRE})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_UINT64: Final = 2**64


@functools.total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version; order and equality ignore build metadata."""

    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...] = ()
    build: str = ""

    def _key(self) -> tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]:
        # Numbers rank below words, fewer identifiers below more, any pre-release below none.
        parts = tuple((0, p, "") if isinstance(p, int) else (1, 0, p) for p in self.pre)
        return self.major, self.minor, self.patch, 0 if self.pre else 1, parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._key() == other._key()

    def __lt__(self, other: Semver) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        text += "-" + ".".join(map(str, self.pre)) if self.pre else ""
        return text + ("+" + self.build if self.build else "")


def parse(text: str) -> Semver:
    """Parse a strict semantic version. Raises ``ValueError``."""
    match = _STRICT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a valid semantic version (expected 1.2.3 or 1.2.3-rc.1)")
    numbers = [int(match[i]) for i in (1, 2, 3)]
    pre = tuple(int(p) if p.isdigit() else p for p in match[4].split(".")) if match[4] else ()
    if any(n >= _UINT64 for n in (*numbers, *(p for p in pre if isinstance(p, int)))):
        raise ValueError(f"{text!r} has a number beyond 64 bits")
    return Semver(numbers[0], numbers[1], numbers[2], pre, match[5] or "")


def parse_leniently(text: str) -> Semver:
    """Parse; allow a leading ``v``, leading zeros and missing minor or patch numbers."""
    text = text.removeprefix("v")
    parts = text.split(".", 2)
    for at, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[at] = stripped if stripped[:1] in tuple("123456789") else "0" + stripped
    if len(parts) < 3 and any(c in parts[-1] for c in "+-"):
        raise ValueError(f"short version cannot contain PreRelease/Build meta data: {text!r}")
    return parse(".".join(parts + ["0"] * (3 - len(parts))))
