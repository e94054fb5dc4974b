"""Reservations of claims for pods, confirmed by the API server.

Needed only where the runtime does not report CDI devices: there a marker variable alone proves nothing, and
the kubelet does not report further pods that share a prepared claim.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from drakit.core.log import get_logger
from drakit.kit.claims.resource_claims import ClaimSource, ClaimSourceError
from drakit.kit.runtime.container_claims import ForeignClaimError
from drakit.kit.runtime.enforcer import Enforcer

log = get_logger(__name__)
_API_SECONDS: Final = 1.0
"""How long the API server may take to confirm a pod; the runtime waits two seconds in all."""
_DENIAL_SECONDS: Final = 5.0
"""How long a negative answer is cached: a forged variable must not slow down every event."""
_MAX_DENIALS: Final = 1000
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class ReservationChecker:
    """Confirms reservations with the API server and records them in the enforcer."""

    _enforcer: Enforcer
    _source: ClaimSource | None
    _denied: dict[tuple[str, str], float] = field(default_factory=dict)

    async def confirming(self, ask: Callable[[], T]) -> T:
        """Call *ask*, again after each reservation it lacks and the API server confirms."""
        asked: set[tuple[str, str]] = set()
        while True:
            try:
                return ask()
            except ForeignClaimError as error:
                pair = (error.claim.uid, error.pod_uid)
                if pair in asked or not await self._confirm(error):
                    raise
                asked.add(pair)

    async def confirm_conflicts(self) -> None:
        """Confirm the reservations of all containers in conflict."""
        for error in self._enforcer.unconfirmed_claims():
            await self._confirm(error)

    async def _confirm(self, foreign: ForeignClaimError) -> bool:
        """Whether the claim is reserved for the pod; False if the API server does not answer."""
        claim, pair = foreign.claim, (foreign.claim.uid, foreign.pod_uid)
        now = time.monotonic()
        if self._source is None or now - self._denied.get(pair, -_DENIAL_SECONDS) < _DENIAL_SECONDS:
            return False
        try:
            async with asyncio.timeout(_API_SECONDS):
                current = await self._source.get(claim.namespace, claim.name)
        except (ClaimSourceError, TimeoutError) as error:
            log.warning("cannot check reservation", claim=claim, error=repr(error))
            return False
        same = current is not None and current.metadata.uid == claim.uid
        reserved_for = current.status.reserved_for if current is not None and same else ()
        if any(each.uid == foreign.pod_uid for each in reserved_for):
            self._enforcer.confirm(*pair)
            return True
        if len(self._denied) >= _MAX_DENIALS:
            self._denied.clear()
        self._denied[pair] = now
        return False
