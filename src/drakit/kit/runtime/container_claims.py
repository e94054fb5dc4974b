"""Claims that a container may use: its references to claims, checked against the checkpoint.

Invariant: nothing a workload controls – environment, labels, annotations, names – makes a claim reserved,
owned or blocked for other workloads. In order of trust:

1. CDI device names reported by the runtime: they come from the kubelet.
2. Marker variables, where the runtime does not report CDI device names. A marker counts only if the claim
   is in the checkpoint and reserved for the container's own pod.
3. A container that refers to a claim which is not in the checkpoint is rejected.

On a runtime that is known to report CDI device names, a new container with a marker of a claim of its own pod
but without the device name is rejected: the runtime does not report what this driver relies on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from drakit.core.cpuset import CpuSet
from drakit.kit.claims.cdi_names import (
    MARKER_PREFIX,
    MOST_MARKERS,
    ClaimReferences,
    ClaimRequest,
    index_by_device,
    index_by_marker,
    marker_variable,
)
from drakit.kit.driver import ContainerView, Driver, PreparedClaim, PreparedClaims, RejectedError
from drakit.kit.runtime.tracking import ContainerTracker, TrackedContainer
from drakit.wire.nri.values import NriContainer, PodSandbox


class ForeignClaimError(RejectedError):
    """A container carries the marker of a claim that is not known to be reserved for its pod.

    It may be reserved nevertheless: the kubelet does not report further pods that share a prepared claim.
    A caller that can read the API server should check and call :meth:`ClaimResolver.confirm`.
    """

    def __init__(self, text: str, claim: PreparedClaim, pod_uid: str) -> None:
        super().__init__(text, reason="foreign-claim")
        self.claim = claim
        self.pod_uid = pod_uid


@dataclass(eq=False, slots=True)
class ClaimResolver:
    """Finds the requests that a container may use. Lookups only: no event costs claims × containers.

    *trust_cdi*: this runtime is known to report CDI device names.
    """

    _driver: Callable[[], Driver]
    _prepared_claims: Callable[[], PreparedClaims]
    trust_cdi: bool
    confirmed: frozenset[tuple[str, str]] = frozenset()
    """(claim UID, pod UID) pairs that the API server confirmed in addition to the checkpoint's."""

    def confirm(self, claim_uid: str, pod_uid: str) -> None:
        """Record that the claim is reserved for the pod, as the API server reports."""
        self.confirmed |= {(claim_uid, pod_uid)}

    def keep_confirmed(self, keep: Callable[[str], bool]) -> None:
        """Forget confirmed reservations except for pods for which *keep* (of the UID) is true."""
        self.confirmed = frozenset(pair for pair in self.confirmed if keep(pair[1]))

    def is_reserved(self, claim: PreparedClaim, pod_uid: str) -> bool:
        """Whether the claim is reserved for the pod according to the kubelet or the API server."""
        return pod_uid in claim.consumers or (claim.uid, pod_uid) in self.confirmed

    def requests(self, pod: PodSandbox, name: str, references: ClaimReferences) -> tuple[ClaimRequest, ...]:
        """The requests that container *name* of *pod* may use. Raises :class:`RejectedError`."""
        if references.devices:
            return self._from_devices(name, references)
        if not references.markers:
            return ()
        if self.trust_cdi:
            return self._of_own_pod(pod, references)
        return self._from_markers(pod, name, references)

    def check_reported(self, pod: PodSandbox, reported: NriContainer, references: ClaimReferences) -> None:
        """Reject a new container whose claim the runtime should have reported but did not.

        Only claims of its own pod count, so a forged variable can harm only its own pod.
        """
        if not self.trust_cdi or references.devices:
            return
        for request in self._of_own_pod(pod, references):
            raise RejectedError(
                f"container {reported.name} carries {marker_variable(request)}, a claim of its "
                f"pod, but the runtime reports no CDI device for it: it would run without its "
                f"resources. Remove the variable from the pod if it is set there; otherwise this "
                f"runtime release does not report CDI devices, please file an issue with its version",
                reason="missing-device",
            )

    def _of_own_pod(self, pod: PodSandbox, references: ClaimReferences) -> tuple[ClaimRequest, ...]:
        """The markers of claims that are reserved for the pod itself."""
        prepared = self._prepared_claims()
        index, claims = _by_marker(prepared), prepared.entries
        found = [index[marker] for marker in references.markers if marker in index]
        return tuple(each for each in found if self.is_reserved(claims[each.uid], pod.uid))

    def _from_devices(self, name: str, references: ClaimReferences) -> tuple[ClaimRequest, ...]:
        index = _by_device(self._driver().cdi_kind, self._prepared_claims())
        for device in references.devices:
            if device not in index:
                raise _not_prepared(f"container {name} uses {device}, which")
        return tuple(dict.fromkeys(index[device] for device in references.devices))

    def _from_markers(
        self, pod: PodSandbox, name: str, references: ClaimReferences
    ) -> tuple[ClaimRequest, ...]:
        if len(references.markers) > MOST_MARKERS:
            raise RejectedError(
                f"container {name} carries more than {MOST_MARKERS} variables "
                f"{MARKER_PREFIX}*; remove them from the pod",
                reason="foreign-claim",
            )
        prepared = self._prepared_claims()
        index, claims = _by_marker(prepared), prepared.entries
        found = {marker: index[marker] for marker in references.markers if marker in index}
        for marker, request in found.items():
            claim = claims[request.uid]
            if not self.is_reserved(claim, pod.uid):
                raise ForeignClaimError(
                    f"container {name} carries a variable of {claim}, which is not reserved for its "
                    f"pod {pod.namespace}/{pod.name}; remove {marker} from the pod",
                    claim,
                    pod.uid,
                )
        for marker in references.markers:
            if marker not in found:
                raise _not_prepared(f"container {name} carries {marker}, a claim")
        return tuple(index[marker] for marker in references.markers)


def _not_prepared(what: str) -> RejectedError:
    text = f"{what} this driver has not prepared; delete the pod and create it again"
    return RejectedError(text, reason="unknown-claim")


@dataclass(eq=False, slots=True)
class ClaimOwners:
    """Decides between pods that refer to the same claim. Lookups only.

    Invariant: a running container keeps its CPUs; a newcomer is rejected. The pod whose containers use a
    claim owns it until they have ended and its sandbox has stopped; reservations decide only between pods
    that have not used it yet.
    """

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


# Prepared claims are immutable and compare by identity: an index is made once for each version of them.
_by_device = functools.lru_cache(maxsize=2)(index_by_device)
_by_marker = functools.lru_cache(maxsize=2)(index_by_marker)
