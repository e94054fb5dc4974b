"""Confinement: containers that run on other CPUs because a cgroup above them withholds theirs.

Under cgroup v2 the kernel runs a container on the part of its ``cpuset.cpus`` that every cgroup above allows
and, if nothing is left, on all CPUs of the cgroup above. So
``systemctl set-property kubepods.slice AllowedCPUs=…`` can move a container to CPUs that other claims own,
while every file of the container's own cgroup has the right value.

Such a limit is the administrator's decision: it is reported and counted, not removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drakit.cgroups.tree import CgroupTree
from drakit.core.cpuset import CpuSet
from drakit.core.log import get_logger
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.runtime.tracking import TrackedContainer
from drakit.kit.telemetry.metrics import HostMetrics

log = get_logger(__name__)
_EFFECTIVE: Final = "cpuset.cpus.effective"


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

    Offline CPUs do not count as missing. A container whose own files are wrong is skipped: that is drift
    (:mod:`drakit.kit.runtime.drift`). Under cgroup v1 the kernel rejects CPUs that the cgroup above lacks.
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
    for above in _ancestors(path):
        allowed = _effective(tree, above)
        if allowed is not None and usable - allowed:
            return Confined(container.id, desired.cpus, files.effective_cpus, above, allowed)
    return None  # the files changed between the reads


def _ancestors(path: str) -> Iterator[str]:
    """The cgroups above *path*, outermost first."""
    parts = os.path.dirname(path).split("/")
    for depth in range(1, len(parts) + 1):
        yield "/".join(parts[:depth])


def _effective(tree: CgroupTree, path: str) -> CpuSet | None:
    try:
        return CpuSet.parse(tree.read("cpuset", path, _EFFECTIVE) or "") or None
    except ValueError:
        return None


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
