"""dra-driver-cpumem assigns CPUs, memory and hugepages of one NUMA node, verified by the guest's kernel.

The node: NUMA node 0 has CPUs 0-3, node 1 has 4-7; each has 64 pages of 2 Mi and one of 1 Gi. The
kubelet has its defaults (1.37: Memory QoS on, without protection).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.holder import hold, install_holder, with_holder
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import NotYetError
from tests.e2e.cpu import Kernel, claim, pod_with
from tests.e2e.cpumem import (
    MI,
    PAGE,
    MemoryKernel,
    holding_pod,
    numa_memory,
    on_numa_node,
    parse_bytes,
    wait_for_holding,
    wanting,
)

pytestmark = pytest.mark.groups

RESERVED_CPU = 0
RESERVED_MEMORY = {0: 128 * MI, 1: 64 * MI}
RESERVED_PAGES = {0: 4, 1: 0}
CONFIG = {
    "reservedCPUs": str(RESERVED_CPU),
    "reservedMemory": ";".join(
        f"{node}:memory={RESERVED_MEMORY[node]},hugepages-2Mi={RESERVED_PAGES[node] * PAGE}"
        for node in RESERVED_MEMORY
    ),
    "memoryQoS": "claims",
}
WORKER = 256 * MI
FIRM = 128 * MI
STEADY = 64 * MI
RESTARTS = 5


@dataclass(frozen=True)
class Residents:
    """Pods that run during all tests of this file, and their initial output."""

    pods: dict[str, Manifest]
    words: dict[str, str]


def _resources(memory: int, cpu: str = "", pages: int = 0) -> Manifest:
    """Requests; with CPUs or pages also limits, which makes a pod of CPUs and memory Guaranteed."""
    amounts = {"memory": str(memory)} | ({"cpu": cpu} if cpu else {})
    amounts |= {"hugepages-2Mi": str(pages * PAGE)} if pages else {}
    return {"requests": amounts, "limits": amounts} if cpu or pages else {"requests": amounts}


@pytest.fixture(scope="module")
def driver(cluster: Cluster, cpumem_driver: ChartDriver) -> ChartDriver:
    """The driver, protecting the memory of claims."""
    cpumem_driver.deploy(driverConfig=CONFIG, kubeletConfig="/bed-node/kubelet.json")
    return cpumem_driver


@pytest.fixture(scope="module")
def residents(cluster: Cluster, driver: ChartDriver) -> Iterator[Residents]:
    """One pod of each QoS class with a claim, and one with a classic hugepage request."""
    install_holder(cluster.node)
    near = on_numa_node(1)
    with cluster.namespace("cpumem") as namespace:
        cluster.apply(
            [
                claim("worker", wanting(near, cpus=2, memory=WORKER, pages=16)),
                holding_pod("worker", "worker", memory=WORKER, pages=16, more=1),
                claim("firm", wanting(memory=FIRM)),
                holding_pod("firm", "firm", resources=_resources(64 * MI, "1")),
                claim("steady", wanting(memory=STEADY)),
                holding_pod("steady", "steady", resources=_resources(32 * MI)),
                holding_pod("classic", pages=8, more=1, resources=_resources(32 * MI, "1", pages=8)),
            ],
            namespace,
        )
        names = ("worker", "firm", "steady", "classic")
        pods = {name: cluster.wait_for_pod(name, namespace) for name in names}
        words = {name: wait_for_holding(cluster, name, namespace) for name in names}
        yield Residents(pods, words)


def test_the_slices_match_the_machine(driver: ChartDriver, cluster: Cluster, node: Node) -> None:
    (published,) = cluster.slices("dra.cpumem", node.name)
    devices = {device["name"]: device for device in published["spec"]["devices"]}
    assert sorted(devices) == ["numa0", "numa1"]
    for number, memory in numa_memory(node).items():
        device = devices[f"numa{number}"]
        offered = {key: entry["value"] for key, entry in device["capacity"].items()}
        ordinary = memory.ordinary - RESERVED_MEMORY[number]
        pages = memory.pages[PAGE] - RESERVED_PAGES[number]
        cpus = set(node.shape.numa[number].cpus) - {RESERVED_CPU}
        assert {key: parse_bytes(value) for key, value in offered.items()} == {
            "dra.cpumem/cpu": len(cpus),
            "dra.cpumem/memory": ordinary // (2 * MI) * 2 * MI,
            "dra.cpumem/hugepages2Mi": pages * PAGE,
            "dra.cpumem/hugepages1Gi": memory.pages[1 << 30] << 30,
        }
        assert device["attributes"]["resource.kubernetes.io/numaNode"] == {"int": number}
        assert device["attributes"]["dra.cpumem/memoryOnly"] == {"bool": False}
        assert device["allowMultipleAllocations"] is True


def test_cpus_memory_and_hugepages_of_one_claim_are_on_one_node(
    residents: Residents, cluster: Cluster, node: Node
) -> None:
    pod = residents.pods["worker"]
    kernel, memory = Kernel(cluster, pod), MemoryKernel(cluster, pod)
    assert len(kernel.cpus) == 2
    assert kernel.cpus <= set(node.shape.numa[1].cpus)
    assert kernel.mems == {1}
    assert memory.anonymous().keys() == {1}
    assert memory.anonymous()[1] >= WORKER
    assert memory.huge() == {1: 16 * PAGE}
    assert memory.mapped() == ({1}, {1: 16})


def test_one_page_more_than_claimed_is_rejected_without_affecting_others(
    residents: Residents, cluster: Cluster
) -> None:
    assert residents.words["worker"].split("\n")[:3] == ["memory: taken", "pages: taken", "more: ENOMEM"]
    assert MemoryKernel(cluster, residents.pods["worker"]).page_limits() == (str(16 * PAGE),) * 4
    classic = MemoryKernel(cluster, residents.pods["classic"])
    assert "pages: taken" in residents.words["classic"]
    assert sum(classic.huge().values()) == 8 * PAGE
    for name in ("firm", "steady", "classic"):
        events = MemoryKernel(cluster, residents.pods[name]).file("memory.events")
        assert "oom_kill 0" in events, f"{name}: {events}"


def test_claimed_memory_is_protected_along_the_whole_chain(
    residents: Residents, cluster: Cluster, node: Node
) -> None:
    seen = {name: MemoryKernel(cluster, pod) for name, pod in residents.pods.items()}
    hard = str(WORKER + FIRM)
    assert seen["worker"].chain("memory.min") == [str(WORKER), str(WORKER), str(WORKER), hard]
    assert seen["firm"].chain("memory.min") == [str(FIRM), str(FIRM), hard]
    assert seen["steady"].chain("memory.low") == [str(STEADY)] * 4
    assert seen["steady"].chain("memory.min")[:3] == ["0", "0", "0"]
    assert seen["classic"].chain("memory.min")[:2] == ["0", "0"]


# Six starts of a pair: too long for the default run, where the residents show the same limits once.
@pytest.mark.full
def test_the_limits_of_two_containers_survive_restarts_to_the_byte(
    residents: Residents, cluster: Cluster, node: Node, driver: ChartDriver, namespace: str
) -> None:
    before = _protected(cluster, residents)
    classic = MemoryKernel(cluster, residents.pods["classic"]).page_limits()
    assert classic[2:] == (str(8 * PAGE),) * 2
    images = [f"drakit.test/busybox:{tag}" for tag in range(2, 2 + RESTARTS)]
    node.tag_image("drakit.test/busybox:1", images)
    cluster.apply(
        [claim("left", wanting(memory=32 * MI, pages=8)), claim("right", wanting(pages=6)), _pair()],
        namespace,
    )
    _check_pair(cluster, cluster.wait_for_pod("pair", namespace), namespace)
    for image in images:
        # The kubelet restarts a container whose image changed at once; one that ended it delays.
        _restart(cluster, namespace, image)
        _check_pair(cluster, cluster.api.get("v1", "Pod", "pair", namespace), namespace)
        assert MemoryKernel(cluster, residents.pods["classic"]).page_limits() == classic
    assert _protected(cluster, residents) == before + 32 * MI

    cluster.api.delete("v1", "Pod", "pair", namespace)

    def given_back() -> bool:
        now = _protected(cluster, residents)
        if now != before:
            raise NotYetError(f"kubepods has memory.min {now}, not {before}")
        return True

    cluster.wait("the protection of the ended pod to be given back", given_back)


def _protected(cluster: Cluster, residents: Residents) -> int:
    """The protection in ``kubepods`` for Guaranteed pods and pods with only claims."""
    return int(MemoryKernel(cluster, residents.pods["steady"]).chain("memory.min")[-1])


def _pair() -> Manifest:
    pod = pod_with("pair", "left", "right", restartPolicy="Always")
    (main,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [
        {
            **main,
            "name": name,
            "command": ["/bin/sh", "-c", hold(pages=pages, more=1)],
            "resources": {"claims": [{"name": name}]},
        }
        for name, pages in (("left", 8), ("right", 6))
    ]
    return with_holder(pod)


def _check_pair(cluster: Cluster, pod: Manifest, namespace: str) -> None:
    above = str(14 * PAGE)
    for name, pages in (("left", 8), ("right", 6)):
        words = wait_for_holding(cluster, "pair", namespace, name)
        assert "pages: taken\nmore: ENOMEM\n" in words, f"{name}: {words}"
        own = str(pages * PAGE)
        memory = MemoryKernel(cluster, pod, name)
        assert memory.page_limits() == (own, own, above, above), name
        assert sum(memory.huge().values()) == pages * PAGE


def _restart(cluster: Cluster, namespace: str, image: str) -> None:
    """Restart both containers and wait until the new ones run."""
    pod = cluster.api.get("v1", "Pod", "pair", namespace)
    old = {each["name"]: each["containerID"] for each in pod["status"]["containerStatuses"]}
    containers = [{**each, "image": image} for each in pod["spec"]["containers"]]
    cluster.api.patch("v1", "Pod", "pair", {"spec": {"containers": containers}}, namespace)

    def restarted() -> bool:
        now = cluster.api.get("v1", "Pod", "pair", namespace)["status"]["containerStatuses"]
        waiting = [
            each["name"]
            for each in now
            if each.get("containerID") in (None, old[each["name"]]) or not each["ready"]
        ]
        if waiting:
            raise NotYetError(f"not started again: {waiting}")
        return True

    cluster.wait(f"both containers to run {image}", restarted)
