"""What every cgroup must say, and whether it does. Pure: files are read through a function.

The checkpoint tells what was claimed; what pods ask for in the classic way (``hugepages-2Mi`` limits, memory
requests in mode ``all``) it does not tell. There *at least* is all that can be demanded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpumem.audit.seen import SeenContainer, SeenPod
from drakit.drivers.cpumem.qos.layout import place_of
from drakit.drivers.cpumem.qos.planner import Plan, PodFacts, plan
from drakit.drivers.cpumem.qos.shares import shares_of
from drakit.drivers.models.memory_policy import MemoryQosPolicy
from drakit.kit.claims.cdi_names import Part, parts_of
from drakit.kit.driver import (
    Container,
    DesiredResources,
    Driver,
    PreparedClaim,
    PreparedClaims,
    RejectedError,
    Use,
)

Relation = Literal["is", "at least", "within"]
Read = Callable[[str, str], str | None]
"""The first line of a file of a cgroup (path below the mount); None when there is none."""
_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Check:
    """One file: what it must say, and what it says."""

    file: str
    relation: Relation
    wanted: str
    found: str | None
    right: bool | None
    """None: it cannot be told."""

    def __str__(self) -> str:
        said = "not there" if self.found is None else self.found or "empty"
        return f"{self.file} is {said}, must be {_WORDS[self.relation]}{self.wanted}"


_WORDS: Final = {"is": "", "at least": "at least ", "within": "within "}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cgroup: what it is, whose, and every file looked at."""

    kind: Literal["container", "pod", "above"]
    path: str
    claims: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    problem: str = ""
    """What is wrong except files: a claim that is not written down, or not this pod's."""
    unknown: str = ""
    """What could not be looked at."""

    @property
    def right(self) -> bool | None:
        """False if anything is wrong; None if something cannot be told; else True."""
        if self.problem or any(check.right is False for check in self.checks):
            return False
        return None if self.unknown or any(c.right is None for c in self.checks) else True


def audit(
    driver: Driver,
    policy: MemoryQosPolicy,
    prepared_claims: PreparedClaims,
    pods: Sequence[SeenPod],
    read: Read,
) -> list[Verdict]:
    """A verdict for every container, pod and cgroup above that must say something."""
    owners = _owners(prepared_claims, pods)
    containers = _Containers(driver, policy, prepared_claims, read)
    found = [v for pod in pods for v in containers.verdicts(pod, owners.get(pod.uid, []))]
    found.extend(_tree_verdicts(policy, pods, owners, read))
    return found


def _owners(
    prepared_claims: PreparedClaims, pods: Iterable[SeenPod]
) -> dict[str, list[PreparedClaim]]:
    """The claims of each pod: a claim is the first pod's that it was reserved for and that is here."""
    here = {pod.uid for pod in pods}
    found: dict[str, list[PreparedClaim]] = {}
    for entry in prepared_claims:
        owner = next((uid for uid in entry.consumers if uid in here), None)
        if owner is not None:
            found.setdefault(owner, []).append(entry)
    return found


# -- containers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Containers:
    """What containers must look like, and do."""

    driver: Driver
    policy: MemoryQosPolicy
    prepared_claims: PreparedClaims
    read: Read

    def verdicts(self, pod: SeenPod, claims: Sequence[PreparedClaim]) -> Iterator[Verdict]:
        """A verdict for each container of a pod that holds *claims*."""
        for container in pod.containers:
            if container.is_sandbox:
                continue
            if container.parts is not None:
                yield self._verdict(pod, container, container.parts)
            else:
                yield self._best_guess(pod, container, claims)

    def _best_guess(
        self, pod: SeenPod, container: SeenContainer, claims: Sequence[PreparedClaim]
    ) -> Verdict:
        """Which claims it uses cannot be seen: it is right if it looks as any of its pod's would."""
        every = frozenset(part for entry in claims for part in parts_of(entry))
        wholes = [frozenset(parts_of(entry)) for entry in claims]
        guesses = [every, *wholes, *(frozenset([part]) for part in sorted(every)), frozenset()]
        verdicts = [self._verdict(pod, container, guess) for guess in dict.fromkeys(guesses)]
        fitting = next((each for each in verdicts if each.right), None)
        unknown = "its processes cannot be seen: the claims it uses are a guess" if claims else ""
        return fitting or replace(verdicts[0], unknown=unknown)

    def _verdict(self, pod: SeenPod, container: SeenContainer, parts: frozenset[Part]) -> Verdict:
        entries = {part.uid: self.prepared_claims.entries[part.uid] for part in sorted(parts)}
        claims = tuple(f"{e.namespace}/{e.name}" for e in entries.values())
        made = Verdict("container", container.path, claims)
        if container.strange:
            return replace(made, problem=f"not in the checkpoint: {', '.join(container.strange)}")
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

    def _view(self, pod: SeenPod, container: SeenContainer, uses: tuple[Use, ...]) -> Container:
        """The container as a driver sees it."""
        limit = _number(self.read(container.path, "memory.max"))
        return Container(
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


def _use(entry: PreparedClaim, parts: frozenset[Part]) -> Use:
    prepared_devices = tuple(
        prepared
        for prepared in entry.prepared_devices
        if Part(entry.uid, prepared.request) in parts
    )
    owner = next(iter(entry.consumers), "")
    return Use(entry, prepared_devices, owner, owner)


def _cpuset_checks(
    desired: DesiredResources, path: str, exclusive: bool, read: Read
) -> Iterator[Check]:
    if desired.cpus is not None and exclusive:
        yield _same_set("cpuset.cpus", desired.cpus, read(path, "cpuset.cpus"))
    elif desired.cpus is not None:
        yield _within("cpuset.cpus.effective", desired.cpus, _inherited(path, read))
    if desired.mems is not None:
        yield _same_set("cpuset.mems", desired.mems, read(path, "cpuset.mems"))


def _inherited(path: str, read: Read) -> str | None:
    """The CPUs that a cgroup has in effect, by its own file or that of the nearest one above."""
    while True:
        found = read(path, "cpuset.cpus.effective")
        if found is not None or not path:
            return found
        path = path.rpartition("/")[0]


def _same_set(file: str, wanted: CpuSet, found: str | None) -> Check:
    return Check(file, "is", str(wanted), found, _parsed(found) == wanted)


def _within(file: str, wanted: CpuSet, found: str | None) -> Check:
    there = _parsed(found)
    right = None if there is None else bool(there) and not (there - wanted)
    return Check(file, "within", str(wanted), found, right)


def _parsed(text: str | None) -> CpuSet | None:
    try:
        return None if text is None else CpuSet.parse(text)
    except ValueError:
        return None


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
            yield _amount(policy, file, value, read(path, file))


def _limit(file: str, claimed: int, found: str | None) -> Check:
    """A limit that leaves room for the claim and is one: classic requests may be on top."""
    right = found is not None and claimed <= _number(found) < math.inf
    return Check(file, "at least", str(claimed), found, right)


def _amount(policy: MemoryQosPolicy, file: str, wanted: str, found: str | None) -> Check:
    """A protected amount. With mode ``all`` requests are on top, which only the pod's spec tells."""
    floor = int(wanted) // _PAGE * _PAGE  # the kernel keeps whole pages
    if policy.mode == "all":
        return Check(file, "at least", wanted, found, _number(found) >= floor)
    return Check(file, "is", wanted, found, found is not None and _number(found) == floor)


def _number(text: str | None) -> float:
    if text == "max":
        return math.inf
    return int(text) if text is not None and text.isdigit() else math.nan


# -- pods and above ------------------------------------------------------------------------------------


def _tree_verdicts(
    policy: MemoryQosPolicy,
    pods: Iterable[SeenPod],
    owners: dict[str, list[PreparedClaim]],
    read: Read,
) -> Iterator[Verdict]:
    claims: dict[str, tuple[str, ...]] = {}
    facts = []
    for pod in pods:
        place = place_of(f"/{pod.path}", pod.uid)
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


def _tree_checks(policy: MemoryQosPolicy, planned: Plan, path: str, read: Read) -> Iterator[Check]:
    for file, value in planned.tree.get(path, {}).items():
        found = read(path, file)
        if file.startswith("hugetlb."):
            if found is not None or not file.endswith(".rsvd.max"):
                yield _limit(file, int(value), found)
        else:
            yield _amount(policy, file, value, found)
    for file, value in planned.floors.get(path, {}).items():
        found = read(path, file)
        if found is not None or not file.endswith(".rsvd.max"):
            floor = int(value) // _PAGE * _PAGE
            yield Check(file, "at least", value, found, _number(found) >= floor)
