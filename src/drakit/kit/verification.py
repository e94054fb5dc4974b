"""Comparing what the kernel has with what was meant, and putting it right.

Runtimes log a failed update and go on, containers are started while the driver is away, and people
write to cgroups by hand. So every so often the cgroup of every known container is read. A difference
is counted and corrected: by the runtime where it takes pushed updates, else by writing the cgroup's
file directly where that is permitted, else it is reported and goes with the next answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from drakit.core.cpuset import CpuSet
from drakit.kit.cgroups import CgroupTree, relative_path
from drakit.kit.enforcement import Enforcer, Known
from drakit.kit.metrics import Metrics

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drift:
    """A container that looks otherwise than it should."""

    container_id: str
    path: str
    file: str
    meant: CpuSet
    found: CpuSet | None
    ran: bool = field(default=True, compare=False)
    """Whether it has been seen running. The runtime is still filling in the files of one that has not:
    what is put right there is no sign of anything wrong."""

    def __str__(self) -> str:
        found = "nothing" if self.found is None else str(self.found)
        return f"{self.file} of container {self.container_id[:13]} is {found}, not {self.meant}"


def find_drift(
    enforcer: Enforcer, tree: CgroupTree, container_ids: Iterable[str] | None = None
) -> list[Drift]:
    """The containers whose cgroup differs from their shape: of those named, or of all.

    Containers that are unknown or have no cgroup are passed over.
    """
    found = []
    for container_id in list(enforcer.containers) if container_ids is None else container_ids:
        known = enforcer.containers.get(container_id)
        if known is not None:
            found.extend(_drift_of(enforcer, known, tree))
    return found


def _drift_of(enforcer: Enforcer, known: Known, tree: CgroupTree) -> list[Drift]:
    path = relative_path(known.reported.cgroups_path)
    actual = tree.cpuset(path) if path else None
    if path is None or actual is None:
        return []
    shape = enforcer.settled_shape(known)
    if shape is None:
        return []  # a conflict is reported where it is found
    container_id = known.reported.id
    pairs = (("cpuset.cpus", shape.cpus, actual.cpus), ("cpuset.mems", shape.mems, actual.mems))
    return [
        Drift(container_id, path, file, meant, there, known.ran)
        for file, meant, there in pairs
        if meant is not None and there != meant
    ]


def write_directly(drifts: list[Drift], tree: CgroupTree, metrics: Metrics) -> list[Drift]:
    """Write the meant values into the cgroups; returns those that could not be written."""
    left = []
    for drift in drifts:
        try:
            tree.write("cpuset", drift.path, drift.file, str(drift.meant))
        except FileNotFoundError:
            continue  # the container ended meanwhile
        except OSError as problem:
            _LOG.warning("%s, and cannot be written: %s", drift, problem)
            metrics.drift.labels("reported").inc()
            left.append(drift)
        else:
            _LOG.log(_level(drift), "%s; corrected in the cgroup", drift)
            metrics.drift.labels("corrected").inc(drift.ran)
    return left


def count_found(drifts: Iterable[Drift], metrics: Metrics) -> None:
    """Count what is amiss."""
    metrics.drift.labels("found").inc(sum(drift.ran for drift in drifts))


def _level(drift: Drift) -> int:
    return logging.WARNING if drift.ran else logging.INFO
