"""Drift: differences between the cgroups of containers and their desired resources, and their repair.

Runtimes log a failed update and continue, containers start while the driver is down, and people write to
cgroups by hand. So the cgroup files that the desired resources set (:func:`files_of`) are read periodically
for every known container. A difference is counted and repaired: by the runtime if it accepts pushed updates,
else by writing the cgroup file directly where that is permitted, else it is reported and sent with the next
answer.

Confinement: under cgroup v2 the kernel runs a container on the part of its ``cpuset.cpus`` that every
cgroup above allows and, if nothing is left, on all CPUs of the cgroup above. So
``systemctl set-property kubepods.slice AllowedCPUs=…`` can move a container to CPUs that other claims own,
while every file of its own cgroup is right. Such a limit is the administrator's decision: it is
reported and counted, not removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from drakit.cgroups.tree import CgroupTree
from drakit.cgroups.values import parse_list, same_value
from drakit.core.cpuset import CpuSet
from drakit.core.log import get_logger
from drakit.kit.driver import DesiredResources
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.runtime.tracking import TrackedContainer
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.nri.values import Resources

log = get_logger(__name__)
CPUS: Final = "cpuset.cpus"
_LISTS: Final = (CPUS, "cpuset.mems")


@dataclass(frozen=True, slots=True)
class Drift:
    """A cgroup file of a container whose value differs from the desired one."""

    container_id: str
    path: str
    file: str
    meant: CpuSet | str
    found: CpuSet | None
    """The CPUs or memory nodes in the file; None if there are none, and for all other files."""
    ran: bool = field(default=True, compare=False)
    """Whether the container has been seen running. Before, the runtime is still writing its files, and
    a difference is not a sign of a defect."""
    text: str = ""
    """The content of the file."""

    def log(self, message: str, **fields: object) -> None:
        """Log *message* with this difference: a warning if the container has been running."""
        log.log(
            logging.WARNING if self.ran else logging.INFO,
            message,
            container=self.container_id,
            file=self.file,
            value=self.text or self.found or "",
            desired=self.meant,
            **fields,
        )


def files_of(desired: DesiredResources, *, unified: bool) -> dict[str, CpuSet | str]:
    """All cgroup files that desired resources set, with their values: of v2 (*unified*) or v1.

    ``DesiredResources.unified`` applies to cgroup v2 only and takes precedence, as in the runtime.
    """
    files: dict[str, CpuSet | str] = {}
    if desired.cpus is not None:
        files[CPUS] = desired.cpus
    if desired.mems is not None:
        files["cpuset.mems"] = desired.mems
    if desired.lift_quota:
        files |= {"cpu.max": "max"} if unified else {"cpu.cfs_quota_us": "-1"}
    if limit := desired.memory_limit:
        unlimited = "max" if unified else "-1"
        file = "memory.max" if unified else "memory.limit_in_bytes"
        files[file] = str(limit) if limit > 0 else unlimited
    for size, limit in desired.hugepage_limits.items():
        files[f"hugetlb.{size}.{'max' if unified else 'limit_in_bytes'}"] = str(limit)
    return {**files, **desired.unified} if unified else files


def find_drift(
    enforcer: Enforcer,
    tree: CgroupTree,
    container_ids: Iterable[str] | None = None,
    *,
    only: Collection[str] | None = None,
) -> list[Drift]:
    """The files that differ from the desired resources, of the given or of all containers.

    *only* limits the comparison to these files. Unknown containers, containers without a cgroup, and files
    whose controller is not enabled are skipped. Changes nothing.
    """
    comparison = _Comparison(enforcer, tree, only)
    if container_ids is None:
        container_ids = list(enforcer.containers)
    containers = (enforcer.containers.get(each) for each in container_ids)
    return [drift for each in containers if each is not None for drift in comparison.of(each)]


def find_intruders(enforcer: Enforcer, tree: CgroupTree, cpus: CpuSet, *, excluding: str) -> list[Drift]:
    """The containers other than *excluding* that the kernel allows on *cpus* but should not.

    Used right before a container starts on exclusive CPUs. Only the CPU list of each other container is
    read; desired resources are computed only for those allowed on *cpus* (a container without a list is
    allowed everywhere).
    """
    elsewhere: dict[str, bool] = {}
    found: list[Drift] = []
    comparison = _Comparison(enforcer, tree, (CPUS,))
    for container in list(enforcer.containers.values()):
        path = container.cgroup_path
        text = None if path is None or container.id == excluding else tree.look(path, CPUS)
        if text is None:
            continue
        if text not in elsewhere:
            listed = parse_list(text)
            elsewhere[text] = listed is not None and not listed & cpus
        if not elsewhere[text]:
            found.extend(comparison.of(container))
    return found


@dataclass(eq=False, slots=True)
class _Comparison:
    """Compares files with desired resources; a correct text is parsed only once."""

    _enforcer: Enforcer
    _tree: CgroupTree
    _only: Collection[str] | None
    _correct: dict[tuple[str, str], CpuSet | str] = field(default_factory=dict)

    def of(self, container: TrackedContainer) -> Iterator[Drift]:
        """The files of a container that differ from its desired resources."""
        path = container.cgroup_path
        desired = None if path is None else self._enforcer.decide(container).desired
        if path is None or desired is None:
            return
        for file, meant in files_of(desired, unified=self._tree.unified).items():
            text = self._tree.look(path, file) if self._only is None or file in self._only else None
            if text is None or self._is_correct(file, text, meant):
                continue
            listed = parse_list(text) if file in _LISTS else None
            yield Drift(container.id, path, file, meant, listed, container.ran, text)

    def _is_correct(self, file: str, text: str, meant: CpuSet | str) -> bool:
        if self._correct.get((file, text)) == meant:
            return True
        correct = parse_list(text) == meant if isinstance(meant, CpuSet) else same_value(file, text, meant)
        if correct:
            self._correct[file, text] = meant
        return correct


@dataclass(eq=False, slots=True)
class DriftRepair:
    """Repairs drift in cgroups, and counts it."""

    _enforcer: Enforcer
    _tree: CgroupTree
    _metrics: HostMetrics

    async def verify(self, container_ids: Sequence[str] | None, push: Callable[[], Awaitable[None]]) -> None:
        """Compare the given or all containers; repair with *push*, then by direct writes."""
        self._enforcer.note_conflicts()
        drifts = find_drift(self._enforcer, self._tree, container_ids)
        if not drifts:
            return
        count_drift(drifts, self._metrics)
        for drift in drifts:
            drift.log("drift found")
        self._enforcer.mark_unsent(drift.container_id for drift in drifts)
        await push()
        left = find_drift(self._enforcer, self._tree, container_ids)
        write_directly([each for each in left if each in drifts], self._tree, self._metrics)

    def before_start(self, container_id: str) -> None:
        """Evict other containers from the CPUs of a starting one, and it from theirs, in the kernel.

        Runtimes apply updates asynchronously, only log failures, skip a container that they are still
        creating, and may apply an older update after a newer one.
        """
        drifts = find_drift(self._enforcer, self._tree, [container_id])
        if cpus := self._enforcer.exclusive_cpus(self._enforcer.containers[container_id]):
            drifts += find_intruders(self._enforcer, self._tree, cpus, excluding=container_id)
        if drifts:
            count_drift(drifts, self._metrics)
            write_directly(drifts, self._tree, self._metrics)


def read_cpusets(enforcer: Enforcer, tree: CgroupTree | None) -> None:
    """Record the cpusets of the kernel, for runtimes that report those of the creation."""
    for container_id, container in enforcer.containers.items():
        path = container.cgroup_path
        files = tree.cpuset(path) if tree is not None and path is not None else None
        if files is None or files.cpus is None:
            enforcer.mark_unsent([container_id])
        else:
            container.note_sent(Resources(cpus=str(files.cpus), mems=str(files.mems or "")))


def write_directly(drifts: Iterable[Drift], tree: CgroupTree, metrics: HostMetrics) -> list[Drift]:
    """Write the desired values into the cgroups; returns those that could not be written."""
    left = []
    for drift in drifts:
        try:
            tree.write(drift.file.partition(".")[0], drift.path, drift.file, str(drift.meant))
        except FileNotFoundError:
            continue  # the container has ended
        except OSError as error:
            drift.log("cannot repair drift", error=error)
            metrics.drift.labels("reported").inc()
            left.append(drift)
        else:
            drift.log("drift repaired in the cgroup")
            metrics.drift.labels("corrected").inc(drift.ran)
    return left


def count_drift(drifts: Iterable[Drift], metrics: HostMetrics) -> None:
    """Count detected drift of containers that have been running."""
    metrics.drift.labels("found").inc(sum(drift.ran for drift in drifts))


@dataclass(frozen=True, slots=True)
class Confined:
    """A container that runs on other CPUs than its own cgroup has."""

    container_id: str
    meant: CpuSet
    effective: CpuSet
    limited_by: str
    """The outermost cgroup above it that does not allow all of them."""
    allowed: CpuSet


def find_confined(enforcer: Enforcer, tree: CgroupTree) -> list[Confined]:
    """The containers that run outside their CPUs, and those with a claim that lack some of them.

    Offline CPUs do not count as missing. A container whose own files are wrong is skipped: that is drift.
    Under cgroup v1 the kernel rejects CPUs that the cgroup above lacks.
    """
    online = _effective(tree, "") if tree.unified else None
    if online is None:
        return []
    found = []
    unlimited: dict[str, bool] = {}  # the limits of each pod are read once
    for container in list(enforcer.containers.values()):
        path = container.cgroup_path
        if path is None or not container.ran:
            continue
        pod = os.path.dirname(path)
        if pod not in unlimited:
            unlimited[pod] = _effective(tree, pod) in (None, online)
        if not unlimited[pod] and (each := _confined(enforcer, container, path, tree, online)):
            found.append(each)
    return found


def _confined(
    enforcer: Enforcer, container: TrackedContainer, path: str, tree: CgroupTree, online: CpuSet
) -> Confined | None:
    files = tree.cpuset(path)
    if files is None or not files.cpus or files.effective_cpus is None:
        return None
    usable = files.cpus & online
    outside, missing = files.effective_cpus - files.cpus, usable - files.effective_cpus
    if not usable or not (outside or (missing and container.references_claims)):
        return None
    desired = enforcer.decide(container).desired
    if desired is None or desired.cpus != files.cpus:
        return None
    parts = path.split("/")
    for depth in range(1, len(parts)):  # the cgroups above, outermost first
        above = "/".join(parts[:depth])
        allowed = _effective(tree, above)
        if allowed is not None and usable - allowed:
            return Confined(container.id, desired.cpus, files.effective_cpus, above, allowed)
    return None  # the files changed between the reads


def _effective(tree: CgroupTree, path: str) -> CpuSet | None:
    return parse_list(tree.read("cpuset", path, "cpuset.cpus.effective"))


class ConfinementReport:
    """Reports the results of :func:`find_confined`: all in the metrics, changes in the log."""

    def __init__(self, metrics: HostMetrics) -> None:
        self._metrics = metrics
        self._reported: dict[str, Confined] = {}

    def update(self, found: list[Confined]) -> None:
        """Report *found*, comparing it with the previous call."""
        now = {each.container_id: each for each in found}
        for container_id, each in now.items():
            if self._reported.get(container_id) != each:
                log.warning(
                    "container confined by a parent cgroup",
                    container=container_id,
                    cpus=each.meant,
                    effective_cpus=each.effective,
                    cgroup=each.limited_by,
                    allowed_cpus=each.allowed,
                )
        for container_id in self._reported.keys() - now.keys():
            log.info("container no longer confined", container=container_id)
        self._reported = now
        for result in ("found", "reported"):
            self._metrics.drift.labels(result).inc(len(found))
