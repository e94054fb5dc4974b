"""Noticing containers that the kernel runs elsewhere because a cgroup above them withholds their CPUs.

Under cgroup v2 the ``cpuset.cpus`` of a container is not the last word. The kernel runs it on the part
of them that every cgroup above allows and, where nothing is left, on all CPUs of the cgroup above. So
``systemctl set-property kubepods.slice AllowedCPUs=…`` can move a container to CPUs that other claims
own, while each file of the container's own cgroup has the value it should have.

Such a limit is the administrator's: it is reported and counted, not removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drakit.cgroups.tree import CgroupTree, relative_path
from drakit.core.cpuset import CpuSet
from drakit.kit.runtime.enforcer import Enforcer, TrackedContainer
from drakit.kit.telemetry.metrics import HostMetrics

_LOG = logging.getLogger(__name__)
_EFFECTIVE: Final = "cpuset.cpus.effective"


@dataclass(frozen=True, slots=True)
class Confined:
    """A container that runs on other CPUs than its own cgroup says."""

    container_id: str
    meant: CpuSet
    effective: CpuSet
    limited_by: str
    """The outermost cgroup above it that does not allow all of them."""
    allowed: CpuSet

    def __str__(self) -> str:
        return (
            f"container {self.container_id[:13]} runs on CPUs {self.effective}, not {self.meant}: "
            f"the cgroup {self.limited_by} above it allows only {self.allowed}; allow {self.meant} there"
        )


def find_confined(enforcer: Enforcer, tree: CgroupTree) -> list[Confined]:
    """The containers that run outside their CPUs, and those with a claim that lack some of them.

    CPUs that are offline are missed by nobody here. A container whose own files are wrong is passed
    over: that is drift (:mod:`drakit.kit.runtime.drift`). Under cgroup v1 the kernel rejects a list of
    CPUs that the cgroup above does not have.
    """
    online = _effective(tree, "") if tree.unified else None
    if online is None:
        return []
    found = []
    unlimited: dict[str, bool] = {}  # one look for each pod, and no more where nothing is withheld
    for known in list(enforcer.containers.values()):
        path = relative_path(known.reported.cgroups_path)
        if path is None or not known.ran:
            continue
        pod = os.path.dirname(path)
        if pod not in unlimited:
            unlimited[pod] = _effective(tree, pod) in (None, online)
        if not unlimited[pod]:
            found.append(_confined(enforcer, known, tree, online))
    return [each for each in found if each is not None]


def _confined(
    enforcer: Enforcer, known: TrackedContainer, tree: CgroupTree, online: CpuSet
) -> Confined | None:
    path = relative_path(known.reported.cgroups_path)
    files = tree.cpuset(path) if path else None
    if path is None or files is None or not files.cpus or files.effective_cpus is None:
        return None
    usable = files.cpus & online
    outside, missing = files.effective_cpus - files.cpus, usable - files.effective_cpus
    if not usable or not (outside or (missing and known.shows_claims)):
        return None
    desired = enforcer.settled_desired(known)
    if desired is None or desired.cpus != files.cpus:
        return None
    for above in _ancestors(path):
        allowed = _effective(tree, above)
        if allowed is not None and usable - allowed:
            return Confined(known.reported.id, desired.cpus, files.effective_cpus, above, allowed)
    return None  # the files were read at two moments


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
    """Reports what :func:`find_confined` finds: each time in the metrics, each change in the log."""

    def __init__(self, metrics: HostMetrics) -> None:
        self._metrics = metrics
        self._reported: dict[str, Confined] = {}

    def update(self, found: list[Confined]) -> None:
        """Compare with the last time and report."""
        now = {each.container_id: each for each in found}
        for container_id, each in now.items():
            if self._reported.get(container_id) != each:
                _LOG.warning("%s", each)
        for container_id in self._reported.keys() - now.keys():
            _LOG.info("container %s runs on its CPUs again, or has ended", container_id[:13])
        self._reported = now
        for result in ("found", "reported"):
            self._metrics.drift.labels(result).inc(len(found))
