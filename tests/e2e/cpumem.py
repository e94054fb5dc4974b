"""Helpers for tests of CPUs with memory: claims, pods that use their claims, kernel files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.holder import hold, with_holder
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import NotYetError
from tests.e2e.cpu import pod_with

CLASS = "dra.cpumem"
MI = 1 << 20
PAGE = 2 * MI
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": MI, "Gi": 1 << 30}


def on_numa_node(number: int) -> str:
    """A CEL selector for devices of one NUMA node."""
    return f'device.attributes["dra.cpumem"].numaNodeID == {number}'


def wanting(*selectors: str, cpus: int = 0, memory: int = 0, pages: int = 0, name: str = "all") -> Manifest:
    """A request for CPUs, bytes of memory and pages of 2 Mi, all of one device."""
    asked = {
        f"{CLASS}/cpu": str(cpus),
        f"{CLASS}/memory": str(memory),
        f"{CLASS}/hugepages2Mi": str(pages * PAGE),
    }
    exactly: Manifest = {
        "deviceClassName": CLASS,
        "capacity": {"requests": {key: value for key, value in asked.items() if value != "0"}},
    }
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    return {"name": name, "exactly": exactly}


def holding_pod(
    name: str,
    *claims: str,
    memory: int = 0,
    pages: int = 0,
    more: int = 0,
    resources: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Manifest:
    """A pod with these claims that allocates memory and pages, tries ``more`` pages, and waits."""
    pod = pod_with(name, *claims, command=hold(memory, pages, more), **spec)
    (container,) = pod["spec"]["containers"]
    container["resources"] = {**container["resources"], **(resources or {})}
    return with_holder(pod)


def wait_for_holding(cluster: Cluster, pod: str, namespace: str, container: str = "main") -> str:
    """Wait until a container has allocated what it can, and return its output."""

    def words() -> str:
        text = cluster.logs(pod, namespace, container)
        if "holding" not in text:
            raise NotYetError(f"{pod} says {text!r}")
        return text

    return cluster.wait(f"{pod} to hold its memory", words)


def parse_bytes(quantity: str) -> int:
    """A published amount in bytes."""
    number, unit = re.fullmatch(r"(\d+)([KMG]i)?", quantity).groups("")  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


@dataclass(frozen=True, slots=True)
class NumaMemory:
    """A NUMA node of the guest, by ``/sys/devices/system/node``."""

    total: int
    pages: Mapping[int, int]
    """By page size in bytes."""

    @property
    def ordinary(self) -> int:
        """Bytes outside of hugepage pools."""
        return self.total - sum(size * count for size, count in self.pages.items())


def numa_memory(node: Node) -> dict[int, NumaMemory]:
    """Memory of each NUMA node of the guest."""
    seen = node.python(_NUMA)
    return {
        int(number): NumaMemory(each["total"], {int(k): v for k, v in each["pages"].items()})
        for number, each in seen.items()
    }


class MemoryKernel:
    """Current kernel state of a container's memory."""

    def __init__(self, cluster: Cluster, pod: Manifest, container: str = "") -> None:
        self._node = cluster.node_of(pod)
        self.container = cluster.container_id(pod, container)
        found = self._node.python(_LOOK, path=self._node.container_cgroup(self.container))
        self._chain: list[dict[str, str]] = found["chain"]
        self._maps: str = found["maps"]

    def chain(self, file: str) -> list[str]:
        """One file of the container, its pod, its QoS class if it has one, and kubepods."""
        return [each[file] for each in self._chain]

    def file(self, name: str) -> str:
        """One file of the container."""
        return self._chain[0][name]

    def pod_file(self, name: str) -> str:
        """One file of its pod."""
        return self._chain[1][name]

    def page_limits(self) -> tuple[str, str, str, str]:
        """Both limits of 2 Mi pages: of the container, then of its pod."""
        files = ("hugetlb.2MB.rsvd.max", "hugetlb.2MB.max")
        here, above = (tuple(level[file] for file in files) for level in self._chain[:2])
        return (*here, *above)  # type: ignore[return-value]

    def anonymous(self) -> dict[int, int]:
        """Bytes of touched anonymous memory by NUMA node, by the cgroup."""
        return _by_node(self.file("memory.numa_stat"), "anon ")

    def huge(self) -> dict[int, int]:
        """Bytes in 2 Mi pages by NUMA node, by the cgroup."""
        return _by_node(self.file("hugetlb.2MB.numa_stat"), "total=")

    def mapped(self) -> tuple[set[int], dict[int, int]]:
        """By ``numa_maps``: the nodes of the process's anonymous pages, and its hugepages by node."""
        nodes: set[int] = set()
        huge: dict[int, int] = {}
        for line in self._maps.splitlines():
            words = line.split()
            found = {int(n): int(c) for n, c in re.findall(r"\bN(\d+)=(\d+)", line)}
            if "huge" in words:
                huge = {n: huge.get(n, 0) + found.get(n, 0) for n in huge.keys() | found.keys()}
            elif "anon=" in line and "file=" not in line:
                nodes |= found.keys()
        return nodes, huge


def _by_node(text: str, row: str) -> dict[int, int]:
    """The nodes of one row with a value above zero."""
    (line,) = (each for each in text.splitlines() if each.startswith(row))
    return {int(n): int(count) for n, count in re.findall(r"\bN(\d+)=(\d+)", line) if int(count)}


_LOOK = """
import os
FILES = (
    "memory.min", "memory.low", "memory.high", "memory.events", "memory.numa_stat",
    "hugetlb.2MB.rsvd.max", "hugetlb.2MB.max", "hugetlb.2MB.events", "hugetlb.2MB.numa_stat",
)
chain = []
with open(path + "/cgroup.procs") as file:
    pid = file.read().split()[0]
while path != "/sys/fs/cgroup":
    level = {}
    for name in FILES:
        with open(path + "/" + name) as file:
            level[name] = file.read().strip()
    chain.append(level)
    path = os.path.dirname(path)
with open(f"/proc/{pid}/numa_maps") as file:
    result = {"chain": chain, "maps": file.read()}
"""
_NUMA = r"""
import glob, re
result = {}
for directory in glob.glob("/sys/devices/system/node/node[0-9]*"):
    with open(directory + "/meminfo") as file:
        total = int(re.search(r"MemTotal:\s+(\d+) kB", file.read())[1]) << 10
    pages = {}
    for pool in glob.glob(directory + "/hugepages/hugepages-*kB"):
        with open(pool + "/nr_hugepages") as file:
            pages[int(re.search(r"-(\d+)kB", pool)[1]) << 10] = int(file.read())
    result[directory.rpartition("node")[2]] = {"total": total, "pages": pages}
"""
