"""Values and the handler protocol between the kubelet's DRA services and a driver."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

CALL_SECONDS: Final = 45.0
"""How long the kubelet waits for a call before it retries."""

HEALTH_SECONDS: Final = 30
"""How long the kubelet considers a health report without timeout current."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Identity of a ResourceClaim; the kubelet sends nothing else about it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (UID {self.uid})"


@dataclass(frozen=True, slots=True)
class KubeletDevice:
    """A prepared device.

    ``request_names`` may contain subrequests (``main/sub``); the kubelet is sent the base names.
    Without names the device serves every request of the claim. The first CDI device ID is also the
    device's name in the pod's health status and should be stable.
    """

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...] = ()
    share_id: str | None = None


class ClaimError(Exception):
    """Why one claim cannot be served. The kubelet shows the text in an event of the pod.

    The text must be short and complete: object, cause and remedy.
    """


class DraHandler(Protocol):
    """Prepares and unprepares claims, one at a time.

    Both methods are called concurrently for different claims, and repeatedly for the same claim: after
    a timeout (the earlier call may still run), a restart of either side, a reboot, or in another
    process during a rolling update. They are cancelled when the kubelet disconnects or its deadline
    passes. An exception fails only this claim; other than :class:`ClaimError` it is logged with its
    traceback.
    """

    async def prepare(self, claim: ClaimRef) -> Sequence[KubeletDevice]:
        """Prepare the claim and return its devices; idempotent."""
        ...

    async def unprepare(self, claim: ClaimRef) -> None:
        """Undo :meth:`prepare`; succeeds for an unknown claim.

        The ResourceClaim may be deleted from the API server already.
        """
        ...


class Health(enum.Enum):
    """Health of a device, with the values of the protocol."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Health of one device at ``updated`` (seconds since 1970)."""

    pool: str
    device: str
    health: Health
    updated: int
    timeout_seconds: int = HEALTH_SECONDS
    message: str = ""


@dataclass(frozen=True, slots=True)
class KubeletCall:
    """A finished call of the kubelet, for metrics."""

    request_id: int
    method: str
    version: str
    claims: int
    failed: int
    seconds: float
