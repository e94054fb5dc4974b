"""One device per kind and zone: a class for each kind, and a claim ties them by ``matchAttribute``."""

from __future__ import annotations

from collections.abc import Iterable

from drakit.drivers.cpumem.places import Place
from drakit.drivers.cpumem.zones import Zone


def split(zones: Iterable[Zone]) -> tuple[Place, ...]:
    """One device per kind and zone: ``cpu-numa0``, ``memory-numa0``, ``hugepages-2mi-numa0``."""
    return tuple(
        Place(f"{kind.label}-{zone.name}", zone, {kind: amount}, kind.name)
        for zone in zones
        for kind, amount in zone.amounts.items()
    )
