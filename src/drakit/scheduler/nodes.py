"""Node filters of kube-scheduler other than devices: selectors, affinity, taints, resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from drakit.core.objects import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from drakit.core.pods import Node, NodeTaint, Pod, PodContainer, PodToleration
from drakit.core.quantity import ZERO, Quantity
from drakit.scheduler.errors import FatalError

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
UNSCHEDULABLE: Final = NodeTaint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_Taint = TypeVar("_Taint", NodeTaint, Taint)


def selector_matches(selector: NodeSelector, node: Node) -> bool:
    """Whether one of the terms matches; a term without conditions matches nothing.

    Raises :class:`FatalError` for a selector that cannot be parsed, as kube-scheduler does.
    """
    terms = [t for t in selector.node_selector_terms if t.match_expressions or t.match_fields]
    results = [_term_matches(term, node) for term in terms]
    return any(results)


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    labels = node.metadata.labels
    holds = [_requirement_holds(r, labels.get(r.key)) for r in term.match_expressions]
    for field in term.match_fields:
        if field.operator not in ("In", "NotIn") or len(field.values) != 1:
            raise FatalError(
                f"failed to parse node selector: field {field.key!r} with operator "
                f"{field.operator!r} must have exactly one value"
            )
        name = node.metadata.name if field.key == "metadata.name" else ""
        holds.append((name == field.values[0]) == (field.operator == "In"))
    return all(holds)


def _requirement_holds(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    values = requirement.values
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if len(values) != 1 or not _INTEGER.fullmatch(values[0]):
                raise FatalError(f"failed to parse node selector: {values} is not a single integer")
            if value is None or not _INTEGER.fullmatch(value):
                return False
            greater = int(value) > int(values[0])
            return greater if requirement.operator == "Gt" else int(value) < int(values[0])
    raise FatalError(f"failed to parse node selector: {requirement.operator!r} is not a valid operator")


def node_matches(node: Node, node_name: str, all_nodes: bool, selector: NodeSelector | None) -> bool:
    """Whether *node* can use devices with this node selection."""
    if node_name:
        return node.metadata.name == node_name
    if all_nodes:
        return True
    return selector is not None and selector_matches(selector, node)


def node_rejection(pod: Pod, node: Node, in_use: dict[str, Quantity] | None) -> str | None:
    """Why *pod* cannot run on *node* for reasons other than devices, or None.

    *in_use* is the sum of the requests of pods on the node; without it, resources are not checked.
    """
    spec = pod.spec
    if spec.node_name and spec.node_name != node.metadata.name:
        return f"the pod is bound to node {spec.node_name}"
    for key, value in spec.node_selector.items():
        if node.metadata.labels.get(key) != value:
            return f"node(s) didn't match Pod's node affinity/selector: {key}={value}"
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity and affinity.required and not selector_matches(affinity.required, node):
        return "node(s) didn't match Pod's node affinity/selector"
    taints = node.spec.taints
    if node.spec.unschedulable:
        taints = (*taints, UNSCHEDULABLE)
    taint = untolerated_taint(taints, spec.tolerations)
    if taint is not None:
        untolerated = f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return "node(s) were unschedulable" if taint == UNSCHEDULABLE else untolerated
    return None if in_use is None else _resource_rejection(pod, node, in_use)


def untolerated_taint(
    taints: Iterable[_Taint], tolerations: Sequence[PodToleration | Toleration]
) -> _Taint | None:
    """The first taint of a node or device that prevents its use and is not tolerated."""
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(
            (not t.effect or t.effect == taint.effect)
            and (not t.key or t.key == taint.key)
            and (t.operator == "Exists" or (t.operator in ("", "Equal") and t.value == taint.value))
            for t in tolerations
        ):
            return taint
    return None


def pod_requests(pod: Pod) -> dict[str, Quantity]:
    """Resource requests of a pod, including init containers and overhead."""
    total: dict[str, Quantity] = {}
    for container in pod.spec.containers:
        _combine(total, _requests(container), Quantity.__add__)
    sidecars: dict[str, Quantity] = {}
    peak: dict[str, Quantity] = {}
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":  # a sidecar keeps running
            _combine(total, _requests(container), Quantity.__add__)
            _combine(sidecars, _requests(container), Quantity.__add__)
            _combine(peak, sidecars, max)
        else:
            now = dict(sidecars)
            _combine(now, _requests(container), Quantity.__add__)
            _combine(peak, now, max)
    _combine(total, peak, max)
    _combine(total, pod.spec.overhead, Quantity.__add__)
    return total


def _requests(container: PodContainer) -> dict[str, Quantity]:
    return {**container.resources.limits, **container.resources.requests}


def _combine(
    into: dict[str, Quantity], more: dict[str, Quantity], join: Callable[[Quantity, Quantity], Quantity]
) -> None:
    for name, amount in more.items():
        into[name] = join(into[name], amount) if name in into else amount


def _resource_rejection(pod: Pod, node: Node, in_use: dict[str, Quantity]) -> str | None:
    allocatable = node.status.allocatable
    if not allocatable:
        return None
    if "pods" in allocatable and in_use.get("pods", ZERO) + Quantity(1) > allocatable["pods"]:
        return "Too many pods"
    for name, amount in pod_requests(pod).items():
        if amount and in_use.get(name, ZERO) + amount > allocatable.get(name, ZERO):
            return f"Insufficient {name}"
    return None
