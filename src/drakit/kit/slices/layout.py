"""Layout of a pool: which devices go into which ResourceSlice, and how slices are named.

The scheduler sorts slices by name, so names begin with the slice's index: the order of the slices is
the order of preference. The server appends a random suffix and truncates long names; nothing but
the index is ever parsed from a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from drakit.core.kubernetes_releases import LATEST
from drakit.core.objects import CounterSet, Device, ResourceSlice, Struct
from drakit.kit.driver import PoolOffer
from drakit.wire.kube import Object

DEVICES_PER_SLICE: Final = LATEST.slice_limits.devices
ADVANCED_DEVICES_PER_SLICE: Final = LATEST.slice_limits.devices_with_advanced_features
COUNTER_SETS_PER_SLICE: Final = LATEST.slice_limits.counter_sets
INDEX_DIGITS: Final = 5

Slice = Object[ResourceSlice]


class Content(Struct, frozen=True):
    """The part of a slice's spec that the offer determines."""

    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """Driver and node: they select the slices and are part of each of them."""

    driver: str
    node: str

    @property
    def selector(self) -> str:
        """Field selector of the slices."""
        return f"spec.driver={self.driver},spec.nodeName={self.node}"

    def owns(self, item: Slice) -> bool:
        """Whether a slice is ours, in case a server ignores the selector."""
        spec = item.raw.get("spec")
        mine = (self.driver, self.node)
        return isinstance(spec, dict) and (spec.get("driver"), spec.get("nodeName")) == mine


def _is_advanced(device: Device) -> bool:
    lists = any(attribute.is_list() for attribute in device.attributes.values())
    return bool(device.taints or device.consumes_counters or lists)


def _capacity_of(devices: Iterable[Device], most: int) -> int:
    """How many devices a slice that contains *devices* may have."""
    return ADVANCED_DEVICES_PER_SLICE if any(map(_is_advanced, devices)) else most


def _cut(devices: Sequence[Device], most: int) -> list[tuple[Device, ...]]:
    """Fill slices one after the other in the given order."""
    slices: list[list[Device]] = [[]]
    room = most
    for device in devices:
        allowed = ADVANCED_DEVICES_PER_SLICE if _is_advanced(device) else most
        if len(slices[-1]) >= min(room, allowed):
            slices.append([])
            room = most
        room = min(room, allowed)
        slices[-1].append(device)
    return [tuple(part) for part in slices]


def _keep_cuts(
    devices: Sequence[Device], cuts: Sequence[Sequence[str]], most: int
) -> list[tuple[Device, ...]] | None:
    """Keep the slice boundaries of the server, so that a device added or removed changes one slice.

    A new device joins the slice of its predecessor. Returns ``None`` when the order changed across
    slices, a slice would be too large or empty, or fewer slices suffice.
    """
    home = {name: index for index, part in enumerate(cuts) for name in part}
    slices: list[list[Device]] = [[] for _ in cuts]
    current = 0
    for device in devices:
        place = home.get(device.name, current)
        if place < current:
            return None
        current = place
        slices[current].append(device)
    fits = all(part and len(part) <= _capacity_of(part, most) for part in slices)
    wasteful = len(slices) > len(_cut(devices, most))
    return [tuple(part) for part in slices] if slices and fits and not wasteful else None


def lay_out(
    pool: PoolOffer, *, may_taint: bool = False, current: Sequence[Sequence[str]] = ()
) -> tuple[Content, ...]:
    """Divide a pool into slices, at least one: counter sets first, then the devices in order.

    *may_taint* leaves room for taints. *current* has the device names of each stored slice, in
    order; these boundaries are kept where possible.
    """
    most = ADVANCED_DEVICES_PER_SLICE if may_taint else DEVICES_PER_SLICE
    sets = pool.shared_counters
    counters = [
        Content(shared_counters=sets[start : start + COUNTER_SETS_PER_SLICE])
        for start in range(0, len(sets), COUNTER_SETS_PER_SLICE)
    ]
    kept = _keep_cuts(pool.devices, current, most) if current and pool.devices else None
    cut = kept if kept is not None else _cut(pool.devices, most)
    devices = [Content(devices=part) for part in cut if part]
    return tuple(counters + devices) or (Content(),)


def _digits(count: int) -> int:
    return max(INDEX_DIGITS, len(f"{max(count - 1, 0):x}"))


def generate_name(index: int, count: int, identity: Identity) -> str:
    """The ``generateName`` of the *index*-th of *count* slices: ``00000-dra.cpu-node-1-``."""
    return f"{index:0{_digits(count)}x}-{identity.driver}-{identity.node}-"


def index_of(name: str, count: int) -> int | None:
    """Index of the slice with this name, of *count*; ``None`` for a name that has none."""
    prefix, dash, _ = name.partition("-")
    lower_hex = all(digit in "0123456789abcdef" for digit in prefix)
    if not dash or len(prefix) != _digits(count) or not lower_hex:
        return None
    index = int(prefix, 16)
    return index if index < count else None
