"""Memory protection under memory pressure, with the driver or the kubelet as owner of the files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.holder import install_holder
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.bed.node import Node
from tests.e2e.cpu import claim, pod_with
from tests.e2e.cpumem import MI, MemoryKernel, holding_pod, wait_for_holding, wanting

pytestmark = [pytest.mark.full, pytest.mark.groups]

KUBELET = "/bed-node/kubelet.json"
CACHED = 160 * MI
CLAIMED = 192 * MI
SPARE = 64 * MI
CACHE = (
    f"dd if=/dev/zero of=/data/file bs=1M count={CACHED // MI} 2> /dev/null; sync; "
    "cat /data/file > /dev/null; echo cached; sleep infinity"
)
"""Fill the page cache of the container: memory that the kernel may reclaim."""


@pytest.mark.parametrize("memory_qos", ["claims", "off"])
def test_memory_pressure_does_not_reclaim_protected_memory(
    cluster: Cluster, node: Node, cpumem_driver: ChartDriver, namespace: str, memory_qos: str
) -> None:
    install_holder(node)
    # The kubelet would evict a pod before the kernel reclaims memory.
    never = {"memory.available": "1Mi", "nodefs.available": "1%"}
    with _kubelet_with(node, evictionHard=never):
        cpumem_driver.deploy(
            driverConfig={"reservedCPUs": "0", "memoryQoS": memory_qos}, kubeletConfig=KUBELET
        )
        cluster.apply([claim("careful", wanting(memory=CLAIMED)), _careful()], namespace)
        careful = cluster.wait_for_pod("careful", namespace)
        cluster.wait("the cache to be full", lambda: "cached" in cluster.logs("careful", namespace))
        container = cluster.container_id(careful)
        before = _cached(node, container)
        assert before >= CACHED * 9 // 10

        # Free memory and the page cache of others, except for a small rest.
        free, cached = _meminfo(node, "MemFree"), _meminfo(node, "Inactive(file)", "Active(file)")
        hog = free + cached - CACHED - SPARE
        cluster.apply(holding_pod("hog", memory=hog), namespace)
        cluster.wait_for_pod("hog", namespace)
        wait_for_holding(cluster, "hog", namespace)
        after = _cached(node, container)
        # Nothing else works on a node without memory, least of all the start of a kubelet.
        cluster.api.delete("v1", "Pod", "hog", namespace, grace=0)
        node.wait("the hog to be gone", lambda: _meminfo(node, "MemFree") > hog // 2, limit=300)
    print(f"{memory_qos}: free {free}, caches {cached}, hog {hog}, cached {before} -> {after}")
    if memory_qos == "claims":
        assert after >= before * 95 // 100
    else:
        assert after < before * 3 // 4


def _careful() -> Manifest:
    pod = pod_with("careful", "careful", command=CACHE)
    pod["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    return pod


def test_the_driver_does_not_write_files_that_the_kubelet_manages(
    cluster: Cluster, node: Node, cpumem_driver: ChartDriver, namespace: str
) -> None:
    install_holder(node)
    with _kubelet_with(node, memoryReservationPolicy="TieredReservation"):
        cpumem_driver.deploy(driverConfig={"reservedCPUs": "0", "memoryQoS": "claims"}, kubeletConfig=KUBELET)
        amounts = {"cpu": "1", "memory": str(64 * MI)}
        resources = {"requests": amounts, "limits": amounts}
        cluster.apply(
            [
                claim("firm", wanting(memory=128 * MI, pages=4)),
                holding_pod("firm", "firm", pages=4, more=1, resources=resources),
            ],
            namespace,
        )
        pod = cluster.wait_for_pod("firm", namespace)
        words = wait_for_holding(cluster, "firm", namespace)
        memory = MemoryKernel(cluster, pod)
        # The kubelet's values: the request, without the claim.
        assert memory.chain("memory.min")[:2] == [str(64 * MI)] * 2
        # The driver still owns the hugepage limits of claims.
        assert "pages: taken\nmore: ENOMEM\n" in words
        assert "memoryReservationPolicy is TieredReservation" in cpumem_driver.log(node)
        cluster.wait_for_event("default", "MemoryQoSYielded", about=node.name, limit=90)
        metrics = cpumem_driver.get(node, "/metrics")
        owner = re.search(r'memory_file_owner\{[^}]*"protection"[^}]*"kubelet"[^}]*\} (\S+)', metrics)
        assert owner is not None
        assert float(owner[1]) == 1


@contextmanager
def _kubelet_with(node: Node, **changes: object) -> Iterator[None]:
    """Run the kubelet with these settings; its own file is on a read-only disk."""
    changed = "/var/lib/bed/kubelet.json"
    node.put(changed, json.dumps(json.loads(node.read(KUBELET)) | changes))
    node.run(f"mount --bind {changed} {KUBELET}")
    try:
        node.restart_service("kubelet")
        yield
    finally:
        node.run(f"umount {KUBELET}")
        node.restart_service("kubelet")


def _cached(node: Node, container: str) -> int:
    """Bytes of page cache that are charged to a container."""
    found = re.search(r"^file (\d+)$", node.cgroup_file(container, "memory.stat"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def _meminfo(node: Node, *rows: str) -> int:
    text = node.read("/proc/meminfo")
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.split(":")[0] in rows)
