"""The claims that a container may use: what it shows, checked against the checkpoint.

Invariant: nothing a workload controls – environment, labels, annotations, names – makes a claim reserved,
owned or blocked for other workloads. In order of trust:

1. CDI device names that the runtime reports: they come from the kubelet.
2. Marker variables, where the runtime does not report CDI device names. A marker counts only if the claim
   is in the checkpoint and reserved for the container's own pod.
3. A container that shows a claim which is not in the checkpoint is rejected, not guessed at.

On a runtime that is known to report CDI device names, a marker of a claim of the container's own pod
without the device name is a contradiction: the new container is rejected
(:meth:`ClaimResolver.check_reported`). It means that the runtime does not report what we rely on.
"""

from __future__ import annotations

from collections.abc import Callable

from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims, RejectedError
from drakit.wire.nri.values import NriContainer, PodSandbox


class ForeignClaimError(RejectedError):
    """A container carries the marker of a claim that, as far as we know, is not its pod's.

    It may be all the same: the kubelet does not name further pods that share a claim which is prepared
    already. Whoever can ask the API server should, and call :meth:`ClaimResolver.confirm`.
    """

    def __init__(self, text: str, entry: PreparedClaim, pod_uid: str) -> None:
        super().__init__(text, reason="foreign-claim")
        self.entry = entry
        self.pod_uid = pod_uid


class ClaimResolver:
    """Finds the requests that a container may use. Lookups only: no event costs claims × containers.

    *driver* and *prepared_claims* are functions because both change over time. ``trust_cdi``: this runtime is
    known to report CDI device names.
    """

    def __init__(
        self,
        driver: Callable[[], Driver],
        prepared_claims: Callable[[], PreparedClaims],
        *,
        trust_cdi: bool,
    ) -> None:
        self._driver = driver
        self._prepared_claims = prepared_claims
        self.trust_cdi = trust_cdi
        self.confirmed: set[tuple[str, str]] = set()
        """(claim UID, pod UID) pairs that the API server confirmed in addition to the checkpoint's."""
        self._devices: tuple[PreparedClaims, str, dict[str, names.Part]] | None = None
        self._markers: tuple[PreparedClaims, dict[str, names.Part]] | None = None

    def is_reserved(self, entry: PreparedClaim, pod_uid: str) -> bool:
        """Whether the claim is reserved for the pod, as the kubelet or the API server said."""
        return pod_uid in entry.consumers or (entry.uid, pod_uid) in self.confirmed

    def parts(self, pod: PodSandbox, name: str, shown: names.Shown) -> tuple[names.Part, ...]:
        """The requests that container *name* of *pod* may use. Raises :class:`RejectedError`."""
        if shown.devices:
            return self._by_device(name, shown)
        if self.trust_cdi:
            return self._own(pod, shown) if shown.markers else ()
        return self._by_marker(pod, name, shown) if shown.markers else ()

    def check_reported(self, pod: PodSandbox, reported: NriContainer, shown: names.Shown) -> None:
        """Reject a new container whose claim the runtime should have reported and did not.

        Only its own pod's claims count, so a forged variable can harm nobody but its own pod.
        """
        if not self.trust_cdi or shown.devices:
            return
        for part in self._own(pod, shown):
            raise RejectedError(
                f"container {reported.name} carries {names.marker_variable(part)}, a claim of its pod, "
                f"but the runtime reports no CDI device for it: it would run without its resources. "
                f"Remove the variable from the pod if it is set there; otherwise this runtime release "
                f"does not report CDI devices, please file an issue with its version",
                reason="missing-device",
            )

    def _own(self, pod: PodSandbox, shown: names.Shown) -> tuple[names.Part, ...]:
        """The markers of claims that are reserved for the pod itself."""
        index, prepared_claims = self._marker_index(), self._prepared_claims()
        parts = [index[marker] for marker in shown.markers if marker in index]
        return tuple(
            part for part in parts if self.is_reserved(prepared_claims.entries[part.uid], pod.uid)
        )

    def _by_device(self, name: str, shown: names.Shown) -> tuple[names.Part, ...]:
        index = self._device_index()
        for device in shown.devices:
            if device not in index:
                raise RejectedError(
                    f"container {name} uses {device}, which this driver has not prepared; "
                    f"delete the pod and create it again",
                    reason="unknown-claim",
                )
        return tuple(dict.fromkeys(index[device] for device in shown.devices))

    def _by_marker(self, pod: PodSandbox, name: str, shown: names.Shown) -> tuple[names.Part, ...]:
        if len(shown.markers) > names.MOST_MARKERS:
            raise RejectedError(
                f"container {name} carries more than {names.MOST_MARKERS} variables "
                f"{names.MARKER_PREFIX}*; remove them from the pod",
                reason="foreign-claim",
            )
        index, prepared_claims = self._marker_index(), self._prepared_claims()
        found = []
        for marker in shown.markers:
            part = index.get(marker)
            if part is None:
                continue
            entry = prepared_claims.entries[part.uid]
            if not self.is_reserved(entry, pod.uid):
                raise ForeignClaimError(
                    f"container {name} carries a variable of {entry}, which is not reserved for its "
                    f"pod {pod.namespace}/{pod.name}; remove {marker} from the pod",
                    entry,
                    pod.uid,
                )
            found.append(part)
        unknown = [marker for marker in shown.markers if marker not in index]
        if unknown:
            raise RejectedError(
                f"container {name} carries {unknown[0]}, a claim this driver has not prepared; "
                f"delete the pod and create it again",
                reason="unknown-claim",
            )
        return tuple(found)

    def _device_index(self) -> dict[str, names.Part]:
        prepared_claims, kind = self._prepared_claims(), self._driver().cdi_kind
        if (
            self._devices is None
            or self._devices[0] is not prepared_claims
            or self._devices[1] != kind
        ):
            self._devices = (prepared_claims, kind, names.index_by_device(kind, prepared_claims))
        return self._devices[2]

    def _marker_index(self) -> dict[str, names.Part]:
        prepared_claims = self._prepared_claims()
        if self._markers is None or self._markers[0] is not prepared_claims:
            self._markers = (prepared_claims, names.index_by_marker(prepared_claims))
        return self._markers[1]
