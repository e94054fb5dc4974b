"""Termination of pods: CPUs are not released too early, and all of them are assigned again.

Every test watches the node's cgroups: two pods never own the same CPU.
The node: cores {0,1} {2,3} on NUMA node 0, {4,5} {6,7} on NUMA node 1; CPU 0 is reserved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.kubernetes import ApiError, Manifest
from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import NotYetError
from tests.e2e.bed.watch import watched, watching
from tests.e2e.cpu import BUSY, Kernel, amount, claim, on_numa_node, pod_with, running

pytestmark = pytest.mark.groups

EVERYTHING = frozenset(range(1, 8))
CLAIM = ("resource.k8s.io/v1", "ResourceClaim")
# Writes its allowed CPUs to the termination message, which outlives the container.
CRASHES = "grep Cpus_allowed_list /proc/self/status > /dev/termination-log; exit 1"


@dataclass(frozen=True)
class Residents:
    """Four pods that share the node, started together; each test takes its own."""

    namespace: str
    sharer: Kernel
    victim: Kernel
    owner: Kernel


@pytest.fixture(scope="module")
def residents(cluster: Cluster, cpu_driver: ChartDriver) -> Iterator[Residents]:
    """A pod to be force-deleted (2-3), one whose claim is deleted, one that crashes, a sharer."""
    cpu_driver.deploy(driverConfig={"reservedCPUs": "0"})
    with cluster.namespace("life") as namespace:
        deaf = "trap '' TERM; " + BUSY  # ends by force only
        cluster.apply(
            [
                watched(busybox_pod("sharer", BUSY), "sharer"),
                claim("victim", amount(2, on_numa_node(0))),
                watched(pod_with("victim", "victim", command=deaf), "owner", 2),
                claim("owned", amount(2, on_numa_node(1))),
                watched(pod_with("owner", "owned"), "owner", 2),
                claim("crashing", amount(2, on_numa_node(1))),
                watched(
                    pod_with("crashing", "crashing", command=CRASHES, restartPolicy="Always"), "owner", 2
                ),
            ],
            namespace,
        )
        with watching(cluster.node) as watch:
            yield Residents(namespace, *running(cluster, namespace, "sharer", "victim", "owner"))
            watch.report().check()


def test_the_cpus_of_a_force_deleted_pod_are_released_after_it_has_stopped(
    residents: Residents, cluster: Cluster, node: Node
) -> None:
    namespace, pid = residents.namespace, residents.victim.pid
    assert residents.victim.cpus == {2, 3}
    cluster.api.delete("v1", "Pod", "victim", namespace, grace=0)
    assert cluster.api.find("v1", "Pod", "victim", namespace) is None
    cluster.apply(
        [claim("heir", amount(2, on_numa_node(0))), watched(pod_with("heir", "heir"), "owner", 2)], namespace
    )
    (heir,) = running(cluster, namespace, "heir")
    assert not node.exists(f"/proc/{pid}"), "two pods ran on one CPU"
    heir.runs_only_on({2, 3})


def test_a_claim_deleted_while_in_use_stays_until_its_pod_ends(
    residents: Residents, cluster: Cluster
) -> None:
    namespace, cpus = residents.namespace, residents.owner.cpus
    cluster.api.delete(*CLAIM, "owned", namespace)
    kept = cluster.api.get(*CLAIM, "owned", namespace)
    assert kept["metadata"]["deletionTimestamp"]
    residents.owner.runs_only_on(cpus)
    assert residents.sharer.cpus.isdisjoint(cpus)
    cluster.api.delete("v1", "Pod", "owner", namespace)
    cluster.wait_for_gone(*CLAIM, "owned", namespace)
    cluster.wait("the shared pool to grow back", lambda: cpus <= residents.sharer.cpus)


def test_a_crash_looping_pod_keeps_its_cpus_over_restarts(residents: Residents, cluster: Cluster) -> None:
    def crashed_again() -> list[str]:
        pod = cluster.api.get("v1", "Pod", "crashing", residents.namespace)
        (status,) = pod["status"]["containerStatuses"]
        if status["restartCount"] < 2:
            raise NotYetError(f"{status['restartCount']} restarts: {status['state']}")
        return [
            state["terminated"]["message"].split()[1]
            for state in (status["state"], status["lastState"])
            if "terminated" in state
        ]

    (one, *others) = cluster.wait("the second restart", crashed_again)
    assert one in ("4-5", "6-7")
    assert {one} >= set(others)
    first, last = map(int, one.split("-"))
    # Between two runs no container runs there.
    assert residents.sharer.cpus.isdisjoint({first, last})


def test_a_drained_node_releases_all_cpus_and_is_usable_again(
    residents: Residents, cluster: Cluster, node: Node
) -> None:
    namespace = residents.namespace
    cluster.api.patch("v1", "Node", node.name, {"spec": {"unschedulable": True}})
    try:
        for pod in cluster.api.list("v1", "Pod", namespace):
            _evict(cluster, pod)
        for name in ("sharer", "heir", "crashing"):
            cluster.wait_for_gone("v1", "Pod", name, namespace)
    finally:
        cluster.api.patch("v1", "Node", node.name, {"spec": {"unschedulable": None}})
    cluster.apply(
        [
            claim("near", amount(2, on_numa_node(0))),
            watched(pod_with("near", "near"), "owner", 2),
            claim("far", amount(4, on_numa_node(1))),
            watched(pod_with("far", "far"), "owner", 4),
            watched(busybox_pod("late", BUSY), "sharer"),
        ],
        namespace,
    )
    near, far, late = running(cluster, namespace, "near", "far", "late")
    near.runs_only_on({2, 3})
    far.runs_only_on({4, 5, 6, 7})
    cluster.wait("the shared pool to follow", lambda: late.cpus == {1})


def _evict(cluster: Cluster, pod: Manifest) -> None:
    """Evict pods like ``kubectl drain``; a pod that has already terminated is fine."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
    }
    try:
        cluster.api.call("POST", cluster.api.path("v1", "Pod", namespace, name) + "/eviction", eviction)
    except ApiError as error:
        if error.status != 404:
            raise
