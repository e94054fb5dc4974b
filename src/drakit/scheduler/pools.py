"""Resource pools from the point of view of one node: newest generation, completeness, validity."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from drakit.core.kubernetes_releases import KubernetesRelease
from drakit.core.objects import CounterSet, Device, ResourceSlice
from drakit.core.pods import Node
from drakit.scheduler.allocator.matching import Matcher
from drakit.scheduler.nodes import node_matches


class PoolId(NamedTuple):
    """The identity of a pool."""

    driver: str
    name: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


class DeviceId(NamedTuple):
    """The identity of a device."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool for one node; devices of incomplete or invalid pools are never allocated."""

    id: PoolId
    slices: tuple[ResourceSlice, ...] = ()
    slices_elsewhere: tuple[ResourceSlice, ...] = ()
    """Slices of the pool for other nodes, whose devices consume the same counters."""
    counter_sets: dict[str, CounterSet] = field(default_factory=dict)
    incomplete: str = ""
    """Which slices are missing, if any."""
    invalid: str = ""
    """Why the pool is invalid, if it is."""

    @property
    def usable(self) -> bool:
        """Whether devices can be allocated from it."""
        return not self.incomplete and not self.invalid

    @property
    def has_binding_conditions(self) -> bool:
        """Whether a device has binding conditions."""
        return any(d.binding_conditions for entry in self.slices for d in entry.spec.devices)


class SliceIndex:
    """All slices of a cluster, indexed by node and pool."""

    def __init__(self, slices: Iterable[ResourceSlice], release: KubernetesRelease) -> None:
        self.release = release
        self.by_pool: dict[PoolId, list[ResourceSlice]] = {}
        self._by_node: dict[str, list[ResourceSlice]] = {}
        self._shared: list[ResourceSlice] = []
        self._matchers: dict[str, Matcher] = {}
        self.texts: dict[Hashable, str] = {}
        """Cached texts of the explanation by values; thousands of devices share one."""
        for entry in slices:
            self.by_pool.setdefault(_pool_id(entry), []).append(entry)
            everywhere = release.scheduler.counter_slices_on_every_node and entry.spec.shared_counters
            if entry.spec.node_name and not everywhere:
                self._by_node.setdefault(entry.spec.node_name, []).append(entry)
            else:
                self._shared.append(entry)

    def matcher(self, expression: str) -> Matcher:
        """The cached matcher of a selector. Raises ``CelCompileError``."""
        found = self._matchers.get(expression)
        if found is None:
            found = self._matchers[expression] = Matcher(expression, self.release.cel)
        return found

    def pools(self, node: Node) -> tuple[PoolView, ...]:
        """The pools that *node* can use, in the order of kube-scheduler."""
        relevant: dict[PoolId, list[ResourceSlice]] = {}
        for entry in (*self._by_node.get(node.metadata.name, ()), *self._shared):
            if self._supported(entry) and self._is_relevant(entry, node):
                _add_newest(relevant, entry)
        pools = [self._build(pool, slices) for pool, slices in relevant.items()]
        found = [pool for pool in pools if pool is not None]
        # Pools with binding conditions come last, because their devices are not available at once.
        return tuple(sorted(found, key=lambda pool: (pool.has_binding_conditions, pool.id)))

    def _supported(self, entry: ResourceSlice) -> bool:
        spec = entry.spec
        if not self.release.enables("DRAPartitionableDevices") and (
            spec.per_device_node_selection is not None or spec.shared_counters
        ):
            return False
        return not _uses_compatibility_groups(entry)

    def _is_relevant(self, entry: ResourceSlice, node: Node) -> bool:
        spec = entry.spec
        if spec.shared_counters and self.release.scheduler.counter_slices_on_every_node:
            return True
        if spec.node_name or spec.all_nodes or spec.node_selector is not None:
            return node_matches(node, spec.node_name or "", bool(spec.all_nodes), spec.node_selector)
        if spec.per_device_node_selection:
            return any(device_matches(device, node) for device in spec.devices)
        return False

    def _build(self, pool: PoolId, slices: list[ResourceSlice]) -> PoolView | None:
        first = slices[0].spec.pool
        everything: list[ResourceSlice] = []
        if len(slices) != first.resource_slice_count:
            for entry in self.by_pool[pool]:
                if entry.spec.pool.generation > first.generation:
                    return None  # replaced by a generation without devices for this node
                if entry.spec.pool.generation == first.generation:
                    everything.append(entry)
            everything = [entry for entry in everything if not _uses_compatibility_groups(entry)]
            if len(everything) != first.resource_slice_count:
                return PoolView(
                    pool,
                    incomplete=f"{len(everything)} of {first.resource_slice_count} slices of "
                    f"generation {first.generation} exist",
                )
        return _assemble(pool, slices, everything, self.release)


def device_matches(device: Device, node: Node) -> bool:
    """Whether a device with its own node selection selects *node*."""
    return node_matches(node, device.node_name or "", bool(device.all_nodes), device.node_selector)


def _pool_id(entry: ResourceSlice) -> PoolId:
    return PoolId(entry.spec.driver, entry.spec.pool.name)


def _uses_compatibility_groups(entry: ResourceSlice) -> bool:
    return any(
        consumption.compatibility_groups
        for device in entry.spec.devices
        for consumption in device.consumes_counters
    )


def _add_newest(pools: dict[PoolId, list[ResourceSlice]], entry: ResourceSlice) -> None:
    known = pools.setdefault(_pool_id(entry), [entry])
    if known[0] is entry:
        return
    newest = known[0].spec.pool.generation
    if entry.spec.pool.generation > newest:
        known[:] = [entry]
    elif entry.spec.pool.generation == newest:
        known.append(entry)


def _assemble(
    pool: PoolId, slices: list[ResourceSlice], everything: list[ResourceSlice], release: KubernetesRelease
) -> PoolView:
    here = sorted(slices, key=lambda entry: entry.metadata.name)
    names = {entry.metadata.name for entry in here}
    elsewhere = [entry for entry in everything if entry.metadata.name not in names]
    if not release.enables("DRAPartitionableDevices"):
        return PoolView(pool, tuple(here), invalid=_repeated_device(here))
    counters = [entry for entry in here if entry.spec.shared_counters]
    if not release.scheduler.counter_slices_on_every_node:
        counters += [entry for entry in elsewhere if entry.spec.shared_counters]
    devices = [entry for entry in here if not entry.spec.shared_counters]
    others = [entry for entry in elsewhere if not entry.spec.shared_counters]
    counter_sets = [found for entry in counters for found in entry.spec.shared_counters]
    sets = {found.name: found for found in counter_sets}
    wrong = _repeated_device(devices) or _repeated("counter set", (found.name for found in counter_sets))
    wrong = wrong or _unknown_counter(sets, [*devices, *others])
    if wrong:
        return PoolView(pool, invalid=wrong)
    return PoolView(pool, tuple(devices), tuple(others), sets)


def _repeated_device(slices: list[ResourceSlice]) -> str:
    return _repeated("device", (device.name for entry in slices for device in entry.spec.devices))


def _repeated(kind: str, names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return f"duplicate {kind} name {name}"
        seen.add(name)
    return ""


def _unknown_counter(sets: dict[str, CounterSet], slices: list[ResourceSlice]) -> str:
    for entry in slices:
        for device in entry.spec.devices:
            for consumption in device.consumes_counters:
                known = sets.get(consumption.counter_set)
                if known is None:
                    return f"counter set {consumption.counter_set} not found"
                for counter in consumption.counters:
                    if counter not in known.counters:
                        return f"counter {counter} not found in counter set {known.name}"
    return ""
