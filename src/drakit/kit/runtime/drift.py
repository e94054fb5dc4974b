"""Comparing what the kernel has with what was meant, and putting it right.

Runtimes log a failed update and go on, containers are started while the driver is away, and people
write to cgroups by hand. So every so often the cgroup of every known container is read: every file
that its shape sets (:func:`files_of`). A difference is counted and corrected: by the runtime where it
takes pushed updates, else by writing the cgroup's file directly where that is permitted, else it is
reported and goes with the next answer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from drakit.cgroups.tree import CgroupTree, relative_path, same_value
from drakit.core.cpuset import CpuSet
from drakit.kit.driver import DesiredResources
from drakit.kit.runtime.enforcer import Enforcer, TrackedContainer
from drakit.kit.telemetry.metrics import HostMetrics

_LOG = logging.getLogger(__name__)
CPUS: Final = "cpuset.cpus"
_LISTS: Final = (CPUS, "cpuset.mems")


@dataclass(frozen=True, slots=True)
class Drift:
    """A file of a container's cgroup that says something else than it should."""

    container_id: str
    path: str
    file: str
    meant: CpuSet | str
    found: CpuSet | None
    """What a list of CPUs or memory nodes names; None for none, and for all other files."""
    ran: bool = field(default=True, compare=False)
    """Whether it has been seen running. The runtime is still filling in the files of one that has not:
    what is put right there is no sign of anything wrong."""
    text: str = ""
    """What the file says."""

    def __str__(self) -> str:
        found = self.text or ("nothing" if self.found is None else str(self.found))
        return f"{self.file} of container {self.container_id[:13]} is {found}, not {self.meant}"


def files_of(desired: DesiredResources, *, unified: bool) -> dict[str, CpuSet | str]:
    """All cgroup files that a shape sets, with their values: of cgroup v2 (*unified*) or of v1.

    ``DesiredResources.unified`` exists for cgroup v2 only; there it has the last word, as in the runtime.
    """
    files: dict[str, CpuSet | str] = {}
    if desired.cpus is not None:
        files[CPUS] = desired.cpus
    if desired.mems is not None:
        files["cpuset.mems"] = desired.mems
    if desired.lift_quota:
        files |= {"cpu.max": "max"} if unified else {"cpu.cfs_quota_us": "-1"}
    if desired.memory_limit:
        limit = desired.memory_limit
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
    """The files of containers that differ from their shape: of those named, or of all.

    *only* names the files to compare; by default all that the shape sets. Containers that are unknown
    or have no cgroup are passed over, as are files whose controller is not enabled.
    """
    found: list[Drift] = []
    looks = _Looks(tree, only)
    for container_id in list(enforcer.containers) if container_ids is None else container_ids:
        known = enforcer.containers.get(container_id)
        path = None if known is None else relative_path(known.reported.cgroups_path)
        if known is None or path is None:
            continue
        desired = enforcer.settled_desired(known)
        if desired is not None:  # a conflict is reported where it is found
            found.extend(looks.differences(known, path, desired))
    return found


def find_intruders(
    enforcer: Enforcer, tree: CgroupTree, cpus: CpuSet, *, excluding: str
) -> list[Drift]:
    """The containers other than *excluding* that the kernel allows on *cpus*, but should not.

    For the moment before a container starts on CPUs of its own. Only the list of CPUs of each other
    container is read; what it should be is computed only for those that are allowed on *cpus* (a
    container without a list is allowed everywhere).
    """
    elsewhere: dict[str, bool] = {}
    found: list[Drift] = []
    looks = _Looks(tree, (CPUS,))
    for container_id, known in list(enforcer.containers.items()):
        path = relative_path(known.reported.cgroups_path)
        text = None if path is None or container_id == excluding else tree.look(path, CPUS)
        if path is None or text is None:
            continue
        if text not in elsewhere:
            there = _parsed(text)
            elsewhere[text] = there is not None and not there & cpus
        if elsewhere[text]:
            continue
        desired = enforcer.settled_desired(known)
        if desired is not None:
            found.extend(looks.differences(known, path, desired))
    return found


class _Looks:
    """Compares containers' files with shapes; texts that were right once need no second parsing."""

    def __init__(self, tree: CgroupTree, only: Collection[str] | None) -> None:
        self._tree = tree
        self._only = only
        self._right: dict[tuple[str, str], CpuSet | str] = {}

    def differences(
        self, known: TrackedContainer, path: str, desired: DesiredResources
    ) -> Iterable[Drift]:
        """The files of the container at *path* that do not say what *desired* says."""
        for file, meant in self._files_of(desired).items():
            text = self._tree.look(path, file)
            if text is None or self._is_right(file, text, meant):
                continue
            listed = _parsed(text) if file in _LISTS else None
            yield Drift(known.reported.id, path, file, meant, listed, known.ran, text)

    def _files_of(self, desired: DesiredResources) -> Mapping[str, CpuSet | str]:
        files = files_of(desired, unified=self._tree.unified)
        if self._only is None:
            return files
        return {file: meant for file, meant in files.items() if file in self._only}

    def _is_right(self, file: str, text: str, meant: CpuSet | str) -> bool:
        if self._right.get((file, text)) == meant:
            return True
        if isinstance(meant, CpuSet):
            right = _parsed(text) == meant
        else:
            right = same_value(file, text, meant)
        if right:
            self._right[file, text] = meant
        return right


def write_directly(drifts: list[Drift], tree: CgroupTree, metrics: HostMetrics) -> list[Drift]:
    """Write the meant values into the cgroups; returns those that could not be written."""
    left = []
    for drift in drifts:
        try:
            tree.write(drift.file.partition(".")[0], drift.path, drift.file, str(drift.meant))
        except FileNotFoundError:
            continue  # the container ended meanwhile
        except OSError as error:
            _LOG.warning("%s, and cannot be written: %s", drift, error)
            metrics.drift.labels("reported").inc()
            left.append(drift)
        else:
            _LOG.log(_level(drift), "%s; corrected in the cgroup", drift)
            metrics.drift.labels("corrected").inc(drift.ran)
    return left


def count_found(drifts: Iterable[Drift], metrics: HostMetrics) -> None:
    """Count what is amiss."""
    metrics.drift.labels("found").inc(sum(drift.ran for drift in drifts))


def _level(drift: Drift) -> int:
    return logging.WARNING if drift.ran else logging.INFO


def _parsed(text: str) -> CpuSet | None:
    """The CPUs or nodes that a file names; None when it names none, or cannot be understood."""
    try:
        return CpuSet.parse(text) or None
    except ValueError:
        return None
