"""DRA plugin protocol of the kubelet: registration, claims and device health over unix sockets."""

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
    "SocketInUseError",
    "SocketPathError",
    "request_id",
]
