"""The kit for DRA drivers in Python, and its public API.

A driver imports what it needs from ``drakit.kit``; see ``docs/developers/writing-a-driver.md``. All
modules below are private and may change. Names are imported on first use, so that a tool which needs one
value does not load the whole host.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from drakit.core.cpuset import CpuSet
    from drakit.core.objects import (
        Attribute,
        Capacity,
        Device,
        bool_attribute,
        int_attribute,
        string_attribute,
    )
    from drakit.core.quantity import Quantity
    from drakit.kit.config.options import HostOptions
    from drakit.kit.config.settings import did_you_mean, setting
    from drakit.kit.driver import (
        AllocatedDevice,
        Assignment,
        Claim,
        ClaimUse,
        ContainerView,
        DesiredResources,
        DeviceNode,
        Driver,
        Mount,
        Offer,
        OpaqueConfig,
        PoolOffer,
        PreparedClaim,
        PreparedClaims,
        PreparedDevice,
        RejectedError,
        UnhealthyDevice,
    )
    from drakit.kit.program import Program, main
    from drakit.kit.reconciler import PodView, Reconciler, ReconcilerGroup
    from drakit.kit.telemetry.metrics import Gauge

__all__ = [
    "AllocatedDevice",
    "Assignment",
    "Attribute",
    "Capacity",
    "Claim",
    "ClaimUse",
    "ContainerView",
    "CpuSet",
    "DesiredResources",
    "Device",
    "DeviceNode",
    "Driver",
    "Gauge",
    "HostOptions",
    "Mount",
    "Offer",
    "OpaqueConfig",
    "PodView",
    "PoolOffer",
    "PreparedClaim",
    "PreparedClaims",
    "PreparedDevice",
    "Program",
    "Quantity",
    "Reconciler",
    "ReconcilerGroup",
    "RejectedError",
    "UnhealthyDevice",
    "bool_attribute",
    "did_you_mean",
    "int_attribute",
    "main",
    "setting",
    "string_attribute",
]

_MODULES: Final = (
    "drakit.kit.driver",
    "drakit.core.objects",
    "drakit.kit.config.options",
    "drakit.kit.config.settings",
    "drakit.kit.reconciler",
    "drakit.kit.telemetry.metrics",
    "drakit.kit.program",
)


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        if (found := getattr(import_module(module), name, None)) is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
