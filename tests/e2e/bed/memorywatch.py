"""Continuous check that the memory and hugepages of NUMA nodes are not overcommitted.

A thread in the guest's agent adds up the guarantees in the cgroups of pods (``memory.min``,
``hugetlb.2MB.max``) by the NUMA nodes that their containers are bound to, and compares the sums with
``/sys/devices/system/node``. For every set of nodes, the pods that are bound only to nodes of this set
must fit into it. Pages on a node that the pod is not bound to are reported, too.

Only pods with a container that is bound (``cpuset.mems``) count: those are the ones with claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .guest import CONTAINER_CGROUP
from .node import Node


@dataclass(frozen=True)
class MemoryReport:
    """Observations since the start of the watch."""

    looks: int
    violations: tuple[str, ...]
    pods: int
    """Pods that were seen with guarantees."""
    most: dict[str, int]
    """The largest guaranteed sum at any time, by kind, in bytes."""

    def check(self) -> None:
        """Assert that nothing was guaranteed twice."""
        assert not self.violations, "\n".join(self.violations)


class MemoryWatch:
    """A running watch on one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def report(self) -> MemoryReport:
        """Observations so far."""
        seen: dict[str, Any] = self._node.python(_REPORT)
        return MemoryReport(**{**seen, "violations": tuple(seen["violations"])})


@contextmanager
def watching_memory(
    node: Node, below: str = "", nodes: str = "/sys/devices/system/node"
) -> Iterator[MemoryWatch]:
    """Watch the pods of the cgroups ``below``, by default the kubelet's."""
    below = below or node.guest.kubepods
    node.python(_START, below=below, nodes=nodes, pattern=CONTAINER_CGROUP)
    try:
        yield MemoryWatch(node)
    finally:
        node.python(_STOP)


_START = r"""
import glob, os, re, sys, threading, time, types

state = types.ModuleType("bed_memory_watch")
state.ended, state.looks, state.violations = threading.Event(), 0, {}
state.pods, state.most = set(), {"memory": 0, "hugepages": 0}
sys.modules["bed_memory_watch"] = state
PAGE = 2 << 20

def read(path):
    with open(path) as file:
        return file.read()

def numbers(text):
    found = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)

def room():
    found = {"memory": {}, "hugepages": {}}
    for directory in glob.glob(nodes + "/node[0-9]*"):
        number = int(directory.rpartition("node")[2])
        total = int(re.search(r"MemTotal:\s+(\d+) kB", read(directory + "/meminfo"))[1]) << 10
        for pool in glob.glob(directory + "/hugepages/hugepages-*kB"):
            size = int(re.search(r"-(\d+)kB", pool)[1]) << 10
            there = int(read(pool + "/nr_hugepages")) * size
            total -= there
            if size == PAGE:
                found["hugepages"][number] = there
        found["memory"][number] = total
    return found

def pods(directory):
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            if re.match("(.*-)?pod", entry.name):
                yield entry.path
            else:
                yield from pods(entry.path)

def amount(text):
    return 0 if text.strip() == "max" else int(text)

def guarantees(pod):
    bound = frozenset()
    for entry in os.scandir(pod):
        if entry.is_dir(follow_symlinks=False) and re.fullmatch(pattern, entry.name):
            if read(entry.path + "/cgroup.procs").strip():
                bound |= numbers(read(entry.path + "/cpuset.mems"))
    if not bound:
        return None  # no claims, or no container yet
    used = read(pod + "/hugetlb.2MB.numa_stat")
    there = {int(n) for n, count in re.findall(r"\bN(\d+)=(\d+)", used.splitlines()[0]) if int(count)}
    kept = amount(read(pod + "/memory.min")) + amount(read(pod + "/memory.low"))
    pages = amount(read(pod + "/hugetlb.2MB.max"))
    return bound, {"memory": kept, "hugepages": pages}, there

def look_at(pod):
    try:
        return guarantees(pod)
    except (OSError, IndexError):
        return None  # it ended under our eyes

def still(seen):
    return all(look_at(pod) == found for pod, found in seen.items())

def note(what):
    state.violations.setdefault(what, round(time.time() - begin, 2))

def judge(seen):
    have = room()
    sets = {found[0] for found in seen.values()}
    sets |= {frozenset(have["memory"])}
    for group in sets:
        inside = {pod: found for pod, found in seen.items() if found[0] <= group}
        for kind in have:
            total = sum(found[1][kind] for found in inside.values())
            limit = sum(have[kind].get(number, 0) for number in group)
            state.most[kind] = max(state.most[kind], total)
            # Files are read one after the other: it counts if all is still so.
            if total > limit and still(inside):
                names = ", ".join(sorted(os.path.basename(pod) for pod in inside))
                note(f"nodes {sorted(group)} have {limit} bytes of {kind}, {total} are guaranteed to {names}")
    for pod, (bound, _, there) in seen.items():
        if there - bound:
            note(f"{os.path.basename(pod)} is bound to nodes {sorted(bound)}, has pages of {sorted(there)}")

def watch():
    while not state.ended.is_set():
        started = time.monotonic()
        try:
            found = {pod: look_at(pod) for pod in list(pods(below))}
            seen = {pod: each for pod, each in found.items() if each is not None}
            state.pods.update(seen)
            judge(seen)
            state.looks += 1
        except FileNotFoundError:
            pass  # a directory ended under our eyes, or there is none yet
        state.ended.wait(min(3 * (time.monotonic() - started), 0.3))

begin = time.time()
state.thread = threading.Thread(target=watch, daemon=True)
state.thread.start()
result = None
"""
_REPORT = """
import sys
state = sys.modules["bed_memory_watch"]
result = {
    "looks": state.looks,
    "violations": [f"{when} s: {what}" for what, when in state.violations.copy().items()],
    "pods": len(state.pods),
    "most": dict(state.most),
}
"""
_STOP = """
import sys
state = sys.modules.pop("bed_memory_watch")
state.ended.set()
state.thread.join()
result = None
"""
