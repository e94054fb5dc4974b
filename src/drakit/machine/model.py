"""A machine as one immutable value.

Raw ids (``core_id``, ``die_id``, ``physical_package_id``, cache ``id``) come from firmware: they are
sparse and repeat across sockets. They are kept for display and attributes in the ``raw_*`` fields. The
other numbers are unique on the machine: sockets, dies, clusters, cores and last-level caches are numbered
0, 1, 2, … by their lowest CPU, and two CPUs share a core exactly if their ``core`` is equal.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property

from drakit.core.cpuset import CpuSet


class CoreType(enum.StrEnum):
    """Core types; ``STANDARD`` on machines that have only one."""

    PERFORMANCE = "p-core"
    EFFICIENCY = "e-core"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True)
class Warning:  # noqa: A001 - named after Machine.warnings
    """A file that is missing or contradictory, and the assumption made instead."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cache:
    """One physical cache, shared by ``cpus``."""

    level: int
    kind: str
    """``Data``, ``Instruction`` or ``Unified``."""
    size_bytes: int | None
    cpus: CpuSet
    raw_id: int | None = None
    """Firmware id; not kept for the first level."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical CPU (hardware thread)."""

    id: int
    online: bool
    socket: int | None
    die: int | None
    cluster: int | None
    core: int | None
    llc: int | None
    """The last-level cache: index into :attr:`Machine.llcs`, unique on the machine."""
    numa_node: int | None
    siblings: CpuSet
    """All hardware threads of this CPU's core, itself included."""
    core_type: CoreType = CoreType.STANDARD
    isolated: bool = False
    nohz_full: bool = False
    capacity: int | None = None
    """Relative performance, 1024 for the strongest core (arm64 ``cpu_capacity``)."""
    max_frequency_khz: int | None = None
    raw_socket: int | None = None
    raw_die: int | None = None
    raw_cluster: int | None = None
    raw_core: int | None = None
    raw_llc: int | None = None


@dataclass(frozen=True, slots=True)
class HugepagePool:
    """Hugepages of one size on one NUMA node (counts of pages)."""

    size_bytes: int
    total: int
    free: int
    surplus: int = 0


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node: with CPUs, memory, or both."""

    id: int
    cpus: CpuSet
    """All present CPUs of the node, including offline ones if known."""
    memory_bytes: int
    """MemTotal of the node, hugetlb pool included; 0 for a node without memory."""
    memory_free_bytes: int
    distances: dict[int, int]
    """Distance to every node, by node id (10 = local)."""
    hugepages: tuple[HugepagePool, ...] = ()

    @property
    def hugetlb_bytes(self) -> int:
        """Memory held by the hugepage pools of this node."""
        return sum(pool.size_bytes * pool.total for pool in self.hugepages)

    @property
    def usable_bytes(self) -> int:
        """Memory left for ordinary pages: MemTotal without the hugetlb pools."""
        return max(0, self.memory_bytes - self.hugetlb_bytes)


@dataclass(frozen=True, slots=True)
class PciRoot:
    """A PCI host bridge (``pci0000:00``) and its local NUMA node and CPUs."""

    name: str
    numa_node: int | None
    local_cpus: CpuSet


class CgroupMode(enum.StrEnum):
    """The mounted cgroup hierarchies."""

    V1 = "v1"
    V2 = "v2"
    HYBRID = "hybrid"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Mounts of control groups."""

    mode: CgroupMode
    v2_mount: str | None = None
    v1_mounts: dict[str, str] = field(default_factory=dict)
    """v1 controller name to mount point."""
    controllers: frozenset[str] = frozenset()
    """Controllers available in the v2 root."""
    memory_hugetlb_accounting: bool = False


@dataclass(frozen=True)
class Machine:
    """A machine, from ``discover`` or ``drakit.testing.synthetic``."""

    cpus: tuple[Cpu, ...]
    """Every present CPU (online or not) by ascending id."""
    numa_nodes: tuple[NumaNode, ...]
    caches: tuple[Cache, ...]
    """All caches of all levels, ordered by level and lowest CPU."""
    llcs: tuple[Cache, ...]
    """Last-level caches; ``Cpu.llc`` is an index into this."""
    pci_roots: tuple[PciRoot, ...] = ()
    possible: CpuSet = CpuSet()
    present: CpuSet = CpuSet()
    online: CpuSet = CpuSet()
    isolated: CpuSet = CpuSet()
    nohz_full: CpuSet = CpuSet()
    smt_active: bool = False
    architecture: str = ""
    kernel_release: str = ""
    cgroups: Cgroups = Cgroups(CgroupMode.NONE)
    warnings: tuple[Warning, ...] = ()

    @cached_property
    def by_id(self) -> dict[int, Cpu]:
        """CPUs by number."""
        return {cpu.id: cpu for cpu in self.cpus}

    @cached_property
    def cores(self) -> tuple[CpuSet, ...]:
        """Online CPUs of each core; the index is ``Cpu.core``."""
        return self._group("core")

    @cached_property
    def sockets(self) -> tuple[CpuSet, ...]:
        """Online CPUs of each socket; the index is ``Cpu.socket``."""
        return self._group("socket")

    @cached_property
    def dies(self) -> tuple[CpuSet, ...]:
        """Online CPUs of each die; the index is ``Cpu.die``."""
        return self._group("die")

    @cached_property
    def clusters(self) -> tuple[CpuSet, ...]:
        """Online CPUs of each cluster; the index is ``Cpu.cluster``."""
        return self._group("cluster")

    @cached_property
    def llc_cpus(self) -> tuple[CpuSet, ...]:
        """Online CPUs of each last-level cache; the index is ``Cpu.llc``."""
        return self._group("llc")

    @cached_property
    def node_cpus(self) -> dict[int, CpuSet]:
        """Online CPUs of each NUMA node by node id; memory-only nodes have the empty set."""
        masks = {node.id: 0 for node in self.numa_nodes}
        for cpu in self.cpus:
            if cpu.online and cpu.numa_node is not None:
                masks[cpu.numa_node] = masks.get(cpu.numa_node, 0) | 1 << cpu.id
        return {node: CpuSet.from_mask(mask) for node, mask in masks.items()}

    def nodes_of(self, cpus: CpuSet) -> CpuSet:
        """The NUMA nodes the given CPUs belong to."""
        found = {c.numa_node for c in (self.by_id.get(i) for i in cpus) if c is not None}
        return CpuSet(node for node in found if node is not None)

    def _group(self, level: str) -> tuple[CpuSet, ...]:
        masks: dict[int, int] = {}
        for cpu in self.cpus:
            index = getattr(cpu, level)
            if index is not None:
                masks[index] = masks.get(index, 0) | (1 << cpu.id if cpu.online else 0)
        return tuple(CpuSet.from_mask(masks.get(i, 0)) for i in range(max(masks, default=-1) + 1))
