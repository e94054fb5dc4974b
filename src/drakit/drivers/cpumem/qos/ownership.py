"""Which memory files are the kubelet's, by its live configuration; the driver leaves those alone.

Exactly one process decides the value of each file. What the kubelet (1.37) writes:

===================================== ============================================================
``memoryReservationPolicy:``          ``memory.min`` and ``memory.low`` at every level, at each pod's
``TieredReservation``                 start and stop and every minute
``memoryThrottlingFactor``            ``memory.high`` of containers, and of pods with limits of their own
gate ``DRANodeAllocatableResources``  hugepage limits of pods and containers, claims included, for
                                      devices published with a mapping (KEP-5517)
``memoryManagerPolicy: Static``       ``cpuset.mems`` of Guaranteed pods' containers
===================================== ============================================================

With its defaults it writes ``memory.min=0`` and ``memory.low=0`` for every container at creation and
resize; the driver answers those events and has the last word there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from drakit.core.quantity import Quantity, QuantityError
from drakit.drivers.cpumem.qos.kubeletconfig import (
    DEFAULT_EVICTION_HARD,
    KubeletConfig,
    KubeletConfigError,
    KubeletFiles,
    parse,
)
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy

_TIERED: Final = "TieredReservation"
_QOS_GATE: Final = "MemoryQoS"
_MAPPING_GATE: Final = "DRANodeAllocatableResources"


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the kubelet owns, and in words why the driver keeps away from it."""

    kubelets: frozenset[Knob] = frozenset()
    reasons: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    """What cannot work together; to be said loudly."""


def decide(kubelet: KubeletConfig | None, *, mapped: bool) -> Ownership:
    """Who writes what. *mapped* says whether our devices are published with KEP-5517 mappings.

    None for *kubelet*: its configuration is not known. Then it is taken to have its defaults, except
    that mapped hugepages are left to it: counting a claim twice would be worse than not at all.
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
            "memory.high is the kubelet's: its memoryThrottlingFactor is "
            f"{known.memory_throttling_factor:g}"
        )
    if mapped and (kubelet is None or kubelet.gate(_MAPPING_GATE)):
        kubelets.add(Knob.HUGEPAGES)
        how = (
            "its configuration is not known"
            if kubelet is None
            else f"its gate {_MAPPING_GATE} is on"
        )
        reasons.append(
            f"hugepage limits are the kubelet's: devices are published with mappings, and {how}"
        )
    if (known.memory_manager_policy or "None") != "None":
        conflicts.append(
            f"the kubelet's memoryManagerPolicy is {known.memory_manager_policy}: it and this driver "
            "would both set cpuset.mems; set it to None"
        )
    return Ownership(frozenset(kubelets), tuple(reasons), tuple(conflicts))


def allocatable_memory(kubelet: KubeletConfig | None, total: int, hugetlb: int) -> int:
    """The node's allocatable memory as the kubelet computes it, from MemTotal and the page pools."""
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


# -- reading ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class OwnershipReader:
    """Reads the kubelet's configuration again whenever it changed.

    *configz* returns the document of the kubelet's ``/configz`` when there is a way to it; it is
    the live configuration and goes before the files. A file that cannot be read leaves the last
    answer as it is.
    """

    files: KubeletFiles
    mapped: bool = False
    configz: Callable[[], Mapping[str, Any] | None] | None = None
    config: KubeletConfig | None = None
    ownership: Ownership = field(default_factory=Ownership)
    problem: str | None = None
    _read_at: tuple[object, ...] | None = None

    def look(self) -> Ownership:
        """Who owns what now."""
        live = self.configz() if self.configz is not None else None
        stamp = self.files.stamp()
        if live is None and stamp == self._read_at:
            return self.ownership
        self._read_at = stamp
        try:
            self.config = self.files.read() if live is None else parse(live, "/configz")
            self.problem = None if self.config is not None else f"there is no {self.files.path}"
        except KubeletConfigError as error:
            self.problem = str(error)
            return self.ownership
        self.ownership = decide(self.config, mapped=self.mapped)
        return self.ownership

    def on_this_node(self, policy: MemoryQosPolicy, total: int, hugetlb: int) -> MemoryQosPolicy:
        """*policy* without what the kubelet writes, and with the node's allocatable memory.

        *total* is the node's MemTotal, *hugetlb* what its page pools hold of it.
        """
        ownership = self.look()
        return replace(
            policy,
            kubelets=ownership.kubelets,
            allocatable=allocatable_memory(self.config, total, hugetlb),
        )

    def remarks(self) -> tuple[str, ...]:
        """What to tell the administrator, as of the last look."""
        doubt = (
            ()
            if self.problem is None
            else (f"{self.problem}: the kubelet is taken to have its defaults (or those it had)",)
        )
        return (*doubt, *self.ownership.reasons, *self.ownership.conflicts)
