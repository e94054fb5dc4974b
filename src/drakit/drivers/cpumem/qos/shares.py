"""Memory and hugepages of the prepared devices of a claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from drakit.drivers.cpumem.hugepages.sizes import kernel_size_name, parse_size
from drakit.kit.driver import PreparedClaim, PreparedDevice

_MEMORY: Final = "memory"
_PAGES: Final = "hugepages"


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Memory and hugepages of one prepared device; shares with equal keys are the same."""

    key: str
    memory: int = 0
    pages: Mapping[str, int] = field(default_factory=dict)
    """Bytes by page size as the kernel spells it (``2MB``)."""

    @property
    def page_bytes(self) -> int:
        """Bytes in pages of all sizes."""
        return sum(self.pages.values())


def shares_of(
    entry: PreparedClaim, prepared_devices: Iterable[PreparedDevice] | None = None
) -> tuple[MemoryShare, ...]:
    """The shares in a claim's prepared devices (all of them unless *prepared_devices* are given).

    Amounts (``numa0/memory``, ``numa1/hugepages2Mi``) of several NUMA nodes add up: the kernel's limits
    are not by node. A prepared device with admin access holds nothing.
    """
    devices = entry.devices if prepared_devices is None else prepared_devices
    shares = (_share(entry.uid, each) for each in devices)
    return tuple(share for share in shares if share.memory or share.pages)


def _share(uid: str, prepared: PreparedDevice) -> MemoryShare:
    key = "/".join((uid, prepared.request, prepared.pool, prepared.device, prepared.share_id or ""))
    memory, pages = 0, dict[str, int]()
    for name, amount in prepared.amounts.items():
        kind = name.rpartition("/")[2]
        if prepared.admin_access or amount <= 0:
            continue
        if kind == _MEMORY:
            memory += amount
        elif kind.startswith(_PAGES):
            size = kernel_size_name(parse_size(kind.removeprefix(_PAGES)))
            pages[size] = pages.get(size, 0) + amount
    return MemoryShare(key, memory, pages)


def distinct(shares: Iterable[MemoryShare]) -> tuple[MemoryShare, ...]:
    """Each share once, by key."""
    return tuple(share for _, share in sorted({share.key: share for share in shares}.items()))


def pages_of(shares: Iterable[MemoryShare]) -> dict[str, int]:
    """Bytes of all shares by page size."""
    total: dict[str, int] = {}
    for share in shares:
        for size, amount in share.pages.items():
            total[size] = total.get(size, 0) + amount
    return total
