"""Owners and users of claims: the pod that a claim belongs to, and the containers that use it.

Invariant: a running container keeps its CPUs; a newcomer is rejected. The pod whose containers use a claim
owns it until they have ended and its sandbox has stopped; reservations decide only between pods that have
not used it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from drakit.core.cpuset import CpuSet
from drakit.kit.driver import ContainerView, Driver, PreparedClaim, PreparedClaims, RejectedError
from drakit.kit.runtime.container_claims import ClaimResolver
from drakit.kit.runtime.tracking import ContainerTracker, TrackedContainer
from drakit.wire.nri.values import PodSandbox


@dataclass(eq=False, slots=True)
class ClaimOwners:
    """Decides between pods that refer to the same claim. Lookups only."""

    _driver: Callable[[], Driver]
    _prepared_claims: Callable[[], PreparedClaims]
    _tracker: ContainerTracker
    _resolver: ClaimResolver
    _owners: dict[str, str] = field(default_factory=dict)
    """Claim UID to the UID of the pod that used it first."""

    def users_of(self, claim_uid: str) -> list[TrackedContainer]:
        """The containers that were rightfully created with a claim and are not known to have stopped.

        For a claim without a readable record these are the containers with its CDI device, and those with a
        marker variable whose CPUs are held for the claim.
        """
        claim = self._prepared_claims().get(claim_uid)
        return [
            each for each in self._tracker.referring_to(claim_uid) if self._may_use(each, claim_uid, claim)
        ]

    def _may_use(self, container: TrackedContainer, claim_uid: str, claim: PreparedClaim | None) -> bool:
        if claim_uid in container.references.device_claims:
            return True
        if claim is not None:
            return self._resolver.is_reserved(claim, container.pod.uid)
        return container.is_pinned_to(self.held_cpus([claim_uid]))

    def choose(self, claim_uids: Collection[str]) -> None:
        """Record the owners of claims that have none: of the users the one that runs on the claim."""
        for claim_uid in claim_uids:
            claim = self._prepared_claims().get(claim_uid)
            if claim_uid in self._owners or claim is None:
                continue
            order = {uid: place for place, uid in enumerate(claim.consumers)}
            own = exclusive_cpus(claim, self._driver())
            users = sorted(
                self.users_of(claim_uid),
                key=lambda user: (not user.is_pinned_to(own), order.get(user.pod.uid, len(order))),
            )
            if users:
                self._owners[claim_uid] = users[0].pod.uid

    def release(self, pod_uid: str) -> list[str]:
        """Pass on the claims that an ended pod no longer uses; returns their UIDs."""
        if self._tracker.is_running(pod_uid):
            return []
        unused = [
            claim_uid
            for claim_uid, owner in self._owners.items()
            if owner == pod_uid and all(user.pod.uid != pod_uid for user in self.users_of(claim_uid))
        ]
        for claim_uid in unused:
            del self._owners[claim_uid]
        self.choose(unused)
        return unused

    def clear(self) -> None:
        """Forget all owners."""
        self._owners.clear()

    def owner(self, claim: PreparedClaim, pod: PodSandbox) -> PodSandbox:
        """The pod that owns a claim: its user, else the first running pod it is reserved for."""
        owner = self._owners.get(claim.uid)
        if owner is None:
            owner = next((u for u in claim.consumers if u == pod.uid or self._tracker.is_running(u)), pod.uid)
        return pod if owner == pod.uid else self._tracker.sandbox_of(owner) or pod

    def held_cpus(self, claim_uids: Collection[str]) -> CpuSet:
        """CPUs that are held for claims without a readable record."""
        orphaned, kinds = self._prepared_claims().orphaned, self._driver().cpuset_kinds
        return CpuSet.union(
            numbers for uid in claim_uids for kind, numbers in orphaned.get(uid, {}).items() if kind in kinds
        )

    def orphaned(
        self, evidence: Collection[str], ended: Callable[[TrackedContainer], bool] = lambda container: False
    ) -> dict[str, CpuSet]:
        """CPUs of running containers whose claim has no readable record, by claim UID.

        A CDI device name is proof. A marker variable counts only for claims in *evidence* (UIDs known to
        this node from other sources), without CPUs that containers without claims use too, and only as long
        as some CPU is left for those.
        """
        prepared, driver = self._prepared_claims(), self._driver()
        lost = [uid for uid in self._tracker.referenced_claims() if prepared.get(uid) is None]
        if not lost or not driver.cpuset_kinds:
            return {}
        recorded = CpuSet.union(exclusive_cpus(claim, driver) for claim in prepared)
        proven: dict[str, CpuSet] = {}
        marked: dict[str, CpuSet] = {}
        for uid in lost:
            for container in self._tracker.referring_to(uid):
                if ended(container):
                    continue
                cpus = container.cpus - recorded
                if uid in container.references.device_claims:
                    proven[uid] = proven.get(uid, CpuSet()) | cpus
                elif uid in evidence and not self._resolver.trust_cdi:
                    marked[uid] = marked.get(uid, CpuSet()) | cpus
        shared = self._tracker.cpus_without_claims() if marked else CpuSet()
        marked = {uid: cpus - shared for uid, cpus in marked.items()}
        if marked and not self._leaves_cpus(marked):
            marked = {}
        return {uid: cpus for uid, cpus in (marked | proven).items() if cpus}

    def _leaves_cpus(self, held: dict[str, CpuSet]) -> bool:
        """Whether containers without claims could still run if these CPUs were held too."""
        prepared, driver = self._prepared_claims(), self._driver()
        orphaned = {**prepared.orphaned, **holds(held, driver)}
        probe = ContainerView(id="", name="", pod_uid="", pod_name="", namespace="")
        try:
            desired = driver.enforce(probe, PreparedClaims(prepared, orphaned))
        except RejectedError:
            return False
        return desired.cpus is None or bool(desired.cpus)


def exclusive_cpus(claim: PreparedClaim, driver: Driver) -> CpuSet:
    """The CPUs that a claim holds exclusively, of all kinds that *driver* declares as CPUs."""
    return CpuSet.union(claim.exclusive(kind) for kind in driver.cpuset_kinds)


def holds(cpus: dict[str, CpuSet], driver: Driver) -> dict[str, dict[str, CpuSet]]:
    """CPUs by claim UID, as exclusive numbers by kind."""
    return {uid: dict.fromkeys(driver.cpuset_kinds, held) for uid, held in cpus.items()}
