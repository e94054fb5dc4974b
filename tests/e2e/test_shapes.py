"""The other VM shapes match their definition, and so do the slices of a driver on them.

They join the cluster as further nodes, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.bed.node import Node
from tests.e2e.bed.shapes import Shape
from tests.e2e.cpu import (
    amount,
    assert_individual_slices_match,
    claim,
    devices,
    on_numa_node,
    pod_with,
    running,
)
from tests.e2e.test_node import assert_machine_is_its_shape

pytestmark = pytest.mark.full
RESERVED = frozenset({0})


@pytest.fixture(scope="module", params=["llc", "cxl"])
def other(cluster: Cluster, shapes: dict[str, Shape], request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node of another shape."""
    node = cluster.add_node(f"node-{request.param}", shapes[request.param])
    try:
        yield node
    finally:
        cluster.remove_node(node)


def _on(node: Node, pod: Manifest) -> Manifest:
    return {**pod, "spec": {**pod["spec"], "nodeSelector": {"kubernetes.io/hostname": node.name}}}


def test_the_machine_is_its_shape(other: Node) -> None:
    assert_machine_is_its_shape(other)


def test_the_slices_match_the_machine_cpu_by_cpu(
    cluster: Cluster, cpu_driver: ChartDriver, other: Node, namespace: str
) -> None:
    cpu_driver.deploy(driverConfig={"cpuDeviceMode": "individual", "reservedCPUs": "0"})
    assert_individual_slices_match(cluster, other, RESERVED)
    last = other.shape.cpu_count - 1
    chosen = f'device.attributes["dra.cpu"].cpuID == {last}'
    cluster.apply([claim("last", devices(1, chosen)), _on(other, pod_with("last", "last"))], namespace)
    (pod,) = running(cluster, namespace, "last")
    pod.runs_only_on({last})
    assert pod.mems == {number for number, numa in enumerate(other.shape.numa) if last in numa.cpus}


@pytest.mark.groups
def test_groups_are_the_numa_nodes_with_cpus_and_caches_are_respected(
    cluster: Cluster, cpu_driver: ChartDriver, other: Node, namespace: str
) -> None:
    cpu_driver.deploy(driverConfig={"reservedCPUs": "0"})
    (published,) = cluster.slices("dra.cpu", other.name)
    offered = {
        device["name"]: device["attributes"]["dra.cpu/numCPUs"]["int"]
        for device in published["spec"]["devices"]
    }
    assert offered == {
        f"cpudevnuma{number:03d}": len(set(numa.cpus) - RESERVED)
        for number, numa in enumerate(other.shape.numa)
        if numa.cpus
    }
    number = max(n for n, numa in enumerate(other.shape.numa) if numa.cpus)
    together = {"apiVersion": "v1alpha1", "cpuConfig": {"sameL3": "required"}}
    two = claim("two", amount(2, on_numa_node(number)), config=together)
    cluster.apply([two, _on(other, pod_with("two", "two"))], namespace)
    (pod,) = running(cluster, namespace, "two")
    pod.runs_only_on(pod.cpus)
    (first, second) = pod.cpus
    assert second in other.shape.l3_mates(first)
    assert pod.mems == {number}
