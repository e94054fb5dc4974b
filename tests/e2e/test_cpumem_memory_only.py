"""Memory behind a CXL expander: claims for a NUMA node without CPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.holder import install_holder
from tests.e2e.bed.node import Node
from tests.e2e.bed.shapes import Shape
from tests.e2e.cpu import Kernel, claim
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
FAR = 3


@pytest.fixture(scope="module")
def far(cluster: Cluster, shapes: dict[str, Shape]) -> Iterator[Node]:
    """A node whose last NUMA node has no CPUs."""
    node = cluster.add_node("node-cxl", shapes["cxl"])
    try:
        yield node
    finally:
        cluster.remove_node(node)


def test_memory_of_a_node_without_cpus_is_offered_and_bound(
    cluster: Cluster, far: Node, cpumem_driver: ChartDriver, namespace: str
) -> None:
    config = {"reservedCPUs": "0", "memoryQoS": "claims"}
    cpumem_driver.deploy(driverConfig=config, kubeletConfig="/bed-node/kubelet.json")
    (published,) = cluster.slices("dra.cpumem", far.name)
    devices = {device["name"]: device for device in published["spec"]["devices"]}
    assert sorted(devices) == ["numa0", "numa1", "numa2", "numa3"]
    device, there = devices[f"numa{FAR}"], numa_memory(far)[FAR]
    offered = {key: parse_bytes(each["value"]) for key, each in device["capacity"].items()}
    assert device["attributes"]["dra.cpumem/memoryOnly"] == {"bool": True}
    assert "dra.cpumem/cpu" not in offered
    # The system uses the nodes with CPUs: nothing of this node is reserved for it.
    assert offered["dra.cpumem/memory"] == there.ordinary // (2 * MI) * 2 * MI
    assert offered["dra.cpumem/hugepages2Mi"] == there.pages[PAGE] * PAGE

    install_holder(far)
    request = wanting(memory=128 * MI, pages=8)
    request["exactly"]["deviceClassName"] = "dra.cpumem-memory-only"
    here = {"kubernetes.io/hostname": far.name}
    cluster.apply(
        [
            claim("far", request),
            holding_pod("far", "far", memory=128 * MI, pages=8, more=1, nodeSelector=here),
        ],
        namespace,
    )
    pod = cluster.wait_for_pod("far", namespace)
    words = wait_for_holding(cluster, "far", namespace)
    assert "pages: taken\nmore: ENOMEM\n" in words
    kernel, memory = Kernel(cluster, pod), MemoryKernel(cluster, pod)
    assert kernel.mems == {FAR}
    assert kernel.cpus == frozenset(range(1, 6))
    assert memory.anonymous().keys() == {FAR}
    assert memory.mapped() == ({FAR}, {FAR: 8})
    assert memory.chain("memory.min") == [str(128 * MI)] * 4
