"""What this node has: CPUs, caches, NUMA nodes, memory, hugepages, PCI roots."""

from drakit.machine.discover import discover
from drakit.machine.model import (
    Cache,
    CgroupMode,
    Cgroups,
    CoreType,
    Cpu,
    HugepagePool,
    Machine,
    NumaNode,
    PciRoot,
    Warning,  # noqa: A004 - the issue's own word
)

__all__ = [
    "Cache",
    "CgroupMode",
    "Cgroups",
    "CoreType",
    "Cpu",
    "HugepagePool",
    "Machine",
    "NumaNode",
    "PciRoot",
    "Warning",
    "discover",
]
