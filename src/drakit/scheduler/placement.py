"""A pod on a cluster: on which nodes it fits, which node it gets, and with which devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from drakit.core.objects import (
    DeviceClass,
    DeviceTaintRule,
    DeviceTaintSelector,
    ExactRequest,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    SubRequest,
)
from drakit.core.pods import Node, Pod
from drakit.core.quantity import Quantity
from drakit.scheduler.allocator.search import (
    AllocationFound,
    AllocationImpossible,
    ClaimAllocation,
    allocate,
)
from drakit.scheduler.cel.errors import CelCompileError
from drakit.scheduler.cel.selector import rejection
from drakit.scheduler.errors import FatalError, SearchLimitError
from drakit.scheduler.nodes import node_rejection, pod_requests, selector_matches
from drakit.scheduler.pools import SliceIndex
from drakit.scheduler.requests import ClaimPlan, InUse, NodeDevices, claim_name, plan_claims
from drakit.scheduler.versions import V1_37, KubernetesVersion

FILTER_TIMEOUT_SECONDS: Final = 10
"""DynamicResourcesArgs.filterTimeout: how long kube-scheduler searches on one node."""
STEPS_PER_SECOND: Final = 1_000_000
"""What kube-scheduler is taken to manage; an order of magnitude, for the warning only."""
NOT_AVAILABLE_ON_NODE: Final = "resourceclaim not available on the node"
_MAX_ALTERNATIVES: Final = 8
_MAX_USERS: Final = 256
"""ResourceClaimReservedForMaxSize: pods one claim can serve."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Everything the scheduler knows."""

    nodes: tuple[Node, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    templates: tuple[ResourceClaimTemplate, ...] = ()
    pods: tuple[Pod, ...] = ()
    version: KubernetesVersion = V1_37


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What one node has to say about the pod."""

    name: str
    fits: bool
    reason: str = ""
    allocations: tuple[ClaimAllocation, ...] = ()
    steps: int = 0
    at_least: bool = False
    fatal: bool = False
    score: int = 0

    @property
    def would_time_out(self) -> bool:
        """Whether kube-scheduler would give up before it finds the answer."""
        return self.steps > FILTER_TIMEOUT_SECONDS * STEPS_PER_SECOND

    @property
    def effort(self) -> str:
        """What becomes of kube-scheduler where the search takes it too many steps; else nothing."""
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
    """The answer for a pod: the node and devices it gets, or why it gets none."""

    feasible: bool
    node: str | None
    reason: str
    nodes: tuple[NodeResult, ...] = ()
    allocations: tuple[ClaimAllocation, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    """All claims of the pod in its order, also those allocated before."""


class ClaimNotFoundError(Exception):
    """The pod refers to a claim or template that is not there."""


@dataclass(slots=True)
class SchedulingCycle:
    """A pod about to be scheduled: the prepared inputs, shared by all nodes."""

    cluster: ClusterSnapshot
    pod: Pod
    claims: tuple[ResourceClaim, ...]
    index: SliceIndex
    in_use: InUse
    plans: tuple[ClaimPlan, ...] = ()
    blocked: str = ""
    """Why no node needs to be asked."""
    requested: dict[str, dict[str, Quantity]] = field(default_factory=dict)

    @property
    def allocated_claims(self) -> tuple[ResourceClaim, ...]:
        """Claims of the pod that have their devices already."""
        return tuple(c for c in self.claims if c.status.allocation is not None)


def prepare(cluster: ClusterSnapshot, pod: Pod) -> SchedulingCycle:
    """Collect what is common to all nodes. Raises :class:`ClaimNotFoundError`."""
    version = cluster.version
    claims = tuple(pod_claims(cluster, pod))
    slices = with_taint_rules(cluster.slices, cluster.taint_rules if version.taint_rules else ())
    known = {claim_name(c): c for c in cluster.claims}
    known.update({claim_name(c): c for c in claims if c.status.allocation is not None})
    scheduling = SchedulingCycle(
        cluster, pod, claims, SliceIndex(slices, version), InUse.of(known.values(), version)
    )
    scheduling.requested = _requested_by_node(cluster.pods, pod)
    classes = {c.metadata.name: c for c in cluster.classes}
    pending = [c for c in claims if c.status.allocation is None]
    scheduling.blocked = (
        _deleting(claims) or _fully_reserved(claims, pod) or _missing_class(pending, classes)
    )
    if not scheduling.blocked:
        try:
            scheduling.plans = plan_claims(pending, classes)
        except FatalError as error:
            scheduling.blocked = str(error)
    return scheduling


def place(cluster: ClusterSnapshot, pod: Pod, only_node: str | None = None) -> SchedulingResult:
    """Schedule *pod*, on *only_node* if given. Raises :class:`ClaimNotFoundError`."""
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
    """The node the pod gets.

    An error on any node stops the pod, as in kube-scheduler. Among nodes that fit, the one with
    the most preferred alternatives is taken and then the first by name; kube-scheduler's other
    scores and its random choice among equals are not modeled.
    """
    for answer in answers:
        if answer.fatal:
            return SchedulingResult(False, None, answer.reason, answers, claims=scheduling.claims)
    fitting = [answer for answer in answers if answer.fits]
    if not fitting:
        reason = _summary(answers)
        return SchedulingResult(False, None, reason, answers, claims=scheduling.claims)
    best = max(fitting, key=lambda answer: answer.score)
    return SchedulingResult(
        True, best.name, "", answers, best.allocations, claims=scheduling.claims
    )


def _summary(answers: tuple[NodeResult, ...]) -> str:
    if not answers:
        return "there are no nodes"
    reasons: dict[str, int] = {}
    for answer in answers:
        reasons[answer.reason] = reasons.get(answer.reason, 0) + 1
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"0/{len(answers)} nodes are available: {listed}"


def check_node(scheduling: SchedulingCycle, node: Node) -> NodeResult:
    """Whether the pod fits on one node."""
    return examine(scheduling, node)[0]


def examine(scheduling: SchedulingCycle, node: Node) -> tuple[NodeResult, NodeDevices | None]:
    """Whether the pod fits on one node, and the devices looked at, if it came to that."""
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
        return NodeResult(name, False, str(error), fatal=True), node_devices
    except SearchLimitError as error:
        gave_up = NodeResult(name, False, str(error), steps=error.steps, at_least=True)
        return gave_up, node_devices
    answer = _answer(name, outcome)
    if elsewhere and answer.fits:
        # kube-scheduler searches all the same: an error or a lack of devices comes first.
        answer = NodeResult(name, False, elsewhere, steps=answer.steps)
    return answer, node_devices


def _answer(name: str, outcome: AllocationFound | AllocationImpossible) -> NodeResult:
    if isinstance(outcome, AllocationFound):
        return NodeResult(
            name,
            True,
            allocations=outcome.claims,
            steps=outcome.steps,
            at_least=outcome.at_least,
            score=sum(map(_score, outcome.claims)),
        )
    return NodeResult(name, False, outcome.reason, steps=outcome.steps, at_least=outcome.at_least)


def _score(allocation: ClaimAllocation) -> int:
    """More for alternatives nearer the top of their list."""
    chosen = {str(pick.request) for pick in allocation.picks}
    return sum(
        _MAX_ALTERNATIVES - position
        for request in allocation.claim.spec.devices.requests
        for position, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in chosen
    )


def claims_allocated_elsewhere(scheduling: SchedulingCycle, node: Node) -> list[ResourceClaim]:
    """Claims of the pod that have their devices already, but not for *node*."""
    found = []
    for claim in scheduling.allocated_claims:
        allocation = claim.status.allocation
        selector = allocation.node_selector if allocation else None
        if selector is not None and not selector_matches(selector, node):
            found.append(claim)
    return found


# -- claims of a pod ------------------------------------------------------------------------------------


def pod_claims(cluster: ClusterSnapshot, pod: Pod) -> Iterable[ResourceClaim]:
    """The claims of a pod in its order; those from templates are made up when not there yet."""
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
                raise ClaimNotFoundError(
                    f'pod {pod.metadata.name} waits for ResourceClaim "{name}" in namespace '
                    f'"{namespace}", which is not there'
                )
            yield claims[namespace, name]
            continue
        template = templates.get((namespace, entry.resource_claim_template_name or ""))
        if template is None:
            raise ClaimNotFoundError(
                f"pod {pod.metadata.name} waits for ResourceClaimTemplate "
                f'"{entry.resource_claim_template_name}" in namespace "{namespace}", '
                "which is not there"
            )
        meta = ObjectMeta(name=f"{pod.metadata.name}-{entry.name}", namespace=namespace)
        yield ResourceClaim(metadata=meta, spec=template.spec.spec)


def rejected_selectors(claim: ResourceClaim) -> list[tuple[str, CelCompileError]]:
    """Selectors for which the API server would reject the claim, each with its path."""
    found: list[tuple[str, CelCompileError]] = []
    for at, request in enumerate(claim.spec.devices.requests):
        base = f"spec.devices.requests[{at}]"
        specs = [(f"{base}.exactly", request.exactly)] if request.exactly else []
        for position, sub in enumerate(request.first_available):
            specs.append((f"{base}.firstAvailable[{position}]", sub))  # type: ignore[arg-type]
        for path, spec in specs:
            for index, selector in enumerate(spec.selectors):
                if selector.cel is None:
                    continue
                error = rejection(selector.cel.expression)
                if error is not None:
                    found.append((f"{path}.selectors[{index}].cel.expression", error))
    return found


def _missing_class(claims: list[ResourceClaim], classes: dict[str, DeviceClass]) -> str:
    for claim in claims:
        for request in claim.spec.devices.requests:
            specs: list[tuple[str, ExactRequest | SubRequest]] = [
                (f"{request.name}/{sub.name}", sub) for sub in request.first_available
            ]
            if request.exactly is not None:
                specs = [(request.name, request.exactly)]
            for name, spec in specs:
                if spec.device_class_name not in classes:
                    return f"request {name}: device class {spec.device_class_name} does not exist"
    return ""


def _fully_reserved(claims: tuple[ResourceClaim, ...], pod: Pod) -> str:
    """Whether an allocated claim has all the users it may have."""
    for claim in claims:
        users = claim.status.reserved_for
        if claim.status.allocation is None or len(users) < _MAX_USERS:
            continue
        if not any(u.uid == pod.metadata.uid for u in users):
            return "resourceclaim in use"
    return ""


def _deleting(claims: tuple[ResourceClaim, ...]) -> str:
    for claim in claims:
        if claim.metadata.deletion_timestamp is not None:
            return f'resourceclaim "{claim.metadata.name}" is being deleted'
    return ""


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


# -- taint rules ------------------------------------------------------------------------------------------


def with_taint_rules(
    slices: tuple[ResourceSlice, ...], rules: Iterable[DeviceTaintRule]
) -> tuple[ResourceSlice, ...]:
    """The slices with the taints of matching rules added to their devices.

    A rule without selector matches no device, one with an empty selector matches every device.
    """
    rules = tuple(rules)
    return tuple(_tainted(entry, rules) for entry in slices) if rules else slices


def _tainted(entry: ResourceSlice, rules: tuple[DeviceTaintRule, ...]) -> ResourceSlice:
    import msgspec

    spec = entry.spec
    changed = False
    devices = []
    for device in spec.devices:
        added = tuple(
            rule.spec.taint
            for rule in rules
            if _rule_matches(rule.spec.device_selector, spec.driver, spec.pool.name, device.name)
        )
        changed = changed or bool(added)
        devices.append(
            msgspec.structs.replace(device, taints=device.taints + added) if added else device
        )
    if not changed:
        return entry
    return msgspec.structs.replace(
        entry, spec=msgspec.structs.replace(spec, devices=tuple(devices))
    )


def _rule_matches(
    selector: DeviceTaintSelector | None, driver: str, pool: str, device: str
) -> bool:
    if selector is None:
        return False
    return (
        selector.driver in (None, driver)
        and selector.pool in (None, pool)
        and selector.device in (None, device)
    )
