"""Mistakes in manifests that the API server accepts and that appear only at run time.

Rules that depend on published devices are skipped if no ResourceSlices are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drakit.core.objects import (
    Device,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceTaintRule,
    ResourceSlice,
    ResourceSliceSpec,
    SubRequest,
)
from drakit.core.pods import Pod
from drakit.scheduler.allocator.constraints import lookup_attribute
from drakit.scheduler.cel.checker.fields import unguarded_fields
from drakit.scheduler.cel.errors import CelError, CelRuntimeError
from drakit.scheduler.cel.selector import compile_selector, device_value, rejection
from drakit.scheduler.requests import MAX_ALLOCATION_RESULTS, RequestSpec, request_specs

_MAX_COUNT: Final = 8
"""With more identical devices than this, kube-scheduler's search explodes if too few are free."""

_RULES: Final[dict[str, tuple[str, str]]] = {
    "unused-claim": ("warning", "add `claims: [{{name: {name}}}]` to the resources of a container"),
    "undeclared-claim": ("error", "add it to spec.resourceClaims or correct the name"),
    "unknown-request": ("error", "use one of: {known}"),
    "too-many-devices": ("error", "split the claim, or request capacity instead of single devices"),
    "unknown-class": ("error", "correct deviceClassName or create the class"),
    "explosive-count": ("warning", "request capacity of a shared device, if the driver supports it"),
    "refused-expression": ("error", "correct the expression"),
    "unguarded-access": ("warning", "write `has({field}) && …` or `{optional}.orValue(…)`"),
    "selector-error": ("error", "guard the access with has() or .?name.orValue(…)"),
    "no-device": ("warning", "check the selectors against `drakit explain`"),
    "wrong-capacity-key": (
        "error", "keys must be identical, including the domain if it is published with one; {hint}",
    ),
    "unqualified-attribute": ("error", "write it as domain/name, for example dra.cpu/numaNodeID"),
    "unpublished-attribute": (
        "error", "check the spelling; the domain is the driver name unless published otherwise",
    ),
    "unreachable-alternative": ("warning", "put the more demanding alternative first"),
    "whole-capacity": ("warning", "publish a requestPolicy with a default"),
    "taints-everything": ("warning", "name a driver, a pool or a device in spec.deviceSelector"),
}  # fmt: skip
"""Level and fix of every rule."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A mistake; *where* is text that occurs in the line of the file that has it."""

    level: str
    rule: str
    message: str
    fix: str
    where: str = ""


def _finding(rule: str, message: str, where: str, **values: str) -> LintFinding:
    level, fix = _RULES[rule]
    return LintFinding(level, rule, message, fix.format(**values), where)


@dataclass(frozen=True, slots=True)
class Published:
    """The ResourceSlices and DeviceClasses to check against."""

    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()

    def devices(self) -> Iterator[tuple[ResourceSliceSpec, Device]]:
        """All devices, with the content of their slice."""
        return ((entry.spec, device) for entry in self.slices for device in entry.spec.devices)


def lint_pod(pod: Pod) -> Iterator[LintFinding]:
    """Check that containers use all declared claims, and no others."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    used = {use.name for container in containers for use in container.resources.claims}
    declared = {entry.name for entry in pod.spec.resource_claims}
    for entry in pod.spec.resource_claims:
        if entry.name not in used:
            message = (
                f"no container uses claim {entry.name!r} of pod {pod.metadata.name}: devices are "
                "allocated and prepared, but no container has access to them"
            )
            yield _finding("unused-claim", message, f"name: {entry.name}", name=entry.name)
    for name in sorted(used - declared):
        message = (
            f"a container of pod {pod.metadata.name} uses claim {name!r}, which is not in spec.resourceClaims"
        )
        yield _finding("undeclared-claim", message, name)


def lint_uses(pod: Pod, entry: str, claim: DeviceClaim) -> Iterator[LintFinding]:
    """Check that the claim has all requests that containers name."""
    requests = {request.name for request in claim.requests}
    known = f"{', '.join(sorted(requests))}; or omit `request` for all requests"
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for use in container.resources.claims:
            if use.name == entry and use.request and use.request not in requests:
                message = (
                    f"container {container.name} uses request {use.request!r}, which claim "
                    f"{entry!r} does not have"
                )
                yield _finding("unknown-request", message, use.request, known=known)


def lint_claim(claim: DeviceClaim, published: Published) -> Iterator[LintFinding]:
    """Check requests and constraints."""
    counts = (
        [s.count if s.allocation_mode == "ExactCount" else 1 for _, s in request_specs(request)]
        for request in claim.requests
    )
    least = sum(min(count, default=0) for count in counts)
    if least > MAX_ALLOCATION_RESULTS:
        message = (
            f"the claim requests at least {least} devices; a claim can have at most {MAX_ALLOCATION_RESULTS}"
        )
        yield _finding("too-many-devices", message, "count:")
    for request in claim.requests:
        for name, spec in request_specs(request):
            yield from _lint_spec(spec, name, published)
        yield from _unreachable(request)
    for constraint in claim.constraints:
        yield from _lint_constraint(constraint, claim, published)


def _lint_spec(spec: RequestSpec, name: str, published: Published) -> Iterator[LintFinding]:
    yield from lint_selectors(spec.selectors, f"request {name}")
    classes = {c.metadata.name: c for c in published.classes}
    found = classes.get(spec.device_class_name)
    if classes and found is None:
        known = ", ".join(sorted(classes))
        message = (
            f"request {name}: DeviceClass {spec.device_class_name!r} does not exist "
            f"(existing classes: {known})"
        )
        yield _finding("unknown-class", message, spec.device_class_name)
    if spec.allocation_mode == "ExactCount" and spec.count > _MAX_COUNT:
        message = (
            f"request {name} is for {spec.count} single devices: if fewer are free, "
            f"kube-scheduler tries up to 2^{spec.count - 1} combinations and gives up after 10 s"
        )
        yield _finding("explosive-count", message, "count:")
    if published.slices:
        selectors = (*(found.spec.selectors if found else ()), *spec.selectors)
        yield from _against_devices(spec, name, selectors, published)


def lint_selectors(selectors: tuple[DeviceSelector, ...], owner: str) -> Iterator[LintFinding]:
    """Check for expressions that the API server rejects or that can fail at run time."""
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            continue
        expression = selector.cel.expression
        name = f"{owner}, selector {index + 1}"
        where = expression.strip().splitlines()[0] if expression.strip() else ""
        error = rejection(expression)
        if error is not None:
            message = f"{name}: the API server rejects it: {error}"
            yield _finding("refused-expression", message, where)
            continue
        for part, domain, key in unguarded_fields(compile_selector(expression).root):
            field = f'device.{part}["{domain}"].{key}'
            message = (
                f"{name} reads {field} without checking that it exists: if one device does not "
                "have it, scheduling fails on all nodes"
            )
            optional = f'device.{part}["{domain}"].?{key}'
            yield _finding("unguarded-access", message, where, field=field, optional=optional)


def _lint_constraint(
    constraint: DeviceConstraint, claim: DeviceClaim, published: Published
) -> Iterator[LintFinding]:
    attribute = constraint.match_attribute or constraint.distinct_attribute or ""
    known = {request.name for request in claim.requests}
    known |= {name for request in claim.requests for name, _ in request_specs(request)}
    for name in constraint.requests:
        if name not in known:
            message = f"the constraint on {attribute} names request {name!r}, which the claim does not have"
            yield _finding("unknown-request", message, name, known=", ".join(sorted(known)))
    if "/" not in attribute:
        message = f"the constraint attribute {attribute!r} has no domain"
        yield _finding("unqualified-attribute", message, attribute)
    elif published.slices and not any(
        lookup_attribute(device, source.driver, attribute) for source, device in published.devices()
    ):
        message = f"no driver publishes {attribute}, so the constraint can never be satisfied"
        yield _finding("unpublished-attribute", message, attribute)


def _unreachable(request: DeviceRequest) -> Iterator[LintFinding]:
    """Find alternatives that are never used because an earlier one requires less."""
    for at, later in enumerate(request.first_available):
        for earlier in request.first_available[:at]:
            if _requires_less(earlier, later):
                message = (
                    f"alternative {request.name}/{later.name} is never used: every device that "
                    f"satisfies it also satisfies {earlier.name}, which comes first"
                )
                yield _finding("unreachable-alternative", message, later.name)
                break


def _requires_less(a: SubRequest, b: SubRequest) -> bool:
    more = b.capacity.requests if b.capacity else {}
    less = a.capacity.requests if a.capacity else {}
    return (
        a.device_class_name == b.device_class_name
        and a.allocation_mode == b.allocation_mode == "ExactCount"
        and a.count <= b.count
        and {s.cel.expression for s in a.selectors if s.cel}
        <= {s.cel.expression for s in b.selectors if s.cel}
        and all(key in more and amount <= more[key] for key, amount in less.items())
        and set(b.tolerations) <= set(a.tolerations)
    )


def _against_devices(
    spec: RequestSpec, name: str, selectors: tuple[DeviceSelector, ...], published: Published
) -> Iterator[LintFinding]:
    try:
        compiled = [compile_selector(s.cel.expression) for s in selectors if s.cel is not None]
    except CelError:
        return
    where = "name: " + name.rpartition("/")[2]
    count = matching = 0
    keys: set[str] = set()
    all_keys: set[str] = set()
    for source, device in published.devices():
        count += 1
        all_keys.update(device.capacity)
        try:
            value = device_value(source.driver, device)
            if not all(selector.matches(value) for selector in compiled):
                continue
        except CelRuntimeError as error:
            device_name = f"{source.driver}/{source.pool.name}/{device.name}"
            message = (
                f"request {name}: a selector fails on device {device_name}: {error}; scheduling "
                "fails on all nodes"
            )
            yield _finding("selector-error", message, where)
            return
        matching += 1
        keys.update(device.capacity)
    if matching == 0:
        devices = "the published device does not match" if count == 1 else (
            f"none of the {count} published devices matches"
        )  # fmt: skip
        message = f"request {name}: {devices} its selectors and those of its class"
        yield _finding("no-device", message, where)
        return
    for key in sorted((set(spec.capacity.requests) if spec.capacity else set()) - keys):
        close = sorted(k for k in all_keys if k.rpartition("/")[2] == key.rpartition("/")[2])
        hint = f"write it as {close[0]!r}" if close else f"the devices have: {sorted(keys)}"
        message = f"request {name}: no matching device has a capacity with the key {key!r}"
        yield _finding("wrong-capacity-key", message, key, hint=hint)


def lint_class(found: DeviceClass) -> Iterator[LintFinding]:
    """Check the selectors of a class."""
    yield from lint_selectors(found.spec.selectors, f"class {found.metadata.name}")


def lint_slice(entry: ResourceSlice) -> Iterator[LintFinding]:
    """Find shared devices whose whole capacity the first claim consumes."""
    for device in entry.spec.devices:
        if not device.allow_multiple_allocations:
            continue
        for key, capacity in device.capacity.items():
            if capacity.request_policy is None or capacity.request_policy.default is None:
                message = (
                    f"device {device.name} can be shared, but a claim that does not request "
                    f"{key} consumes all of it"
                )
                yield _finding("whole-capacity", message, device.name)


def lint_taint_rule(rule: DeviceTaintRule) -> Iterator[LintFinding]:
    """Find rules that apply to every device."""
    selector = rule.spec.device_selector
    if selector is None or (selector.driver, selector.pool, selector.device) == (None, None, None):
        name = rule.metadata.name
        message = f"DeviceTaintRule {name} has no selector: it taints every device of every driver"
        yield _finding("taints-everything", message, "deviceSelector")
