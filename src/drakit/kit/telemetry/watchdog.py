"""Watchdog: ends a driver whose event loop hangs, so that the kubelet restarts it.

Anyone who can reach the pod could make a network probe fail, and an exec probe starts a process on
every node several times a minute. Instead, the event loop re-arms a timer every few seconds. When it
expires, a thread that needs neither the event loop nor the interpreter's lock writes all tracebacks to
standard error and ends the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import Callable
from typing import Final

HANGS_SECONDS: Final = 60.0
"""How long the event loop may hang. Normally nothing it does takes a second."""
_RESETS: Final = 6
"""How often the timer is re-armed in that time."""
_STANDARD_ERROR: Final = 2


def _arm(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STANDARD_ERROR)


async def watch(
    seconds: float = HANGS_SECONDS,
    arm: Callable[[float], None] = _arm,
    disarm: Callable[[], None] = faulthandler.cancel_dump_traceback_later,
) -> None:
    """End the process when the event loop hangs for *seconds*; runs until cancelled."""
    try:
        while True:
            arm(seconds)
            await asyncio.sleep(seconds / _RESETS)
    finally:
        disarm()
