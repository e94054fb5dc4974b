"""Plan of the writes that turn the stored slices of a pool into the desired ones (pure, no I/O)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drakit.core.objects import OwnerReference, ResourcePool, ResourceSliceSpec
from drakit.kit.slices.comparison import same_content, with_taint_times
from drakit.kit.slices.layout import INDEX_DIGITS, Content, Identity, Slice, generate_name, index_of
from drakit.wire.kube import DecodeError


@dataclass(frozen=True, slots=True)
class SliceUpdate:
    """A stored slice and its desired spec."""

    stored: Slice
    index: int
    spec: ResourceSliceSpec


@dataclass(frozen=True, slots=True)
class SliceCreate:
    """A missing slice."""

    index: int
    generate_name: str
    spec: ResourceSliceSpec


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Writes for a pool, in this order: removed devices must disappear before new ones appear."""

    generation: int
    deletes: tuple[Slice, ...] = ()
    updates: tuple[SliceUpdate, ...] = ()
    creates: tuple[SliceCreate, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing has to be written."""
        return not (self.deletes or self.updates or self.creates)


@dataclass(frozen=True, slots=True)
class StoredPool:
    """The slices of a pool on the server."""

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


def match_slices(items: Sequence[Slice], count: int = 16**INDEX_DIGITS) -> StoredPool:
    """Match the stored slices of a pool to the indexes of the *count* desired ones.

    Of several slices with one index, the one with the highest generation is used, then the first by
    name. The others, slices without a valid index and unreadable slices are obsolete. Slices that are
    being deleted are ignored, except that new generations are above theirs.
    """
    readable = [(item, spec) for item in items if (spec := _spec_of(item)) is not None]
    readable.sort(key=lambda pair: (-pair[1].pool.generation, pair[0].name))
    matched: dict[int, tuple[Slice, ResourceSliceSpec]] = {}
    for item, spec in readable:
        index = index_of(item.name, count)
        if index is not None and index not in matched and not item.deleting:
            matched[index] = (item, spec)
    used = {item.uid for item, _ in matched.values()}
    return StoredPool(
        readable[0][1].pool.generation if readable else 0,
        matched,
        tuple(item for item in items if item.uid not in used and not item.deleting),
    )


Adopted = Callable[[int, Content], Content]
"""Content as the server stores it: unchanged, unless it is known to drop parts of it."""


def plan_pool(
    identity: Identity,
    pool: str,
    contents: Sequence[Content],
    stored: StoredPool,
    *,
    owner: OwnerReference | None = None,
    adopted: Adopted = lambda _, content: content,
    generation_floor: int = 0,
) -> PoolPlan:
    """Plan the writes after which the pool consists of *contents*.

    The generation stays when nothing is created and at most one slice changes: the pool is complete
    before and after. Otherwise it is raised above all seen (*generation_floor* is the highest that
    this process published, possibly deleted since) and every slice is updated. A slice that only
    lacks *owner* is updated without raising the generation.
    """
    count = len(contents)
    changed = [
        index
        for index, (_, spec) in stored.matched.items()
        if spec.pool.resource_slice_count != count
        or spec.pool.generation != stored.generation
        or not same_content(adopted(index, contents[index]), _content(spec))
        or _other_fields(spec)
    ]
    missing = [index for index in range(count) if index not in stored.matched]
    raised = bool(missing) or len(changed) > 1
    highest = max(stored.generation, generation_floor)
    generation = highest + 1 if raised else stored.generation

    def spec_of(index: int, content: Content) -> ResourceSliceSpec:
        return ResourceSliceSpec(
            driver=identity.driver,
            node_name=identity.node,
            pool=ResourcePool(name=pool, generation=generation, resource_slice_count=count),
            devices=content.devices,
            shared_counters=content.shared_counters,
        )

    updates = []
    for index, (item, spec) in sorted(stored.matched.items()):
        foreign = owner is not None and owner not in item.typed.metadata.owner_references
        if raised or index in changed or foreign:
            content = with_taint_times(contents[index], _content(spec))
            updates.append(SliceUpdate(item, index, spec_of(index, content)))
    creates = [
        SliceCreate(index, generate_name(index, count, identity), spec_of(index, contents[index]))
        for index in missing
    ]
    return PoolPlan(generation, stored.obsolete, tuple(updates), tuple(creates))


def _other_fields(spec: ResourceSliceSpec) -> bool:
    """Whether fields are set that this driver never sets."""
    return bool(
        spec.node_selector
        or spec.all_nodes
        or spec.per_device_node_selection
        or spec.partition_type_attribute
        or spec.skip_node_operations
    )


def devices_by_slice(stored: StoredPool) -> tuple[tuple[str, ...], ...]:
    """The device names of each stored slice, without slices of counter sets."""
    specs = (spec for _, (_, spec) in sorted(stored.matched.items()))
    return tuple(tuple(device.name for device in spec.devices) for spec in specs if spec.devices)
