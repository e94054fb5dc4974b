"""dra-driver-cpu with one device per CPU: the scheduler selects every CPU, the kernel confirms it."""

from __future__ import annotations

import pytest

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.bed.node import Node
from tests.e2e.cpu import assert_individual_slices_match, claim, devices, on_numa_node, pod_with, running


@pytest.fixture(scope="module")
def driver(cluster: Cluster, cpu_driver: ChartDriver) -> ChartDriver:
    """The driver in individual mode, CPU 0 reserved."""
    cpu_driver.deploy(driverConfig={"cpuDeviceMode": "individual", "reservedCPUs": "0"})
    return cpu_driver


def _allocated(cluster: Cluster, name: str, namespace: str) -> frozenset[int]:
    """The CPUs in the allocation result of a claim."""
    found: Manifest = cluster.api.get("resource.k8s.io/v1", "ResourceClaim", name, namespace)
    results = found["status"]["allocation"]["devices"]["results"]
    return frozenset(int(result["device"].removeprefix("cpudev")) for result in results)


def test_the_slices_match_the_machine_cpu_by_cpu(driver: ChartDriver, cluster: Cluster, node: Node) -> None:
    assert_individual_slices_match(cluster, node, reserved={0})


def test_the_container_gets_the_cpus_the_scheduler_named(
    driver: ChartDriver, cluster: Cluster, namespace: str
) -> None:
    chosen = 'device.attributes["dra.cpu"].cpuID == 5'
    cluster.apply(
        [
            claim("named", devices(1, chosen)),
            pod_with("five", "named"),
            claim("pair", devices(2, on_numa_node(0))),
            pod_with("pair", "pair"),
        ],
        namespace,
    )
    five, pair = running(cluster, namespace, "five", "pair")
    five.runs_only_on({5})
    assert five.mems == {1}
    pair.runs_only_on(_allocated(cluster, "pair", namespace))
    assert pair.cpus == {2, 3}  # SMT siblings: devices are listed core by core, whole cores first
    assert pair.mems == {0}
