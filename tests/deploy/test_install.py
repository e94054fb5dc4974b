"""The shipped manifests: existing flags, required permissions and least privilege."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakit.core.objects import DeviceClass, from_builtins
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.program import program as cpu_program
from drakit.kit.config import settings as configuration
from drakit.scheduler.cel.selector import rejection

DEPLOY = Path(__file__).parents[2] / "deploy"


def _manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


MANIFESTS = _manifests("install.yaml")


def only(kind: str) -> dict[str, Any]:
    (found,) = [m for m in MANIFESTS if m["kind"] == kind]
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = only("DaemonSet")["spec"]["template"]["spec"]
    return spec


def test_every_argument_of_the_daemon_set_is_understood(pod: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(only("ConfigMap")["data"]["config.yaml"])
    arguments = [a for a in pod["containers"][0]["args"] if not a.startswith("--config=")]
    loaded = configuration.load(
        CpuConfig,
        argparse.ArgumentParser(),
        [*arguments, f"--config={config}"],
        {},
        prefix=cpu_program().prefix,
    )
    assert loaded.config.kubelet_root_dir == "/var/lib/kubelet"
    assert pod["containers"][0]["command"] == [cpu_program().name]


def test_node_name_and_pod_uid_come_from_the_downward_api(pod: dict[str, Any]) -> None:
    fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in pod["containers"][0]["env"]}
    assert fields == {"NODE_NAME": "spec.nodeName", "POD_UID": "metadata.uid"}


def test_only_required_privileges_are_granted(pod: dict[str, Any]) -> None:
    security = pod["containers"][0]["securityContext"]
    assert security["privileged"] is False
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


@pytest.mark.parametrize("manifest", ["install.yaml", "install-cpumem.yaml"])
def test_clients_of_the_port_cannot_cause_a_restart(manifest: str) -> None:
    (found,) = [m for m in _manifests(manifest) if m["kind"] == "DaemonSet"]
    (driver,) = found["spec"]["template"]["spec"]["containers"]
    assert not {"livenessProbe", "startupProbe"} & driver.keys()
    assert driver["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


@pytest.mark.parametrize("manifest", ["install.yaml", "install-cpumem.yaml"])
def test_only_the_monitoring_namespace_reaches_the_port(manifest: str) -> None:
    (policy,) = [m["spec"] for m in _manifests(manifest) if m["kind"] == "NetworkPolicy"]
    (daemon,) = [m["spec"] for m in _manifests(manifest) if m["kind"] == "DaemonSet"]
    assert policy["podSelector"] == daemon["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
    name = {"kubernetes.io/metadata.name": "monitoring"}
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": name}}]


@pytest.mark.parametrize(
    ("manifest", "driver"), [("install.yaml", "dra.cpu"), ("install-cpumem.yaml", "dra.cpumem")]
)
def test_the_policy_names_the_driver(manifest: str, driver: str) -> None:
    (policy,) = [m["spec"] for m in _manifests(manifest) if m["kind"] == "ValidatingAdmissionPolicy"]
    checks = [each["expression"] for each in policy["validations"]]
    assert f'variables.slice.spec.driver == "{driver}"' in checks


def test_every_volume_is_mounted_and_every_mount_has_its_volume(pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == volumes


def test_the_role_has_exactly_the_verbs_the_code_uses() -> None:
    rights = {
        (group, resource): set(rule["verbs"])
        for rule in only("ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert rights == {
        ("", "nodes"): {"get"},
        ("resource.k8s.io", "resourceslices"): {"list", "watch", "create", "update", "delete"},
        ("resource.k8s.io", "resourceclaims"): {"get"},
    }


def test_the_class_is_one_the_api_server_accepts() -> None:
    found = from_builtins(only("DeviceClass"), DeviceClass)
    assert found.metadata.name == "dra.cpu"
    for selector in found.spec.selectors:
        assert selector.cel is not None
        assert rejection(selector.cel.expression) is None


def test_the_rolling_update_leaves_no_gap() -> None:
    strategy = only("DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 1, "maxUnavailable": 0}


def test_values_and_their_schema_agree() -> None:
    import json

    chart = DEPLOY / "helm/dra-driver-cpu"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    assert set(values) | {"global", "drakit-library"} == set(schema["properties"])
