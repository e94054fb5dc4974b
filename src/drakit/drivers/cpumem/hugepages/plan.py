"""Target sizes of pools, computed from the kernel's numbers, the record and the claims.

The kernel counts pages of a pool (``nr_hugepages``), free ones, and surplus ones: pages in use above
the size last written, which disappear when they are freed. A pool's *persistent* size is the first minus
the last; a write to ``nr_hugepages`` sets it.

Rules, for every function here: no target is below the pages in use plus the pages that claims have
been promised and do not use yet, unless the pool is below that already; pages that this driver did
not add are never removed; ``grown`` never exceeds its budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drakit.core.objects import Struct
from drakit.machine.model import HugepagePool

Purpose = Literal["raise", "grow"]


class OwnPages(Struct, frozen=True):
    """The pages of a pool that this driver added, as recorded before and after every change of its size.

    ``aim`` differs from ``seen`` only during a change: after a crash, the next process can tell how
    much of the change since then was its predecessor's.
    """

    raised: int = 0
    """Pages added to reach the configured size."""
    grown: int = 0
    """Pages added for claims, on demand."""
    seen: int = 0
    """The pool's persistent size after our last change."""
    aim: int = 0
    purpose: Purpose = "raise"


def persistent(pool: HugepagePool) -> int:
    """The pool's size without surplus pages, which disappear when freed."""
    return max(0, pool.total - pool.surplus)


def in_use(pool: HugepagePool) -> int:
    """Pages that are allocated to a process."""
    return pool.total - pool.free


def reconciled(own: OwnPages, size: int) -> OwnPages:
    """*own*, updated for a pool whose persistent size is *size* now.

    A change towards an unfinished aim is the driver's, up to that aim. Pages that others added are
    theirs; pages that others removed are subtracted from the driver's first, so that it never removes
    them a second time.
    """
    moved, asked = size - own.seen, own.aim - own.seen
    ours = min(max(moved, 0), asked) if asked >= 0 else max(min(moved, 0), asked)
    raised, grown = own.raised, own.grown
    if own.purpose == "raise":
        raised, left = _less(raised, -ours)
        grown, _ = _less(grown, left)
    else:
        grown, left = _less(grown, -ours)
        raised, _ = _less(raised, left)
    grown, left = _less(grown, max(0, ours - moved))
    raised, _ = _less(raised, left)
    return OwnPages(raised=raised, grown=grown, seen=size, aim=size)


def _less(pages: int, taken: int) -> tuple[int, int]:
    """*pages* minus *taken* (which may be negative), not below 0; and the rest that could not be taken."""
    rest = pages - taken
    return max(0, rest), max(0, -rest)


@dataclass(frozen=True, slots=True)
class Demand:
    """Pages of one pool that claims and others need."""

    claimed: int = 0
    """Promised to all claims together."""
    used: int = 0
    """Of these in use by the claims' containers; 0 if unknown."""
    withheld: int = 0
    """Never offered: reserved for the system, or held by others when the driver started."""

    @property
    def promised(self) -> int:
        """Pages that must stay free because a claim may use them at any time."""
        return max(0, self.claimed - self.used)


def static_target(wanted: int, pool: HugepagePool, own: OwnPages, demand: Demand) -> int:
    """The persistent size for a pool that is configured with *wanted* pages, not counting grown ones.

    A pool that others made larger is kept; one that the driver made larger, for an older
    configuration, is lowered as far as its pages are free.
    """
    now = persistent(pool)
    standing = now - own.grown
    if standing <= wanted:
        return wanted + own.grown
    return _lowered(pool, min(standing - wanted, own.raised), demand)


def needed_growth(pool: HugepagePool, own: OwnPages, demand: Demand) -> int:
    """Grown pages that the claims need because the other pages do not suffice."""
    standing = persistent(pool) - own.grown
    return max(0, demand.claimed - max(0, standing - demand.withheld))


def growth_target(
    pool: HugepagePool, own: OwnPages, demand: Demand, fresh: int, allowance: int
) -> int | None:
    """The persistent size at which a claim of *fresh* pages (part of *demand*) can be served.

    A new claim uses nothing yet, so all its pages must be free, whichever process uses the others. None
    if that requires more than *allowance* grown pages.
    """
    wanted = max(needed_growth(pool, own, demand), own.grown + max(0, fresh - pool.free))
    if wanted <= own.grown:
        return persistent(pool)
    return persistent(pool) + wanted - own.grown if wanted <= allowance else None


def shrink_target(pool: HugepagePool, own: OwnPages, demand: Demand) -> int:
    """The persistent size after returning the grown pages that no claim needs."""
    spare = own.grown - needed_growth(pool, own, demand)
    return _lowered(pool, max(0, spare), demand)


def _lowered(pool: HugepagePool, pages: int, demand: Demand) -> int:
    now = persistent(pool)
    floor = min(now, in_use(pool) + demand.promised)
    return max(now - pages, floor)
