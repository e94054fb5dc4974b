"""How big a pool must be: arithmetic over the kernel's numbers, the record and the claims.

The kernel counts pages of a pool (``nr_hugepages``), free ones, and surplus ones: pages in use above
the size last written, which vanish when they are freed. A pool's *persistent* size is the first less
the last, and is what a write to ``nr_hugepages`` sets.

Rules, for every function here: no target is below the pages in use plus the pages that claims have
been promised and do not use yet, unless the pool is below that already; pages that this driver did
not add are not taken away; ``grown`` never exceeds its budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from drakit.core.objects import Struct
from drakit.machine.model import HugepagePool

Purpose = Literal["raise", "grow"]


class Share(Struct, frozen=True):
    """What of a pool is ours, as written down before and after every change of its size.

    ``aim`` differs from ``seen`` only while a change is under way: a process that finds it so after a
    crash can tell how much of what moved since was its predecessor's doing.
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
    """The pool's size without the surplus pages that vanish when freed."""
    return max(0, pool.total - pool.surplus)


def in_use(pool: HugepagePool) -> int:
    """Pages that somebody has."""
    return pool.total - pool.free


def reconciled(share: Share, size: int) -> Share:
    """*share*, brought up to date with a pool whose persistent size is *size* now.

    Movement towards an unfinished aim is ours, up to that aim. Pages that others added are theirs;
    pages that others took away are taken from ours first, so that we never take a second time.
    """
    moved, asked = size - share.seen, share.aim - share.seen
    own = min(max(moved, 0), asked) if asked >= 0 else max(min(moved, 0), asked)
    raised, grown = share.raised, share.grown
    if share.purpose == "raise":
        raised, left = _less(raised, -own)
        grown, _ = _less(grown, left)
    else:
        grown, left = _less(grown, -own)
        raised, _ = _less(raised, left)
    grown, left = _less(grown, max(0, own - moved))
    raised, _ = _less(raised, left)
    return Share(raised=raised, grown=grown, seen=size, aim=size)


def _less(pages: int, taken: int) -> tuple[int, int]:
    """*pages* without *taken* (which may be negative), not below 0; and what could not be taken."""
    rest = pages - taken
    return max(0, rest), max(0, -rest)


def begun(share: Share, aim: int, purpose: Purpose) -> Share:
    """*share* with a change to the size *aim* announced."""
    return msgspec.structs.replace(share, aim=aim, purpose=purpose)


@dataclass(frozen=True, slots=True)
class Demand:
    """What claims and others need of one pool, in pages."""

    claimed: int = 0
    """Promised to all claims together."""
    used: int = 0
    """Of these surely in use by the claims' containers; 0 where that cannot be told."""
    withheld: int = 0
    """Never offered: reserved for the system, or held by others when the driver started."""

    @property
    def promised(self) -> int:
        """Pages that must stay free because a claim may want them any moment."""
        return max(0, self.claimed - self.used)


def static_target(wanted: int, pool: HugepagePool, share: Share, demand: Demand) -> int:
    """The persistent size for a pool that shall have *wanted* pages except the grown ones.

    A pool that others made larger stays so; one that we made larger, for an older configuration, is
    lowered as far as its pages are free.
    """
    now = persistent(pool)
    standing = now - share.grown
    if standing <= wanted:
        return wanted + share.grown
    return _lowered(pool, min(standing - wanted, share.raised), demand)


def needed_growth(pool: HugepagePool, share: Share, demand: Demand) -> int:
    """How many grown pages the claims need: what the standing pages do not cover."""
    standing = persistent(pool) - share.grown
    return max(0, demand.claimed - max(0, standing - demand.withheld))


def growth_target(
    pool: HugepagePool, share: Share, demand: Demand, fresh: int, allowance: int
) -> int | None:
    """The persistent size at which a claim of *fresh* pages (part of *demand*) can be served.

    A new claim uses nothing yet, so all its pages must be free, whoever took the others. None when
    that would need more than *allowance* grown pages.
    """
    wanted = max(needed_growth(pool, share, demand), share.grown + max(0, fresh - pool.free))
    if wanted <= share.grown:
        return persistent(pool)
    return persistent(pool) + wanted - share.grown if wanted <= allowance else None


def shrink_target(pool: HugepagePool, share: Share, demand: Demand) -> int:
    """The persistent size once the grown pages that no claim needs are given back."""
    spare = share.grown - needed_growth(pool, share, demand)
    return _lowered(pool, max(0, spare), demand)


def _lowered(pool: HugepagePool, pages: int, demand: Demand) -> int:
    now = persistent(pool)
    floor = min(now, in_use(pool) + demand.promised)
    return max(now - pages, floor)
