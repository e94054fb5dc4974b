"""How long to wait before the next try: quick first, then ever longer, never in step."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Delays that double from ``first`` to ``longest``, each shortened at random by up to half.

    The randomness keeps the nodes of a cluster from coming back in the same instant.
    """

    def __init__(
        self,
        first: float = 0.1,
        longest: float = 30.0,
        *,
        randomly: Callable[[], float] = random.random,
    ) -> None:
        self._first = first
        self._longest = longest
        self._randomly = randomly
        self._current = first

    def next(self, at_least: float | None = None) -> float:
        """The next delay in seconds; not below *at_least*, what the server asked for."""
        delay = self._current * (1 - self._randomly() / 2)
        self._current = min(self._current * 2, self._longest)
        if at_least is None:
            return delay
        # A request to come back in n seconds went to everybody: spread by a tenth.
        return max(delay, at_least * (1 + self._randomly() / 10))

    def reset(self) -> None:
        """Things work again: start over with the shortest delay."""
        self._current = self._first
