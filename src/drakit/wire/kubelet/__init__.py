"""The kubelet's side of DRA: registration, claims and health over unix sockets."""

from drakit.wire.kubelet.batch import request_id
from drakit.wire.kubelet.plugin import DEFAULT_KUBELET_ROOT, KubeletPlugin
from drakit.wire.kubelet.sockets import SocketInUseError, SocketPathError
from drakit.wire.kubelet.values import (
    CALL_SECONDS,
    ClaimError,
    ClaimRef,
    DraHandler,
    Health,
    HealthReport,
    KubeletCall,
    KubeletDevice,
    RegistrationPhase,
    RegistrationState,
)

__all__ = [
    "CALL_SECONDS",
    "DEFAULT_KUBELET_ROOT",
    "ClaimError",
    "ClaimRef",
    "DraHandler",
    "Health",
    "HealthReport",
    "KubeletCall",
    "KubeletDevice",
    "KubeletPlugin",
    "RegistrationPhase",
    "RegistrationState",
    "SocketInUseError",
    "SocketPathError",
    "request_id",
]
