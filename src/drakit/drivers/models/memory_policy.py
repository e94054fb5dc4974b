"""Memory QoS policy of a node: which memory and hugepage files the driver writes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["off", "claims", "all"]
Protection = Literal["tiered", "soft"]


class Knob(enum.Enum):
    """What either the kubelet or the driver writes, never both."""

    PROTECTION = "protection"
    """``memory.min`` and ``memory.low``, at every level."""
    THROTTLING = "throttling"
    """``memory.high``."""
    HUGEPAGES = "hugepages"
    """``hugetlb.*.max`` and ``hugetlb.*.rsvd.max``."""


@dataclass(frozen=True, slots=True)
class MemoryQosPolicy:
    """What the administrator wants and the node allows."""

    mode: Mode = "claims"
    """``claims``: protect what is claimed; ``all``: also what pods request; ``off``: neither."""
    protection: Protection = "tiered"
    """``soft``: ``memory.low`` where ``tiered`` has ``memory.min``. A container whose ``memory.min``
    is its limit has nothing to reclaim: growing page cache ends in the OOM killer."""
    throttling_factor: float | None = None
    page_limits: bool = True
    """Whether claims of hugepages become limits; without, a claim is not kept from others."""
    hugetlb_charged: bool = False
    """cgroup2 is mounted with ``memory_hugetlb_accounting``: pages count as memory in use."""
    allocatable: int | None = None
    """The node's allocatable memory: the limit of containers that have none."""
    page_size: int = 4096
    kubelets: frozenset[Knob] = frozenset()
    """What the kubelet writes, and we therefore do not."""

    def __post_init__(self) -> None:
        factor = self.throttling_factor
        if factor is not None and not 0 < factor <= 1:
            raise ValueError(f"the throttling factor must be above 0 and at most 1, not {factor}")

    def owns(self, knob: Knob) -> bool:
        """Whether the driver writes this."""
        if knob is Knob.HUGEPAGES:
            return self.page_limits and knob not in self.kubelets
        return self.mode != "off" and knob not in self.kubelets


NO_MEMORY_QOS: Final = MemoryQosPolicy(mode="off", page_limits=False)
"""Policy of a driver that does not manage memory."""
