"""Devices of one node, and whether each qualifies for a request.

The verdict about a device for a request does not depend on which other devices are chosen. Both the
search and the explanation start from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from drakit.core.kubernetes_releases import KubernetesRelease
from drakit.core.objects import Device, DeviceSelector, ResourceClaim, ResourceSlice, Taint
from drakit.core.pods import Node
from drakit.core.quantity import Quantity
from drakit.scheduler.allocator.capacity import (
    CapacityError,
    CapacityShortage,
    consumption,
    remaining_shortage,
)
from drakit.scheduler.cel.errors import CelCompileError
from drakit.scheduler.cel.selector import HINT
from drakit.scheduler.errors import FatalError
from drakit.scheduler.nodes import untolerated_taint
from drakit.scheduler.pools import DeviceId, PoolView, SliceIndex, device_matches
from drakit.scheduler.requests import Variant, claim_name


@dataclass(slots=True)
class InUse:
    """Devices and capacity that allocated claims use."""

    exclusive: dict[DeviceId, ResourceClaim] = field(default_factory=dict)
    shared: dict[DeviceId, list[ResourceClaim]] = field(default_factory=dict)
    capacity: dict[DeviceId, dict[str, int]] = field(default_factory=dict)
    """Consumed capacity in nano-units."""

    @classmethod
    def of(cls, claims: Iterable[ResourceClaim], release: KubernetesRelease) -> InUse:
        """Collect the devices of all allocated claims, except those with admin access."""
        found = cls()
        for claim in claims:
            allocation = claim.status.allocation
            for result in allocation.devices.results if allocation else ():
                if result.admin_access:
                    continue
                device = DeviceId(result.driver, result.pool, result.device)
                if result.share_id is None or not release.enables("DRAConsumableCapacity"):
                    found.exclusive[device] = claim
                    continue
                found.shared.setdefault(device, []).append(claim)
                if result.consumed_capacity:
                    used = found.capacity.setdefault(device, {})
                    for key, amount in result.consumed_capacity.items():
                        used[key] = used.get(key, 0) + amount.nanos
        return found

    def holds(self, device: DeviceId) -> bool:
        """Whether a claim uses the device or a share of it."""
        return device in self.exclusive or device in self.shared or device in self.capacity


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that the node can use."""

    id: DeviceId
    device: Device
    slice: ResourceSlice
    pool: PoolView
    shareable: bool


@dataclass(frozen=True, slots=True)
class Suitable:
    """The device qualifies; *taken* is the capacity that the request consumes."""

    taken: dict[str, Quantity]


@dataclass(frozen=True, slots=True)
class NotSelected:
    """Selector *index* of the class or of the request is false."""

    of_class: bool
    index: int
    expression: str


@dataclass(frozen=True, slots=True)
class EvaluationFailure:
    """Evaluating the device fails the whole pod."""

    error: FatalError


@dataclass(frozen=True, slots=True)
class Tainted:
    """The device has a taint the request does not tolerate."""

    taint: Taint


@dataclass(frozen=True, slots=True)
class Unusable:
    """The node or the release cannot use the device."""

    reason: str


Verdict = Suitable | NotSelected | EvaluationFailure | Tainted | Unusable | CapacityShortage


class NodeDevices:
    """All devices of a node in the order of kube-scheduler; one instance serves one set of plans."""

    def __init__(self, node: Node, index: SliceIndex, in_use: InUse) -> None:
        self.node = node
        self.index = index
        self.release = index.release
        self._shareable = self.release.enables("DRAConsumableCapacity")
        self._partitionable = self.release.enables("DRAPartitionableDevices")
        self.in_use = in_use
        self.pools = index.pools(node)
        self.candidates: tuple[Candidate, ...] = tuple(self._candidates())
        self._verdicts: dict[tuple[int, int], Verdict] = {}

    def _candidates(self) -> Iterable[Candidate]:
        for pool in self.pools:
            if not pool.usable:
                continue
            for entry in pool.slices:
                for device in entry.spec.devices:
                    name = DeviceId(pool.id.driver, pool.id.name, device.name)
                    multiple = self._shareable and bool(device.allow_multiple_allocations)
                    yield Candidate(name, device, entry, pool, multiple)

    def verdict(self, variant: Variant, at: int) -> Verdict:
        """Whether the device at position *at* qualifies for the request."""
        key = (variant.number, at)
        found = self._verdicts.get(key)
        if found is None:
            found = self._verdicts[key] = self._judge(variant, self.candidates[at])
        return found

    def _judge(  # noqa: PLR0911 - one return per reason
        self, variant: Variant, candidate: Candidate
    ) -> Verdict:
        device = candidate.device
        if device.binding_conditions and not self.release.enables("DRADeviceBindingConditions"):
            return Unusable("the device has binding conditions, which this release does not support")
        unselected = self._selection(variant, candidate)
        if unselected is not None:
            return unselected
        taken: dict[str, Quantity] = {}
        if self._shareable:
            try:
                outcome = consumption(variant.spec.capacity, device.capacity, self.release)
            except CapacityError as error:
                if self.release.scheduler.capacity_errors_are_fatal:
                    where = f"claim {claim_name(variant.claim)}, request {variant.name}"
                    message = f"{where}: checking capacity for device {candidate.id}: {error}"
                    return EvaluationFailure(FatalError(message))
                return CapacityShortage(str(error))
            if isinstance(outcome, CapacityShortage):
                return outcome
            taken = outcome
            used = {} if candidate.shareable else self.in_use.capacity.get(candidate.id, {})
            short = remaining_shortage(taken, device.capacity, used)
            if short is not None:
                return short
        if device.consumes_counters and not self._partitionable:
            return Unusable("the device consumes counters, which this release does not support")
        if self.release.enables("DRADeviceTaints"):
            taint = untolerated_taint(device.taints, variant.spec.tolerations)
            if taint is not None:
                return Tainted(taint)
        return Suitable(taken)

    def _selection(self, variant: Variant, candidate: Candidate) -> Verdict | None:
        for of_class, selectors in (
            (True, variant.device_class.spec.selectors),
            (False, variant.spec.selectors),
        ):
            for index, selector in enumerate(selectors):
                outcome = self._selector(variant, candidate, of_class, index, selector)
                if outcome is not None:
                    return outcome
        if candidate.slice.spec.per_device_node_selection:
            try:
                if not device_matches(candidate.device, self.node):
                    return Unusable("the device is for other nodes")
            except FatalError as error:
                return EvaluationFailure(error)
        return None

    def _selector(
        self, variant: Variant, candidate: Candidate, of_class: bool, index: int, selector: DeviceSelector
    ) -> Verdict | None:
        expression = selector.cel.expression if selector.cel else ""
        try:
            matcher = self.index.matcher(expression)
        except CelCompileError as error:
            where = _selector_name(variant, of_class, index)
            return EvaluationFailure(FatalError(f"{where}: CEL compile error: {error}"))
        outcome = matcher.outcome(candidate.id.driver, candidate.device, candidate.shareable)
        if outcome is True:
            return None
        if outcome is False:
            return NotSelected(of_class, index, expression)
        where = _selector_name(variant, of_class, index)
        hint = f". {HINT}" if "no such key:" in str(outcome) else ""
        owner = f"class {variant.device_class.metadata.name}" if of_class else "the request"
        message = f"{where} on device {candidate.id}: CEL runtime error: {outcome}{hint}"
        summary = f"selector {index + 1} of {owner} fails: {outcome}"
        return EvaluationFailure(FatalError(message, summary))

    def all_devices(self, variant: Variant) -> tuple[int, ...]:
        """The devices of a request for all devices. Raises :class:`FatalError`."""
        where = f"claim {claim_name(variant.claim)}, request {variant.name.sub or variant.name}"
        found: list[int] = []
        position = 0
        for pool in self.pools:
            state = "being updated" if pool.incomplete else "invalid" if pool.invalid else ""
            if state:
                raise FatalError(f"{where}: asks for all devices, but resource pool {pool.id} "
                                 f"is currently {state}")  # fmt: skip
            count = sum(len(entry.spec.devices) for entry in pool.slices)
            found += [a for a in range(position, position + count) if self._belongs(variant, a)]
            position += count
        return tuple(found)

    def _belongs(self, variant: Variant, at: int) -> bool:
        verdict = self.verdict(variant, at)
        if isinstance(verdict, EvaluationFailure):
            raise verdict.error
        candidate = self.candidates[at]
        if isinstance(verdict, Suitable):
            if not self.release.scheduler.all_skips_full_devices or not candidate.shareable:
                return True
            used = self.in_use.capacity.get(candidate.id, {})
            return remaining_shortage(verdict.taken, candidate.device.capacity, used) is None
        if isinstance(verdict, CapacityShortage) and not self.release.scheduler.all_skips_full_devices:
            return self._total_suffices(variant, candidate)
        # A tainted or counter-consuming device is one of all, and makes the request fail.
        return isinstance(verdict, Tainted) or (
            isinstance(verdict, Unusable) and bool(candidate.device.consumes_counters)
            and not candidate.device.binding_conditions
            and self._selection(variant, candidate) is None
        )  # fmt: skip

    def _total_suffices(self, variant: Variant, candidate: Candidate) -> bool:
        """Since 1.37 a device without free capacity is still one of all devices."""
        outcome = consumption(variant.spec.capacity, candidate.device.capacity, self.release)
        if isinstance(outcome, CapacityShortage):
            return False
        return remaining_shortage(outcome, candidate.device.capacity, {}) is None

    def broken_pools(self) -> list[PoolView]:
        """Pools that are incomplete or invalid."""
        return [pool for pool in self.pools if not pool.usable]

    def available_counters(self, pool: PoolView) -> dict[tuple[str, str], int]:
        """The free amount of each counter of a pool, in nano-units."""
        left = {
            (counters.name, key): counter.value.nanos
            for counters in pool.counter_sets.values()
            for key, counter in counters.counters.items()
        }
        for entry in (*pool.slices, *pool.slices_elsewhere):
            for device in entry.spec.devices:
                name = DeviceId(pool.id.driver, pool.id.name, device.name)
                if not device.consumes_counters or not self.in_use.holds(name):
                    continue
                for key, amount in counters_of(device).items():
                    if key in left:
                        left[key] -= amount
        return left


def _selector_name(variant: Variant, of_class: bool, index: int) -> str:
    if of_class:
        return f"class {variant.device_class.metadata.name}: selector #{index}"
    return f"claim {claim_name(variant.claim)}: selector #{index}"


def counters_of(device: Device) -> dict[tuple[str, str], int]:
    """The amount of each counter that a device consumes, in nano-units."""
    total: dict[tuple[str, str], int] = {}
    for consumed in device.consumes_counters:
        for name, counter in consumed.counters.items():
            key = (consumed.counter_set, name)
            total[key] = total.get(key, 0) + counter.value.nanos
    return total
