"""Pods and containers as the cgroup tree shows them, without asking a runtime."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import PreparedClaim

_POD: Final = re.compile(r"(?:.*-)?pod(?P<uid>[0-9A-Za-z._-]{8,}?)(?:\.slice)?")
_CONTAINER: Final = re.compile(
    r"(?:(?:cri-containerd|crio|docker)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?"
)
_DEEPEST: Final = 6
"""Levels between the mount and a pod's cgroup: cgroupRoot, kubepods and QoS class at most."""
_LARGEST_FILE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SeenContainer:
    """A container's cgroup, and the claims that its processes show."""

    id: str
    path: str
    """Below the mount."""
    parts: frozenset[names.ClaimRequest] | None
    """The requests of claims it uses; None where its processes cannot be looked at."""
    strange: tuple[str, ...] = ()
    """Marker variables of claims that the checkpoint does not have."""
    is_sandbox: bool = False
    """It holds the pod's namespaces only (``pause``); nobody sets its limits."""


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod's cgroup."""

    uid: str
    path: str
    containers: tuple[SeenContainer, ...]


class Looker:
    """Reads the cgroups mounted at *root* and the processes below *proc*."""

    def __init__(
        self, root: str, proc: str, cdi_kind: str, entries: Iterable[PreparedClaim]
    ) -> None:
        self._root = root
        self._proc = proc
        self._kind = cdi_kind
        self._parts = {names.marker_variable(p): p for e in entries for p in names.requests_of(e)}

    def pods(self) -> list[SeenPod]:
        """All pods there are, in the order of their paths."""
        found = []
        for uid, path in sorted(self._pod_cgroups(), key=lambda each: each[1]):
            inner = sorted(_directories(os.path.join(self._root, path)))
            containers = [
                self._container(match["id"], f"{path}/{name}")
                for name in inner
                if (match := _CONTAINER.fullmatch(name))
            ]
            found.append(SeenPod(uid, path, tuple(containers)))
        return found

    def read(self, path: str, file: str) -> str | None:
        """The first line of a cgroup's file; None when there is none."""
        text = _text(os.path.join(self._root, path, file))
        return None if text is None else text.partition("\n")[0].strip()

    def _pod_cgroups(self) -> Iterator[tuple[str, str]]:
        level = [""]
        for _depth in range(_DEEPEST):
            below = []
            for place in level:
                for name in _directories(os.path.join(self._root, place)):
                    path = f"{place}/{name}".lstrip("/")
                    match = _POD.fullmatch(name)
                    if match:
                        yield match["uid"].replace("_", "-"), path
                    else:
                        below.append(path)
            level = below

    def _container(self, container_id: str, path: str) -> SeenContainer:
        pids = sorted(self._processes(os.path.join(self._root, path)))
        for pid in pids:
            environment = _text(f"{self._proc}/{pid}/environ")
            if environment is None:
                continue
            if len(pids) == 1 and _text(f"{self._proc}/{pid}/comm") == "pause\n":
                return SeenContainer(container_id, path, frozenset(), is_sandbox=True)
            marks = [
                name
                for name, _, value in (line.partition("=") for line in environment.split("\0"))
                if name.startswith(names.MARKER_PREFIX) and value == self._kind
            ]
            parts = frozenset(self._parts[name] for name in marks if name in self._parts)
            strange = tuple(sorted(name for name in marks if name not in self._parts))
            return SeenContainer(container_id, path, parts, strange)
        return SeenContainer(container_id, path, None)

    def _processes(self, place: str) -> set[int]:
        """Processes of a cgroup and those below it; ones of other PID namespaces show as 0."""
        words = (_text(os.path.join(place, "cgroup.procs")) or "").split()
        found = {int(word) for word in words if word.isdigit() and word != "0"}
        for name in _directories(place):
            found |= self._processes(os.path.join(place, name))
        return found


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return None
