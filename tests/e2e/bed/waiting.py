"""Polling for conditions, with generous timeouts and a reason on failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NotYetError(Exception):
    """The condition is not met yet; the message is the observed state."""


def wait_for(
    why: str,
    condition: Callable[[], T],
    *,
    limit: float = 180.0,
    pause: float = 0.3,
    alive: Callable[[], None] = lambda: None,
) -> T:
    """Call ``condition`` until it returns without ``NotYetError`` and return its value.

    ``False`` and ``None`` mean not yet. ``alive`` may raise to end the wait immediately (a program
    that the condition depends on has died). Raises ``TimeoutError`` with the purpose, the duration
    and the last observed state.
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
