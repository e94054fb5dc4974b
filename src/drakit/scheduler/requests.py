"""One pod's claims on one node: what is asked, what is there, and what fits regardless of choices.

The *verdict* about a device for a request depends on neither what else is chosen nor what is in
use. The search and the explanation both start from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from drakit.core.objects import (
    CapacityRequirements,
    Device,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    ExactRequest,
    ResourceClaim,
    ResourceSlice,
    SubRequest,
    Taint,
    Toleration,
)
from drakit.core.pods import Node
from drakit.core.quantity import Quantity
from drakit.scheduler.allocator.capacity import (
    CapacityError,
    CapacityShortage,
    consumption,
    fatal,
    remaining_shortage,
)
from drakit.scheduler.allocator.constraints import RequestName
from drakit.scheduler.cel.errors import CelCompileError
from drakit.scheduler.cel.selector import HINT
from drakit.scheduler.errors import FatalError
from drakit.scheduler.pools import DeviceId, PoolView, SliceIndex, device_matches
from drakit.scheduler.versions import KubernetesVersion

MAX_ALLOCATION_RESULTS: Final = 32
"""AllocationResultsMaxSize: devices one claim can get."""


# -- what is in use -----------------------------------------------------------------------------------


@dataclass(slots=True)
class InUse:
    """What the allocated claims of the cluster hold."""

    exclusive: dict[DeviceId, ResourceClaim] = field(default_factory=dict)
    shared: dict[DeviceId, list[ResourceClaim]] = field(default_factory=dict)
    capacity: dict[DeviceId, dict[str, int]] = field(default_factory=dict)
    """Consumed nano-units by device and capacity."""

    @classmethod
    def of(cls, claims: Iterable[ResourceClaim], version: KubernetesVersion) -> InUse:
        """Collect the devices of all allocated claims; admin access does not hold devices."""
        found = cls()
        for claim in claims:
            allocation = claim.status.allocation
            for result in allocation.devices.results if allocation else ():
                if result.admin_access:
                    continue
                device = DeviceId(result.driver, result.pool, result.device)
                if result.share_id is None or not version.consumable_capacity:
                    found.exclusive[device] = claim
                    continue
                found.shared.setdefault(device, []).append(claim)
                if result.consumed_capacity:
                    used = found.capacity.setdefault(device, {})
                    for key, amount in result.consumed_capacity.items():
                        used[key] = used.get(key, 0) + amount.nanos
        return found

    def holds(self, device: DeviceId) -> bool:
        """Whether some claim has the device, or a share of it."""
        return device in self.exclusive or device in self.shared or device in self.capacity


# -- what is asked ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Variant:
    """A request without alternatives, or one of the alternatives."""

    claim: ResourceClaim
    name: RequestName
    spec: ExactRequest | SubRequest
    device_class: DeviceClass
    number: int
    """Identifies the variant among all of the pod."""

    @property
    def admin(self) -> bool:
        """Whether devices in use may be taken, without holding them."""
        return isinstance(self.spec, ExactRequest) and bool(self.spec.admin_access)

    @property
    def wants_all(self) -> bool:
        """Whether all matching devices are wanted."""
        return self.spec.allocation_mode == "All"

    @property
    def capacity(self) -> CapacityRequirements | None:
        """Amounts wanted of each device."""
        return self.spec.capacity

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """Taints the request can live with."""
        return self.spec.tolerations


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A request: one variant, or alternatives in order of preference."""

    request: DeviceRequest
    variants: tuple[Variant, ...]

    @property
    def is_list(self) -> bool:
        """Whether there are alternatives."""
        return bool(self.request.first_available)


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """A claim that needs devices."""

    claim: ResourceClaim
    requests: tuple[RequestPlan, ...]


def claim_name(claim: ResourceClaim) -> str:
    """``namespace/name`` as kube-scheduler writes it."""
    meta = claim.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def plan_claims(
    claims: Iterable[ResourceClaim],
    classes: Mapping[str, DeviceClass],
) -> tuple[ClaimPlan, ...]:
    """Prepare the claims of a pod. Raises :class:`FatalError` for what cannot be handled."""
    numbers = iter(range(1 << 30))
    plans: list[ClaimPlan] = []
    for claim in claims:
        requests: list[RequestPlan] = []
        for request in claim.spec.devices.requests:
            specs: tuple[ExactRequest | SubRequest, ...] = request.first_available
            if not specs:
                specs = (request.exactly or ExactRequest(),)
            variants = tuple(
                _variant(claim, request, spec, classes, next(numbers)) for spec in specs
            )
            requests.append(RequestPlan(request, variants))
        plans.append(ClaimPlan(claim, tuple(requests)))
    return tuple(plans)


def _variant(
    claim: ResourceClaim,
    request: DeviceRequest,
    spec: ExactRequest | SubRequest,
    classes: Mapping[str, DeviceClass],
    number: int,
) -> Variant:
    where = f"claim {claim_name(claim)}, request {request.name}"
    name = RequestName(request.name, spec.name if isinstance(spec, SubRequest) else "")
    for index, selector in enumerate(spec.selectors):
        if selector.cel is None:
            raise FatalError(f"{where}, selector #{index}: CEL expression empty "
                             "(unsupported selector type?)")  # fmt: skip
    if not spec.device_class_name:
        raise FatalError(f"{where}: missing device class name (unsupported request type?)")
    found = classes.get(spec.device_class_name)
    if found is None:
        raise FatalError(f"{where}: could not retrieve device class {spec.device_class_name}: "
                         "it does not exist")  # fmt: skip
    if spec.allocation_mode not in ("ExactCount", "All"):
        raise FatalError(f"{where}: unsupported count mode {spec.allocation_mode}")
    return Variant(claim, name, spec, found, number)


# -- what is there --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device a node can use, in the order in which kube-scheduler tries them."""

    id: DeviceId
    device: Device
    slice: ResourceSlice
    pool: PoolView
    shareable: bool


@dataclass(frozen=True, slots=True)
class Suitable:
    """The device qualifies; *taken* is what the request takes of its capacities."""

    taken: dict[str, Quantity]


@dataclass(frozen=True, slots=True)
class NotSelected:
    """A selector is false: the *index*-th of the class or of the request."""

    of_class: bool
    index: int
    expression: str


@dataclass(frozen=True, slots=True)
class EvaluationFailure:
    """Looking at the device is an error that stops the pod; *summary* says it for people."""

    error: FatalError
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Tainted:
    """The device has a taint the request does not tolerate."""

    taint: Taint


@dataclass(frozen=True, slots=True)
class Unusable:
    """The device is not for this node, or for no scheduler of this release."""

    reason: str


Verdict = Suitable | NotSelected | EvaluationFailure | Tainted | Unusable | CapacityShortage


class NodeDevices:
    """A node, its devices, and the verdicts about them."""

    def __init__(self, node: Node, index: SliceIndex, in_use: InUse) -> None:
        self.node = node
        self.index = index
        self.version = index.version
        self.in_use = in_use
        self.pools = index.pools(node)
        self.candidates: tuple[Candidate, ...] = tuple(self._candidates())
        self._verdicts: dict[tuple[int, int], Verdict] = {}

    def _candidates(self) -> Iterable[Candidate]:
        shareable = self.version.consumable_capacity
        for pool in self.pools:
            if not pool.usable:
                continue
            for entry in pool.slices:
                for device in entry.spec.devices:
                    name = DeviceId(pool.id.driver, pool.id.name, device.name)
                    multiple = shareable and bool(device.allow_multiple_allocations)
                    yield Candidate(name, device, entry, pool, multiple)

    def verdict(self, variant: Variant, at: int) -> Verdict:
        """Whether the device qualifies for the request, whatever else is going on."""
        key = (variant.number, at)
        found = self._verdicts.get(key)
        if found is None:
            found = self._verdicts[key] = self._judge(variant, self.candidates[at])
        return found

    def _judge(  # noqa: PLR0911 - one way out per reason
        self, variant: Variant, candidate: Candidate
    ) -> Verdict:
        device = candidate.device
        if device.binding_conditions and not self.version.binding_conditions:
            return Unusable("it has binding conditions, which this release does not support")
        unselected = self._selection(variant, candidate)
        if unselected is not None:
            return unselected
        taken: dict[str, Quantity] = {}
        if self.version.consumable_capacity:
            try:
                outcome = consumption(variant.capacity, device.capacity, self.version)
            except CapacityError as error:
                if self.version.capacity_errors_are_fatal:
                    where = claim_name(variant.claim)
                    return EvaluationFailure(
                        fatal(where, str(variant.name), str(candidate.id), error)
                    )
                return CapacityShortage("", str(error))
            if isinstance(outcome, CapacityShortage):
                return outcome
            taken = outcome
            used = {} if candidate.shareable else self.in_use.capacity.get(candidate.id, {})
            short = remaining_shortage(taken, device.capacity, used)
            if short is not None:
                return short
        if device.consumes_counters and not self.version.partitionable:
            return Unusable("it consumes counters, which this release does not support")
        if self.version.taints:
            taint = intolerable_taint(device.taints, variant.tolerations)
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
                    return Unusable("it is not for this node")
            except FatalError as error:
                return EvaluationFailure(error)
        return None

    def _selector(
        self,
        variant: Variant,
        candidate: Candidate,
        of_class: bool,
        index: int,
        selector: DeviceSelector,
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
        return EvaluationFailure(
            FatalError(f"{where} on device {candidate.id}: CEL runtime error: {outcome}{hint}"),
            f"selector {index + 1} of {owner} fails: {outcome}",
        )

    def all_devices(self, variant: Variant) -> tuple[int, ...]:
        """The devices a request for all of them means. Raises :class:`FatalError`."""
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
            if not self.version.all_skips_full_devices or not candidate.shareable:
                return True
            used = self.in_use.capacity.get(candidate.id, {})
            return remaining_shortage(verdict.taken, candidate.device.capacity, used) is None
        if isinstance(verdict, CapacityShortage) and not self.version.all_skips_full_devices:
            return self._total_suffices(variant, candidate)
        # A tainted or counter-consuming device still belongs to "all", and makes it fail.
        return isinstance(verdict, Tainted) or (
            isinstance(verdict, Unusable) and bool(candidate.device.consumes_counters)
            and not candidate.device.binding_conditions
            and self._selection(variant, candidate) is None
        )  # fmt: skip

    def _total_suffices(self, variant: Variant, candidate: Candidate) -> bool:
        """Since 1.37 a device whose capacity is in use still counts as one of all."""
        outcome = consumption(variant.capacity, candidate.device.capacity, self.version)
        if isinstance(outcome, CapacityShortage):
            return False
        return remaining_shortage(outcome, candidate.device.capacity, {}) is None

    def broken_pools(self) -> list[PoolView]:
        """Pools nothing can be taken from."""
        return [pool for pool in self.pools if not pool.usable]

    def available_counters(self, pool: PoolView) -> dict[tuple[str, str], int]:
        """What allocated devices leave of a pool's counters, in nano-units."""
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
    """What a device takes from which counter, in nano-units."""
    total: dict[tuple[str, str], int] = {}
    for consumed in device.consumes_counters:
        for name, counter in consumed.counters.items():
            key = (consumed.counter_set, name)
            total[key] = total.get(key, 0) + counter.value.nanos
    return total


def intolerable_taint(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that keeps a request off a device."""
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(
            _tolerates(toleration, taint) for toleration in tolerations
        ):
            return taint
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value
