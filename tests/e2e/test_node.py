"""Tests of the test cluster itself: the node matches its shape and runs pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.node import Node
from tests.e2e.bed.pins import Pins
from tests.e2e.bed.shapes import parse_cpus
from tests.e2e.cpu import BUSY

_TOPOLOGY = """
import glob, os
def read(path):
    with open(path) as file:
        return file.read().strip()
cpus = {}
for directory in glob.glob("/sys/devices/system/cpu/cpu[0-9]*"):
    caches = glob.glob(directory + "/cache/index*")
    l3 = [c for c in caches if read(c + "/level") == "3"]
    cpus[directory.rpartition("cpu")[2]] = {
        "siblings": read(directory + "/topology/thread_siblings_list"),
        "package": read(directory + "/topology/package_cpus_list"),
        "l3": read(l3[0] + "/shared_cpu_list"),
    }
nodes = {}
for directory in glob.glob("/sys/devices/system/node/node[0-9]*"):
    pages = {os.path.basename(p): read(p + "/nr_hugepages")
             for p in glob.glob(directory + "/hugepages/*")}
    nodes[directory.rpartition("node")[2]] = {
        "cpus": read(directory + "/cpulist"),
        "kib": int([l.split()[3] for l in read(directory + "/meminfo").splitlines()
                    if "MemTotal" in l][0]),
        "hugepages": pages,
    }
result = {"cpus": cpus, "nodes": nodes}
"""
_SIZES = {"2M": "hugepages-2048kB", "1G": "hugepages-1048576kB"}


def assert_machine_is_its_shape(node: Node) -> None:
    """Compare every CPU, cache, NUMA node and hugepage with the shape."""
    shape = node.shape
    seen: dict[str, Any] = node.python(_TOPOLOGY)
    assert sorted(map(int, seen["cpus"])) == list(range(shape.cpu_count))
    for name, cpu in seen["cpus"].items():
        assert set(parse_cpus(cpu["siblings"])) == shape.siblings(int(name))
        assert set(parse_cpus(cpu["package"])) == shape.socket_mates(int(name))
        assert set(parse_cpus(cpu["l3"])) == shape.l3_mates(int(name))
    assert sorted(map(int, seen["nodes"])) == list(range(len(shape.numa)))
    for name, numa in seen["nodes"].items():
        expected = shape.numa[int(name)]
        assert parse_cpus(numa["cpus"]) == expected.cpus
        # The kernel reserves some memory, most of it on node 0.
        assert expected.mib * 0.85 < numa["kib"] / 1024 <= expected.mib
    for size, directory in _SIZES.items():
        pages = [int(numa["hugepages"][directory]) for numa in seen["nodes"].values()]
        assert sum(pages) == shape.hugepages[size]
        assert max(pages) - min(pages) <= 1


def test_the_node_has_exactly_the_topology_and_hugepages_of_its_shape(node: Node) -> None:
    assert_machine_is_its_shape(node)


def test_the_node_runs_the_pinned_versions(cluster: Cluster, node: Node, pins: Pins) -> None:
    info = cluster.api.get("v1", "Node", node.name)["status"]["nodeInfo"]
    assert info["kubeletVersion"] == f"v{pins.kubernetes}"
    containerd = "1.7" if pins.containerd_is_debians else pins.containerd
    expected = f"cri-o://{pins.crio}" if pins.is_crio else f"containerd://{containerd}"
    assert info["containerRuntimeVersion"].startswith(expected)
    assert cluster.api.call("GET", "/version")["gitVersion"] == f"v{pins.kubernetes}"


def test_hugepages_can_be_requested_from_the_node(cluster: Cluster, node: Node) -> None:
    allocatable = cluster.api.get("v1", "Node", node.name)["status"]["allocatable"]
    assert allocatable["hugepages-2Mi"] == f"{node.shape.hugepages['2M'] * 2}Mi"
    assert allocatable["hugepages-1Gi"] == f"{node.shape.hugepages['1G']}Gi"


@pytest.fixture(scope="module")
def pods(cluster: Cluster) -> Iterator[str]:
    """The namespace of two plain pods, started at once."""
    with cluster.namespace("pods") as name:
        talker = busybox_pod("talker", "echo hello from the guest")
        cluster.apply([busybox_pod("plain", BUSY), talker], name)
        yield name


def test_a_plain_pod_runs_on_every_cpu_of_the_machine(cluster: Cluster, node: Node, pods: str) -> None:
    pod = cluster.wait_for_pod("plain", pods)
    container = cluster.container_id(pod)
    everything = frozenset(range(node.shape.cpu_count))
    assert node.effective_cpus(container) == everything
    assert node.effective_mems(container) == frozenset(range(len(node.shape.numa)))
    pid = min(node.pids(container))  # the shell, which sometimes has a sleeping child
    assert node.allowed_cpus(pid) == everything
    assert node.last_cpus(pid) <= everything


def test_the_log_of_a_pod_is_read_through_the_api_server(cluster: Cluster, pods: str) -> None:
    cluster.wait_for_pod("talker", pods, "Succeeded")
    assert cluster.logs("talker", pods) == "hello from the guest\n"


def test_the_sampler_sees_where_a_pinned_loop_runs(node: Node) -> None:
    loop = node.spawn("pinned-loop", ["taskset", "--cpu-list", "3", "sh", "-c", "while :; do :; done"])
    try:
        node.wait("the loop to be pinned", lambda: node.allowed_cpus(loop.pid) == {3})
        assert node.last_cpus(loop.pid) == {3}
    finally:
        loop.kill()


@pytest.mark.full
def test_a_rebooted_node_becomes_ready_and_its_pods_run_again(
    cluster: Cluster, node: Node, namespace: str
) -> None:
    cluster.apply(busybox_pod("survivor", restartPolicy="Always"), namespace)
    before = cluster.container_id(cluster.wait_for_pod("survivor", namespace))
    boot = node.read("/proc/sys/kernel/random/boot_id")
    node.reboot()
    cluster.wait_for_ready(node)
    assert node.read("/proc/sys/kernel/random/boot_id") != boot
    cluster.wait(
        "a new container of the pod",
        lambda: cluster.container_id(cluster.wait_for_pod("survivor", namespace)) != before,
    )
