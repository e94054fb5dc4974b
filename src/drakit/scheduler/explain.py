"""Explanation why devices were not allocated: per node, per request and per device.

Every device gets the first reason that excludes it from a request, in the order of kube-scheduler's
checks, with the values that were compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from drakit.core.pods import Node
from drakit.core.quantity import Quantity
from drakit.scheduler.allocator.capacity import CapacityShortage, remaining_shortage
from drakit.scheduler.allocator.constraints import lookup_attribute, shown_values, values_of
from drakit.scheduler.allocator.node_devices import (
    Candidate,
    EvaluationFailure,
    NodeDevices,
    NotSelected,
    Suitable,
    Tainted,
    Unusable,
)
from drakit.scheduler.cel.selector import selector_fields, split_name
from drakit.scheduler.placement import (
    NOT_AVAILABLE_ON_NODE,
    NodeResult,
    SchedulingCycle,
    claims_allocated_elsewhere,
    examine,
)
from drakit.scheduler.remedies import Change, find_remedies, fits_with, holder_name, without_constraint
from drakit.scheduler.requests import Variant, claim_name

_KINDS: Final = {
    "selector": ("does not match the selectors", "do not match the selectors"),
    "node": ("cannot be used on this node", "cannot be used on this node"),
    "in-use": ("is in use", "are in use"),
    "error": ("fails with an error", "fail with an error"),
    "capacity": ("has too little free capacity", "have too little free capacity"),
    "taint": ("is tainted", "are tainted"),
    "counter": ("needs more than the free counters", "need more than the free counters"),
}
"""Kinds of rejections, in words for one and for several devices."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One reason, and the devices that it excludes."""

    kind: str
    text: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestReport:
    """The devices of a node from the point of view of one request or alternative."""

    claim: str
    request: str
    wanted: int | None
    """Number of requested devices; None for all."""
    suitable: tuple[str, ...]
    """Devices that qualify and are free, regardless of other requests."""
    rejections: tuple[Rejection, ...]
    amounts: str = ""
    """Requested capacity of each device, as text."""

    @property
    def enough(self) -> bool:
        """Whether the request could be satisfied if it were the only one."""
        return len(self.suitable) >= (1 if self.wanted is None else self.wanted)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The explanation for one node."""

    answer: NodeResult
    considered: bool
    """Whether devices were checked; other rules may have excluded the node before."""
    requests: tuple[RequestReport, ...] = ()
    broken_pools: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    """What is missing, most important first."""
    remedies: tuple[str, ...] = ()
    """Single changes, each of which makes the pod fit on the node."""


def report(cycle: SchedulingCycle, node: Node, answer: NodeResult | None = None) -> NodeReport:
    """Explain one node; *answer* is its result if the caller knows it."""
    checked, node_devices = examine(cycle, node)
    answer = answer or checked
    if node_devices is None:
        return NodeReport(answer, considered=False)
    requests = tuple(
        _request(node_devices, variant, claim_name(plan.claim))
        for plan in cycle.plans
        for request in plan.requests
        for variant in request.variants
    )
    broken = tuple(
        f"pool {pool.id} is "
        f"{'incomplete: ' + pool.incomplete if pool.incomplete else 'invalid: ' + pool.invalid}"
        for pool in node_devices.broken_pools()
    )
    findings = () if answer.fits else tuple(_findings(cycle, node_devices, requests, answer))
    return NodeReport(answer, True, requests, broken, findings)


def with_remedies(cycle: SchedulingCycle, node: Node, found: NodeReport) -> NodeReport:
    """Add changes that make the pod fit to a report; this runs the search several times."""
    if found.answer.fits or not found.considered:
        return found
    suitable = {(r.claim, r.request): len(r.suitable) for r in found.requests}
    return replace(found, remedies=tuple(find_remedies(cycle, node, suitable)))


def _request(node_devices: NodeDevices, variant: Variant, claim: str) -> RequestReport:
    suitable: list[str] = []
    rejected: dict[tuple[str, str], list[str]] = {}
    for at, candidate in enumerate(node_devices.candidates):
        reason = device_rejection(node_devices, variant, at)
        names = suitable if reason is None else rejected.setdefault(reason, [])
        names.append(f"{candidate.id.pool}/{candidate.id.device}")
    groups = tuple(Rejection(kind, text, tuple(names)) for (kind, text), names in rejected.items())
    wanted = None if variant.wants_all else variant.spec.count
    amounts = variant.spec.capacity.requests if variant.spec.capacity else {}
    words = " and ".join(f"{amount} {key}" for key, amount in amounts.items())
    return RequestReport(claim, str(variant.name), wanted, tuple(suitable), groups, words)


def device_rejection(node_devices: NodeDevices, variant: Variant, at: int) -> tuple[str, str] | None:
    """The kind and text of the reason that excludes a device from a request, if any."""
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
        return "error", verdict.error.summary
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
            taken = f"; used by {names}{more}" if names else ""
            return "capacity", short.reason + taken
    if candidate.device.consumes_counters and not node_devices.in_use.holds(candidate.id):
        left = node_devices.available_counters(candidate.pool)
        for consumed in candidate.device.consumes_counters:
            for name, counter in consumed.counters.items():
                have = max(left.get((consumed.counter_set, name), 0), 0)
                if counter.value.nanos > have:
                    free = Quantity.from_nanos(have, counter.value.family)
                    counter_name = f"{consumed.counter_set}/{name}"
                    return ("counter", f"needs {counter.value} of counter {counter_name}, {free} is free")
    return None


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
    """The values of the attributes and capacities that an expression names."""
    found: dict[str, str] = {}
    driver = candidate.id.driver
    for part, domain, name in selector_fields(expression):
        if part == "driver":
            found[name] = f"driver = {driver}"
        elif part == "attributes":
            attribute = lookup_attribute(candidate.device, driver, f"{domain}/{name}")
            found[name] = f"no attribute {name}"
            if attribute is not None:
                found[name] = f"{name} = {shown_values(values_of(attribute))}"
        else:
            entries = candidate.device.capacity.items()
            named = (c for key, c in entries if split_name(key, driver) == (domain, name))
            capacity = next(named, None)
            found[name] = f"{name} = {capacity.value}" if capacity else f"no capacity {name}"
    return list(found.values())


def _findings(
    cycle: SchedulingCycle, node_devices: NodeDevices, requests: tuple[RequestReport, ...], answer: NodeResult
) -> Iterator[str]:
    if answer.fatal:
        failed = next((g for r in requests for g in r.rejections if g.kind == "error"), None)
        cause = f"{failed.text} (on {failed.devices[0]})" if failed else answer.summary
        kind = "CEL error: " if "CEL " in answer.reason else ""
        yield f"{kind}scheduling fails on all nodes: {cause}"
        return
    if answer.reason == NOT_AVAILABLE_ON_NODE:
        yield from allocated_elsewhere_texts(cycle, node_devices.node)
        return
    reports = {(r.claim, r.request): r for r in requests}
    short: list[str] = []
    for plan in cycle.plans:
        for request in plan.requests:
            variants = [reports[claim_name(plan.claim), str(v.name)] for v in request.variants]
            if not any(r.enough for r in variants):
                short += map(_shortfall, variants)
    yield from short or _conflicts(cycle, node_devices)


def allocated_elsewhere_texts(cycle: SchedulingCycle, node: Node) -> Iterator[str]:
    """The claims of the pod that exclude the node because their devices are on other nodes."""
    for claim in claims_allocated_elsewhere(cycle, node):
        selector = claim.status.allocation.node_selector if claim.status.allocation else None
        terms = selector.node_selector_terms if selector else ()
        names = [v for t in terms for f in t.match_fields for v in f.values if f.operator == "In"]
        where = f"on node {', '.join(names)}" if names else "for other nodes"
        yield f"claim {claim_name(claim)} is already allocated {where} and cannot move"


def _shortfall(r: RequestReport) -> str:
    with_amounts = f" with {r.amounts}" if r.amounts else ""
    if r.wanted is None:
        text = f"request {r.request} wants all matching devices{with_amounts}, but none qualifies"
    else:
        have = len(r.suitable)
        only = "none on this node qualifies"
        if have:
            only = f"only {have} on this node {'qualify' if have > 1 else 'qualifies'}"
        many = "s" if r.wanted != 1 else ""
        text = f"request {r.request} wants {r.wanted} device{many}{with_amounts}, {only}"
    if not r.rejections:
        none = "the node has no devices (no complete ResourceSlice pool)"
        return f"{text}: {'there are no others' if r.suitable else none}"
    if len(r.rejections) == 1:
        return f"{text}: {r.rejections[0].text}"
    counts: dict[str, int] = {}
    for group in r.rejections:
        counts[group.kind] = counts.get(group.kind, 0) + len(group.devices)
    parts = (f"{n} device{'s' if n > 1 else ''} {_KINDS[kind][n > 1]}" for kind, n in counts.items())
    return f"{text}: {', '.join(parts)}"


def _conflicts(cycle: SchedulingCycle, node_devices: NodeDevices) -> Iterator[str]:
    """Why all requests together cannot be satisfied although each alone can."""
    found = False
    for at, plan in enumerate(cycle.plans):
        for index, constraint in enumerate(plan.claim.spec.devices.constraints):
            change = Change("", without_constraint(cycle, at, index))
            if not fits_with(cycle, node_devices.node, change):
                continue
            found = True
            kind = "the same" if constraint.match_attribute else "different"
            attribute = constraint.match_attribute or constraint.distinct_attribute or ""
            over = ", ".join(constraint.requests) or "all requests"
            groups = _groups(cycle, node_devices, attribute)
            yield (
                f"no choice of devices gives {over} of claim {claim_name(plan.claim)} {kind} "
                f"{attribute}{': ' + groups if groups else ''}"
            )
    if not found:
        yield "each request alone could be satisfied, but together they need more devices"


def _groups(cycle: SchedulingCycle, node_devices: NodeDevices, attribute: str) -> str:
    """The number of suitable devices per request and attribute value."""
    counts: dict[str, dict[str, int]] = {}
    variants = (v for plan in cycle.plans for request in plan.requests for v in request.variants)
    for variant in variants:
        for at, candidate in enumerate(node_devices.candidates):
            if device_rejection(node_devices, variant, at) is not None:
                continue
            found = lookup_attribute(candidate.device, candidate.id.driver, attribute)
            key = shown_values(values_of(found)) if found else "no value"
            per = counts.setdefault(str(variant.name), {})
            per[key] = per.get(key, 0) + 1
    return "; ".join(
        f"{name} finds " + ", ".join(f"{n} with {value}" for value, n in sorted(per.items()))
        for name, per in counts.items()
    )
