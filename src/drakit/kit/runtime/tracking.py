"""Pods and containers of the runtime, with the resources that the kubelet requested and those last sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from drakit.cgroups.paths import relative_path
from drakit.cgroups.values import parse_list
from drakit.core.cpuset import CpuSet
from drakit.kit.claims.cdi_names import NO_REFERENCES, ClaimReferences
from drakit.wire.nri.values import NOTHING, NriContainer, PodSandbox, Resources

WANTED_ANNOTATION: Final = "drakit.dev/wanted"


@dataclass(slots=True)
class TrackedContainer:
    """A container of the runtime and what the kit knows about it."""

    pod: PodSandbox
    reported: NriContainer
    """As reported by the runtime, without its environment."""
    references: ClaimReferences
    last_sent: Resources | None
    """Resources that the runtime was last asked to set; None when they may not be in effect."""
    kubelet_limits: Resources = NOTHING
    """Limits that the kubelet requested, before this driver changed them."""
    conflict: str | None = None
    """Why the container cannot be served; None if it can."""
    updated_with_creation: tuple[str, ...] = ()
    """Containers that were updated in the answer to the creation, until the container starts: if the
    creation fails, the runtime drops these updates and reports only that this container stopped."""
    ran: bool = False
    """Whether it has been seen running: from then on an empty cgroup means that it ended."""
    cpu_list: str = ""
    """The last CPUs it is known to have been limited to; empty if never limited."""

    @property
    def id(self) -> str:
        """The runtime's ID of the container."""
        return self.reported.id

    @property
    def cgroup_path(self) -> str | None:
        """The path of its cgroup below the mount; None if the runtime's notation is unknown."""
        return relative_path(self.reported.cgroups_path)

    @property
    def cpus(self) -> CpuSet:
        """:attr:`cpu_list` as a set; empty if it is invalid."""
        return parse_list(self.cpu_list) or CpuSet()

    @property
    def references_claims(self) -> bool:
        """Whether it refers to any claim, whether or not it is allowed to use it."""
        return self.references is not NO_REFERENCES

    def is_pinned_to(self, cpus: CpuSet) -> bool:
        """Whether it is limited to a subset of *cpus*."""
        return bool(self.cpus) and self.cpus <= cpus

    def note_sent(self, resources: Resources) -> None:
        """Record that the runtime was asked for *resources* in addition to those sent before."""
        self.last_sent = resources.over(self.last_sent or NOTHING)
        self.cpu_list = self.last_sent.cpus or self.cpu_list


class ContainerTracker:
    """The pods and containers that exist, indexed by the claims they refer to."""

    def __init__(self) -> None:
        self._pods: dict[str, PodSandbox] = {}
        self._containers: dict[str, TrackedContainer] = {}
        self._sandboxes: dict[str, dict[str, PodSandbox]] = {}
        """Pod UID to its sandboxes: while a sandbox is recreated a pod has several."""
        self._stopped: set[str] = set()
        """IDs of sandboxes that were stopped."""
        self._by_claim: dict[str, dict[str, None]] = {}
        """Claim UID to the containers that refer to it, in order of their appearance."""
        self.containers: Mapping[str, TrackedContainer] = MappingProxyType(self._containers)
        self.pods: Mapping[str, PodSandbox] = MappingProxyType(self._pods)

    def clear(self) -> None:
        """Remove all pods and containers."""
        for index in (self._pods, self._containers, self._sandboxes, self._stopped, self._by_claim):
            index.clear()

    def add_pod(self, pod: PodSandbox) -> None:
        """Add a sandbox; a pod may have several."""
        self._pods[pod.id] = pod
        self._sandboxes.setdefault(pod.uid, {})[pod.id] = pod

    def start_pod(self, pod: PodSandbox) -> None:
        """Add a sandbox that runs."""
        self.add_pod(pod)
        self._stopped.discard(pod.id)

    def stop_pod(self, pod: PodSandbox) -> None:
        """Record that a sandbox was stopped."""
        self._stopped.add(pod.id)

    def remove_pod(self, pod_id: str) -> PodSandbox | None:
        """Remove a sandbox whose containers were removed; returns it."""
        pod = self._pods.pop(pod_id, None)
        self._stopped.discard(pod_id)
        if pod is not None:
            self._sandboxes[pod.uid].pop(pod_id, None)
            if not self._sandboxes[pod.uid]:
                del self._sandboxes[pod.uid]
        return pod

    def has_stopped(self, pod: PodSandbox) -> bool:
        """Whether the sandbox was stopped or removed."""
        return pod.id in self._stopped or pod.id not in self._pods

    def is_running(self, pod_uid: str) -> bool:
        """Whether the pod has a sandbox that was not stopped."""
        return any(each not in self._stopped for each in self._sandboxes.get(pod_uid, ()))

    def sandbox_of(self, pod_uid: str) -> PodSandbox | None:
        """A sandbox of the pod, if it has any."""
        return next(iter(self._sandboxes.get(pod_uid, {}).values()), None)

    def add(self, container: TrackedContainer) -> None:
        """Add a container; replaces one with the same ID."""
        self.remove(container.id)
        self._containers[container.id] = container
        for uid in container.references.claims if container.references_claims else ():
            self._by_claim.setdefault(uid, {})[container.id] = None

    def remove(self, container_id: str) -> TrackedContainer | None:
        """Remove a container; returns it, or None if it is unknown."""
        container = self._containers.pop(container_id, None)
        if container is not None and container.references_claims:
            for uid in container.references.claims:
                self._by_claim[uid].pop(container_id, None)
                if not self._by_claim[uid]:
                    del self._by_claim[uid]
        return container

    def referring_to(self, claim_uid: str) -> list[TrackedContainer]:
        """The containers that refer to a claim, whether or not they are allowed to use it."""
        return [self._containers[each] for each in self._by_claim.get(claim_uid, ())]

    def referenced_claims(self) -> Collection[str]:
        """UIDs of all claims that a container refers to."""
        return self._by_claim.keys()

    def cpus_without_claims(self) -> CpuSet:
        """CPUs of the containers that refer to no claim."""
        lists = {each.cpu_list for each in self._containers.values() if not each.references_claims}
        return CpuSet.union(parse_list(each) or CpuSet() for each in lists)


class _LimitChange(msgspec.Struct, frozen=True):
    """How the driver changed the kubelet's limits at creation, stored in an annotation of the container.

    The runtime reports a container with its current limits; after a restart the driver could not separate
    the kubelet's part from its own. The annotation is trusted only if the pod does not have it: CRI-O copies
    a pod's annotations to its containers, so there a pod could forge it.
    """

    memory_added: int = 0
    """A difference: the kubelet may change the limit of a running container."""
    hugepages: dict[str, int] = {}
    """The kubelet's limits of the changed sizes; it cannot change them later."""


def annotation_for(ours: Resources, kubelets: Resources) -> dict[str, str]:
    """The annotation for a container that gets *ours* where the kubelet requested *kubelets*."""
    added = 0 if ours.memory_limit is None else ours.memory_limit - (kubelets.memory_limit or 0)
    hugepages = {size: kubelets.hugepage_limits.get(size, 0) for size in ours.hugepage_limits}
    change = _LimitChange(memory_added=added, hugepages=hugepages)
    if change == _LimitChange():
        return {}
    return {WANTED_ANNOTATION: msgspec.json.encode(change).decode()}


def kubelet_limits(reported: NriContainer, pod: PodSandbox | None) -> Resources:
    """The kubelet's limits of an existing container, as far as they can be known.

    If the pod is unknown or has the annotation itself, it may be forged. Then memory and hugepage limits
    count as not requested: a forged annotation never increases what a claim adds.
    """
    text = reported.annotations.get(WANTED_ANNOTATION)
    if text is None:
        return reported.resources
    if pod is None or WANTED_ANNOTATION in pod.annotations:
        return msgspec.structs.replace(reported.resources, memory_limit=None, hugepage_limits={})
    try:
        change = msgspec.json.decode(text, type=_LimitChange)
    except msgspec.MsgspecError:
        return reported.resources
    limit = reported.resources.memory_limit
    if limit is not None and 0 < change.memory_added < limit:
        limit -= change.memory_added
    return Resources(memory_limit=limit, hugepage_limits=change.hugepages).over(reported.resources)
