"""Permissions of the deployed driver: those that it needs and no others, verified by the API server.

Runs after the other CPU tests, so that the audit log has all requests of the driver.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.kubernetes import Api, ApiError, Manifest
from tests.e2e.bed.node import Node

SLICE = ("resource.k8s.io/v1", "ResourceSlice")


@pytest.fixture(scope="module")
def driver(cluster: Cluster, cpu_driver: ChartDriver) -> ChartDriver:
    """The driver as deployed by the previous file; its permissions are the same in every mode."""
    cpu_driver.deploy(driverConfig={"cpuDeviceMode": "individual", "reservedCPUs": "0"})
    return cpu_driver


@pytest.fixture
def as_driver(driver: ChartDriver, cluster: Cluster, node: Node) -> Api:
    """The API server as the driver's own service account on the first node."""
    token = cluster.api.token(
        driver.namespace, driver.chart, bound_to=cluster.api.get("v1", "Node", node.name)
    )
    return cluster.api.as_bearer(token)


def _slice(node: str, driver: str = "dra.cpu") -> Manifest:
    pool = {"name": f"forged-{node}", "generation": 1, "resourceSliceCount": 1}
    device = {"name": "everything"}
    return {
        "apiVersion": SLICE[0],
        "kind": SLICE[1],
        "metadata": {"generateName": "forged-"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": [device]},
    }


def test_the_driver_was_never_denied_anything(driver: ChartDriver, cluster: Cluster, node: Node) -> None:
    # Since the cluster was made: every start of the driver, in every mode, is among it.
    asked = [entry for entry in cluster.plane.audit() if _is_by_pod_of(entry, driver)]
    assert {"resourceslices", "resourceclaims", "nodes"} >= _resources(asked)
    assert {"resourceslices", "nodes"} <= _resources(asked), "the audit log misses the driver"
    denied = [
        f"{entry['verb']} {entry['requestURI']}: {entry['responseStatus'].get('message', '')}"
        for entry in asked
        # By RBAC or an admission policy.
        if entry.get("responseStatus", {}).get("code") in (401, 403, 422)
    ]
    assert denied == []


def test_the_driver_may_write_slices_of_its_own_node_only(
    as_driver: Api, cluster: Cluster, node: Node
) -> None:
    own = as_driver.create(_slice(node.name))
    name = own["metadata"]["name"]
    as_driver.delete(*SLICE, name)
    assert cluster.api.find(*SLICE, name) is None

    with pytest.raises(ApiError, match=r"may not write slices of 'node-2'") as rejected:
        as_driver.create(_slice("node-2"))
    assert rejected.value.status == 403
    foreign = cluster.api.create(_slice("node-2"))["metadata"]["name"]
    try:
        changed = {**cluster.api.get(*SLICE, foreign)}
        changed["spec"]["devices"].append({"name": "more"})
        with pytest.raises(ApiError, match=r"may not write slices of 'node-2'"):
            as_driver.call("PUT", as_driver.path(*SLICE, name=foreign), changed)
        with pytest.raises(ApiError, match=r"may not write slices of 'node-2'"):
            as_driver.delete(*SLICE, foreign)
        assert cluster.api.find(*SLICE, foreign) is not None
    finally:
        cluster.api.delete(*SLICE, foreign)


def test_the_driver_may_write_its_own_slices_only(as_driver: Api, cluster: Cluster, node: Node) -> None:
    other = "gpu.example.com"
    with pytest.raises(ApiError, match=rf"may not write slices of the driver '{other}'") as rejected:
        as_driver.create(_slice(node.name, other))
    assert rejected.value.status == 403
    foreign = cluster.api.create(_slice(node.name, other))["metadata"]["name"]
    try:
        with pytest.raises(ApiError, match=rf"may not write slices of the driver '{other}'"):
            as_driver.delete(*SLICE, foreign)
        assert cluster.api.find(*SLICE, foreign) is not None
    finally:
        cluster.api.delete(*SLICE, foreign)


def test_a_token_without_a_node_cannot_write(driver: ChartDriver, cluster: Cluster, node: Node) -> None:
    loose = cluster.api.as_bearer(cluster.api.token(driver.namespace, driver.chart))
    with pytest.raises(ApiError, match="no node name in the credential"):
        loose.create(_slice(node.name))


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("v1", "Pod"), ("v1", "Secret"), ("v1", "ConfigMap"), ("resource.k8s.io/v1", "DeviceClass")],
)
def test_the_driver_cannot_read_what_it_does_not_use(
    as_driver: Api, cluster: Cluster, api_version: str, kind: str
) -> None:
    with pytest.raises(ApiError) as rejected:
        as_driver.call("GET", cluster.api.path(api_version, kind))
    assert rejected.value.status == 403


def _is_by_pod_of(entry: dict[str, Any], driver: ChartDriver) -> bool:
    """Whether the request came from a pod of the driver and not from a test with the same account."""
    user = entry["user"]
    account = f"system:serviceaccount:{driver.namespace}:{driver.chart}"
    by_pod = "authentication.kubernetes.io/pod-name" in user.get("extra", {})
    return user["username"] == account and by_pod


def _resources(entries: list[dict[str, Any]]) -> set[str]:
    return {entry["objectRef"]["resource"] for entry in entries if "objectRef" in entry}
