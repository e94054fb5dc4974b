"""The node's hardware: CPUs, caches, NUMA nodes, memory, hugepages, PCI roots."""

from drakit.machine.discover import discover

__all__ = ["discover"]
