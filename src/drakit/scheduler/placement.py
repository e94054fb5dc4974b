"""Scheduling of a pod: the nodes on which it fits, its node and its devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from drakit.core.kubernetes_releases import LATEST, CelEnvironment, KubernetesRelease
from drakit.core.objects import (
    DeviceClass,
    DeviceTaintRule,
    DeviceTaintSelector,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
    ResourceSlice,
)
from drakit.core.pods import Node, Pod
from drakit.core.quantity import Quantity
from drakit.scheduler.allocator.node_devices import InUse, NodeDevices
from drakit.scheduler.allocator.search import AllocationImpossible, ClaimAllocation, allocate
from drakit.scheduler.cel.errors import CelCompileError
from drakit.scheduler.cel.selector import rejection
from drakit.scheduler.errors import FatalError, SearchLimitError
from drakit.scheduler.nodes import node_rejection, pod_requests, selector_matches
from drakit.scheduler.pools import SliceIndex
from drakit.scheduler.requests import ClaimPlan, claim_name, plan_claims, request_specs

FILTER_TIMEOUT_SECONDS: Final = 10
"""DynamicResourcesArgs.filterTimeout: how long kube-scheduler searches on one node."""
STEPS_PER_SECOND: Final = 1_000_000
"""Assumed speed of kube-scheduler; an order of magnitude, for the warning only."""
NOT_AVAILABLE_ON_NODE: Final = "resourceclaim not available on the node"
_MAX_ALTERNATIVES: Final = 8
_MAX_USERS: Final = 256
"""ResourceClaimReservedForMaxSize: the number of pods that can use a claim."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The objects of a cluster that the scheduler reads."""

    nodes: tuple[Node, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    templates: tuple[ResourceClaimTemplate, ...] = ()
    pods: tuple[Pod, ...] = ()
    release: KubernetesRelease = LATEST


@dataclass(frozen=True, slots=True)
class NodeResult:
    """Whether the pod fits on one node, and with which devices."""

    name: str
    fits: bool
    reason: str = ""
    allocations: tuple[ClaimAllocation, ...] = ()
    steps: int = 0
    at_least: bool = False
    fatal: bool = False
    score: int = 0
    summary: str = ""
    """The reason of a fatal error for users."""

    @property
    def would_time_out(self) -> bool:
        """Whether kube-scheduler would reach its timeout before it finds the answer."""
        return self.steps > FILTER_TIMEOUT_SECONDS * STEPS_PER_SECOND

    @property
    def effort(self) -> str:
        """A warning if the search takes kube-scheduler too many steps, else an empty string."""
        if not self.would_time_out and not self.at_least:
            return ""
        steps = f"2^{self.steps.bit_length() - 1}" if self.steps > 10**6 else f"{self.steps:,}"
        needs = f"more than {steps}" if self.at_least else f"about {steps}"
        gives_up = "gives up" if self.would_time_out else "may give up"
        return (
            f"kube-scheduler needs {needs} steps here and {gives_up} after "
            f"{FILTER_TIMEOUT_SECONDS} s; ask for capacity instead of many devices, "
            "or put the scarcest request first"
        )


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """The node and devices of a pod, or the reason why it has none."""

    feasible: bool
    node: str | None
    reason: str
    nodes: tuple[NodeResult, ...] = ()
    allocations: tuple[ClaimAllocation, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    """All claims of the pod in its order, including those that were already allocated."""


class ClaimNotFoundError(Exception):
    """A claim or template of the pod does not exist."""


@dataclass(slots=True)
class SchedulingCycle:
    """Inputs of the scheduling of one pod, shared by all nodes."""

    cluster: ClusterSnapshot
    pod: Pod
    claims: tuple[ResourceClaim, ...]
    index: SliceIndex
    in_use: InUse
    plans: tuple[ClaimPlan, ...] = ()
    blocked: str = ""
    """Why the pod cannot be scheduled on any node."""
    requested: dict[str, dict[str, Quantity]] = field(default_factory=dict)


def prepare(cluster: ClusterSnapshot, pod: Pod) -> SchedulingCycle:
    """Collect the inputs that all nodes share. Raises :class:`ClaimNotFoundError`."""
    release = cluster.release
    claims = tuple(pod_claims(cluster, pod))
    slices = with_taint_rules(
        cluster.slices, cluster.taint_rules if release.enables("DRADeviceTaintRules") else ()
    )
    known = {claim_name(c): c for c in cluster.claims}
    known.update({claim_name(c): c for c in claims if c.status.allocation is not None})
    scheduling = SchedulingCycle(
        cluster, pod, claims, SliceIndex(slices, release), InUse.of(known.values(), release)
    )
    scheduling.requested = _requested_by_node(cluster.pods, pod)
    classes = {c.metadata.name: c for c in cluster.classes}
    pending = [c for c in claims if c.status.allocation is None]
    scheduling.blocked = next(_obstacles(claims, classes, pod), "")
    if not scheduling.blocked:
        try:
            scheduling.plans = plan_claims(pending, classes)
        except FatalError as error:
            scheduling.blocked = str(error)
    return scheduling


def place(cluster: ClusterSnapshot, pod: Pod, only_node: str | None = None) -> SchedulingResult:
    """Schedule *pod*, only on *only_node* if given. Raises :class:`ClaimNotFoundError`."""
    scheduling = prepare(cluster, pod)
    nodes = sorted(cluster.nodes, key=lambda node: node.metadata.name)
    if only_node is not None:
        nodes = [node for node in nodes if node.metadata.name == only_node]
    if scheduling.blocked:
        answers = tuple(NodeResult(node.metadata.name, False, scheduling.blocked) for node in nodes)
        return SchedulingResult(False, None, scheduling.blocked, answers, claims=scheduling.claims)
    answers = tuple(check_node(scheduling, node) for node in nodes)
    return choose(scheduling, answers)


def choose(scheduling: SchedulingCycle, answers: tuple[NodeResult, ...]) -> SchedulingResult:
    """Choose the node of the pod.

    An error on any node fails the pod, as in kube-scheduler. Among nodes that fit, the one with the
    most preferred alternatives is chosen, then the first by name; kube-scheduler's other scores and
    its random choice among equals are not modeled.
    """
    fatal = next((answer for answer in answers if answer.fatal), None)
    fitting = [answer for answer in answers if answer.fits]
    if fatal or not fitting:
        reason = fatal.reason if fatal else _summary(answers)
        return SchedulingResult(False, None, reason, answers, claims=scheduling.claims)
    best = max(fitting, key=lambda answer: answer.score)
    return SchedulingResult(True, best.name, "", answers, best.allocations, claims=scheduling.claims)


def _summary(answers: tuple[NodeResult, ...]) -> str:
    if not answers:
        return "there are no nodes"
    reasons = Counter(answer.reason for answer in answers)
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"0/{len(answers)} nodes are available: {listed}"


def check_node(scheduling: SchedulingCycle, node: Node) -> NodeResult:
    """Check whether the pod fits on one node."""
    return examine(scheduling, node)[0]


def examine(scheduling: SchedulingCycle, node: Node) -> tuple[NodeResult, NodeDevices | None]:
    """Check one node; also returns its devices if they were checked."""
    name = node.metadata.name
    node_devices: NodeDevices | None = None
    try:
        rejected = node_rejection(scheduling.pod, node, scheduling.requested.get(name, {}))
        if rejected is not None:
            return NodeResult(name, False, rejected), None
        elsewhere = NOT_AVAILABLE_ON_NODE if claims_allocated_elsewhere(scheduling, node) else ""
        if not scheduling.plans:
            return NodeResult(name, not elsewhere, elsewhere), None
        node_devices = NodeDevices(node, scheduling.index, scheduling.in_use)
        outcome = allocate(node_devices, scheduling.plans)
    except FatalError as error:
        return NodeResult(name, False, str(error), fatal=True, summary=error.summary), node_devices
    except SearchLimitError as error:
        gave_up = NodeResult(name, False, str(error), steps=error.steps, at_least=True)
        return gave_up, node_devices
    if isinstance(outcome, AllocationImpossible):
        failed = NodeResult(name, False, outcome.reason, steps=outcome.steps, at_least=outcome.at_least)
        return failed, node_devices
    if elsewhere:
        # kube-scheduler still searches: an error or a lack of devices takes precedence.
        return NodeResult(name, False, elsewhere, steps=outcome.steps), node_devices
    score = sum(map(_score, outcome.claims))
    fits = NodeResult(name, True, "", outcome.claims, outcome.steps, outcome.at_least, score=score)
    return fits, node_devices


def _score(allocation: ClaimAllocation) -> int:
    """Higher for alternatives earlier in their list."""
    chosen = {str(pick.request) for pick in allocation.picks}
    return sum(
        _MAX_ALTERNATIVES - position
        for request in allocation.claim.spec.devices.requests
        for position, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in chosen
    )


def claims_allocated_elsewhere(scheduling: SchedulingCycle, node: Node) -> list[ResourceClaim]:
    """Claims of the pod that are already allocated, but not for *node*."""
    found = []
    for claim in scheduling.claims:
        allocation = claim.status.allocation
        selector = allocation.node_selector if allocation else None
        if selector is not None and not selector_matches(selector, node):
            found.append(claim)
    return found


def pod_claims(cluster: ClusterSnapshot, pod: Pod) -> Iterable[ResourceClaim]:
    """The claims of a pod in its order; generated from the template if they do not exist yet."""
    namespace = pod.metadata.namespace
    claims = {(c.metadata.namespace, c.metadata.name): c for c in cluster.claims}
    templates = {(t.metadata.namespace, t.metadata.name): t for t in cluster.templates}
    made = {s.name: s.resource_claim_name for s in pod.status.resource_claim_statuses}
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name or made.get(entry.name)
        if name is None and entry.name in made:
            continue  # no claim was needed for this entry
        if name is not None:
            if (namespace, name) not in claims:
                raise ClaimNotFoundError(f"ResourceClaim {namespace}/{name} not found")
            yield claims[namespace, name]
            continue
        template = templates.get((namespace, entry.resource_claim_template_name or ""))
        if template is None:
            name = f"{namespace}/{entry.resource_claim_template_name}"
            raise ClaimNotFoundError(f"ResourceClaimTemplate {name} not found")
        meta = ObjectMeta(name=f"{pod.metadata.name}-{entry.name}", namespace=namespace)
        yield ResourceClaim(metadata=meta, spec=template.spec.spec)


def rejected_selectors(
    claim: ResourceClaim | ResourceClaimTemplateSpec, cel: CelEnvironment = LATEST.cel
) -> list[tuple[str, CelCompileError]]:
    """Selectors for which the API server rejects the claim, with their paths."""
    found: list[tuple[str, CelCompileError]] = []
    for at, request in enumerate(claim.spec.devices.requests):
        paths = [f"firstAvailable[{position}]" for position in range(len(request.first_available))]
        if request.exactly is not None:
            paths.insert(0, "exactly")
        for path, (_, spec) in zip(paths, request_specs(request), strict=True):
            for index, selector in enumerate(spec.selectors):
                error = rejection(selector.cel.expression, cel) if selector.cel else None
                if error is not None:
                    where = f"spec.devices.requests[{at}].{path}.selectors[{index}].cel.expression"
                    found.append((where, error))
    return found


def _obstacles(claims: tuple[ResourceClaim, ...], classes: dict[str, DeviceClass], pod: Pod) -> Iterator[str]:
    """Why the pod cannot be scheduled on any node."""
    for claim in claims:
        if claim.metadata.deletion_timestamp is not None:
            yield f'resourceclaim "{claim.metadata.name}" is being deleted'
    for claim in claims:
        users = claim.status.reserved_for
        full = claim.status.allocation is not None and len(users) >= _MAX_USERS
        if full and all(user.uid != pod.metadata.uid for user in users):
            yield "resourceclaim in use"
    for claim in claims:
        for request in () if claim.status.allocation else claim.spec.devices.requests:
            for name, spec in request_specs(request):
                if spec.device_class_name not in classes:
                    yield f"request {name}: device class {spec.device_class_name} does not exist"


def _requested_by_node(pods: Iterable[Pod], excluding: Pod) -> dict[str, dict[str, Quantity]]:
    total: dict[str, dict[str, Quantity]] = {}
    own = (excluding.metadata.namespace, excluding.metadata.name)
    for pod in pods:
        node = pod.spec.node_name
        if not node or pod.status.phase in ("Succeeded", "Failed"):
            continue
        if (pod.metadata.namespace, pod.metadata.name) == own:
            continue
        used = total.setdefault(node, {})
        for name, amount in {**pod_requests(pod), "pods": Quantity(1)}.items():
            used[name] = used[name] + amount if name in used else amount
    return total


def with_taint_rules(
    slices: tuple[ResourceSlice, ...], rules: Iterable[DeviceTaintRule]
) -> tuple[ResourceSlice, ...]:
    """Add the taints of matching rules to the devices.

    A rule without a selector matches no device, one with an empty selector matches every device.
    """
    rules = tuple(rules)
    return tuple(_tainted(entry, rules) for entry in slices) if rules else slices


def _tainted(entry: ResourceSlice, rules: tuple[DeviceTaintRule, ...]) -> ResourceSlice:
    spec = entry.spec
    devices = []
    for device in spec.devices:
        added = tuple(
            rule.spec.taint
            for rule in rules
            if _rule_matches(rule.spec.device_selector, spec.driver, spec.pool.name, device.name)
        )
        devices.append(structs.replace(device, taints=device.taints + added) if added else device)
    if tuple(devices) == spec.devices:
        return entry
    return structs.replace(entry, spec=structs.replace(spec, devices=tuple(devices)))


def _rule_matches(selector: DeviceTaintSelector | None, driver: str, pool: str, device: str) -> bool:
    return (
        selector is not None
        and selector.driver in (None, driver)
        and selector.pool in (None, pool)
        and selector.device in (None, device)
    )
