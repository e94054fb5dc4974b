"""Waiting for conditions: generous limits, and the reason when it takes too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NotYetError(Exception):
    """The condition does not hold yet; the message says what is seen instead."""


def wait_for(
    why: str,
    condition: Callable[[], T],
    *,
    limit: float = 180.0,
    pause: float = 0.3,
    alive: Callable[[], None] = lambda: None,
) -> T:
    """Call ``condition`` until it returns without ``NotYetError`` and hand back its value.

    A condition that returns ``False`` or ``None`` counts as not yet. ``alive`` may raise to
    end the wait at once (a program the condition depends on has died). Raises
    ``TimeoutError`` saying what was waited for, how long, and what was seen last.
    """
    begin = time.monotonic()
    seen = "nothing yet"
    while True:
        try:
            value = condition()
            if value is not None and value is not False:
                return value
            seen = f"the condition is {value}"
        except NotYetError as reason:
            seen = str(reason)
        alive()
        waited = time.monotonic() - begin
        if waited > limit:
            raise TimeoutError(f"waited {waited:.0f} s for {why}; last seen: {seen}")
        time.sleep(pause)
