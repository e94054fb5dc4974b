"""Why devices were not taken: per node, per request, per device, and what would help.

kube-scheduler says "cannot allocate all claims". Here every device gets the first reason that keeps
it from a request, in the order in which the scheduler checks, with the values it saw. Remedies are
not guessed: each is tried with the allocator before it is offered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from drakit.core.objects import (
    CapacityRequirements,
    CelSelector,
    DeviceRequest,
    DeviceSelector,
    ExactRequest,
    ResourceClaim,
    SubRequest,
    Toleration,
)
from drakit.core.pods import Node
from drakit.core.quantity import Quantity
from drakit.scheduler.allocator.capacity import CapacityShortage, remaining_shortage
from drakit.scheduler.allocator.constraints import lookup_attribute, shown_values, values_of
from drakit.scheduler.allocator.search import AllocationFound, AllocationImpossible, allocate
from drakit.scheduler.cel.checker.fields import Field, fields_named
from drakit.scheduler.cel.errors import CelCompileError
from drakit.scheduler.cel.selector import compile_selector, split_name
from drakit.scheduler.errors import FatalError, SearchLimitError
from drakit.scheduler.placement import (
    NOT_AVAILABLE_ON_NODE,
    NodeResult,
    SchedulingCycle,
    claims_allocated_elsewhere,
    examine,
)
from drakit.scheduler.requests import (
    Candidate,
    EvaluationFailure,
    InUse,
    NodeDevices,
    NotSelected,
    Suitable,
    Tainted,
    Unusable,
    Variant,
    claim_name,
    plan_claims,
)

_MAX_REMEDIES: Final = 3
_MAX_HOLDERS: Final = 8
_MAX_FEWER: Final = 5
"""How much less a request is tried with."""
_KIND_WORDS: Final = {
    "selector": "not selected",
    "node": "not for this node",
    "in-use": "in use",
    "error": "with an error",
    "capacity": "with too little capacity",
    "taint": "tainted",
    "counter": "without counters left",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """One reason, and the devices it keeps out."""

    kind: str
    text: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestReport:
    """How the devices of a node look to one request or alternative."""

    claim: str
    request: str
    wanted: int | None
    """Devices wanted; None for all of them."""
    suitable: tuple[str, ...]
    """Devices that qualify and are free, each on its own."""
    rejections: tuple[Rejection, ...]
    amounts: str = ""
    """Capacity wanted of each device, in words."""

    @property
    def enough(self) -> bool:
        """Whether the request could be met if it were alone."""
        if self.wanted is None:
            return bool(self.suitable)
        return len(self.suitable) >= self.wanted


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What one node has to say, in full."""

    answer: NodeResult
    considered: bool
    """Whether devices were looked at; other rules may have excluded the node before."""
    requests: tuple[RequestReport, ...] = ()
    broken_pools: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    """What is missing, in order of importance."""
    remedies: tuple[str, ...] = field(default=())
    """Single changes of which each makes the pod fit here."""


def report(scheduling: SchedulingCycle, node: Node, answer: NodeResult | None = None) -> NodeReport:
    """Explain one node; *answer* is what it said, where the caller has asked it before."""
    asked, node_devices = examine(scheduling, node)
    answer = answer or asked
    if node_devices is None:
        return NodeReport(answer, considered=False)
    requests = tuple(_requests(scheduling, node_devices))
    broken = tuple(
        f"pool {pool.id} is "
        f"{'incomplete: ' + pool.incomplete if pool.incomplete else 'invalid: ' + pool.invalid}"
        for pool in node_devices.broken_pools()
    )
    findings = () if answer.fits else tuple(_findings(scheduling, node_devices, requests, answer))
    return NodeReport(answer, True, requests, broken, findings)


def with_remedies(scheduling: SchedulingCycle, node: Node, found: NodeReport) -> NodeReport:
    """The report with changes that were tried and help; this runs the search several times."""
    remedies = tuple(_remedies(scheduling, node, found))
    return NodeReport(
        found.answer, found.considered, found.requests, found.broken_pools, found.findings, remedies
    )


# -- requests and devices ---------------------------------------------------------------------------------


def _requests(scheduling: SchedulingCycle, node_devices: NodeDevices) -> Iterator[RequestReport]:
    for plan in scheduling.plans:
        for request in plan.requests:
            for variant in request.variants:
                yield _request(node_devices, variant, claim_name(plan.claim))


def _request(node_devices: NodeDevices, variant: Variant, claim: str) -> RequestReport:
    suitable: list[str] = []
    rejected: dict[tuple[str, str], list[str]] = {}
    for at, candidate in enumerate(node_devices.candidates):
        reason = rejection(node_devices, variant, at)
        name = f"{candidate.id.pool}/{candidate.id.device}"
        if reason is None:
            suitable.append(name)
        else:
            rejected.setdefault(reason, []).append(name)
    groups = tuple(Rejection(kind, text, tuple(names)) for (kind, text), names in rejected.items())
    wanted = None if variant.wants_all else variant.spec.count
    amounts = variant.capacity.requests if variant.capacity else {}
    words = " and ".join(f"{amount} {key}" for key, amount in amounts.items())
    return RequestReport(claim, str(variant.name), wanted, tuple(suitable), groups, words)


def rejection(node_devices: NodeDevices, variant: Variant, at: int) -> tuple[str, str] | None:
    """Why a device is not for a request: a kind and a text; None if it is."""
    candidate = node_devices.candidates[at]
    verdict = node_devices.verdict(variant, at)
    if isinstance(verdict, NotSelected):
        return "selector", _selector_text(node_devices, variant, candidate, verdict)
    if isinstance(verdict, Unusable):
        return "node", verdict.reason
    holder = node_devices.in_use.exclusive.get(candidate.id)
    if holder is not None and not variant.admin:
        return "in-use", f"in use by {holder_name(holder)}"
    if isinstance(verdict, EvaluationFailure):
        return "error", verdict.summary or str(verdict.error)
    if isinstance(verdict, CapacityShortage):
        return "capacity", verdict.reason
    if isinstance(verdict, Tainted):
        taint = verdict.taint
        value = f"={taint.value}" if taint.value else ""
        return "taint", f"tainted {taint.key}{value}:{taint.effect}, which is not tolerated"
    return _current_shortage(node_devices, candidate, verdict)


def _current_shortage(
    node_devices: NodeDevices, candidate: Candidate, verdict: Suitable
) -> tuple[str, str] | None:
    if candidate.shareable:
        used = node_devices.in_use.capacity.get(candidate.id, {})
        short = remaining_shortage(verdict.taken, candidate.device.capacity, used)
        if short is not None:
            holders = node_devices.in_use.shared.get(candidate.id, [])
            names = ", ".join(holder_name(h) for h in holders[:3])
            more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
            taken = f"; taken by {names}{more}" if names else ""
            return "capacity", short.reason + taken
    if candidate.device.consumes_counters and not node_devices.in_use.holds(candidate.id):
        left = node_devices.available_counters(candidate.pool)
        for consumed in candidate.device.consumes_counters:
            for name, counter in consumed.counters.items():
                have = max(left.get((consumed.counter_set, name), 0), 0)
                if counter.value.nanos > have:
                    rest = Quantity.from_nanos(have, counter.value.family)
                    return "counter", (
                        f"needs {counter.value} of counter {consumed.counter_set}/{name}, "
                        f"{rest} is left"
                    )
    return None


def holder_name(claim: ResourceClaim) -> str:
    """A claim and the pods that use it."""
    pods = [r.name for r in claim.status.reserved_for if r.resource == "pods"]
    used = f" (pod {', '.join(pods)})" if pods else ""
    return f"claim {claim_name(claim)}{used}"


def _selector_text(
    node_devices: NodeDevices, variant: Variant, candidate: Candidate, verdict: NotSelected
) -> str:
    owner = f"class {variant.device_class.metadata.name}" if verdict.of_class else "the request"
    matcher = node_devices.index.matcher(verdict.expression)
    values = matcher.key(candidate.id.driver, candidate.device, candidate.shareable)
    key = (owner, verdict.index, verdict.expression, values)
    text = node_devices.index.texts.get(key) if values is not None else None
    if text is None:
        text = f"selector {verdict.index + 1} of {owner} is false: {verdict.expression}"
        if verdict.of_class:
            text = f"not of {owner}: {verdict.expression}"
        seen = ", ".join(values_seen(verdict.expression, candidate))
        text = f"{text} – it has {seen}" if seen else text
        if values is not None:
            node_devices.index.texts[key] = text
    return text


def values_seen(expression: str, candidate: Candidate) -> list[str]:
    """The attributes and capacities an expression names, with the device's values."""
    found: dict[str, str] = {}
    for field_name, domain, name in _fields_of(expression):
        if field_name == "driver":
            found["driver"] = candidate.id.driver
        elif field_name == "attributes":
            found[name] = _shown_attribute(candidate, domain, name)
        else:
            capacity = _entry(candidate.device.capacity, candidate.id.driver, domain, name)
            found[name] = str(capacity.value) if capacity else "nothing"
    return [f"{name} = {value}" for name, value in found.items()]


@functools.lru_cache(maxsize=1024)
def _fields_of(expression: str) -> tuple[Field, ...]:
    try:
        return tuple(fields_named(compile_selector(expression).root))
    except CelCompileError:
        return ()


def _shown_attribute(candidate: Candidate, domain: str, name: str) -> str:
    attribute = lookup_attribute(candidate.device, candidate.id.driver, f"{domain}/{name}")
    if attribute is None:
        return "nothing"
    return shown_values(values_of(attribute))


def _entry(entries: dict[str, Any], driver: str, domain: str, name: str) -> Any:
    for key, entry in entries.items():
        if split_name(key, driver) == (domain, name):
            return entry
    return None


# -- what is missing --------------------------------------------------------------------------------------


def _findings(
    scheduling: SchedulingCycle,
    node_devices: NodeDevices,
    requests: tuple[RequestReport, ...],
    answer: NodeResult,
) -> Iterator[str]:
    if answer.fatal:
        broken = next((g for r in requests for g in r.rejections if g.kind == "error"), None)
        said = f"{broken.text} (on {broken.devices[0]})" if broken else answer.reason
        yield f"an error stops the pod on every node: {said}"
        return
    if answer.reason == NOT_AVAILABLE_ON_NODE:
        yield from allocated_elsewhere_texts(scheduling, node_devices.node)
        return
    alone = False
    for plan in scheduling.plans:
        for request in plan.requests:
            names = {str(v.name) for v in request.variants}
            reports = [
                r for r in requests if r.claim == claim_name(plan.claim) and r.request in names
            ]
            if any(r.enough for r in reports):
                continue
            alone = True
            for r in reports:
                yield _shortfall(r)
    if alone:
        return
    yield from _together(scheduling, node_devices)


def allocated_elsewhere_texts(scheduling: SchedulingCycle, node: Node) -> Iterator[str]:
    """Which claim of the pod keeps it off the node, because it has devices of another one."""
    for claim in claims_allocated_elsewhere(scheduling, node):
        allocation = claim.status.allocation
        terms = (
            allocation.node_selector.node_selector_terms
            if allocation and (allocation.node_selector)
            else ()
        )
        names = [v for t in terms for f in t.match_fields for v in f.values if f.operator == "In"]
        where = f"on node {', '.join(names)}" if names else "that other nodes can use"
        yield f"claim {claim_name(claim)} has its devices already, {where}, and cannot move"


def _shortfall(r: RequestReport) -> str:
    with_amounts = f" with {r.amounts}" if r.amounts else ""
    if r.wanted is None:
        text = f"request {r.request} wants all matching devices{with_amounts}, but can have none"
    else:
        have = len(r.suitable)
        only = "none on this node qualifies"
        if have:
            only = f"only {have} on this node {'qualify' if have > 1 else 'qualifies'}"
        many = "s" if r.wanted != 1 else ""
        text = f"request {r.request} wants {r.wanted} device{many}{with_amounts}, {only}"
    if not r.rejections:
        others = "there are no others" if r.suitable else "it has no devices in usable pools"
        return f"{text}: {others}"
    if len(r.rejections) == 1:
        return f"{text}: {r.rejections[0].text}"
    counts: dict[str, int] = {}
    for group in r.rejections:
        counts[group.kind] = counts.get(group.kind, 0) + len(group.devices)
    return f"{text}: " + ", ".join(f"{n} {_KIND_WORDS[kind]}" for kind, n in counts.items())


def _together(scheduling: SchedulingCycle, node_devices: NodeDevices) -> Iterator[str]:
    """Each request could be met alone, but not all of them."""
    culprits = []
    for claim_at, claim in enumerate(_pending(scheduling)):
        for index, constraint in enumerate(claim.spec.devices.constraints):
            if _fits(
                scheduling,
                node_devices.node,
                claims=_without_constraint(scheduling, claim_at, index),
            ):
                culprits.append((claim, constraint))
    for claim, constraint in culprits:
        kind = "the same" if constraint.match_attribute else "different"
        attribute = constraint.match_attribute or constraint.distinct_attribute or ""
        over = ", ".join(constraint.requests) or "all requests"
        groups = _groups(scheduling, node_devices, attribute)
        yield (
            f"no choice of devices gives {over} of claim {claim_name(claim)} {kind} {attribute}"
            f"{': ' + groups if groups else ''}"
        )
    if not culprits:
        yield "each request could be met alone, but together they need more devices than there are"


def _groups(scheduling: SchedulingCycle, node_devices: NodeDevices, attribute: str) -> str:
    counts: dict[str, dict[str, int]] = {}
    for plan in scheduling.plans:
        for request in plan.requests:
            for variant in request.variants:
                for at, candidate in enumerate(node_devices.candidates):
                    if rejection(node_devices, variant, at) is not None:
                        continue
                    found = lookup_attribute(candidate.device, candidate.id.driver, attribute)
                    key = shown_values(values_of(found)) if found else "no value"
                    per = counts.setdefault(str(variant.name), {})
                    per[key] = per.get(key, 0) + 1
    return "; ".join(
        f"{name} finds " + ", ".join(f"{n} with {value}" for value, n in sorted(per.items()))
        for name, per in counts.items()
    )


# -- remedies ---------------------------------------------------------------------------------------------


def _pending(scheduling: SchedulingCycle) -> list[ResourceClaim]:
    return [plan.claim for plan in scheduling.plans]


def _fits(
    scheduling: SchedulingCycle,
    node: Node,
    *,
    claims: list[ResourceClaim] | None = None,
    in_use: InUse | None = None,
) -> bool:
    classes = {c.metadata.name: c for c in scheduling.cluster.classes}
    try:
        plans = plan_claims(claims if claims is not None else _pending(scheduling), classes)
        node_devices = NodeDevices(node, scheduling.index, in_use or scheduling.in_use)
        outcome: AllocationFound | AllocationImpossible = allocate(node_devices, plans)
    except (FatalError, SearchLimitError):
        return False
    return isinstance(outcome, AllocationFound)


Change = tuple[str, list[ResourceClaim] | None, InUse | None]


def _remedies(scheduling: SchedulingCycle, node: Node, found: NodeReport) -> Iterator[str]:
    if found.answer.fits or not found.considered:
        return
    offered = 0
    for make in (_guard, _tolerate, _other_key, _less_capacity, _fewer, _free, _loosen, _unselect):
        for text, claims, in_use in make(scheduling, node, found):
            if offered >= _MAX_REMEDIES:
                return
            if _fits(scheduling, node, claims=claims, in_use=in_use):
                offered += 1
                yield text


def _request_specs(
    scheduling: SchedulingCycle,
) -> Iterator[tuple[int, int, int, ExactRequest | SubRequest, str]]:
    """Claim, request and alternative positions with the request and its name."""
    for c, claim in enumerate(_pending(scheduling)):
        for r, request in enumerate(claim.spec.devices.requests):
            if request.exactly is not None:
                yield c, r, -1, request.exactly, request.name
            for s, sub in enumerate(request.first_available):
                yield c, r, s, sub, f"{request.name}/{sub.name}"


def _changed(
    scheduling: SchedulingCycle, c: int, r: int, s: int, **fields: Any
) -> list[ResourceClaim]:
    """The claims with one request changed."""
    claims = _pending(scheduling)
    claim = claims[c]
    requests = list(claim.spec.devices.requests)
    request: DeviceRequest = requests[r]
    if s < 0:
        assert request.exactly is not None
        exactly = msgspec.structs.replace(request.exactly, **fields)
        requests[r] = msgspec.structs.replace(request, exactly=exactly)
    else:
        subs = list(request.first_available)
        subs[s] = msgspec.structs.replace(subs[s], **fields)
        requests[r] = msgspec.structs.replace(request, first_available=tuple(subs))
    devices = msgspec.structs.replace(claim.spec.devices, requests=tuple(requests))
    spec = msgspec.structs.replace(claim.spec, devices=devices)
    claims[c] = msgspec.structs.replace(claim, spec=spec)
    return claims


def _without_constraint(scheduling: SchedulingCycle, c: int, index: int) -> list[ResourceClaim]:
    claims = _pending(scheduling)
    claim = claims[c]
    kept = tuple(k for i, k in enumerate(claim.spec.devices.constraints) if i != index)
    devices = msgspec.structs.replace(claim.spec.devices, constraints=kept)
    spec = msgspec.structs.replace(claim.spec, devices=devices)
    claims[c] = msgspec.structs.replace(claim, spec=spec)
    return claims


def _variant_named(scheduling: SchedulingCycle, c: int, name: str) -> Variant | None:
    for request in scheduling.plans[c].requests:
        for variant in request.variants:
            if str(variant.name) == name:
                return variant
    return None


def _tolerate(scheduling: SchedulingCycle, node: Node, _: NodeReport) -> Iterator[Change]:
    node_devices = NodeDevices(node, scheduling.index, scheduling.in_use)
    for c, r, s, spec, name in _request_specs(scheduling):
        variant = _variant_named(scheduling, c, name)
        taints = {}
        for at in range(len(node_devices.candidates)) if variant else ():
            assert variant is not None
            verdict = node_devices.verdict(variant, at)
            if isinstance(verdict, Tainted):
                taints[verdict.taint.key, verdict.taint.effect] = verdict.taint
        for taint in taints.values():
            toleration = Toleration(key=taint.key, operator="Exists", effect=taint.effect)
            claims = _changed(scheduling, c, r, s, tolerations=(*spec.tolerations, toleration))
            yield (
                (
                    f"let request {name} tolerate the taint {taint.key}:{taint.effect} "
                    f"(tolerations: [{{key: {taint.key}, operator: Exists, effect: {taint.effect}}}])"
                ),
                claims,
                None,
            )


def _other_key(scheduling: SchedulingCycle, node: Node, _: NodeReport) -> Iterator[Change]:
    """Capacity keys must match to the letter; a missing or superfluous domain is a classic."""
    published = {
        key: entry.spec.driver
        for entry in scheduling.cluster.slices
        for device in entry.spec.devices
        for key in device.capacity
    }
    for c, r, s, spec, name in _request_specs(scheduling):
        requests = spec.capacity.requests if spec.capacity else {}
        for key in requests:
            short = key.rpartition("/")[2]
            for other in published:
                if other != key and other.rpartition("/")[2] == short and other not in requests:
                    renamed = {other if k == key else k: v for k, v in requests.items()}
                    capacity = CapacityRequirements(requests=renamed)
                    claims = _changed(scheduling, c, r, s, capacity=capacity)
                    yield f"in request {name} write the capacity {key!r} as {other!r}", claims, None


def _less_capacity(scheduling: SchedulingCycle, node: Node, _: NodeReport) -> Iterator[Change]:
    node_devices = NodeDevices(node, scheduling.index, scheduling.in_use)
    for c, r, s, spec, name in _request_specs(scheduling):
        requests = spec.capacity.requests if spec.capacity else {}
        for key, wanted in requests.items():
            free = [
                candidate.device.capacity[key].value.nanos
                - node_devices.in_use.capacity.get(candidate.id, {}).get(key, 0)
                for candidate in node_devices.candidates
                if key in candidate.device.capacity
            ]
            most = max(free, default=0)
            if 0 < most < wanted.nanos:
                amount = Quantity.from_nanos(most, wanted.family)
                capacity = CapacityRequirements(requests={**requests, key: amount})
                claims = _changed(scheduling, c, r, s, capacity=capacity)
                yield f"ask for at most {amount} {key} in request {name}", claims, None


def _fewer(scheduling: SchedulingCycle, node: Node, found: NodeReport) -> Iterator[Change]:
    for c, r, s, spec, name in _request_specs(scheduling):
        claim = claim_name(_pending(scheduling)[c])
        for r_ in found.requests:
            if (r_.claim, r_.request) != (claim, name) or r_.wanted is None:
                continue
            most = min(spec.count - 1, len(r_.suitable))
            for count in range(most, max(most - _MAX_FEWER, 0), -1):
                claims = _changed(scheduling, c, r, s, count=count)
                if _fits(scheduling, node, claims=claims):
                    text = f"ask for {count} instead of {spec.count} devices in request {name}"
                    yield text, claims, None
                    break


def _free(scheduling: SchedulingCycle, node: Node, _: NodeReport) -> Iterator[Change]:
    node_devices = NodeDevices(node, scheduling.index, scheduling.in_use)
    holders: dict[str, ResourceClaim] = {}
    for candidate in node_devices.candidates:
        claim = node_devices.in_use.exclusive.get(candidate.id)
        for holder in (claim, *node_devices.in_use.shared.get(candidate.id, ())):
            if holder is not None:
                holders[claim_name(holder)] = holder
    everyone = [c for c in scheduling.cluster.claims if c.status.allocation is not None]
    for name, holder in list(holders.items())[:_MAX_HOLDERS]:
        rest = InUse.of((c for c in everyone if claim_name(c) != name), scheduling.index.version)
        yield f"free the devices of {holder_name(holder)}", None, rest


def _loosen(scheduling: SchedulingCycle, _: Node, __: NodeReport) -> Iterator[Change]:
    for c, claim in enumerate(_pending(scheduling)):
        for index, constraint in enumerate(claim.spec.devices.constraints):
            attribute = constraint.match_attribute or constraint.distinct_attribute
            yield (
                f"drop the constraint on {attribute} from claim {claim_name(claim)}",
                _without_constraint(scheduling, c, index),
                None,
            )


def _unselect(scheduling: SchedulingCycle, _: Node, __: NodeReport) -> Iterator[Change]:
    for c, r, s, spec, name in _request_specs(scheduling):
        for index, selector in enumerate(spec.selectors):
            kept = tuple(k for i, k in enumerate(spec.selectors) if i != index)
            expression = selector.cel.expression if selector.cel else ""
            claims = _changed(scheduling, c, r, s, selectors=kept)
            yield (
                f"change or drop selector {index + 1} of request {name}: {expression}",
                claims,
                None,
            )


def _guard(scheduling: SchedulingCycle, node: Node, _: NodeReport) -> Iterator[Change]:
    """A selector that fails on devices without the attribute can ask for it first."""
    node_devices = NodeDevices(node, scheduling.index, scheduling.in_use)
    for c, r, s, spec, name in _request_specs(scheduling):
        variant = _variant_named(scheduling, c, name)
        errors = {
            str(verdict.error)
            for at in range(len(node_devices.candidates) if variant else 0)
            if variant
            and isinstance(verdict := node_devices.verdict(variant, at), EvaluationFailure)
        }
        for index, selector in enumerate(spec.selectors):
            expression = selector.cel.expression if selector.cel else ""
            for part, domain, key in dict.fromkeys(_fields_of(expression)):
                if not any(f"no such key: {key}" in error for error in errors):
                    continue
                guarded = f'has(device.{part}["{domain}"].{key}) && ({expression})'
                changed = list(spec.selectors)
                changed[index] = DeviceSelector(cel=CelSelector(expression=guarded))
                claims = _changed(scheduling, c, r, s, selectors=tuple(changed))
                yield f"write selector {index + 1} of request {name} as {guarded}", claims, None


_Maker = Callable[[SchedulingCycle, Node, NodeReport], Iterator[Change]]
