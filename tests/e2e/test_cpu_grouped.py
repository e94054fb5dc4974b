"""dra-driver-cpu allocates amounts of a NUMA node's CPUs, verified by the guest's kernel.

The node: cores {0,1} {2,3} on NUMA node 0, {4,5} {6,7} on NUMA node 1; CPU 0 is reserved.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.node import Node
from tests.e2e.cpu import (
    BUSY,
    CAPACITY,
    CLASS,
    Kernel,
    amount,
    claim,
    on_numa_node,
    pod_with,
    running,
    template,
)

pytestmark = pytest.mark.groups

RESERVED = frozenset({0})
EVERYTHING = frozenset(range(8)) - RESERVED


@pytest.fixture(scope="module")
def driver(cluster: Cluster, cpu_driver: ChartDriver) -> ChartDriver:
    """The driver in its default mode, CPU 0 reserved."""
    cpu_driver.deploy(driverConfig={"reservedCPUs": "0"})
    return cpu_driver


def test_the_slices_match_the_machine(driver: ChartDriver, cluster: Cluster, node: Node) -> None:
    (published,) = cluster.slices("dra.cpu", node.name)
    devices = {device["name"]: device for device in published["spec"]["devices"]}
    assert sorted(devices) == ["cpudevnuma000", "cpudevnuma001"]
    for number, numa in enumerate(node.shape.numa):
        device = devices[f"cpudevnuma{number:03d}"]
        offered = len(set(numa.cpus) - RESERVED)
        assert device["capacity"][CAPACITY]["value"] == str(offered)
        assert device["attributes"]["dra.cpu/numCPUs"] == {"int": offered}
        assert device["attributes"]["dra.cpu/numaNodeID"] == {"int": number}
        assert device["attributes"]["dra.cpu/socketID"] == {"int": number}
        assert device["attributes"]["dra.cpu/smtEnabled"] == {"bool": True}


def test_claimed_cpus_are_the_pods_own_and_the_shared_pool_shrinks_and_grows_back(
    driver: ChartDriver, cluster: Cluster, namespace: str
) -> None:
    cluster.apply(busybox_pod("before", BUSY), namespace)
    (before,) = running(cluster, namespace, "before")
    before.runs_only_on(EVERYTHING)

    cluster.apply(
        [
            claim("two", amount(2, on_numa_node(0))),
            pod_with("owner", "two"),
            claim("three", amount(3, on_numa_node(1))),
            pod_with("other", "three"),
        ],
        namespace,
    )
    owner, other = running(cluster, namespace, "owner", "other")
    owner.runs_only_on({2, 3})  # a whole core, although 1 is free: its sibling is reserved
    assert owner.mems == {0}
    assert owner.environment()["DRA_CPUSET"] == "2-3"
    assert len(other.cpus) == 3
    assert other.cpus < {4, 5, 6, 7}
    assert other.mems == {1}
    assert {4, 5} <= other.cpus or {6, 7} <= other.cpus
    other.runs_only_on(other.cpus)

    cluster.apply(busybox_pod("after", BUSY), namespace)
    (after,) = running(cluster, namespace, "after")
    left = EVERYTHING - {2, 3} - other.cpus
    after.runs_only_on(left)
    before.runs_only_on(left)

    for name in ("owner", "other"):
        cluster.api.delete("v1", "Pod", name, namespace)
    for kernel in (before, after):
        cluster.wait("the shared pool to grow back", lambda k=kernel: k.cpus == EVERYTHING)
        kernel.runs_only_on(EVERYTHING)


def test_several_claims_and_requests_add_up_in_one_container(
    driver: ChartDriver, cluster: Cluster, namespace: str
) -> None:
    near = amount(1, on_numa_node(0), name="near")
    far = amount(1, on_numa_node(1), name="far")
    cluster.apply(
        [
            claim("both", near, far),
            claim("more", amount(2, on_numa_node(1))),
            pod_with("pod", "both", "more"),
        ],
        namespace,
    )
    (pod,) = running(cluster, namespace, "pod")
    assert len(pod.cpus & {1, 2, 3}) == 1
    assert len(pod.cpus & {4, 5, 6, 7}) == 3
    assert pod.mems == {0, 1}
    pod.runs_only_on(pod.cpus)


def test_requests_are_kept_together_by_match_attribute_and_fall_back_by_first_available(
    driver: ChartDriver, cluster: Cluster, namespace: str
) -> None:
    together = [{"requests": ["one", "two"], "matchAttribute": "dra.cpu/numaNodeID"}]
    too_many = {"name": "many", "deviceClassName": CLASS, "capacity": {"requests": {CAPACITY: "64"}}}
    few = {"name": "few", "deviceClassName": CLASS, "capacity": {"requests": {CAPACITY: "1"}}}
    cluster.apply(
        [
            claim("pair", amount(2, name="one"), amount(2, name="two"), constraints=together),
            pod_with("aligned", "pair"),
            claim("choice", {"name": "cpus", "firstAvailable": [too_many, few]}),
            pod_with("modest", "choice"),
        ],
        namespace,
    )
    aligned, modest = running(cluster, namespace, "aligned", "modest")
    aligned.runs_only_on({4, 5, 6, 7})  # the only NUMA node with four allocatable CPUs
    assert len(modest.cpus) == 1
    modest.runs_only_on(modest.cpus)


@pytest.fixture(scope="module")
def crowd(driver: ChartDriver, cluster: Cluster) -> Iterator[str]:
    """The namespace of two pods of one template, and of one whose two containers share a claim."""
    reference = [{"name": "cpus", "resourceClaimTemplateName": "one-core"}]
    pods = [busybox_pod(name, BUSY, claims=reference) for name in ("a", "b")]
    owner = pod_with("owner", "taken")
    (main,) = owner["spec"]["containers"]
    owner["spec"]["containers"] = [main, {**main, "name": "helper"}]
    with cluster.namespace("crowd") as name:
        objects = [template("one-core", amount(2)), *pods, claim("taken", amount(2)), owner]
        cluster.apply(objects, name)
        yield name


def test_every_pod_of_a_template_gets_cpus_of_its_own(cluster: Cluster, crowd: str) -> None:
    first, second = running(cluster, crowd, "a", "b")
    assert len(first.cpus) == len(second.cpus) == 2
    assert first.cpus.isdisjoint(second.cpus)
    first.runs_only_on(first.cpus)
    second.runs_only_on(second.cpus)


def test_two_containers_of_a_pod_share_its_claim(cluster: Cluster, crowd: str) -> None:
    owner = cluster.wait_for_pod("owner", crowd)
    main, helper = Kernel(cluster, owner, "main"), Kernel(cluster, owner, "helper")
    assert len(main.cpus) == 2
    main.runs_only_on(helper.cpus)


def test_a_second_pod_is_rejected_a_claim_in_use(cluster: Cluster, crowd: str) -> None:
    owner = Kernel(cluster, cluster.wait_for_pod("owner", crowd), "main")
    cluster.apply(pod_with("intruder", "taken"), crowd)
    cluster.wait(
        "a container of the intruder to be created or refused",
        lambda: cluster.api.get("v1", "Pod", "intruder", crowd)["status"].get("containerStatuses"),
    )
    event = cluster.wait_for_event(crowd, "taken", about="intruder", limit=45)
    assert "owner" in event, f"the event should name the pod that has the claim: {event}"
    owner.runs_only_on(owner.cpus)
