"""Mistakes in manifests that the API server accepts and that only show at run time.

Rules that need to know what drivers publish are silent when no slices are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drakit.core.objects import (
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceTaintRule,
    ExactRequest,
    ResourceSlice,
    SubRequest,
)
from drakit.core.pods import Pod
from drakit.scheduler.allocator.constraints import lookup_attribute
from drakit.scheduler.cel.checker.fields import fields_named, is_driver
from drakit.scheduler.cel.checker.validators import children
from drakit.scheduler.cel.errors import CelCompileError, CelError, CelRuntimeError
from drakit.scheduler.cel.selector import (
    CompiledSelector,
    compile_selector,
    device_value,
    rejection,
)
from drakit.scheduler.cel.syntax.tree import CallExpr, Expr, LiteralExpr, SelectExpr
from drakit.scheduler.cel.values import DeviceValue
from drakit.scheduler.requests import MAX_ALLOCATION_RESULTS

RequestSpec = ExactRequest | SubRequest
_SEARCH_SLOTS: Final = 8
"""Asking for more identical devices than this makes kube-scheduler's search explode when short."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One mistake: *where* is a piece of text to be found in the file."""

    level: str
    rule: str
    message: str
    fix: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """What drivers offer and classes exist, as far as known."""

    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()

    def devices(self) -> Iterator[tuple[ResourceSlice, int]]:
        """Every device as slice and position."""
        for entry in self.slices:
            for at in range(len(entry.spec.devices)):
                yield entry, at


# -- pods ---------------------------------------------------------------------------------------------


def lint_pod(pod: Pod) -> Iterator[LintFinding]:
    """Claims nobody uses, and uses of claims that are not there."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    used = {use.name for container in containers for use in container.resources.claims}
    declared = {entry.name for entry in pod.spec.resource_claims}
    for entry in pod.spec.resource_claims:
        if entry.name not in used:
            yield LintFinding(
                "warning", "unused-claim",
                f"claim {entry.name!r} of pod {pod.metadata.name} is used by no container: "
                "devices are allocated and prepared, but no container sees them",
                f"add `claims: [{{name: {entry.name}}}]` to the resources of a container",
                f"name: {entry.name}",
            )  # fmt: skip
    for name in sorted(used - declared):
        yield LintFinding(
            "error", "undeclared-claim",
            f"a container of pod {pod.metadata.name} uses claim {name!r}, "
            "which spec.resourceClaims does not have",
            "add it to spec.resourceClaims or correct the name",
            name,
        )  # fmt: skip


def lint_uses(pod: Pod, entry: str, claim: DeviceClaim) -> Iterator[LintFinding]:
    """Requests that containers name but the claim does not have."""
    known = {request.name for request in claim.requests}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for use in container.resources.claims:
            if use.name == entry and use.request and use.request not in known:
                yield LintFinding(
                    "error", "unknown-request",
                    f"container {container.name} uses request {use.request!r} of claim "
                    f"{entry!r}, which has: {', '.join(sorted(known))}",
                    "name one of the claim's requests, or leave `request` out for all",
                    use.request,
                )  # fmt: skip


# -- claims -------------------------------------------------------------------------------------------


def lint_claim(claim: DeviceClaim, published: Published) -> Iterator[LintFinding]:
    """Everything about a claim's own text."""
    least = sum(_fewest(request) for request in claim.requests)
    if least > MAX_ALLOCATION_RESULTS:
        yield LintFinding(
            "error", "too-many-devices",
            f"the claim asks for at least {least} devices; a claim can have {MAX_ALLOCATION_RESULTS}",
            "split the claim, or ask for an amount of a capacity instead of single devices",
            "count:",
        )  # fmt: skip
    for request in claim.requests:
        for spec, name in _request_specs(request):
            yield from _lint_spec(spec, name, published)
        yield from _unreachable(request)
    for constraint in claim.constraints:
        yield from _lint_constraint(constraint, claim, published)


def _request_specs(request: DeviceRequest) -> Iterator[tuple[RequestSpec, str]]:
    if request.exactly is not None:
        yield request.exactly, request.name
    for sub in request.first_available:
        yield sub, f"{request.name}/{sub.name}"


def _fewest(request: DeviceRequest) -> int:
    return min(
        (
            spec.count if spec.allocation_mode == "ExactCount" else 1
            for spec, _ in _request_specs(request)
        ),
        default=0,
    )


def _lint_spec(spec: RequestSpec, name: str, published: Published) -> Iterator[LintFinding]:
    yield from lint_selectors(spec.selectors, f"request {name}")
    classes = {c.metadata.name: c for c in published.classes}
    found = classes.get(spec.device_class_name)
    if classes and found is None:
        yield LintFinding(
            "error", "unknown-class",
            f"request {name}: there is no DeviceClass {spec.device_class_name!r} "
            f"(there are: {', '.join(sorted(classes))})",
            "correct deviceClassName or create the class",
            spec.device_class_name,
        )  # fmt: skip
    selectors = (*(found.spec.selectors if found else ()), *spec.selectors)
    if spec.allocation_mode == "ExactCount" and spec.count > _SEARCH_SLOTS:
        yield LintFinding(
            "warning", "explosive-count",
            f"request {name} asks for {spec.count} single devices: where fewer are free, "
            f"kube-scheduler tries up to 2^{spec.count - 1} combinations and gives up after 10 s",
            "ask for an amount of a capacity of a shared device, if the driver offers it",
            "count:",
        )  # fmt: skip
    if published.slices:
        yield from _against_devices(spec, name, selectors, published)


def lint_selectors(selectors: tuple[DeviceSelector, ...], owner: str) -> Iterator[LintFinding]:
    """Expressions the API server rejects, and attribute access that fails at run time."""
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            continue
        expression = selector.cel.expression
        where = expression.strip().splitlines()[0] if expression.strip() else ""
        error = rejection(expression)
        if error is not None:
            yield LintFinding(
                "error", "refused-expression",
                f"{owner}, selector {index + 1}: the API server refuses it: {error}",
                "correct the expression",
                where,
            )  # fmt: skip
            continue
        for field, domain, name in unguarded(expression):
            yield LintFinding(
                "warning", "unguarded-access",
                f'{owner}, selector {index + 1} reads device.{field}["{domain}"].{name} without '
                "asking whether it is there: one device without it stops the pod on every node",
                f'write `has(device.{field}["{domain}"].{name}) && …` or '
                f'`device.{field}["{domain}"].?{name}.orValue(…)`',
                where,
            )  # fmt: skip


def unguarded(expression: str) -> list[tuple[str, str, str]]:
    """Attributes and capacities an expression reads without a test for their presence.

    A test counts if it stands anywhere in the expression, and so does a comparison of
    ``device.driver`` with the domain: a driver is trusted to publish its own attributes.
    """
    try:
        root = compile_selector(expression).root
    except CelCompileError:
        return []
    guarded: set[tuple[str, str, str]] = set()
    drivers: set[str] = set()
    read: list[tuple[str, str, str]] = []
    pending: list[Expr] = [root]
    while pending:
        node = pending.pop(0)
        pending.extend(children(node))
        if isinstance(node, CallExpr) and node.function == "_==_":
            drivers |= _compared_driver(node)
        if (
            isinstance(node, CallExpr)
            and node.function == "@in"
            and isinstance(node.args[0], LiteralExpr)
        ):
            probe = CallExpr("_[_]", (node.args[1], node.args[0]))
            guarded.update(_own_field(probe))
        for found in _own_field(node):
            if (isinstance(node, SelectExpr) and not node.test) or (
                isinstance(node, CallExpr) and node.function == "_[_]"
            ):
                read.append(found)
            else:
                guarded.add(found)
    return [r for r in dict.fromkeys(read) if r not in guarded and r[1] not in drivers]


def _own_field(node: Expr) -> list[tuple[str, str, str]]:
    """The device field this very node reads, if it reads one."""
    first = next(iter(fields_named(node)), None)
    if first is None or first[0] == "driver":
        return []
    inner = [f for child in children(node) for f in fields_named(child)]
    return [] if first in inner else [first]


def _compared_driver(node: CallExpr) -> set[str]:
    for a, b in (node.args, node.args[::-1]):
        if is_driver(a) and isinstance(b, LiteralExpr) and isinstance(b.value, str):
            return {b.value}
    return set()


# -- against what is published ---------------------------------------------------------------------------


def _against_devices(
    spec: RequestSpec, name: str, selectors: tuple[DeviceSelector, ...], published: Published
) -> Iterator[LintFinding]:
    compiled = _compiled(selectors)
    if compiled is None:
        return
    matching = 0
    keys: set[str] = set()
    everything: set[str] = set()
    requested = set(spec.capacity.requests) if spec.capacity else set()
    for entry, at in published.devices():
        device = entry.spec.devices[at]
        everything.update(device.capacity)
        try:
            value = device_value(entry.spec.driver, device)
            if not _all_match(compiled, value):
                continue
        except CelRuntimeError as error:
            yield LintFinding(
                "error", "selector-error",
                f"request {name}: a selector fails on device {entry.spec.driver}/"
                f"{entry.spec.pool.name}/{device.name}: {error}; the pod will not be scheduled",
                "guard the access with has() or .?name.orValue(…)",
                "name: " + name.rpartition("/")[2],
            )  # fmt: skip
            return
        matching += 1
        keys.update(device.capacity)
    if matching == 0:
        yield LintFinding(
            "warning", "no-device",
            f"request {name}: none of the {sum(1 for _ in published.devices())} published devices "
            "meets its selectors and those of its class",
            "check the selectors against `drakit explain`",
            "name: " + name.rpartition("/")[2],
        )  # fmt: skip
        return
    for key in sorted(requested - keys):
        close = sorted(k for k in everything if k.rpartition("/")[2] == key.rpartition("/")[2])
        hint = f"; write it as {close[0]!r}" if close else f"; the devices have: {sorted(keys)}"
        yield LintFinding(
            "error", "wrong-capacity-key",
            f"request {name}: no matching device has a capacity with the exact key {key!r}",
            f"keys are compared letter by letter, with the domain if it is published with one{hint}",
            key,
        )  # fmt: skip


def _compiled(selectors: tuple[DeviceSelector, ...]) -> list[CompiledSelector] | None:
    try:
        return [compile_selector(s.cel.expression) for s in selectors if s.cel is not None]
    except CelError:
        return None


def _all_match(selectors: list[CompiledSelector], value: DeviceValue) -> bool:
    return all(selector.matches(value) for selector in selectors)


def _lint_constraint(
    constraint: DeviceConstraint, claim: DeviceClaim, published: Published
) -> Iterator[LintFinding]:
    attribute = constraint.match_attribute or constraint.distinct_attribute or ""
    known = {name for r in claim.requests for _, name in _request_specs(r)} | {
        r.name for r in claim.requests
    }
    for name in constraint.requests:
        if name not in known:
            yield LintFinding(
                "error", "unknown-request",
                f"the constraint on {attribute} names request {name!r}, which the claim has not",
                f"name one of: {', '.join(sorted(known))}",
                name,
            )  # fmt: skip
    if "/" not in attribute:
        yield LintFinding(
            "error", "unqualified-attribute",
            f"the constraint attribute {attribute!r} has no domain",
            "write it as domain/name, for example dra.cpu/numaNodeID",
            attribute,
        )  # fmt: skip
        return
    if published.slices and not any(
        lookup_attribute(entry.spec.devices[at], entry.spec.driver, attribute)
        for entry, at in published.devices()
    ):
        yield LintFinding(
            "error", "unpublished-attribute",
            f"no driver publishes the attribute {attribute}, so the constraint can never be met",
            "check the spelling; the domain is the driver's name unless published otherwise",
            attribute,
        )  # fmt: skip


def _unreachable(request: DeviceRequest) -> Iterator[LintFinding]:
    """Alternatives that are never tried with success, because an earlier one asks for less."""
    for at, later in enumerate(request.first_available):
        for earlier in request.first_available[:at]:
            if _asks_less(earlier, later):
                yield LintFinding(
                    "warning", "unreachable-alternative",
                    f"alternative {request.name}/{later.name} is never used: {earlier.name} comes "
                    "first and is satisfied by every device that satisfies it",
                    "put the more demanding alternative first",
                    later.name,
                )  # fmt: skip
                break


def _asks_less(a: SubRequest, b: SubRequest) -> bool:
    wanted = {s.cel.expression for s in a.selectors if s.cel}
    given = {s.cel.expression for s in b.selectors if s.cel}
    more = b.capacity.requests if b.capacity else {}
    less = a.capacity.requests if a.capacity else {}
    return (
        a.device_class_name == b.device_class_name
        and a.allocation_mode == b.allocation_mode == "ExactCount"
        and a.count <= b.count
        and wanted <= given
        and all(key in more and amount <= more[key] for key, amount in less.items())
        and set(b.tolerations) <= set(a.tolerations)
    )


# -- what drivers and administrators write -----------------------------------------------------------------


def lint_class(found: DeviceClass) -> Iterator[LintFinding]:
    """The selectors of a class."""
    yield from lint_selectors(found.spec.selectors, f"class {found.metadata.name}")


def lint_slice(entry: ResourceSlice) -> Iterator[LintFinding]:
    """Shared devices whose capacity the first claim takes entirely."""
    for device in entry.spec.devices:
        if not device.allow_multiple_allocations:
            continue
        for key, capacity in device.capacity.items():
            if capacity.request_policy is None or capacity.request_policy.default is None:
                yield LintFinding(
                    "warning", "whole-capacity",
                    f"device {device.name} can be shared, but a claim that does not mention "
                    f"{key} takes all of it",
                    "publish a requestPolicy with a default",
                    device.name,
                )  # fmt: skip


def lint_taint_rule(rule: DeviceTaintRule) -> Iterator[LintFinding]:
    """A rule for everything."""
    selector = rule.spec.device_selector
    if selector is None or (selector.driver, selector.pool, selector.device) == (None, None, None):
        yield LintFinding(
            "warning", "taints-everything",
            f"DeviceTaintRule {rule.metadata.name} has no selector: it taints every device of "
            "every driver",
            "name a driver, a pool or a device in spec.deviceSelector",
            "deviceSelector",
        )  # fmt: skip
