"""One device per zone, with all kinds as its capacities: what a claim gets is aligned by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from drakit.drivers.cpumem.places import Place
from drakit.drivers.cpumem.zones import Zone

KIND: Final = "combined"


def combined(zones: Iterable[Zone]) -> tuple[Place, ...]:
    """One device per zone: ``numa0``, ``socket0``, ``machine``."""
    return tuple(Place(zone.name, zone, zone.amounts, KIND) for zone in zones)
