"""Exponential backoff with jitter."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Delays that double from ``first`` to ``longest``, each shortened by up to half at random."""

    def __init__(
        self, first: float = 0.1, longest: float = 30.0, *, randomly: Callable[[], float] = random.random
    ) -> None:
        self._first = first
        self._longest = longest
        self._randomly = randomly
        self._current = first

    def next(self, at_least: float | None = None) -> float:
        """The next delay in seconds, at least *at_least* (the server's ``Retry-After``)."""
        delay = self._current * (1 - self._randomly() / 2)
        self._current = min(self._current * 2, self._longest)
        if at_least is None:
            return delay
        # All clients received the same Retry-After: spread them by a tenth.
        return max(delay, at_least * (1 + self._randomly() / 10))

    def reset(self) -> None:
        """Start over with the shortest delay."""
        self._current = self._first
