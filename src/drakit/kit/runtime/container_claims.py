"""Claims that a container may use: its references to claims, checked against the checkpoint.

Invariant: nothing a workload controls – environment, labels, annotations, names – makes a claim reserved,
owned or blocked for other workloads. In order of trust:

1. CDI device names reported by the runtime: they come from the kubelet.
2. Marker variables, where the runtime does not report CDI device names. A marker counts only if the claim
   is in the checkpoint and reserved for the container's own pod.
3. A container that refers to a claim which is not in the checkpoint is rejected.

On a runtime that is known to report CDI device names, a marker of a claim of the container's own pod
without the device name is a contradiction: the new container is rejected
(:meth:`ClaimResolver.check_reported`), because the runtime does not report what this driver relies on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from drakit.kit.claims.cdi_names import (
    MARKER_PREFIX,
    MOST_MARKERS,
    ClaimReferences,
    ClaimRequest,
    index_by_device,
    index_by_marker,
    marker_variable,
)
from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims, RejectedError
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


class ClaimResolver:
    """Finds the requests that a container may use. Lookups only: no event costs claims × containers.

    *driver* and *prepared_claims* are functions because both change over time. *trust_cdi*: this runtime is
    known to report CDI device names.
    """

    def __init__(
        self, driver: Callable[[], Driver], prepared_claims: Callable[[], PreparedClaims], *, trust_cdi: bool
    ) -> None:
        self._driver = driver
        self._prepared_claims = prepared_claims
        self.trust_cdi = trust_cdi
        self.confirmed: frozenset[tuple[str, str]] = frozenset()
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
                raise RejectedError(
                    f"container {name} uses {device}, which this driver has not prepared; "
                    f"delete the pod and create it again",
                    reason="unknown-claim",
                )
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
                raise RejectedError(
                    f"container {name} carries {marker}, a claim this driver has not prepared; "
                    f"delete the pod and create it again",
                    reason="unknown-claim",
                )
        return tuple(index[marker] for marker in references.markers)


# Prepared claims are immutable and compare by identity: an index is made once for each version of them.
_by_device = functools.lru_cache(maxsize=2)(index_by_device)
_by_marker = functools.lru_cache(maxsize=2)(index_by_marker)
