"""The driver of the documentation with a real kubelet and its own service account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.deploy import (
    PACKAGES_IN_GUEST,
    Identity,
    deploy_manifests,
    install_packages,
    kubeconfig_in_guest,
)
from tests.e2e.bed.node import Node
from tests.e2e.cpu import Kernel
from tests.kit.test_host import toy_source

DRIVER = "seats.example.org"
RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["list", "watch", "create", "update", "delete"],
    },
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
]


@pytest.fixture
def toy(cluster: Cluster, node: Node, packages: Path, namespace: str) -> Iterator[str]:
    """The toy driver as a plain process on the node."""
    rbac = "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": "seats", "namespace": namespace}
    deploy_manifests(
        cluster,
        [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "seats"}},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "seats"},
                "rules": RULES,
            },
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "seats"},
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "seats"},
                "subjects": [account],
            },
        ],
        namespace,
    )
    install_packages(node, packages)
    node.put("/opt/toy.py", toy_source(), 0o644)
    kubeconfig = kubeconfig_in_guest(cluster, node, Identity(namespace, "seats"))
    flags = [f"--kubeconfig={kubeconfig}", f"--hostname-override={node.name}", "--bind-address="]
    driver = node.spawn("toy", ["python3", "/opt/toy.py", *flags], {"PYTHONPATH": PACKAGES_IN_GUEST})
    yield namespace
    driver.stop()


def test_the_documented_driver_serves_a_real_kubelet(toy: str, cluster: Cluster, node: Node) -> None:
    (published,) = cluster.wait("slices of the toy", lambda: cluster.slices(DRIVER, node.name) or None, 240)
    assert [d["name"] for d in published["spec"]["devices"]] == [f"seat-{n}" for n in range(4)]
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    request = {"name": "r", "exactly": {"deviceClassName": "seats", "count": 2}}
    cluster.apply(
        [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "seats"},
                "spec": {"selectors": [selector]},
            },
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "pair"},
                "spec": {"devices": {"requests": [request]}},
            },
            busybox_pod("guest", claims=[{"name": "s", "resourceClaimName": "pair"}]),
        ],
        toy,
    )
    pod = cluster.wait_for_pod("guest", toy)
    environment = Kernel(cluster, pod).environment()
    assert {k: v for k, v in environment.items() if k.startswith("SEAT_")} == {
        "SEAT_0": "yours",
        "SEAT_1": "yours",
    }
    cluster.api.delete("v1", "Pod", "guest", toy)
    cluster.wait_for_gone("v1", "Pod", "guest", toy)
    assert node.run("ls /var/run/cdi | grep -c example.org-seat || true").strip() == "0"
