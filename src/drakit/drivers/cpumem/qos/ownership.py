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

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from drakit.core.quantity import Quantity, QuantityError
from drakit.drivers.cpumem.qos.planner import Knob, Policy

_TIERED: Final = "TieredReservation"
_QOS_GATE: Final = "MemoryQoS"
_MAPPING_GATE: Final = "DRANodeAllocatableResources"
_DEFAULT_EVICTION: Final = 100 << 20


class KubeletConfigError(ValueError):
    """The kubelet's configuration cannot be read; the text says which file and why."""


class KubeletConfig(msgspec.Struct, frozen=True, rename="camel"):
    """What concerns memory in a ``KubeletConfiguration``."""

    memory_reservation_policy: str | None = None
    memory_throttling_factor: float | None = None
    memory_manager_policy: str | None = None
    feature_gates: dict[str, bool] = {}
    kube_reserved: dict[str, str] | None = None
    system_reserved: dict[str, str] | None = None
    eviction_hard: dict[str, str] | None = None

    def gate(self, name: str) -> bool | None:
        """A feature gate as configured; None: its default, which depends on the release."""
        if name in self.feature_gates:
            return self.feature_gates[name]
        return True if self.feature_gates.get("AllAlpha") else None


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
    eviction = known.eviction_hard
    kept += (
        _DEFAULT_EVICTION
        if eviction is None
        else _bytes(eviction.get("memory.available", "0"), total)
    )
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


@dataclass(frozen=True, slots=True)
class KubeletFiles:
    """Where the kubelet's configuration is: its file, and its ``--config-dir`` if it has one."""

    path: str
    drop_in_dir: str | None = None

    def stamp(self) -> tuple[object, ...]:
        """Changes whenever a file does."""
        return tuple((path, *_stamp(path)) for path in (self.path, *self._drop_ins()))

    def _drop_ins(self) -> list[str]:
        """The kubelet takes ``*.conf`` in the order of their names."""
        if self.drop_in_dir is None:
            return []
        try:
            names = sorted(os.listdir(self.drop_in_dir))
        except OSError:
            return []
        return [os.path.join(self.drop_in_dir, name) for name in names if name.endswith(".conf")]

    def read(self) -> KubeletConfig | None:
        """The configuration; None without a file. Raises :class:`KubeletConfigError`."""
        merged: dict[str, Any] | None = None
        for path in (self.path, *self._drop_ins()):
            document = _load(path)
            if document is not None:
                merged = document if merged is None else _merge(merged, document)
        return None if merged is None else parse(merged, self.path)


def parse(document: Mapping[str, Any], source: str) -> KubeletConfig:
    """A configuration from its document. Raises :class:`KubeletConfigError`.

    Takes also the answer of ``/configz``, which has the configuration under ``kubeletconfig``.
    """
    inner = document.get("kubeletconfig", document)
    try:
        return msgspec.convert(inner, KubeletConfig)
    except msgspec.ValidationError as problem:
        raise KubeletConfigError(
            f"{source} is no configuration of a kubelet: {problem}"
        ) from problem


def _load(path: str) -> dict[str, Any] | None:
    from drakit.kit.strictyaml import YamlError, load_strictly  # heavy; a few times in a life

    try:
        with open(path, encoding="utf-8") as file:
            document = load_strictly(file.read())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, YamlError) as problem:
        raise KubeletConfigError(f"{path} cannot be read: {problem}") from problem
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise KubeletConfigError(f"{path} is no configuration of a kubelet: it is no mapping")
    return document


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A drop-in over what came before: mappings key by key, everything else whole."""
    merged = dict(below)
    for key, value in above.items():
        there = merged.get(key)
        merged[key] = (
            _merge(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
        )
    return merged


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns)


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
        except KubeletConfigError as problem:
            self.problem = str(problem)
            return self.ownership
        self.ownership = decide(self.config, mapped=self.mapped)
        return self.ownership

    def on_this_node(self, policy: Policy, total: int, hugetlb: int) -> Policy:
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
