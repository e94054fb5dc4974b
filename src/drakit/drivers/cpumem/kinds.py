"""The kinds of thing a NUMA node has, and what each is called where.

Names and keys are for ever: claims are written with them, and the scheduler keeps account by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drakit.core.quantity import Quantity
from drakit.drivers.cpumem.hugepages.sizes import kernel_size_name, size_name

DRIVER: Final = "dra.cpumem"
CDI_KIND: Final = "dra.k8s.io/cpumem"
_NODE: Final = "numa"
_MEMORY_STEP: Final = 2 << 20
"""Memory is given in the size of a transparent hugepage: finer amounts mean nothing to anybody."""


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """One kind: CPUs are counted, memory and hugepages are bytes."""

    name: str
    """``cpu``, ``memory``, ``hugepages2Mi``: the capacity's key without its domain."""
    step: int
    """Amounts are multiples of this; a node with less than one step does not offer the kind."""
    page_size: int | None = None
    """In bytes, of a hugepage kind."""

    @property
    def key(self) -> str:
        """The capacity's key on devices and in requests."""
        return f"{DRIVER}/{self.name}"

    @property
    def node_resource(self) -> str:
        """The name among a node's resources: ``cpu``, ``memory``, ``hugepages-2Mi``."""
        return self.name if self.page_size is None else f"hugepages-{size_name(self.page_size)}"

    @property
    def label(self) -> str:
        """The name for objects, which must be in lower case: ``hugepages-2mi``."""
        return self.node_resource.lower()

    def quantity(self, amount: int) -> Quantity:
        """An amount as it is published."""
        return Quantity(amount) if self == CPU else Quantity.from_bytes(amount)

    def whole(self, amount: int) -> int:
        """*amount*, down to whole steps."""
        return max(0, amount) // self.step * self.step


CPU: Final = Kind("cpu", 1)
MEMORY: Final = Kind("memory", _MEMORY_STEP)


def hugepages(page_size: int) -> Kind:
    """Hugepages of a size in bytes."""
    return Kind(f"hugepages{size_name(page_size)}", page_size, page_size)


def kernel_name(kind: Kind) -> str:
    """How the kernel's files spell a hugepage kind's size: ``2MB``."""
    if kind.page_size is None:
        raise ValueError(f"{kind.name} has no pages of its own")
    return kernel_size_name(kind.page_size)


def amount_key(node: int, kind: Kind) -> str:
    """The key under which the checkpoint counts a kind on a NUMA node: ``numa0/memory``."""
    return f"{_NODE}{node}/{kind.name}"


def node_of(key: str) -> int:
    """The NUMA node of an :func:`amount_key`. Raises ``ValueError`` for other texts."""
    return int(key.partition("/")[0].removeprefix(_NODE))
