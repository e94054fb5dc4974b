"""What crosses the boundary between the kubelet's protocol and a driver: small plain values."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

CALL_SECONDS: Final = 45.0
"""How long the kubelet waits for one call before it gives up and tries again later."""

HEALTH_SECONDS: Final = 30
"""How long the kubelet believes a health report that names no time-out of its own."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Which claim the kubelet means: all it ever tells a driver about one."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (UID {self.uid})"


@dataclass(frozen=True, slots=True)
class KubeletDevice:
    """One device made ready for the containers of a pod.

    ``request_names`` may carry subrequests (``main/sub``); the kubelet is told the base names.
    None at all means that the device serves every request of the claim. The first CDI device ID
    also is the device's name in the pod's health status and should be stable.
    """

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...] = ()
    share_id: str | None = None


class ClaimError(Exception):
    """Why one claim cannot be served. The kubelet shows the text in an event on the pod.

    Short and complete in itself: what happened, to which object, what to do next. Nobody reading
    the event sees the driver's log.
    """


class DraHandler(Protocol):
    """What a driver does for the kubelet, one claim at a time.

    Both methods are called concurrently for different claims, and again for the same claim: after
    a time-out (the earlier call may still run), a restart of either side, a reboot, or in another
    process during a rolling update. They are cancelled when the kubelet goes away or its time is
    up. :class:`ClaimError` fails this claim alone with its text; any other exception fails this
    claim alone too and is logged with its trace.
    """

    async def prepare(self, claim: ClaimRef) -> Sequence[KubeletDevice]:
        """Make the claim's devices ready and say which they are; the same ones every time."""
        ...

    async def unprepare(self, claim: ClaimRef) -> None:
        """Undo :meth:`prepare`. An unknown claim is a success: the work is done already.

        The ResourceClaim may be gone from the API server; only local knowledge counts.
        """
        ...


class Health(enum.Enum):
    """How a device is; the values are the wire's."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class HealthReport:
    """How one device was at ``updated`` (seconds since 1970)."""

    pool: str
    device: str
    health: Health
    updated: int
    timeout_seconds: int = HEALTH_SECONDS
    message: str = ""


class RegistrationPhase(enum.Enum):
    """How far the kubelet has got with this plugin."""

    WAITING = "waiting"
    REGISTERED = "registered"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """What the kubelet last said about the registration, and why it rejected if it did."""

    phase: RegistrationPhase = RegistrationPhase.WAITING
    error: str = ""


@dataclass(frozen=True, slots=True)
class KubeletCall:
    """One finished call of the kubelet, for metrics and logs."""

    request_id: int
    method: str
    version: str
    claims: int
    failed: int
    seconds: float
