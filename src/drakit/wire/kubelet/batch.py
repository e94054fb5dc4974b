"""Concurrent handling of the claims of one kubelet call, with one result per claim.

The kubelet treats a response that lacks a claim as a failure of all claims, and a claim that hangs must
not delay the others of its pod.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from drakit.core.log import get_logger
from drakit.wire.kubelet.values import ClaimError, ClaimRef, KubeletDevice

log = get_logger(__name__)

request_id: ContextVar[int] = ContextVar("request_id", default=0)
"""Number of the current kubelet call, for logs; 0 outside of a call."""

_numbers = itertools.count(1)

LONGEST_ERROR = 900
"""The API server limits events to 1024 bytes, and the kubelet adds a prefix."""

# A UID becomes part of file names. The API guarantees no format, but uses no other characters.
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """Devices of a prepared claim, or an error."""

    devices: tuple[KubeletDevice, ...] = ()
    error: str = ""


Work = Callable[[ClaimRef], Awaitable[Sequence[KubeletDevice] | None]]


def next_request() -> int:
    """Assign a number to the call that the current task serves."""
    number = next(_numbers)
    request_id.set(number)
    return number


async def serve_claims(claims: Iterable[ClaimRef], work: Work, seconds: float) -> dict[str, ClaimOutcome]:
    """Do *work* for all claims concurrently; returns exactly one outcome per distinct UID.

    Returns shortly before *seconds* have passed: unfinished claims are cancelled and fail. When
    cancelled itself, it cancels the work and waits for it to finish.
    """
    outcomes: dict[str, ClaimOutcome] = {}
    tasks: dict[asyncio.Task[ClaimOutcome], ClaimRef] = {}
    for claim in _distinct(claims, outcomes):
        task = asyncio.create_task(_outcome(claim, work), name=f"claim {claim.uid}")
        tasks[task] = claim
    if not tasks:
        return outcomes
    margin = min(2.0, seconds * 0.25)
    try:
        _, late = await asyncio.wait(tasks, timeout=seconds - margin)
        await _cancel(late, margin / 2)
    except asyncio.CancelledError:
        await _cancel(set(tasks), margin)
        raise
    for task, claim in tasks.items():
        finished = task.done() and not task.cancelled()
        outcomes[claim.uid] = task.result() if finished else _unfinished(claim, seconds)
    return outcomes


def _distinct(claims: Iterable[ClaimRef], outcomes: dict[str, ClaimOutcome]) -> list[ClaimRef]:
    """Each UID once; invalid and contradictory entries get an error in *outcomes*."""
    wanted: dict[str, ClaimRef] = {}
    for claim in claims:
        if not _UID.fullmatch(claim.uid):
            outcomes[claim.uid] = ClaimOutcome(error=f"{claim.uid!r} is not a valid claim UID")
        elif wanted.setdefault(claim.uid, claim) != claim:
            outcomes[claim.uid] = ClaimOutcome(
                error=f"one call names UID {claim.uid} for two claims: {wanted[claim.uid]}, {claim}"
            )
    return [claim for uid, claim in wanted.items() if uid not in outcomes]


async def _outcome(claim: ClaimRef, work: Work) -> ClaimOutcome:
    try:
        return ClaimOutcome(devices=tuple(await work(claim) or ()))
    except ClaimError as error:
        log.warning("claim rejected", claim=claim, error=error)
        return ClaimOutcome(error=_shortened(str(error) or "rejected without a reason"))
    except Exception as error:  # one claim must not fail the others
        log.exception("claim failed unexpectedly", claim=claim)
        return ClaimOutcome(error=_shortened(f"{type(error).__name__}: {error}"))


def _unfinished(claim: ClaimRef, seconds: float) -> ClaimOutcome:
    log.warning("claim not finished in time", claim=claim, seconds=round(seconds, 1))
    return ClaimOutcome(error=f"not finished within {seconds:.0f} s; the kubelet retries")


async def _cancel(tasks: set[asyncio.Task[ClaimOutcome]], seconds: float) -> None:
    """Cancel the work and wait *seconds*; work that ignores the cancellation keeps running."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        if not task.done():
            log.error("task ignores its cancellation", task=task.get_name())
            _stragglers.add(task)
            task.add_done_callback(_stragglers.discard)


# asyncio keeps only weak references to tasks.
_stragglers: set[asyncio.Task[ClaimOutcome]] = set()


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 1]}…"
