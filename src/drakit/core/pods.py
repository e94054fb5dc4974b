"""The fields of Pods and Nodes that scheduling needs; all others are dropped on reading."""

from __future__ import annotations

import msgspec

from drakit.core.objects import NodeSelector, ObjectMeta, Struct, _written
from drakit.core.quantity import Quantity


class ResourceClaimUse(Struct, frozen=True):
    """A container's use of a claim of its pod; an empty *request* means all of it."""

    name: str = ""
    request: str = ""


class ResourceRequirements(Struct, frozen=True):
    """What a container asks for except devices, and the claims it uses."""

    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    claims: tuple[ResourceClaimUse, ...] = ()


class PodContainer(Struct, frozen=True):
    """A container of a pod."""

    name: str = ""
    restart_policy: str = ""
    resources: ResourceRequirements = ResourceRequirements()


class PodResourceClaim(Struct, frozen=True):
    """A claim a pod uses: an existing one, or one made from a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodToleration(Struct, frozen=True):
    """Node taints that a pod tolerates."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class NodeAffinity(Struct, frozen=True):
    """Node affinity of a pod."""

    required: NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(Struct, frozen=True):
    """Affinity of a pod."""

    node_affinity: NodeAffinity | None = None


class PodSpec(Struct, frozen=True):
    """Spec of a pod."""

    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[PodToleration, ...] = ()
    containers: tuple[PodContainer, ...] = ()
    init_containers: tuple[PodContainer, ...] = ()
    overhead: dict[str, Quantity] = {}
    resource_claims: tuple[PodResourceClaim, ...] = ()


class PodResourceClaimStatus(Struct, frozen=True):
    """The claim created for an entry of the pod."""

    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(Struct, frozen=True):
    """Status of a pod."""

    phase: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


class Pod(Struct, frozen=True):
    """A pod."""

    api_version: str = _written("v1")
    kind: str = _written("Pod")
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeTaint(Struct, frozen=True):
    """Keeps pods without a matching toleration off a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Struct, frozen=True):
    """Spec of a node."""

    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] = ()


class NodeInfo(Struct, frozen=True):
    """Software versions of a node."""

    kubelet_version: str = ""
    container_runtime_version: str = ""
    kernel_version: str = ""
    os_image: str = ""


class NodeStatus(Struct, frozen=True):
    """Status of a node, reported by the kubelet."""

    node_info: NodeInfo = NodeInfo()
    declared_features: tuple[str, ...] = ()
    capacity: dict[str, Quantity] = {}
    allocatable: dict[str, Quantity] = {}


class Node(Struct, frozen=True):
    """A node of the cluster."""

    api_version: str = _written("v1")
    kind: str = _written("Node")
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
