"""Desired and actual values of every cgroup file. Pure: files are read through a function.

The checkpoint has the claims but not the classic requests of pods (``hugepages-2Mi`` limits, memory
requests in mode ``all``). Where these add up, the relation is *at least*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from drakit.cgroups.paths import pod_cgroup
from drakit.cgroups.values import PAGE_SIZE, amount, parse_list, same_value
from drakit.core.cpuset import CpuSet
from drakit.drivers.cpumem.audit.observed import ObservedContainer, ObservedPod
from drakit.drivers.cpumem.qos.planner import PodFacts, QosPlan, plan
from drakit.drivers.cpumem.qos.shares import shares_of
from drakit.drivers.models.memory_policy import MemoryQosPolicy
from drakit.kit.claims.cdi_names import ClaimRequest, requests_of
from drakit.kit.driver import (
    ClaimUse,
    ContainerView,
    DesiredResources,
    Driver,
    PreparedClaim,
    PreparedClaims,
    RejectedError,
)

Relation = Literal["is", "at least", "within"]
Read = Callable[[str, str], str | None]
"""The first line of a file of a cgroup (path below the mount); None if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Check:
    """The desired and the actual value of one file."""

    file: str
    relation: Relation
    wanted: str
    found: str | None
    right: bool | None
    """None: unknown."""

    def __str__(self) -> str:
        found = "missing" if self.found is None else self.found or "empty"
        relation = "" if self.relation == "is" else f"{self.relation} "
        return f"{self.file} is {found}, must be {relation}{self.wanted}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one cgroup: its claims and every file checked."""

    kind: Literal["container", "pod", "above"]
    path: str
    claims: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    problem: str = ""
    """A problem other than a file: a claim that is not in the checkpoint, or of another pod."""
    unknown: str = ""
    """What could not be checked."""

    @property
    def right(self) -> bool | None:
        """False if anything is wrong; None if something is unknown; else True."""
        if self.problem or any(check.right is False for check in self.checks):
            return False
        return None if self.unknown or any(c.right is None for c in self.checks) else True


def audit(
    driver: Driver,
    policy: MemoryQosPolicy,
    prepared_claims: PreparedClaims,
    pods: Sequence[ObservedPod],
    read: Read,
) -> list[Verdict]:
    """A verdict for every container, pod and ancestor that has desired values."""
    owners = _owners(prepared_claims, pods)
    containers = _Containers(driver, policy, prepared_claims, read)
    found = [v for pod in pods for v in containers.verdicts(pod, owners.get(pod.uid, []))]
    return [*found, *_tree_verdicts(policy, pods, owners, read)]


def _owners(prepared_claims: PreparedClaims, pods: Iterable[ObservedPod]) -> dict[str, list[PreparedClaim]]:
    """The claims of each pod: a claim belongs to the first pod in its reservedFor that is on this node."""
    here = {pod.uid for pod in pods}
    found: dict[str, list[PreparedClaim]] = {}
    for entry in prepared_claims:
        owner = next((uid for uid in entry.consumers if uid in here), None)
        if owner is not None:
            found.setdefault(owner, []).append(entry)
    return found


@dataclass(frozen=True, slots=True)
class _Containers:
    driver: Driver
    policy: MemoryQosPolicy
    prepared_claims: PreparedClaims
    read: Read

    def verdicts(self, pod: ObservedPod, claims: Sequence[PreparedClaim]) -> Iterator[Verdict]:
        """A verdict for each container of a pod that holds *claims*."""
        for container in pod.containers:
            if container.is_sandbox:
                continue
            if container.parts is not None:
                yield self._verdict(pod, container, container.parts)
            else:
                yield self._best_guess(pod, container, claims)

    def _best_guess(
        self, pod: ObservedPod, container: ObservedContainer, claims: Sequence[PreparedClaim]
    ) -> Verdict:
        """Judge a container of unknown claims: any combination of claims of its pod is right."""
        every = frozenset(part for entry in claims for part in requests_of(entry))
        wholes = [frozenset(requests_of(entry)) for entry in claims]
        guesses = [every, *wholes, *(frozenset([part]) for part in sorted(every)), frozenset()]
        verdicts = [self._verdict(pod, container, guess) for guess in dict.fromkeys(guesses)]
        fitting = next((each for each in verdicts if each.right), None)
        unknown = "its processes cannot be inspected: the claims it uses are a guess" if claims else ""
        return fitting or replace(verdicts[0], unknown=unknown)

    def _verdict(
        self, pod: ObservedPod, container: ObservedContainer, parts: frozenset[ClaimRequest]
    ) -> Verdict:
        entries = {part.uid: self.prepared_claims.entries[part.uid] for part in sorted(parts)}
        claims = tuple(f"{e.namespace}/{e.name}" for e in entries.values())
        made = Verdict("container", container.path, claims)
        if container.unknown:
            return replace(made, problem=f"not in the checkpoint: {', '.join(container.unknown)}")
        uses = tuple(_use(entry, parts) for entry in entries.values())
        try:
            desired = self.driver.enforce(self._view(pod, container, uses), self.prepared_claims)
        except RejectedError as error:
            return replace(made, problem=str(error))
        exclusive = any(entry.exclusive("cpu") for entry in entries.values())
        checks = (
            *_cpuset_checks(desired, container.path, exclusive, self.read),
            *_limit_checks(self.policy, desired, container.path, self.read),
        )
        return replace(made, checks=checks)

    def _view(
        self, pod: ObservedPod, container: ObservedContainer, uses: tuple[ClaimUse, ...]
    ) -> ContainerView:
        """The container as the driver's input."""
        limit = amount(self.read(container.path, "memory.max"))
        return ContainerView(
            id=container.id,
            name=container.id[:13],
            pod_uid=pod.uid,
            pod_name=pod.uid,
            namespace="",
            uses=uses,
            cgroup_path=f"/{container.path}",
            cgroup_parent=f"/{pod.path}",
            memory_limit=int(limit) if limit < math.inf else None,
        )


def _use(entry: PreparedClaim, parts: frozenset[ClaimRequest]) -> ClaimUse:
    devices = tuple(each for each in entry.devices if ClaimRequest(entry.uid, each.request) in parts)
    owner = next(iter(entry.consumers), "")
    return ClaimUse(entry, devices, owner, owner)


def _cpuset_checks(desired: DesiredResources, path: str, exclusive: bool, read: Read) -> Iterator[Check]:
    if desired.cpus is not None and exclusive:
        yield _same_set("cpuset.cpus", desired.cpus, read(path, "cpuset.cpus"))
    elif desired.cpus is not None:
        found = _inherited(path, read)
        there = parse_list(found)
        right = None if there is None else bool(there) and there <= desired.cpus
        yield Check("cpuset.cpus.effective", "within", str(desired.cpus), found, right)
    if desired.mems is not None:
        yield _same_set("cpuset.mems", desired.mems, read(path, "cpuset.mems"))


def _inherited(path: str, read: Read) -> str | None:
    """The effective CPUs of a cgroup, from its own file or that of the nearest ancestor."""
    while True:
        found = read(path, "cpuset.cpus.effective")
        if found is not None or not path:
            return found
        path = path.rpartition("/")[0]


def _same_set(file: str, wanted: CpuSet, found: str | None) -> Check:
    return Check(file, "is", str(wanted), found, parse_list(found) == wanted)


def _limit_checks(
    policy: MemoryQosPolicy, desired: DesiredResources, path: str, read: Read
) -> Iterator[Check]:
    """Memory files, and both limits of every claimed page size."""
    for size, limit in desired.hugepage_limits.items():
        yield _limit(f"hugetlb.{size}.max", limit, read(path, f"hugetlb.{size}.max"))
        reserving = f"hugetlb.{size}.rsvd.max"
        found = read(path, reserving)
        if found is not None or reserving in desired.unified:  # kernels before 5.7 have none
            yield _limit(reserving, limit, found)
    for file, value in desired.unified.items():
        if file.startswith("memory."):
            yield _protection(policy, file, value, read(path, file))


def _limit(file: str, claimed: int, found: str | None) -> Check:
    """A limit that includes the claim and is not unlimited: classic requests may add to it."""
    right = found is not None and claimed <= amount(found) < math.inf
    return Check(file, "at least", str(claimed), found, right)


def _protection(policy: MemoryQosPolicy, file: str, wanted: str, found: str | None) -> Check:
    """A protected amount. In mode ``all`` the requests in the pod's spec add to it."""
    if policy.mode == "all":
        return _at_least(file, wanted, found)
    right = found is not None and same_value(file, found, wanted)
    return Check(file, "is", wanted, found, right)


def _at_least(file: str, wanted: str, found: str | None) -> Check:
    enough = amount(found) >= int(wanted) // PAGE_SIZE * PAGE_SIZE  # the kernel keeps whole pages
    return Check(file, "at least", wanted, found, enough)


def _tree_verdicts(
    policy: MemoryQosPolicy, pods: Iterable[ObservedPod], owners: dict[str, list[PreparedClaim]], read: Read
) -> Iterator[Verdict]:
    claims: dict[str, tuple[str, ...]] = {}
    facts = []
    for pod in pods:
        place = pod_cgroup(f"/{pod.path}", pod.uid)
        own = owners.get(pod.uid, [])
        if place is None or not own:
            continue
        claims[pod.path] = tuple(f"{entry.namespace}/{entry.name}" for entry in own)
        facts.append(PodFacts(place, tuple(s for entry in own for s in shares_of(entry))))
    planned = plan(policy, facts)
    for path in sorted({*planned.tree, *planned.floors}):
        checks = tuple(_tree_checks(policy, planned, path, read))
        kind: Literal["pod", "above"] = "pod" if path in claims else "above"
        yield Verdict(kind, path, claims.get(path, ()), checks)


def _tree_checks(policy: MemoryQosPolicy, planned: QosPlan, path: str, read: Read) -> Iterator[Check]:
    for file, value in planned.tree.get(path, {}).items():
        found = read(path, file)
        if file.startswith("hugetlb."):
            if found is not None or not file.endswith(".rsvd.max"):
                yield _limit(file, int(value), found)
        else:
            yield _protection(policy, file, value, found)
    for file, value in planned.floors.get(path, {}).items():
        found = read(path, file)
        if found is not None or not file.endswith(".rsvd.max"):
            yield _at_least(file, value, found)
