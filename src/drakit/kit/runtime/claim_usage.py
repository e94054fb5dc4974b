"""Use of claims by running containers, CPUs of claims that lost their record, and reservations for pods."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, TypeVar

from drakit.cgroups.tree import CgroupTree
from drakit.core.cpuset import CpuSet
from drakit.core.log import get_logger
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.resource_claims import ClaimSource, ClaimSourceError
from drakit.kit.driver import Driver
from drakit.kit.runtime.container_claims import ForeignClaimError, exclusive_cpus, holds
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.runtime.tracking import TrackedContainer

log = get_logger(__name__)
_API_SECONDS: Final = 1.0
"""How long the API server may take to confirm a pod; the runtime waits two seconds in all."""
_DENIAL_SECONDS: Final = 5.0
"""How long a negative answer is cached: a forged variable must not slow down every event."""
_MAX_DENIALS: Final = 1000
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class ClaimUsage:
    """Whether a claim is in use, according to the runtime and the kernel."""

    _driver: Callable[[], Driver]
    _checkpoint: Checkpoint
    _enforcer: Enforcer
    _tree: CgroupTree | None

    def user_of(self, claim_uid: str) -> str | None:
        """A container that was created with the claim and has not ended; None without one."""
        for user in self._enforcer.users_of(claim_uid):
            if not self._has_ended(user):
                return f"{user.reported} of {user.pod}"
        return None

    def _has_ended(self, container: TrackedContainer) -> bool:
        """Whether the kernel shows that a container ended: its end may be reported late, or never.

        One that has not run counts only if its sandbox was stopped: otherwise it may be about to start.
        """
        path = container.cgroup_path
        if self._tree is None or path is None:
            return False
        over = container.ran or self._enforcer.has_stopped(container.pod)
        return over and not self._tree.populated(path)

    def standby_user_of(self, claim_uid: str) -> str | None:
        """The same from the kernel alone: an instance in standby gets no events."""
        claims = self._checkpoint.prepared_claims
        claim, held = claims.get(claim_uid), claims.orphaned.get(claim_uid)
        if claim is not None:
            cpus = exclusive_cpus(claim, self._driver())
        else:
            cpus = CpuSet.union((held or {}).get(k, CpuSet()) for k in self._driver().cpuset_kinds)
        if not cpus:
            unknown = "a container that cannot be ruled out (the claim's record is unreadable)"
            return unknown if claim is None and held is not None else None
        if self._tree is None:
            return "a container that cannot be ruled out (cgroupRoot is not set, another instance serves)"
        for path in self._tree.all_containers():
            cpuset = self._tree.cpuset(path)
            if cpuset and cpuset.cpus and cpuset.cpus <= cpus and self._tree.populated(path):
                return f"container {os.path.basename(path)}"
        return None

    def hold_lost_claims(self, specs_at_start: Collection[str]) -> None:
        """Hold the CPUs of containers that run on a claim whose record is damaged or missing.

        They must not be assigned to others before these containers have ended. The workload cannot forge
        the evidence of such a claim: see :meth:`ClaimOwners.orphaned`.
        """
        evidence = {*specs_at_start, *self._checkpoint.unreadable}
        lost = self._enforcer.orphaned(evidence, self._has_ended)
        for uid, cpus in lost.items():
            log.warning("claim has no readable record, holding its CPUs", claim=uid, cpus=cpus)
        self._checkpoint.hold_for_running(holds(lost, self._driver()))

    def release_lost_claims(self) -> bool:
        """Release CPUs of lost claims whose last container ended; returns whether there were any."""
        held = self._checkpoint.held_for_running
        if not held:
            return False
        referenced = self._enforcer.referenced_claims()
        return self._checkpoint.hold_for_running(
            {uid: numbers for uid, numbers in held.items() if uid in referenced}
        )


@dataclass(eq=False, slots=True)
class ReservationChecker:
    """Confirms reservations of claims for pods with the API server and records them in the enforcer.

    Needed only where the runtime does not report CDI devices: there a marker variable alone proves nothing,
    and the kubelet does not report further pods that share a prepared claim.
    """

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
