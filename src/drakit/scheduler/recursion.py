"""Room for recursion that is deep for a good reason."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Final

_FRAMES: Final = 20_000
"""Enough for an expression of the greatest nesting cel-go parses, and for the largest search."""


@contextlib.contextmanager
def deep_stack() -> Iterator[None]:
    """Within, Python may recurse deeper than its default of 1000 frames."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
