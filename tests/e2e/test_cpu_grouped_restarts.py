"""Restarts of components: running pods keep their CPUs, and new claims are prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.node import Node
from tests.e2e.cpu import BUSY, Kernel, amount, claim, on_numa_node, pod_with, running

pytestmark = pytest.mark.groups

EVERYTHING = frozenset(range(8)) - {0}


@pytest.fixture(scope="module")
def driver(cluster: Cluster, cpu_driver: ChartDriver) -> ChartDriver:
    """The driver in its default mode, CPU 0 reserved."""
    cpu_driver.deploy(driverConfig={"reservedCPUs": "0"})
    return cpu_driver


@pytest.fixture(scope="module")
def residents(driver: ChartDriver, cluster: Cluster) -> Iterator[tuple[Kernel, Kernel]]:
    """A pod that owns 2-3 and one in the shared pool, running through all restarts."""
    with cluster.namespace("residents") as namespace:
        cluster.apply(
            [
                claim("two", amount(2, on_numa_node(0))),
                pod_with("owner", "two", restartPolicy="Always"),
                busybox_pod("sharer", BUSY, restartPolicy="Always"),
            ],
            namespace,
        )
        owner, sharer = running(cluster, namespace, "owner", "sharer")
        yield owner, sharer


Disturbance = Callable[[Cluster, Node, ChartDriver], None]


def _restart_runtime(cluster: Cluster, node: Node, driver: ChartDriver) -> None:
    node.restart_service("runtime")


def _kill_runtime(cluster: Cluster, node: Node, driver: ChartDriver) -> None:
    node.kill_service("runtime")
    node.start_service("runtime")
    node.wait_for_runtime()


def _restart_kubelet(cluster: Cluster, node: Node, driver: ChartDriver) -> None:
    node.restart_service("kubelet")
    cluster.wait_for_ready(node)


def _upgrade_node(cluster: Cluster, node: Node, driver: ChartDriver) -> None:
    """Both at once, as in an upgrade of a node."""
    node.stop_service("kubelet")
    node.restart_service("runtime")
    node.start_service("kubelet")
    cluster.wait_for_ready(node)


def _restart_api_server(cluster: Cluster, node: Node, driver: ChartDriver) -> None:
    cluster.plane.restart("kube-apiserver")


def _kill_driver(cluster: Cluster, node: Node, driver: ChartDriver) -> None:
    driver.kill(node)


def _delete_driver_pod(cluster: Cluster, node: Node, driver: ChartDriver) -> None:
    driver.delete_pod(node)


def _roll_driver(cluster: Cluster, node: Node, driver: ChartDriver) -> None:
    driver.restart()


@pytest.mark.parametrize(
    "disturb",
    [
        # The default run has fifteen minutes: there a driver is killed in the node tier
        # (test_node_driver.py), and the container runtime and the kubelet are restarted together.
        pytest.param(_kill_driver, id="driver-killed", marks=pytest.mark.full),
        pytest.param(_delete_driver_pod, id="driver-stopped", marks=pytest.mark.full),
        pytest.param(_roll_driver, id="driver-rolled-over-with-two-instances"),
        pytest.param(_upgrade_node, id="runtime-and-kubelet-restarted"),
        pytest.param(_restart_runtime, id="runtime-restarted", marks=pytest.mark.full),
        pytest.param(_kill_runtime, id="runtime-killed", marks=pytest.mark.full),
        pytest.param(_restart_kubelet, id="kubelet-restarted", marks=pytest.mark.full),
        pytest.param(_restart_api_server, id="api-server-restarted", marks=pytest.mark.full),
    ],
)
def test_running_pods_keep_their_cpus_and_new_claims_are_prepared(
    cluster: Cluster,
    node: Node,
    driver: ChartDriver,
    residents: tuple[Kernel, Kernel],
    namespace: str,
    disturb: Disturbance,
) -> None:
    owner, sharer = residents
    processes = owner.pid, sharer.pid
    disturb(cluster, node, driver)
    driver.wait_until_serving()
    owner.runs_only_on({2, 3})
    cluster.apply([claim("new", amount(2)), pod_with("newcomer", "new")], namespace)
    (newcomer,) = running(cluster, namespace, "newcomer")
    assert len(newcomer.cpus) == 2
    newcomer.runs_only_on(newcomer.cpus - {0, 2, 3})
    left = EVERYTHING - {2, 3} - newcomer.cpus
    cluster.wait("the shared pool to follow", lambda: sharer.cpus == left)
    owner.runs_only_on({2, 3})
    assert (owner.pid, sharer.pid) == processes, "running containers were restarted"


@pytest.mark.full
def test_every_pod_has_its_cpus_again_after_a_reboot(
    cluster: Cluster, node: Node, driver: ChartDriver, namespace: str
) -> None:
    cluster.apply(
        [
            claim("two", amount(2, on_numa_node(1))),
            pod_with("owner", "two", restartPolicy="Always"),
            busybox_pod("sharer", BUSY, restartPolicy="Always"),
        ],
        namespace,
    )
    (before,) = running(cluster, namespace, "owner")
    cpus, old = before.cpus, before.container
    node.reboot()
    cluster.wait_for_ready(node)
    driver.wait_until_serving()

    def again() -> Kernel | None:
        pod = cluster.wait_for_pod("owner", namespace)
        return Kernel(cluster, pod) if cluster.container_id(pod) != old else None

    after = cluster.wait("a container from after the reboot", again)
    after.runs_only_on(cpus)
    (sharer,) = running(cluster, namespace, "sharer")
    cluster.wait("the sharer to be kept off", lambda: sharer.cpus.isdisjoint(cpus))
