"""Deeper recursion than Python's default limit."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Final

_FRAMES: Final = 20_000
"""Sufficient for the deepest expression that cel-go parses, and for the largest search."""


@contextlib.contextmanager
def deep_stack() -> Iterator[None]:
    """Raise the recursion limit within the context."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
