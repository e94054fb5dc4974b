"""Ends a driver whose event loop no longer turns, so that the kubelet starts it again.

A liveness probe over the network would let anybody who can reach the pod make it fail, and an exec
probe starts a process on every node several times a minute. So the process watches itself: the event
loop sets an alarm again every few seconds, and a thread of the interpreter that needs neither the
event loop nor the interpreter's lock writes where every thread hangs to standard error and ends the
process when the alarm is reached.
"""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import Callable
from typing import Final

HANGS_SECONDS: Final = 60.0
"""How long the event loop may stand still. Nothing it does takes a second on a node that works."""
_LOOKS: Final = 6
"""How often the alarm is set again in that time."""
_STANDARD_ERROR: Final = 2


def _arm(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STANDARD_ERROR)


async def watch(
    seconds: float = HANGS_SECONDS,
    arm: Callable[[float], None] = _arm,
    disarm: Callable[[], None] = faulthandler.cancel_dump_traceback_later,
) -> None:
    """End the process when the event loop stands still for *seconds*; until cancelled."""
    try:
        while True:
            arm(seconds)
            await asyncio.sleep(seconds / _LOOKS)
    finally:
        disarm()
