"""CDI device names and marker variables: how a container refers to the requests of a claim.

Each request of a claim is one CDI device, so that a container which names one request gets only the devices
of that request. The marker variable has the same information for runtimes that do not report CDI device
names to NRI; a workload can forge it, so it only counts if the checkpoint and the pod's UID confirm it
(:mod:`drakit.kit.runtime.container_claims`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from drakit.kit.driver import PreparedClaim
from drakit.wire.cdi.spec import claim_device_name, parse_claim_device_name

MARKER_PREFIX: Final = "DRA_CLAIM_"
LEGACY_PREFIX: Final = "DRA_CPUSET_"
"""Set by kubernetes-sigs/dra-driver-cpu instead of a marker: ``DRA_CPUSET_<claimUID>``."""
MOST_MARKERS: Final = 256
"""The maximum number of markers of a container: far more than a pod can have requests."""


class ClaimRequest(NamedTuple):
    """One request of one claim."""

    uid: str
    request: str


def qualified_name(kind: str, part: ClaimRequest) -> str:
    """The qualified CDI device name: ``vendor/class=device``."""
    return f"{kind}={claim_device_name(part.uid, part.request)}"


def marker_variable(part: ClaimRequest) -> str:
    """The environment variable of a container that uses the request."""
    return f"{MARKER_PREFIX}{part.uid}_{part.request}"


def requests_of(entry: PreparedClaim) -> tuple[ClaimRequest, ...]:
    """The requests of a claim that this driver serves, each once, in order."""
    return tuple(dict.fromkeys(ClaimRequest(entry.uid, prepared.request) for prepared in entry.devices))


def index_by_device(kind: str, entries: Iterable[PreparedClaim]) -> dict[str, ClaimRequest]:
    """Requests by qualified CDI device name."""
    return {qualified_name(kind, part): part for entry in entries for part in requests_of(entry)}


def index_by_marker(entries: Iterable[PreparedClaim]) -> dict[str, ClaimRequest]:
    """Requests by name of the marker variable."""
    return {marker_variable(part): part for entry in entries for part in requests_of(entry)}


class ClaimReferences(NamedTuple):
    """The references of a container to claims of this driver.

    ``devices`` are from the kubelet, through the runtime. ``markers`` and ``legacy`` are environment
    variables, which the workload can set too: by themselves they prove nothing.
    """

    devices: tuple[str, ...] = ()
    """Qualified CDI device names of this driver's kind."""
    markers: tuple[str, ...] = ()
    """Names of marker variables with this driver's kind as value; at most :data:`MOST_MARKERS`."""
    legacy: tuple[str, ...] = ()
    """Claim UIDs from variables of the Go driver; at most :data:`MOST_MARKERS`."""

    @property
    def device_claims(self) -> set[str]:
        """UIDs of the claims of the CDI devices."""
        return {_device_claim(device.partition("=")[2]) for device in self.devices}

    @property
    def marker_claims(self) -> set[str]:
        """UIDs of the claims in the variables."""
        named = {name.removeprefix(MARKER_PREFIX).partition("_")[0] for name in self.markers}
        return named | set(self.legacy)

    @property
    def claims(self) -> set[str]:
        """UIDs of all referenced claims."""
        return self.device_claims | self.marker_claims


NO_REFERENCES: Final = ClaimReferences()


def claim_references(kind: str, devices: Iterable[str], env: Iterable[str]) -> ClaimReferences:
    """What CDI devices and environment variables show of claims of the driver with CDI *kind*."""
    start = f"{kind}="
    markers: list[str] = []
    legacy: list[str] = []
    for variable in env:
        if variable.startswith(MARKER_PREFIX):
            name, _, value = variable.partition("=")
            if value == kind and len(markers) <= MOST_MARKERS:
                markers.append(name)
        elif variable.startswith(LEGACY_PREFIX) and len(legacy) < MOST_MARKERS:
            legacy.append(variable.partition("=")[0].removeprefix(LEGACY_PREFIX))
    mine = tuple(device for device in devices if device.startswith(start))
    if not (mine or markers or legacy):
        return NO_REFERENCES
    return ClaimReferences(mine, tuple(markers), tuple(legacy))


def _device_claim(device: str) -> str:
    """The claim of a CDI device: of ours ``claim-<uid>_<request>``, of the Go driver ``claim-<uid>``."""
    part = parse_claim_device_name(device)
    return part[0] if part is not None else device.removeprefix("claim-")
