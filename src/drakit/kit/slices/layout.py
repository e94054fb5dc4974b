"""From an offer to ResourceSlices: which content in which slice, and what has to be written.

All pure. :func:`lay_out` cuts a pool into slices, :func:`plan_pool` compares that with the slices
the API server has and says what to delete, update and create, and with which pool generation.

The slices of a pool are told apart by a number at the start of their names, because the scheduler
sorts slices by name: their order is the order of preference. The server appends a random suffix and
cuts long names, so nothing but that number is ever read from a name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from drakit.core.kubernetes_releases import LATEST
from drakit.core.objects import (
    CounterSet,
    Device,
    OwnerReference,
    Pool,
    ResourceSlice,
    ResourceSliceSpec,
    Struct,
    Taint,
)
from drakit.core.quantity import Quantity, QuantityError
from drakit.kit.driver import PoolOffer
from drakit.wire.kube import DecodeError, Object

DEVICES_PER_SLICE: Final = LATEST.slice_limits.devices
ADVANCED_DEVICES_PER_SLICE: Final = LATEST.slice_limits.devices_with_advanced_features
COUNTER_SETS_PER_SLICE: Final = LATEST.slice_limits.counter_sets
_INDEX_DIGITS: Final = 5

Slice = Object[ResourceSlice]


class Content(Struct, frozen=True):
    """What a slice says except whose it is: the part of its spec that the offer decides."""

    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose slices: selects them, and stands in every one of them."""

    driver: str
    node: str

    @property
    def selector(self) -> str:
        """Field selector of exactly our slices."""
        return f"spec.driver={self.driver},spec.nodeName={self.node}"

    def owns(self, item: Slice) -> bool:
        """Whether a slice is ours, should a server ever select more than was asked for."""
        spec = item.raw.get("spec")
        return (
            isinstance(spec, dict)
            and spec.get("driver") == self.driver
            and spec.get("nodeName") == self.node
        )


# -- cutting -------------------------------------------------------------------------------------------


def _is_advanced(device: Device) -> bool:
    lists = any(attribute.is_list() for attribute in device.attributes.values())
    return bool(device.taints or device.consumes_counters or lists)


def _capacity_of(devices: Iterable[Device], most: int) -> int:
    """How many devices a slice with *devices* in it may have."""
    return ADVANCED_DEVICES_PER_SLICE if any(map(_is_advanced, devices)) else most


def _cut(devices: Sequence[Device], most: int) -> list[tuple[Device, ...]]:
    """Fill slice after slice in the given order."""
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
    """Cut where the slices on the server are cut already, if that is still possible.

    So a device that comes or goes changes one slice and not all that follow. A device not seen
    before joins the one it stands behind. ``None`` when the order changed across cuts, a slice
    would be overfull or empty, or fewer slices would do.
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
    """Cut a pool into slices: counter sets first, then the devices in their order; at least one.

    *may_taint* leaves room for taints from the start. *current* are the device names in the slices
    the server has, in order: their cuts are kept where possible.
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


# -- naming --------------------------------------------------------------------------------------------


def _digits(count: int) -> int:
    return max(_INDEX_DIGITS, len(f"{max(count - 1, 0):x}"))


def generate_name(index: int, count: int, identity: Identity) -> str:
    """The ``generateName`` of the *index*-th of *count* slices: ``00000-dra.cpu-node-1-``."""
    return f"{index:0{_digits(count)}x}-{identity.driver}-{identity.node}-"


def index_of(name: str, count: int) -> int | None:
    """Which of *count* slices a name belongs to; ``None`` if it was not named by these rules."""
    prefix, dash, _ = name.partition("-")
    lower_hex = all(sign in "0123456789abcdef" for sign in prefix)
    if not dash or len(prefix) != _digits(count) or not lower_hex:
        return None
    index = int(prefix, 16)
    return index if index < count else None


# -- comparing -----------------------------------------------------------------------------------------


def same_content(desired: Content, stored: Content) -> bool:
    """Whether a stored slice says what is desired: amounts by value, a taint's time by choice."""
    if desired == stored:
        return True
    if len(desired.devices) != len(stored.devices):
        return False
    return _normal(desired, stored) == _normal(stored, stored)


def _normal(content: Content, stored: Content) -> Content:
    """*content* with unset taint times taken from *stored*, and times and amounts by value."""
    devices = []
    for device, other in zip(content.devices, stored.devices, strict=True):
        timed = keep_taint_times(device, other)
        devices.append(
            msgspec.structs.replace(
                timed,
                taints=tuple(
                    msgspec.structs.replace(taint, time_added=_whole_seconds(taint.time_added))
                    for taint in timed.taints
                ),
                node_allocatable_resources=_by_value(device.node_allocatable_resources),
            )
        )
    return Content(devices=tuple(devices), shared_counters=content.shared_counters)


def _whole_seconds(text: str | None) -> str | None:
    """A time as the API stores it: whole seconds, whatever the spelling was."""
    try:
        moment = msgspec.convert(text, dt.datetime, strict=False) if text else None
    except msgspec.ValidationError:
        return text
    return str(int(moment.timestamp())) if moment is not None else None


def _by_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _by_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_by_value(item) for item in value]
    if isinstance(value, Quantity | int) and not isinstance(value, bool):
        return Quantity(value) if isinstance(value, int) else value
    if isinstance(value, str):
        try:
            return Quantity(value)
        except QuantityError:
            return value
    return value


def keep_taint_times(device: Device, stored: Device) -> Device:
    """*device* with the stored time for every taint that was there already and names no time.

    Without it every rewrite of the slice would restart the clock of ``tolerationSeconds``.
    """
    if device.name != stored.name or not device.taints:
        return device
    known = {(taint.key, taint.value, taint.effect): taint.time_added for taint in stored.taints}

    def timed(taint: Taint) -> Taint:
        if taint.time_added is not None:
            return taint
        time = known.get((taint.key, taint.value, taint.effect))
        return msgspec.structs.replace(taint, time_added=time) if time is not None else taint

    return msgspec.structs.replace(device, taints=tuple(map(timed, device.taints)))


def _with_taint_times(content: Content, stored: Content) -> Content:
    known = {device.name: device for device in stored.devices}
    devices = tuple(
        keep_taint_times(device, known.get(device.name, device)) for device in content.devices
    )
    return Content(devices=devices, shared_counters=content.shared_counters)


# -- planning ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Update:
    """A stored slice and the spec it shall have."""

    stored: Slice
    index: int
    spec: ResourceSliceSpec


@dataclass(frozen=True, slots=True)
class Create:
    """A slice that is missing."""

    index: int
    generate_name: str
    spec: ResourceSliceSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write for a pool, in this order: what is gone matters more than what is new."""

    generation: int
    deletes: tuple[Slice, ...] = ()
    updates: tuple[Update, ...] = ()
    creates: tuple[Create, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.deletes or self.updates or self.creates)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the server has of a pool."""

    generation: int
    matched: dict[int, tuple[Slice, ResourceSliceSpec]]
    obsolete: tuple[Slice, ...]


def _content(spec: ResourceSliceSpec) -> Content:
    return Content(devices=spec.devices, shared_counters=spec.shared_counters)


def _spec_of(item: Slice) -> ResourceSliceSpec | None:
    try:
        return item.typed.spec
    except DecodeError:
        return None


def stand(items: Sequence[Slice], count: int = 16**_INDEX_DIGITS) -> Standing:
    """Sort the stored slices of a pool, of which *count* are wanted, by what they are good for.

    Of several with one number that of the highest generation is good, and the first by name. The
    others, those whose name has no valid number, and those that cannot be read, are obsolete.
    Slices already being deleted are neither: nothing more can be done about them, but generations
    go on above theirs.
    """
    readable = [(item, spec) for item in items if (spec := _spec_of(item)) is not None]
    readable.sort(key=lambda pair: (-pair[1].pool.generation, pair[0].name))
    matched: dict[int, tuple[Slice, ResourceSliceSpec]] = {}
    for item, spec in readable:
        index = index_of(item.name, count)
        if index is not None and index not in matched and not item.deleting:
            matched[index] = (item, spec)
    good = {item.uid for item, _ in matched.values()}
    return Standing(
        readable[0][1].pool.generation if readable else 0,
        matched,
        tuple(item for item in items if item.uid not in good and not item.deleting),
    )


Adopted = Callable[[int, Content], Content]
"""What the server makes of a content: itself, unless it is known to drop parts of it."""


def plan_pool(
    identity: Identity,
    pool: str,
    contents: Sequence[Content],
    standing: Standing,
    *,
    owner: OwnerReference | None = None,
    adopted: Adopted = lambda _, content: content,
    generation_floor: int = 0,
) -> Plan:
    """Say what to write so that the pool consists of *contents*.

    The generation stays when nothing has to be created and at most one slice changes, for then the
    pool is whole before and after. Otherwise it is raised, by one above all seen (*generation_floor*
    included: what this process published before everything was wiped), and every slice is
    rewritten. A slice that only lacks *owner* is rewritten without that.
    """
    count = len(contents)
    highest = max(standing.generation, generation_floor)
    changed = [
        index
        for index, (_, spec) in standing.matched.items()
        if spec.pool.resource_slice_count != count
        or spec.pool.generation != standing.generation
        or not same_content(adopted(index, contents[index]), _content(spec))
        or _other_fields(spec)
    ]
    missing = [index for index in range(count) if index not in standing.matched]
    raised = bool(missing) or len(changed) > 1
    generation = highest + 1 if raised else standing.generation

    def spec_of(index: int, content: Content) -> ResourceSliceSpec:
        return ResourceSliceSpec(
            driver=identity.driver,
            node_name=identity.node,
            pool=Pool(name=pool, generation=generation, resource_slice_count=count),
            devices=content.devices,
            shared_counters=content.shared_counters,
        )

    updates = []
    for index, (item, spec) in sorted(standing.matched.items()):
        if raised or index in changed or (owner is not None and not _owned(item, owner)):
            content = _with_taint_times(contents[index], _content(spec))
            updates.append(Update(item, index, spec_of(index, content)))
    creates = [
        Create(index, generate_name(index, count, identity), spec_of(index, contents[index]))
        for index in missing
    ]
    return Plan(generation, standing.obsolete, tuple(updates), tuple(creates))


def _other_fields(spec: ResourceSliceSpec) -> bool:
    """Whether a slice says something that no slice of ours does."""
    return bool(
        spec.node_selector
        or spec.all_nodes
        or spec.per_device_node_selection
        or spec.partition_type_attribute
        or spec.skip_node_operations
    )


def _owned(item: Slice, owner: OwnerReference) -> bool:
    return owner in item.typed.metadata.owner_references


def cuts_of(standing: Standing) -> tuple[tuple[str, ...], ...]:
    """The device names of stored slices, slice by slice, without those that hold counter sets."""
    specs = (spec for _, (_, spec) in sorted(standing.matched.items()))
    return tuple(tuple(device.name for device in spec.devices) for spec in specs if spec.devices)
