"""Running containers that use a claim, and CPUs held for containers whose claim lost its record."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from drakit.cgroups.tree import CgroupTree
from drakit.core.cpuset import CpuSet
from drakit.core.log import get_logger
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.driver import Driver
from drakit.kit.runtime.claim_owners import exclusive_cpus, holds
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.runtime.tracking import TrackedContainer

log = get_logger(__name__)


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
