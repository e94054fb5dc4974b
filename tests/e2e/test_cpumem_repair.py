"""Foreign writes to files of dra-driver-cpumem are corrected, on a real kernel and runtime."""

from __future__ import annotations

import re

import pytest

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.holder import install_holder
from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import NotYetError
from tests.e2e.cpu import claim
from tests.e2e.cpumem import MI, PAGE, holding_pod, on_numa_node, wait_for_holding, wanting

pytestmark = pytest.mark.groups

MEMORY = 64 * MI
PAGES = 4
FOREIGN = {
    "cpuset.cpus": "0-7",
    "cpuset.mems": "0-1",
    "cpu.max": "50000 100000",
    "memory.min": "4096",
    "hugetlb.2MB.max": str(9 * PAGE),
    "hugetlb.2MB.rsvd.max": str(9 * PAGE),
}
"""Hugepage limits are raised: the kernel does not lower them below what is in use."""


def test_foreign_values_in_all_owned_files_are_corrected(
    cluster: Cluster, node: Node, cpumem_driver: ChartDriver, namespace: str
) -> None:
    cpumem_driver.deploy(
        driverConfig={"reservedCPUs": "0", "memoryQoS": "claims", "verifySeconds": 5},
        kubeletConfig="/bed-node/kubelet.json",
    )
    install_holder(node)
    request = wanting(on_numa_node(1), cpus=2, memory=MEMORY, pages=PAGES)
    cluster.apply([claim("all", request), holding_pod("all", "all", pages=PAGES, more=1)], namespace)
    pod = cluster.wait_for_pod("all", namespace)
    assert "more: ENOMEM" in wait_for_holding(cluster, "all", namespace)
    container = cluster.container_id(pod)
    cgroup = node.container_cgroup(container)  # not that of CRI-O's monitor, which has its id, too
    before = node.python(_CHAIN, path=cgroup, write={})
    mine, its_pod, qos_class, kubepods = before
    assert mine["memory.min"] == its_pod["memory.min"] == qos_class["memory.min"] == str(MEMORY)
    assert int(kubepods["memory.min"]) >= MEMORY
    for name in ("hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"):
        assert mine[name] == its_pod[name] == str(PAGES * PAGE)
    assert mine["cpu.max"].startswith("max ")
    pod_files = {name: FOREIGN[name] for name in FOREIGN if not name.startswith("cpu")}
    above = {"memory.min": FOREIGN["memory.min"]}
    for level, files in ((0, FOREIGN), (1, pod_files), (2, above), (3, above)):
        wrong = node.python(_CHAIN, path=cgroup, write={str(level): files})
        changed = {name for name in files if wrong[level][name] != before[level][name]}
        assert changed == set(files), f"level {level} took {wrong[level]}"

        def put_right(level: int = level) -> bool:
            now = node.python(_CHAIN, path=cgroup, write={})
            if now[level] != before[level]:
                raise NotYetError(f"level {level} has {now[level]}, had {before[level]}")
            return True

        cluster.wait(f"the files of level {level} to be put right", put_right, limit=60)
    found = re.search(r'drift_total\{[^}]*"found"[^}]*\} (\S+)', cpumem_driver.get(node, "/metrics"))
    assert found is not None
    assert float(found[1]) >= len(FOREIGN)


_CHAIN = """
import os
FILES = ("cpuset.cpus", "cpuset.mems", "cpu.max", "memory.min", "hugetlb.2MB.max", "hugetlb.2MB.rsvd.max")
result = []
for level in range(4):
    for name, value in write.get(str(level), {}).items():
        with open(path + "/" + name, "w") as file:
            file.write(value)
    seen = {}
    for name in FILES:
        with open(path + "/" + name) as file:
            seen[name] = file.read().strip()
    result.append(seen)
    path = os.path.dirname(path)
"""
