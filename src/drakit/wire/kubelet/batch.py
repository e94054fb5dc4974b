"""One answer for every claim, whatever the driver does.

The kubelet takes a response without an entry for each claim as a failure of all of them, and a
claim that hangs must not keep the others of its pod from being answered in time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from drakit.wire.kubelet.values import ClaimError, ClaimRef, KubeletDevice

log = logging.getLogger(__name__)

request_id: ContextVar[int] = ContextVar("request_id", default=0)
"""The number of the kubelet's call being served, for log lines; 0 outside of one."""

_numbers = itertools.count(1)

LONGEST_ERROR = 900
"""Events are cut at 1024 bytes by the API server; the kubelet adds a preamble of its own."""

# A UID becomes a part of file names. The API promises no format, but never had other characters.
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """What became of one claim: devices, or the text of an error."""

    devices: tuple[KubeletDevice, ...] = ()
    error: str = ""


Work = Callable[[ClaimRef], Awaitable[Sequence[KubeletDevice] | None]]


def next_request() -> int:
    """Number the call that the current task serves; its log lines and its tasks carry it."""
    number = next(_numbers)
    request_id.set(number)
    return number


async def serve_claims(
    claims: Iterable[ClaimRef], work: Work, seconds: float
) -> dict[str, ClaimOutcome]:
    """Do *work* for all claims at once; returns exactly one outcome per distinct UID.

    Answers a little before *seconds* have passed: claims still at work then are cancelled and
    failed alone. Cancelled itself, it cancels the work and waits for it to wind up.
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
        await _wind_up(late, margin / 2)
    except asyncio.CancelledError:
        await _wind_up(set(tasks), margin)
        raise
    for task, claim in tasks.items():
        finished = task.done() and not task.cancelled()
        outcomes[claim.uid] = task.result() if finished else _unfinished(claim, seconds)
    return outcomes


def _distinct(claims: Iterable[ClaimRef], outcomes: dict[str, ClaimOutcome]) -> list[ClaimRef]:
    """Each UID once; what makes no sense is answered in *outcomes* at once."""
    wanted: dict[str, ClaimRef] = {}
    for claim in claims:
        if not _UID.fullmatch(claim.uid):
            outcomes[claim.uid] = ClaimOutcome(error=f"{claim.uid!r} is not the UID of a claim")
        elif wanted.setdefault(claim.uid, claim) != claim:
            outcomes[claim.uid] = ClaimOutcome(
                error=f"one call names UID {claim.uid} for two claims: {wanted[claim.uid]}, {claim}"
            )
    return [claim for uid, claim in wanted.items() if uid not in outcomes]


async def _outcome(claim: ClaimRef, work: Work) -> ClaimOutcome:
    try:
        return ClaimOutcome(devices=tuple(await work(claim) or ()))
    except ClaimError as reason:
        log.warning("claim %s failed: %s", claim, reason)
        return ClaimOutcome(
            error=_shortened(str(reason) or "refused by the driver without a reason")
        )
    except Exception as error:  # one bad claim never fails the batch
        log.exception("claim %s failed unexpectedly", claim)
        return ClaimOutcome(error=_shortened(f"{type(error).__name__}: {error}"))


def _unfinished(claim: ClaimRef, seconds: float) -> ClaimOutcome:
    log.warning("claim %s was given up; the call had %.1f s", claim, seconds)
    return ClaimOutcome(
        error=f"not finished within the kubelet's {seconds:.0f} s; it will be tried again"
    )


async def _wind_up(tasks: set[asyncio.Task[ClaimOutcome]], seconds: float) -> None:
    """Cancel and give the work a moment to undo what it began.

    Work that does not listen is left behind: it may not keep the answer of others from leaving.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        if not task.done():
            log.error("%s does not react to being cancelled", task.get_name())
            _stragglers.add(task)
            task.add_done_callback(_stragglers.discard)


# asyncio keeps only weak references to tasks; without this a straggler could vanish half-way.
_stragglers: set[asyncio.Task[ClaimOutcome]] = set()


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 1]}…"
