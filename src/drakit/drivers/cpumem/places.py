"""What a device stands for: a zone, and the kinds of it that the device hands out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from drakit.drivers.cpumem.kinds import Kind
from drakit.drivers.cpumem.zones import Zone


@dataclass(frozen=True, slots=True)
class Place:
    """One device."""

    device: str
    zone: Zone
    amounts: Mapping[Kind, int]
    """The kinds it hands out, each with what there is in all."""
    kind: str
    """Published as the attribute ``kind``, for classes to select by."""


Layout = Callable[[Iterable[Zone]], tuple[Place, ...]]
"""How zones are cut into devices."""
