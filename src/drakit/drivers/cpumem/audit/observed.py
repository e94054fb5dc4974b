"""Pods and containers found in the cgroup tree, without a container runtime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from drakit.cgroups.paths import container_id
from drakit.cgroups.tree import CgroupTree
from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import PreparedClaim

_LARGEST_FILE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ObservedContainer:
    """A container's cgroup, and the claims that its processes were given."""

    id: str
    path: str
    """Below the mount."""
    parts: frozenset[names.ClaimRequest] | None
    """The requests of claims it uses; None if its processes cannot be inspected."""
    unknown: tuple[str, ...] = ()
    """Marker variables of claims that are not in the checkpoint."""
    is_sandbox: bool = False
    """It only holds the pod's namespaces (``pause``); its limits are not set."""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod's cgroup."""

    uid: str
    path: str
    containers: tuple[ObservedContainer, ...]


class CgroupScanner:
    """Reads the cgroups mounted at *root* and the processes below *proc*."""

    def __init__(self, root: str, proc: str, cdi_kind: str, entries: Iterable[PreparedClaim]) -> None:
        self._tree = CgroupTree(root)
        self._proc = proc
        self._kind = cdi_kind
        self._parts = {names.marker_variable(p): p for e in entries for p in names.requests_of(e)}

    def pods(self) -> list[ObservedPod]:
        """All pods, by path."""
        pods = []
        for pod in sorted(self._tree.pods(), key=lambda pod: pod.path):
            entries = ((container_id(name), f"{pod.path}/{name}") for name in self._tree.children(pod.path))
            containers = (self._container(found, path) for found, path in entries if found is not None)
            pods.append(ObservedPod(pod.uid, pod.path, tuple(containers)))
        return pods

    def read(self, path: str, file: str) -> str | None:
        """The first line of a cgroup's file; None if it cannot be read."""
        text = self._tree.read(file.partition(".")[0], path, file)
        return None if text is None else text.partition("\n")[0].strip()

    def _container(self, found: str, path: str) -> ObservedContainer:
        pids = sorted(self._processes(path))
        for pid in pids:
            environment = _text(f"{self._proc}/{pid}/environ")
            if environment is None:
                continue
            if len(pids) == 1 and _text(f"{self._proc}/{pid}/comm") == "pause\n":
                return ObservedContainer(found, path, frozenset(), is_sandbox=True)
            marks = [
                name
                for name, _, value in (line.partition("=") for line in environment.split("\0"))
                if name.startswith(names.MARKER_PREFIX) and value == self._kind
            ]
            parts = frozenset(self._parts[name] for name in marks if name in self._parts)
            unknown = tuple(sorted(name for name in marks if name not in self._parts))
            return ObservedContainer(found, path, parts, unknown)
        return ObservedContainer(found, path, None)

    def _processes(self, path: str) -> set[int]:
        """Processes of a cgroup and those below it; the kernel lists other PID namespaces' as 0."""
        words = (self._tree.read("cpuset", path, "cgroup.procs") or "").split()
        found = {int(word) for word in words if word.isdigit() and word != "0"}
        for name in self._tree.children(path):
            found |= self._processes(f"{path}/{name}")
        return found


def _text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return None
