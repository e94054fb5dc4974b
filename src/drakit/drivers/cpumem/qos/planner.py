"""Desired values of memory files: pods and policy in, ``{cgroup: {file: value}}`` out. Pure.

The values are those of KEP-2570 (Memory QoS), with claims on top of requests:

=========== ============================== ============================== ===========================
cgroup      ``memory.min``                 ``memory.low``                 ``memory.high``
=========== ============================== ============================== ===========================
container   Guaranteed: request + claims   Burstable: request + claims    formula (:func:`throttle_at`)
pod         the same of all its            the same of all its            only with a pod-level limit
            containers, each claim once    containers, each claim once
QoS class   sum of its pods                sum of its pods                –
kubepods    sum of all pods                sum of all pods                –
=========== ============================== ============================== ===========================

A pod with claims only is BestEffort to the kubelet; its claims are nevertheless guaranteed and count
as ``memory.min``. Protection is worth no more than that of the weakest ancestor, so the whole chain
is planned, also above ``kubepods`` if the kubelet has a ``cgroupRoot``.

The kubelet adds Burstable requests to the ``memory.min`` of ``kubepods`` too; with the mount option
``memory_recursiveprot`` the part that no child claims would then protect BestEffort pods. The kernel
evaluates ``min`` and ``low`` separately, so the two exact sums are enough.

A claim that several containers of a pod share counts in full for each of them and once for the pod: it is
unknown at creation which others will use it. Beyond the claim the kernel divides the protection by usage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from drakit.cgroups.paths import PodCgroup, QosClass
from drakit.drivers.cpumem.qos.shares import MemoryShare, distinct, pages_of
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy

Values = dict[str, str]
"""File to value."""

MIN: Final = "memory.min"
LOW: Final = "memory.low"
HIGH: Final = "memory.high"


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """A container's requests and limits, and the shares of claims it may use."""

    shares: tuple[MemoryShare, ...] = ()
    request: int | None = None
    """Requested memory; None if the spec is unknown, 0 if it requests none."""
    limit: int | None = None
    classic_pages: Mapping[str, int] = field(default_factory=dict)
    """Hugepage limits of the spec, by page size as the kernel spells it."""
    path: str | None = None
    """Its cgroup below the mount, if known."""

    @property
    def bound(self) -> int | None:
        """The limit; runtimes report 0 or -1 for none."""
        return self.limit if self.limit is not None and self.limit > 0 else None


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod's cgroup, its requests, and all shares of claims it holds."""

    place: PodCgroup
    shares: tuple[MemoryShare, ...] = ()
    containers: tuple[ContainerFacts, ...] = ()
    request: int | None = None
    """The pod's requested memory as the scheduler counts it; None if the spec is unknown."""
    pod_limit: int | None = None
    """The limit in the pod-level resources, if any."""
    classic_pages: Mapping[str, int] = field(default_factory=dict)
    """Hugepage limits that the kubelet set for the pod."""

    @property
    def claims(self) -> tuple[MemoryShare, ...]:
        """Each share of the pod once, including those that only a container uses."""
        return distinct([*self.shares, *(each for c in self.containers for each in c.shares)])

    @property
    def pages(self) -> dict[str, int]:
        """The pod's hugepage limits without claims: never below any container's own."""
        found = dict(self.classic_pages)
        for container in self.containers:
            for size, limit in container.classic_pages.items():
                found[size] = max(found.get(size, 0), limit)
        return found


@dataclass(frozen=True, slots=True)
class QosPlan:
    """Desired values by cgroup below the mount. Other files are not touched."""

    containers: Mapping[str, Values] = field(default_factory=dict)
    """Set through the runtime: systemd would undo direct writes."""
    tree: Mapping[str, Values] = field(default_factory=dict)
    """Pods and above: exactly these values."""
    floors: Mapping[str, Values] = field(default_factory=dict)
    """Minimum values of files that others own."""

    def everything(self) -> dict[str, Values]:
        """All exact values, for comparison with the cgroups as they are."""
        return {**self.tree, **self.containers}


def throttle_at(request: int, limit: int, factor: float, page_size: int) -> int:
    """``memory.high`` by KEP-2570, to the byte what the kubelet computes (in float64, in this order)."""
    between = math.floor(float(request) + (float(limit) - float(request)) * factor)
    return int(float(between) / float(page_size)) * page_size


def protecting_file(policy: MemoryQosPolicy, qos_class: QosClass) -> str:
    """The file that protects the memory of a pod of this QoS class."""
    soft = policy.protection == "soft" or qos_class is QosClass.BURSTABLE
    return LOW if soft else MIN


def page_limit_files(size: str) -> tuple[str, str]:
    """The limits of a page size, in the order to write them.

    ``rsvd.max`` counts when pages are reserved (mmap fails), ``max`` when they are touched (SIGBUS).
    """
    return (f"hugetlb.{size}.rsvd.max", f"hugetlb.{size}.max")


def container_values(
    policy: MemoryQosPolicy, qos_class: QosClass, container: ContainerFacts, pod_limit: int | None = None
) -> Values:
    """Files that the runtime must set for a container (``DesiredResources.unified``); empty for none."""
    values: Values = {}
    protected = _container_protection(policy, qos_class, container)
    if protected and policy.owns(Knob.PROTECTION):
        values[protecting_file(policy, qos_class)] = str(protected)
    if policy.owns(Knob.THROTTLING):
        high = _throttled(policy, qos_class, container, pod_limit)
        if high is not None and high >= protected:
            values[HIGH] = str(high)
    if policy.owns(Knob.HUGEPAGES):
        for size, claimed in sorted(pages_of(distinct(container.shares)).items()):
            limit = str(claimed + container.classic_pages.get(size, 0))
            values |= dict.fromkeys(page_limit_files(size), limit)
    return values


def container_memory_limit(policy: MemoryQosPolicy, container: ContainerFacts) -> int | None:
    """The memory limit for a container whose pages are charged to it (``DesiredResources.memory_limit``).

    None keeps the kubelet's. A limit that does not include the claimed pages would get the container
    killed for using them. The limit of its *pod* is the kubelet's and does not grow.
    """
    pages = sum(share.page_bytes for share in distinct(container.shares))
    if not policy.hugetlb_charged or not pages or container.bound is None:
        return None
    return container.bound + pages


def _container_protection(policy: MemoryQosPolicy, qos_class: QosClass, container: ContainerFacts) -> int:
    requested = _requested(qos_class, container)
    return _protected(policy, distinct(container.shares), requested, container.classic_pages)


def _protected(
    policy: MemoryQosPolicy, shares: Iterable[MemoryShare], requested: int, classic: Mapping[str, int]
) -> int:
    """Bytes to protect: claims, and in mode ``all`` also requests; pages only if charged as memory."""
    charged = policy.hugetlb_charged
    claimed = sum(share.memory + (share.page_bytes if charged else 0) for share in shares)
    if policy.mode != "all":
        return claimed if policy.mode == "claims" else 0
    return claimed + requested + (sum(classic.values()) if charged else 0)


def _requested(qos_class: QosClass, container: ContainerFacts) -> int:
    """Requested memory; a Guaranteed container's limit equals it if the spec is unknown."""
    if container.request is not None:
        return container.request
    return (container.bound or 0) if qos_class is QosClass.GUARANTEED else 0


def _throttled(
    policy: MemoryQosPolicy, qos_class: QosClass, container: ContainerFacts, pod_limit: int | None
) -> int | None:
    """``memory.high`` of a container, or None for none."""
    claims = distinct(container.shares)
    memory = sum(share.memory for share in claims)
    if policy.throttling_factor is None or (policy.mode == "claims" and not memory):
        return None
    if qos_class is QosClass.GUARANTEED or (container.bound is None and pod_limit is not None):
        return None
    request = 0 if qos_class is QosClass.BEST_EFFORT else container.request
    if request is None or request == container.bound:
        return None  # an unknown request may be the limit, and then it must not be throttled
    limit = policy.allocatable if container.bound is None else container.bound + memory
    high = _above(policy, request, limit)
    if high is None or not policy.hugetlb_charged:
        return high
    # Pages cannot be reclaimed: included in the formula they would throttle permanently.
    classic = sum(container.classic_pages.values()) if policy.mode == "all" else 0
    return high + sum(share.page_bytes for share in claims) + classic


def _above(policy: MemoryQosPolicy, request: int, limit: int | None) -> int | None:
    if policy.throttling_factor is None or limit is None:
        return None
    high = throttle_at(request, limit, policy.throttling_factor, policy.page_size)
    return high if high > request else None


def plan(policy: MemoryQosPolicy, pods: Iterable[PodFacts]) -> QosPlan:
    """The files of all cgroups, for all pods of the node. Each pod may be given once."""
    containers: dict[str, Values] = {}
    sums, floors = _Sums(), _Sums()
    pods = tuple(pods)
    claimed_sizes = {size for pod in pods for size in pages_of(pod.claims)}
    for pod in pods:
        for container in pod.containers:
            values = container_values(policy, pod.place.qos_class, container, pod.pod_limit)
            if container.path is not None and values:
                containers[container.path] = values
        _protect(policy, pod, sums, floors)
        _limit_pages(policy, pod, claimed_sizes, sums, floors)
        _throttle_pod(policy, pod, sums)
    return QosPlan(dict(sorted(containers.items())), sums.values(), floors.values())


class _Sums:
    """Sums by cgroup and file."""

    def __init__(self) -> None:
        self._amounts: dict[str, dict[str, int]] = {}

    def add(self, path: str, file: str, amount: int) -> None:
        files = self._amounts.setdefault(path, {})
        files[file] = files.get(file, 0) + amount

    def values(self) -> dict[str, Values]:
        """All sums by path, parents first; files in the order in which they were added."""
        return {
            path: {file: str(amount) for file, amount in files.items()}
            for path, files in sorted(self._amounts.items())
        }


def pod_protection(policy: MemoryQosPolicy, pod: PodFacts) -> int:
    """The protected memory of a pod: its requests, and each of its claims once."""
    requests = [_requested(pod.place.qos_class, container) for container in pod.containers]
    own = sum(requests) if pod.request is None else max([pod.request, *requests])
    return _protected(policy, pod.claims, own, pod.pages)


def _protect(policy: MemoryQosPolicy, pod: PodFacts, sums: _Sums, floors: _Sums) -> None:
    amount = pod_protection(policy, pod)
    if not amount or not policy.owns(Knob.PROTECTION):
        return
    file = protecting_file(policy, pod.place.qos_class)
    for path in pod.place.chain:
        sums.add(path, file, amount)
    for path in pod.place.above:
        floors.add(path, file, amount)


def _limit_pages(
    policy: MemoryQosPolicy, pod: PodFacts, claimed_sizes: set[str], sums: _Sums, floors: _Sums
) -> None:
    """The pod's limits for the sizes it claims, and the minimum for all pods in the root.

    Without KEP-5517 the kubelet sets a pod's limit to 0 for every size that its spec does not
    contain, and that of ``kubepods`` to the pool when the kubelet started.
    """
    if not policy.owns(Knob.HUGEPAGES):
        return
    claimed, classic = pages_of(pod.claims), pod.pages
    for size in sorted(claimed_sizes):
        limit = claimed.get(size, 0) + classic.get(size, 0)
        for file in page_limit_files(size):
            if size in claimed:
                sums.add(pod.place.pod, file, limit)
            if limit:
                floors.add(pod.place.root, file, limit)


def _throttle_pod(policy: MemoryQosPolicy, pod: PodFacts, sums: _Sums) -> None:
    """``memory.high`` of a pod with a pod-level limit; other pods have none at this level."""
    limited = pod.pod_limit is not None and pod.request not in (None, pod.pod_limit)
    if policy.mode != "all" or not limited or not policy.owns(Knob.THROTTLING):
        return
    shares = pod.claims
    limit = (pod.pod_limit or 0) + sum(share.memory for share in shares)
    high = _above(policy, pod.request or 0, limit)
    if high is None:
        return
    if policy.hugetlb_charged:
        high += sum(share.page_bytes for share in shares) + sum(pod.pages.values())
    if high >= pod_protection(policy, pod):
        sums.add(pod.place.pod, HIGH, high)
