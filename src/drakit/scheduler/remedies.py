"""Single changes with which a pod would fit on a node; each is tried with the allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from drakit.core.objects import (
    CapacityRequirements,
    CelSelector,
    DeviceClaim,
    DeviceSelector,
    ResourceClaim,
    Toleration,
)
from drakit.core.pods import Node
from drakit.core.quantity import Quantity
from drakit.scheduler.allocator.node_devices import EvaluationFailure, InUse, NodeDevices, Tainted
from drakit.scheduler.allocator.search import AllocationFound, allocate
from drakit.scheduler.cel.selector import selector_fields
from drakit.scheduler.errors import FatalError, SearchLimitError
from drakit.scheduler.placement import SchedulingCycle
from drakit.scheduler.requests import RequestSpec, Variant, claim_name, plan_claims

_MAX_REMEDIES: Final = 3
_MAX_HOLDERS: Final = 8
_MAX_FEWER: Final = 5
"""How many smaller counts are tried for a request."""


class Change(NamedTuple):
    """A change of the claims to be allocated, or of the devices in use."""

    text: str
    claims: list[ResourceClaim] | None = None
    in_use: InUse | None = None


class _Target(NamedTuple):
    """A request or alternative, with its position in the claims to be allocated."""

    claim: int
    request: int
    alternative: int
    variant: Variant

    @property
    def spec(self) -> RequestSpec:
        return self.variant.spec

    @property
    def capacity(self) -> dict[str, Quantity]:
        return self.spec.capacity.requests if self.spec.capacity else {}


class _Context(NamedTuple):
    cycle: SchedulingCycle
    node_devices: NodeDevices
    suitable: Mapping[tuple[str, str], int]

    def targets(self) -> Iterator[_Target]:
        for c, plan in enumerate(self.cycle.plans):
            for r, request in enumerate(plan.requests):
                for v, variant in enumerate(request.variants):
                    yield _Target(c, r, v if request.is_list else -1, variant)

    def verdicts(self, variant: Variant) -> Iterator[Any]:
        for at in range(len(self.node_devices.candidates)):
            yield self.node_devices.verdict(variant, at)

    def changed(self, target: _Target, **fields: Any) -> list[ResourceClaim]:
        """The claims with one request changed."""
        devices = self.cycle.plans[target.claim].claim.spec.devices
        requests = list(devices.requests)
        request = requests[target.request]
        if target.alternative < 0:
            assert request.exactly is not None
            request = replace(request, exactly=replace(request.exactly, **fields))
        else:
            alternatives = list(request.first_available)
            alternatives[target.alternative] = replace(alternatives[target.alternative], **fields)
            request = replace(request, first_available=tuple(alternatives))
        requests[target.request] = request
        return _with_devices(self.cycle, target.claim, replace(devices, requests=tuple(requests)))


def find_remedies(
    cycle: SchedulingCycle, node: Node, suitable: Mapping[tuple[str, str], int]
) -> Iterator[str]:
    """Changes that make the pod fit; *suitable* counts the devices per claim and request."""
    context = _Context(cycle, NodeDevices(node, cycle.index, cycle.in_use), suitable)
    changes = (change for make in _MAKERS for change in make(context))
    tried = (change.text for change in changes if fits_with(cycle, node, change))
    return islice(tried, _MAX_REMEDIES)


def fits_with(cycle: SchedulingCycle, node: Node, change: Change) -> bool:
    """Whether the pod fits on *node* with the change."""
    classes = {c.metadata.name: c for c in cycle.cluster.classes}
    claims = [plan.claim for plan in cycle.plans] if change.claims is None else change.claims
    try:
        node_devices = NodeDevices(node, cycle.index, change.in_use or cycle.in_use)
        outcome = allocate(node_devices, plan_claims(claims, classes))
    except (FatalError, SearchLimitError):
        return False
    return isinstance(outcome, AllocationFound)


def without_constraint(cycle: SchedulingCycle, claim: int, index: int) -> list[ResourceClaim]:
    """The claims without one constraint."""
    devices = cycle.plans[claim].claim.spec.devices
    kept = tuple(k for i, k in enumerate(devices.constraints) if i != index)
    return _with_devices(cycle, claim, replace(devices, constraints=kept))


def _with_devices(cycle: SchedulingCycle, at: int, devices: DeviceClaim) -> list[ResourceClaim]:
    claims = [plan.claim for plan in cycle.plans]
    claims[at] = replace(claims[at], spec=replace(claims[at].spec, devices=devices))
    return claims


def holder_name(claim: ResourceClaim) -> str:
    """A claim and the pods that use it."""
    pods = [r.name for r in claim.status.reserved_for if r.resource == "pods"]
    used = f" (pod {', '.join(pods)})" if pods else ""
    return f"claim {claim_name(claim)}{used}"


def _guard(context: _Context) -> Iterator[Change]:
    """Check that an attribute exists before a selector reads it."""
    for target in context.targets():
        failures = (v for v in context.verdicts(target.variant) if isinstance(v, EvaluationFailure))
        errors = {str(failure.error) for failure in failures}
        for index, selector in enumerate(target.spec.selectors):
            expression = selector.cel.expression if selector.cel else ""
            for part, domain, key in dict.fromkeys(selector_fields(expression)):
                if not any(f"no such key: {key}" in error for error in errors):
                    continue
                guarded = f'has(device.{part}["{domain}"].{key}) && ({expression})'
                changed = list(target.spec.selectors)
                changed[index] = DeviceSelector(cel=CelSelector(expression=guarded))
                yield Change(
                    f"write selector {index + 1} of request {target.variant.name} as {guarded}",
                    context.changed(target, selectors=tuple(changed)),
                )


def _tolerate(context: _Context) -> Iterator[Change]:
    for target in context.targets():
        verdicts = context.verdicts(target.variant)
        taints = [(v.taint.key, v.taint.effect) for v in verdicts if isinstance(v, Tainted)]
        for key, effect in dict.fromkeys(taints):
            toleration = Toleration(key=key, operator="Exists", effect=effect)
            tolerations = (*target.spec.tolerations, toleration)
            yield Change(
                f"let request {target.variant.name} tolerate the taint {key}:{effect} "
                f"(tolerations: [{{key: {key}, operator: Exists, effect: {effect}}}])",
                context.changed(target, tolerations=tolerations),
            )


def _other_key(context: _Context) -> Iterator[Change]:
    """Capacity keys must be identical; a missing or additional domain is a frequent mistake."""
    slices = context.cycle.cluster.slices
    devices = (device for entry in slices for device in entry.spec.devices)
    published = dict.fromkeys(key for device in devices for key in device.capacity)
    for target in context.targets():
        requests = target.capacity
        for key in requests:
            for other in published:
                if other in requests or other.rpartition("/")[2] != key.rpartition("/")[2]:
                    continue
                renamed = {other if k == key else k: v for k, v in requests.items()}
                yield Change(
                    f"in request {target.variant.name} write the capacity {key!r} as {other!r}",
                    context.changed(target, capacity=CapacityRequirements(requests=renamed)),
                )


def _less_capacity(context: _Context) -> Iterator[Change]:
    used = context.node_devices.in_use.capacity
    for target in context.targets():
        for key, wanted in target.capacity.items():
            free = [
                candidate.device.capacity[key].value.nanos - used.get(candidate.id, {}).get(key, 0)
                for candidate in context.node_devices.candidates
                if key in candidate.device.capacity
            ]
            most = max(free, default=0)
            if 0 < most < wanted.nanos:
                amount = Quantity.from_nanos(most, wanted.family)
                requests = {**target.capacity, key: amount}
                yield Change(
                    f"ask for at most {amount} {key} in request {target.variant.name}",
                    context.changed(target, capacity=CapacityRequirements(requests=requests)),
                )


def _fewer_devices(context: _Context) -> Iterator[Change]:
    node = context.node_devices.node
    for target in context.targets():
        key = (claim_name(target.variant.claim), str(target.variant.name))
        if target.variant.wants_all:
            continue
        most = min(target.spec.count - 1, context.suitable.get(key, 0))
        for count in range(most, max(most - _MAX_FEWER, 0), -1):
            text = f"ask for {count} instead of {target.spec.count} devices in request {key[1]}"
            change = Change(text, context.changed(target, count=count))
            if fits_with(context.cycle, node, change):
                yield change
                break


def _free_devices(context: _Context) -> Iterator[Change]:
    in_use = context.node_devices.in_use
    holders: dict[str, ResourceClaim] = {}
    for candidate in context.node_devices.candidates:
        shared = in_use.shared.get(candidate.id, [])
        for claim in (in_use.exclusive.get(candidate.id), *shared):
            if claim is not None:
                holders[claim_name(claim)] = claim
    allocated = [c for c in context.cycle.cluster.claims if c.status.allocation is not None]
    for name, holder in islice(holders.items(), _MAX_HOLDERS):
        rest = InUse.of((c for c in allocated if claim_name(c) != name), context.node_devices.release)
        yield Change(f"free the devices of {holder_name(holder)}", in_use=rest)


def _drop_constraint(context: _Context) -> Iterator[Change]:
    for c, plan in enumerate(context.cycle.plans):
        for index, constraint in enumerate(plan.claim.spec.devices.constraints):
            attribute = constraint.match_attribute or constraint.distinct_attribute
            yield Change(
                f"drop the constraint on {attribute} from claim {claim_name(plan.claim)}",
                without_constraint(context.cycle, c, index),
            )


def _drop_selector(context: _Context) -> Iterator[Change]:
    for target in context.targets():
        selectors = target.spec.selectors
        for index, selector in enumerate(selectors):
            expression = selector.cel.expression if selector.cel else ""
            yield Change(
                f"change or drop selector {index + 1} of request {target.variant.name}: {expression}",
                context.changed(target, selectors=selectors[:index] + selectors[index + 1 :]),
            )


_MAKERS: Final[tuple[Callable[[_Context], Iterator[Change]], ...]] = (
    _guard,
    _tolerate,
    _other_key,
    _less_capacity,
    _fewer_devices,
    _free_devices,
    _drop_constraint,
    _drop_selector,
)
"""Possible changes, the least intrusive first."""
