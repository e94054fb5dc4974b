"""What one grant of a claim gives: memory, and pages by size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from drakit.drivers.cpumem.hugepages.sizes import kernel_size_name, parse_size
from drakit.kit.driver import Entry, Grant

_MEMORY: Final = "memory"
_PAGES: Final = "hugepages"


@dataclass(frozen=True, slots=True)
class Share:
    """Memory and pages that a container may use; two with equal keys are one and the same."""

    key: str
    memory: int = 0
    pages: Mapping[str, int] = field(default_factory=dict)
    """Bytes by page size as the kernel spells it (``2MB``)."""

    @property
    def page_bytes(self) -> int:
        """Bytes in pages of all sizes."""
        return sum(self.pages.values())


def shares_of(entry: Entry, grants: Iterable[Grant] | None = None) -> tuple[Share, ...]:
    """The shares in a claim's grants (all of them unless *grants* are given).

    A grant's amounts are named ``<pool of the node>/<kind>``: ``numa0/memory``,
    ``numa1/hugepages2Mi``. Those of several NUMA nodes add up: the kernel's limits are not by node.
    A grant with admin access holds nothing.
    """
    shares = (_share(entry.uid, each) for each in (entry.grants if grants is None else grants))
    return tuple(share for share in shares if share.memory or share.pages)


def _share(uid: str, grant: Grant) -> Share:
    key = "/".join((uid, grant.request, grant.pool, grant.device, grant.share_id or ""))
    memory, pages = 0, dict[str, int]()
    for name, amount in grant.amounts.items():
        kind = name.rpartition("/")[2]
        if grant.admin_access or amount <= 0:
            continue
        if kind == _MEMORY:
            memory += amount
        elif kind.startswith(_PAGES):
            size = kernel_size_name(parse_size(kind.removeprefix(_PAGES)))
            pages[size] = pages.get(size, 0) + amount
    return Share(key, memory, pages)


def distinct(shares: Iterable[Share]) -> tuple[Share, ...]:
    """Each share once, in the order of their keys: whoever shares one does not double it."""
    return tuple(share for _, share in sorted({share.key: share for share in shares}.items()))


def pages_of(shares: Iterable[Share]) -> dict[str, int]:
    """Bytes by page size of all these shares together."""
    total: dict[str, int] = {}
    for share in shares:
        for size, amount in share.pages.items():
            total[size] = total.get(size, 0) + amount
    return total
