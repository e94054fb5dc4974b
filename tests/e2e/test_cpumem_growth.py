"""Hugepages on demand: added before the pod is bound, or the pod is scheduled elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.holder import install_holder
from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import NotYetError
from tests.e2e.cpu import claim
from tests.e2e.cpumem import (
    MI,
    PAGE,
    MemoryKernel,
    holding_pod,
    numa_memory,
    parse_bytes,
    wait_for_holding,
    wanting,
)

pytestmark = [pytest.mark.full, pytest.mark.groups]
WANTED = 250
LEFT = 160 * MI
"""Memory that the hog leaves free: not enough for the pages."""
CONFIG = {
    "reservedCPUs": "0",
    "hugepageGrowth": "*:2Mi=300",
    "hugepageShrinkSeconds": 2,
    "rediscoverSeconds": 5,
}


def test_pages_are_added_before_the_pod_is_bound_or_it_is_scheduled_elsewhere(
    cluster: Cluster, node: Node, cpumem_driver: ChartDriver, namespace: str
) -> None:
    cpumem_driver.deploy(driverConfig=CONFIG, kubeletConfig="/bed-node/kubelet.json")
    install_holder(node)
    before = {number: each.pages[PAGE] for number, each in numa_memory(node).items()}
    offered = _offered_pages(cluster, node)
    assert offered == {f"numa{number}": pages + 300 for number, pages in before.items()}
    with _memory_of_node_0_taken(node):
        cluster.apply(
            [claim("dpdk", wanting(cpus=1, pages=WANTED)), holding_pod("dpdk", "dpdk", pages=8, more=0)],
            namespace,
        )
        pod = cluster.wait_for_pod("dpdk", namespace)
        wait_for_holding(cluster, "dpdk", namespace)
        kept = cluster.api.get("resource.k8s.io/v1", "ResourceClaim", "dpdk", namespace)["status"]
        (result,) = kept["allocation"]["devices"]["results"]
        assert result["device"] == "numa1"
        (status,) = kept["devices"]
        assert [(each["type"], each["status"]) for each in status["conditions"]] == [
            ("dra.cpumem/HugepagesReady", "True")
        ]
        now = {number: each.pages[PAGE] for number, each in numa_memory(node).items()}
        assert now == {0: before[0], 1: max(before[1], WANTED)}
        assert MemoryKernel(cluster, pod).huge() == {1: 8 * PAGE}
        assert _offered_pages(cluster, node)["numa0"] < WANTED, "not offered where there is no room"
        assert "cannot be bound to this node" in cpumem_driver.log(node)
    cluster.api.delete("v1", "Pod", "dpdk", namespace)

    def given_back() -> bool:
        pages = numa_memory(node)[1].pages[PAGE]
        if pages != before[1]:
            raise NotYetError(f"NUMA node 1 has {pages} pages, not {before[1]}")
        return True

    cluster.wait("the grown pages to be given back", given_back)


def _offered_pages(cluster: Cluster, node: Node) -> dict[str, int]:
    (published,) = cluster.slices("dra.cpumem", node.name)
    for device in published["spec"]["devices"]:
        assert device["bindingConditions"] == ["dra.cpumem/HugepagesReady"]
        assert device["bindsToNode"] is True
    return {
        device["name"]: parse_bytes(device["capacity"]["dra.cpumem/hugepages2Mi"]["value"]) // PAGE
        for device in published["spec"]["devices"]
    }


@contextmanager
def _memory_of_node_0_taken(node: Node) -> Iterator[None]:
    """A process outside Kubernetes that uses nearly all memory of NUMA node 0."""
    free = node.python(_TAKE, 300, left=LEFT)
    assert free <= LEFT
    try:
        yield
    finally:
        node.python(_GIVE)


# Page cache goes first when memory is short, so it is dropped before, and the kernel has no swap.
_TAKE = r"""
import subprocess, sys
HOG = '''
import ctypes, mmap, re, sys, time
left = int(sys.argv[1])
mask = ctypes.c_ulong(1)
MPOL_BIND, SYS_SET_MEMPOLICY = 2, 238
assert ctypes.CDLL(None, use_errno=True).syscall(SYS_SET_MEMPOLICY, MPOL_BIND, ctypes.byref(mask), 64) == 0
def free():
    with open("/sys/devices/system/node/node0/meminfo") as file:
        return int(re.search(r"MemFree:\\s+(\\d+) kB", file.read())[1]) << 10
held = []
while free() > left:
    block = mmap.mmap(-1, 16 << 20)
    for place in range(0, len(block), 4096):
        block[place] = 1
    held.append(block)
print(free(), flush=True)
time.sleep(3600)
'''
with open("/proc/sys/vm/drop_caches", "w") as file:
    file.write("3")
process = subprocess.Popen([sys.executable, "-c", HOG, str(left)], stdout=subprocess.PIPE, text=True)
sys.modules["bed_hog"] = process
result = int(process.stdout.readline())
"""
_GIVE = """
import sys
process = sys.modules.pop("bed_hog")
process.kill()
process.wait()
result = None
"""
