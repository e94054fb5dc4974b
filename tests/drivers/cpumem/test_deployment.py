"""What is deployed names the classes and the settings that the driver has."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from drakit.core.objects import to_builtins
from drakit.drivers.cpumem.layouts import combined_classes, split_classes
from drakit.kit.config.options import HostOptions

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_rendered_classes_are_those_of_the_driver() -> None:
    rendered = {
        document["metadata"]["name"]: document["spec"]
        for document in yaml.safe_load_all((DEPLOY / "install-cpumem.yaml").read_text())
        if document["kind"] == "DeviceClass"
    }
    classes = (*combined_classes(), *split_classes())
    made = {each.metadata.name: to_builtins(each.spec) for each in classes}
    assert rendered == json.loads(json.dumps(made))


def test_the_kubelets_file_is_mounted_read_only_and_nothing_around_it() -> None:
    (pod,) = [
        document["spec"]["template"]["spec"]
        for document in yaml.safe_load_all((DEPLOY / "install-cpumem.yaml").read_text())
        if document["kind"] == "DaemonSet"
    ]
    (driver,) = pod["containers"]
    mounts = {mount["name"]: mount for mount in driver["volumeMounts"]}
    volumes = {volume["name"]: volume.get("hostPath") for volume in pod["volumes"]}
    path = HostOptions().kubelet_config
    assert mounts["kubelet-config"] == {"name": "kubelet-config", "mountPath": path, "readOnly": True}
    assert volumes["kubelet-config"] == {"path": path, "type": "File"}
    assert "kubelet-config-dir" not in mounts  # only where the kubelet has the flag


def test_values_and_their_schema_agree() -> None:
    chart = DEPLOY / "helm/dra-driver-cpumem"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    assert set(values) | {"global", "drakit-library"} == set(schema["properties"])
