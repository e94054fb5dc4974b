"""Memory files that the kubelet writes, by its configuration; the driver does not manage those.

Exactly one process decides the value of each file. The kubelet (1.37) writes:

===================================== ============================================================
``memoryReservationPolicy:``          ``memory.min`` and ``memory.low`` at every level, at each pod's
``TieredReservation``                 start and stop and every minute
``memoryThrottlingFactor``            ``memory.high`` of containers, and of pods with limits of their own
gate ``DRANodeAllocatableResources``  hugepage limits of pods and containers, claims included, for
                                      devices published with a mapping (KEP-5517)
``memoryManagerPolicy: Static``       ``cpuset.mems`` of Guaranteed pods' containers
===================================== ============================================================

With its defaults it writes ``memory.min=0`` and ``memory.low=0`` for every container at creation and
resize; the driver's response to these events overrides them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from drakit.core.quantity import Quantity, QuantityError
from drakit.drivers.cpumem.qos.kubeletconfig import (
    DEFAULT_EVICTION_HARD,
    KubeletConfig,
    KubeletConfigError,
    KubeletFiles,
)
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy

_TIERED: Final = "TieredReservation"
_QOS_GATE: Final = "MemoryQoS"
_MAPPING_GATE: Final = "DRANodeAllocatableResources"


@dataclass(frozen=True, slots=True)
class Ownership:
    """Files that the kubelet writes, and the reasons."""

    kubelets: frozenset[Knob] = frozenset()
    reasons: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Settings of kubelet and driver that conflict."""


def decide(kubelet: KubeletConfig | None, *, mapped: bool) -> Ownership:
    """The owner of each file. *mapped*: our devices are published with KEP-5517 mappings.

    If *kubelet* is None, its configuration is unknown. The defaults are assumed, except that mapped
    hugepages are the kubelet's: accounting a claim twice would be worse than not at all.
    """
    known = kubelet or KubeletConfig()
    kubelets: set[Knob] = set()
    reasons, conflicts = [], []
    if known.memory_reservation_policy == _TIERED:
        kubelets.add(Knob.PROTECTION)
        reasons.append(
            f"memory.min and memory.low are the kubelet's: its memoryReservationPolicy is {_TIERED}"
        )
    if known.memory_throttling_factor is not None and known.gate(_QOS_GATE) is not False:
        kubelets.add(Knob.THROTTLING)
        reasons.append(
            f"memory.high is the kubelet's: its memoryThrottlingFactor is {known.memory_throttling_factor:g}"
        )
    if mapped and (kubelet is None or kubelet.gate(_MAPPING_GATE)):
        kubelets.add(Knob.HUGEPAGES)
        how = "its configuration is unknown" if kubelet is None else f"its gate {_MAPPING_GATE} is on"
        reasons.append(f"hugepage limits are the kubelet's: devices are published with mappings, and {how}")
    if (known.memory_manager_policy or "None") != "None":
        conflicts.append(
            f"the kubelet's memoryManagerPolicy is {known.memory_manager_policy}: it and this driver "
            "would both set cpuset.mems; set it to None"
        )
    return Ownership(frozenset(kubelets), tuple(reasons), tuple(conflicts))


def allocatable_memory(kubelet: KubeletConfig | None, total: int, hugetlb: int) -> int:
    """The node's allocatable memory as the kubelet computes it, from MemTotal and the hugepage pools."""
    known = kubelet or KubeletConfig()
    kept = sum(
        _bytes((reserved or {}).get("memory", "0"), total)
        for reserved in (known.kube_reserved, known.system_reserved)
    )
    eviction = DEFAULT_EVICTION_HARD if known.eviction_hard is None else known.eviction_hard
    kept += _bytes(eviction.get("memory.available", "0"), total)
    return max(0, total - hugetlb - kept)


def _bytes(text: str, total: int) -> int:
    """An amount, or a share of the node's memory (``5%``)."""
    try:
        if text.endswith("%"):
            return int(total * float(text[:-1]) / 100)
        return Quantity(text).ceil()
    except (QuantityError, ValueError):
        return 0


@dataclass(slots=True)
class OwnershipReader:
    """Reads the kubelet's configuration whenever its files change; keeps the last readable result."""

    files: KubeletFiles
    mapped: bool = False
    config: KubeletConfig | None = None
    ownership: Ownership = field(default_factory=Ownership)
    problem: str | None = None
    _read_at: tuple[object, ...] | None = None

    def read(self) -> Ownership:
        """The current owners."""
        stamp = self.files.stamp()
        if stamp == self._read_at:
            return self.ownership
        self._read_at = stamp
        try:
            self.config = self.files.read()
            self.problem = None if self.config is not None else f"there is no {self.files.path}"
        except KubeletConfigError as error:
            self.problem = str(error)
            return self.ownership
        self.ownership = decide(self.config, mapped=self.mapped)
        return self.ownership

    def on_this_node(self, policy: MemoryQosPolicy, total: int, hugetlb: int) -> MemoryQosPolicy:
        """*policy* without what the kubelet writes, and with the node's allocatable memory.

        *total* is the node's MemTotal, *hugetlb* the part in hugepage pools.
        """
        ownership = self.read()
        return replace(
            policy, kubelets=ownership.kubelets, allocatable=allocatable_memory(self.config, total, hugetlb)
        )

    def remarks(self) -> tuple[str, ...]:
        """Messages for the administrator, as of the last read."""
        remarks = (*self.ownership.reasons, *self.ownership.conflicts)
        if self.problem is None:
            return remarks
        return (f"{self.problem}: the kubelet's last known settings or defaults are assumed", *remarks)
