"""The pages that this driver added to hugepage pools, recorded so that a crash loses none.

Pages that are not in a valid record of this boot count as the administrator's and are kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from drakit.core.bootrecord import BootRecord
from drakit.core.log import get_logger
from drakit.core.objects import Struct
from drakit.drivers.cpumem.hugepages.plan import OwnPages
from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.machine.model import Machine

FILE_NAME: Final = "hugepages.json"
_FORMAT: Final = 1
log = get_logger(__name__)


class _Pool(Struct, frozen=True):
    node: int
    size: int
    share: OwnPages


class _RecordedPools(Struct, frozen=True):
    format: int
    boot: str
    pools: tuple[_Pool, ...] = ()
    served: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedPages:
    """What is on record."""

    pools: Mapping[PoolKey, OwnPages] = field(default_factory=dict)
    served: frozenset[str] = frozenset()
    """UIDs of the claims that received their pages and may have them in use."""


class PoolRecord:
    """The record of this driver's pages in *directory*, valid in the boot *boot*."""

    def __init__(self, directory: str, boot: str) -> None:
        self.directory = directory
        self._record = BootRecord(os.path.join(directory, FILE_NAME), _RecordedPools, boot)

    def load(self) -> RecordedPages:
        """The record of this boot; empty if there is no valid one. Raises ``OSError``."""
        try:
            found = self._record.load()
            if found is not None and found.format != _FORMAT:
                raise ValueError(f"format {found.format} is not supported")
        except ValueError as error:
            path = self._record.path
            log.warning("invalid record of hugepages; pages added before are kept", path=path, error=error)
            found = None
        if found is None:
            return RecordedPages()
        pools = {PoolKey(pool.node, pool.size): pool.share for pool in found.pools}
        return RecordedPages(pools, frozenset(found.served))

    def save(self, pages: RecordedPages) -> None:
        """Replace the record, durably. Raises ``OSError``."""
        pools = tuple(
            _Pool(node=key.node, size=key.size, share=own) for key, own in sorted(pages.pools.items())
        )
        served = tuple(sorted(pages.served))
        self._record.save(_RecordedPools(format=_FORMAT, boot=self._record.boot, pools=pools, served=served))


def grown_pages(record: PoolRecord) -> dict[PoolKey, int]:
    """The grown pages of each pool, including those of a growth in progress."""
    return {
        key: own.grown + (max(0, own.aim - own.seen) if own.purpose == "grow" else 0)
        for key, own in record.load().pools.items()
    }


def machine_and_grown_pages(
    discover: Callable[[], Machine], record: PoolRecord
) -> tuple[Machine, dict[PoolKey, int]]:
    """The machine and the grown pages of its pools, for :func:`.settings.budget`.

    Pools may change between the two reads. The record is therefore read before and after, and the
    larger number used: too little may be offered for a moment, never too much. Raises ``OSError``.
    """
    before = grown_pages(record)
    machine = discover()
    after = grown_pages(record)
    return machine, {k: max(before.get(k, 0), after.get(k, 0)) for k in {*before, *after}}
