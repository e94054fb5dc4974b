"""Kinds of resources of the CPU and memory driver, with their names in the API."""

from __future__ import annotations

from typing import Final

from drakit.drivers.cpumem.hugepages.sizes import size_name
from drakit.drivers.models.resource import CapacityKind

DRIVER: Final = "dra.cpumem"
CDI_KIND: Final = "dra.k8s.io/cpumem"
CPU: Final = CapacityKind(DRIVER, "cpu")
MEMORY: Final = CapacityKind(DRIVER, "memory", step=2 << 20, in_bytes=True)
"""In steps of the size of a transparent hugepage."""


def hugepages(page_size: int) -> CapacityKind:
    """Hugepages of a size in bytes."""
    size = size_name(page_size)
    return CapacityKind(
        DRIVER,
        f"hugepages{size}",
        step=page_size,
        in_bytes=True,
        page_size=page_size,
        node_resource=f"hugepages-{size}",
    )
