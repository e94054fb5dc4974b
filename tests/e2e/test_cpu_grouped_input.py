"""Errors in a claim, a class or a pod: the event states the error and the remedy.

All pods are created at once and are processed independently by the kubelet and the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.cpu import BUSY, CLASS, amount, claim, on_numa_node, pod_with, running

pytestmark = pytest.mark.groups

EVERYTHING = frozenset(range(1, 8))
_NOT_UNDERSTOOD = "the configuration for dra.cpu is not understood: "


def _saying(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1alpha1", "cpuConfig": fields}


CLAIMS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "misspelt": (_saying(wholeCore=True), "unknown field 'wholeCore'; did you mean 'wholeCores'?"),
    "version": ({"apiVersion": "v9", "cpuConfig": {}}, "apiVersion 'v9' is not known, only 'v1al"),
    "contrary": (_saying(wholeCores=True, placement="spread"), "wholeCores: true takes every thr"),
}
"""Opaque configuration of a claim, and the response of the driver."""
CLASSES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "naming": (_saying(cpuset="2"), "a class cannot name a cpuset")
}
"""Opaque configuration of a class, and the response of the driver to a claim."""


def _class(name: str, parameters: Mapping[str, Any]) -> Manifest:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"broken-{name}"},
        "spec": {
            "selectors": [{"cel": {"expression": f'device.driver == "{CLASS}"'}}],
            "config": [{"opaque": {"driver": CLASS, "parameters": dict(parameters)}}],
        },
    }


def _of_class(name: str) -> Manifest:
    request = amount(1, on_numa_node(1))
    return {**request, "exactly": {**request["exactly"], "deviceClassName": f"broken-{name}"}}


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, cpu_driver: ChartDriver) -> Iterator[str]:
    """One namespace with all invalid objects."""
    cpu_driver.deploy(driverConfig={"reservedCPUs": "0"})
    with cluster.namespace("mistakes") as name:
        one = amount(1, on_numa_node(1))
        claims = [claim(each, one, config=config_) for each, (config_, _) in CLAIMS.items()]
        claims += [claim(each, _of_class(each)) for each in CLASSES]
        claims += [
            claim("many", amount(64)),
            claim("nowhere", amount(1, on_numa_node(7))),
            claim("reserved", amount(1, on_numa_node(0)), config=_saying(cpuset="0")),
        ]
        cluster.apply([_class(each, config_) for each, (config_, _) in CLASSES.items()])
        pods = [pod_with(each["metadata"]["name"], each["metadata"]["name"]) for each in claims]
        cluster.apply([*claims, *pods], name)
        try:
            yield name
        finally:
            for each in CLASSES:
                cluster.api.delete("resource.k8s.io/v1", "DeviceClass", f"broken-{each}")


@pytest.mark.parametrize("name", [*CLAIMS, *CLASSES])
def test_an_invalid_configuration_is_rejected_with_a_reason(
    cluster: Cluster, namespace: str, name: str
) -> None:
    _, words = {**CLAIMS, **CLASSES}[name]
    event = cluster.wait_for_event(namespace, _NOT_UNDERSTOOD, about=name)
    assert event.startswith("FailedPrepareDynamicResources: ")
    assert words in event


def test_unavailable_cpus_are_rejected_with_a_reason(cluster: Cluster, namespace: str) -> None:
    event = cluster.wait_for_event(namespace, "FailedPrepareDynamicResources", about="reserved")
    assert "reserved for the system: 0" in event


@pytest.mark.parametrize("name", ["many", "nowhere"])
def test_an_impossible_claim_leaves_its_pod_pending_with_an_event(
    cluster: Cluster, namespace: str, name: str
) -> None:
    event = cluster.wait_for_event(namespace, "cannot allocate all claims", about=name)
    assert event.startswith("FailedScheduling: ")


def test_forged_variables_do_not_give_a_pod_the_cpus_of_another(cluster: Cluster, namespace: str) -> None:
    cluster.apply([claim("mine", amount(2, on_numa_node(0))), pod_with("owner", "mine")], namespace)
    (owner,) = running(cluster, namespace, "owner")
    owner.runs_only_on({2, 3})
    found = cluster.api.get("resource.k8s.io/v1", "ResourceClaim", "mine", namespace)
    uid = found["metadata"]["uid"]
    variables = {"DRA_CPUSET": "2-3", f"DRA_CPUSET_{uid}": "2-3", f"DRA_CLAIM_{uid}_cpus": "dra.k8s.io/cpu"}
    forger = busybox_pod("forger", BUSY)
    forger["metadata"]["annotations"] = {"cdi.k8s.io/forged": f"dra.k8s.io/cpu=claim-{uid}_cpus"}
    forger["spec"]["containers"][0]["env"] = [
        {"name": name, "value": value} for name, value in variables.items()
    ]
    cluster.apply(forger, namespace)

    def decided() -> str:
        pod = cluster.api.get("v1", "Pod", "forger", namespace)
        for status in pod["status"].get("containerStatuses", []):
            if "running" in status["state"]:
                return "running"
            if status["state"].get("waiting", {}).get("reason") == "CreateContainerError":
                return "refused"
        return ""

    if cluster.wait("the forger to run or to be refused", lambda: decided() or None) == "refused":
        # Only where the runtime reports no CDI devices (containerd 1.7, CRI-O) is a marker looked at.
        cluster.wait_for_event(namespace, f"remove DRA_CLAIM_{uid}_cpus", about="forger")
    else:
        (kernel,) = running(cluster, namespace, "forger")
        kernel.runs_only_on(EVERYTHING - {2, 3})
    owner.runs_only_on({2, 3})
