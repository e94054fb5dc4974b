"""Behavior of the real kubelet towards a DRA driver.

``tests/kit/test_kubelet_behaviors.py`` has the complete list, with the fake. Restarts, rolling updates,
temporary rejections and force-deleted pods have separate end-to-end tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drakit.testing.kubelet_claims import read_checkpoint
from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import NotYetError
from tests.e2e.cpu import BUSY, amount, claim, on_numa_node, pod_with, running

pytestmark = [pytest.mark.full, pytest.mark.groups]
SLICE = ("resource.k8s.io/v1", "ResourceSlice")
CLAIM = ("resource.k8s.io/v1", "ResourceClaim")
EVERYTHING = frozenset(range(1, 8))


@pytest.fixture(scope="module")
def driver(cpu_driver: ChartDriver) -> ChartDriver:
    """The driver in its default mode, CPU 0 reserved."""
    cpu_driver.deploy(driverConfig={"reservedCPUs": "0"})
    return cpu_driver


@pytest.fixture
def kubelet_away(cluster: Cluster, node: Node) -> Iterator[None]:
    """Stop the kubelet; it is started again afterwards in any case."""
    node.stop_service("kubelet")
    try:
        yield
    finally:
        node.start_service("kubelet")
        cluster.wait_for_ready(node)


def _uid(cluster: Cluster, name: str, namespace: str) -> str:
    uid: str = cluster.api.get(*CLAIM, name, namespace)["metadata"]["uid"]
    return uid


def _bound(cluster: Cluster, name: str, namespace: str) -> Manifest:
    def there() -> Manifest:
        pod = cluster.api.get("v1", "Pod", name, namespace)
        if not pod["spec"].get("nodeName"):
            raise NotYetError(f"{name} is not bound")
        return pod

    return cluster.wait(f"{name} to be bound", there)


def test_pods_that_come_and_go_while_the_kubelet_is_down(
    cluster: Cluster, node: Node, driver: ChartDriver, namespace: str, request: pytest.FixtureRequest
) -> None:
    cluster.apply(
        [claim("ended", amount(2, on_numa_node(0))), pod_with("ended", "ended"), busybox_pod("sharer", BUSY)],
        namespace,
    )
    ended, sharer = running(cluster, namespace, "ended", "sharer")
    assert ended.cpus == {2, 3}
    request.getfixturevalue("kubelet_away")
    cluster.api.delete("v1", "Pod", "ended", namespace, grace=0)
    cluster.apply(
        [
            claim("early", amount(2, on_numa_node(1))),
            pod_with("early", "early"),
            claim("vain", amount(1, on_numa_node(1))),
            pod_with("vain", "vain"),
        ],
        namespace,
    )
    for name in ("early", "vain"):
        _bound(cluster, name, namespace)
    vain = _uid(cluster, "vain", namespace)
    cluster.api.delete("v1", "Pod", "vain", namespace, grace=0)
    ended.runs_only_on({2, 3})
    assert sharer.cpus.isdisjoint({2, 3}), "the CPUs of a running pod must not be reassigned"

    node.start_service("kubelet")
    (early,) = running(cluster, namespace, "early")
    early.runs_only_on(early.cpus & {4, 5, 6, 7})
    assert len(early.cpus) == 2
    left = EVERYTHING - early.cpus
    cluster.wait("the CPUs of the pod that ended", lambda: sharer.cpus == left, limit=300)
    assert not any(vain in name for name in driver.checkpoint(node)), "prepared for a pod that is gone"


def test_a_claim_that_no_container_uses_is_also_prepared(
    cluster: Cluster, node: Node, driver: ChartDriver, namespace: str
) -> None:
    pod = pod_with("idle", "unused")
    for container in pod["spec"]["containers"]:
        del container["resources"]
    cluster.apply([claim("unused", amount(2, on_numa_node(0))), pod], namespace)
    (idle,) = running(cluster, namespace, "idle")
    assert idle.cpus == EVERYTHING - {2, 3}, "the claim's CPUs are kept, and not given to who names none"
    assert any(_uid(cluster, "unused", namespace) in name for name in driver.checkpoint(node))


def test_a_restarted_kubelet_removes_the_slices_and_keeps_its_checkpoint(
    cluster: Cluster, node: Node, driver: ChartDriver, namespace: str, tmp_path: Path
) -> None:
    """Start-up of the kubelet as in the fake, and the file that it writes and reads."""
    cluster.apply([claim("two", amount(2, on_numa_node(0))), pod_with("owner", "two")], namespace)
    running(cluster, namespace, "owner")
    (before,) = cluster.slices("dra.cpu", node.name)
    node.restart_service("kubelet")
    cluster.wait_for_ready(node)

    def other() -> bool:
        found = cluster.slices("dra.cpu", node.name)
        return bool(found) and found[0]["metadata"]["uid"] != before["metadata"]["uid"]

    cluster.wait("a slice in place of the removed one", other)
    copy = tmp_path / "dra_manager_state"
    copy.write_text(node.read("/var/lib/kubelet/dra_manager_state"))
    infos = {info.uid: info for info in read_checkpoint(str(copy))}
    info = infos[_uid(cluster, "two", namespace)]
    pod = cluster.api.get("v1", "Pod", "owner", namespace)["metadata"]["uid"]
    assert (info.name, info.namespace, info.pods) == ("two", namespace, {pod})
    (device,) = info.drivers["dra.cpu"]
    assert device.pool == node.name
    assert device.cdi


def test_deleted_slices_are_published_again(cluster: Cluster, node: Node, driver: ChartDriver) -> None:
    (before,) = cluster.slices("dra.cpu", node.name)
    cluster.api.delete(*SLICE, before["metadata"]["name"])

    def again() -> Manifest:
        found = cluster.slices("dra.cpu", node.name)
        if not found or found[0]["metadata"]["uid"] == before["metadata"]["uid"]:
            raise NotYetError(f"{len(found)} slices")
        return found[0]

    after = cluster.wait("the slice to be there again", again, limit=30)
    assert after["spec"]["devices"] == before["spec"]["devices"]


def test_the_slices_of_a_removed_driver_are_deleted_and_pods_keep_their_cpus(
    cluster: Cluster, node: Node, driver: ChartDriver, namespace: str
) -> None:
    cluster.apply([claim("two", amount(2, on_numa_node(0))), pod_with("owner", "two")], namespace)
    (owner,) = running(cluster, namespace, "owner")
    driver.remove()
    try:
        # The kubelet waits 30 seconds for a successor.
        cluster.wait("the slices to be gone", lambda: not cluster.slices("dra.cpu", node.name))
        owner.runs_only_on({2, 3})
    finally:
        driver.deploy(driverConfig={"reservedCPUs": "0"})
    assert cluster.slices("dra.cpu", node.name)
    owner.runs_only_on({2, 3})
    cluster.api.delete("v1", "Pod", "owner", namespace)
    cluster.wait("its claim to be given back", lambda: driver.checkpoint(node) == {})
