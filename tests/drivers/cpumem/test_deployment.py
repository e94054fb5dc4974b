"""What is deployed names the classes and the settings that the driver has."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from drakit.core.objects import to_builtins
from drakit.drivers.cpumem.classes import combined_classes, split_classes

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


def test_both_charts_share_their_templates() -> None:
    own = {"_driver.tpl", "deviceclass.yaml"}
    for template in (DEPLOY / "helm/dra-driver-cpumem/templates").iterdir():
        if template.name not in own:
            assert template.resolve().parent.parent.name == "dra-driver-cpu", template.name
