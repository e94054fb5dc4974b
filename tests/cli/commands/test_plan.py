"""``drakit plan``: its JSON document and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drakit.cli import main

CLUSTER = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone: a}}}
- {apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {taints: [{key: x, effect: NoSchedule}]}}
- {apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: cpu}}
- apiVersion: resource.k8s.io/v1
  kind: ResourceSlice
  metadata: {name: s1}
  spec:
    driver: dra.cpu
    nodeName: n1
    pool: {name: n1, generation: 1, resourceSliceCount: 1}
    devices:
    - name: numa0
      allowMultipleAllocations: true
      attributes: {numaNodeID: {int: 0}}
      capacity: {dra.cpu/cpu: {value: "8"}}
    - name: numa1
      allowMultipleAllocations: true
      attributes: {numaNodeID: {int: 1}}
      capacity: {dra.cpu/cpu: {value: "16"}}
"""
POD = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t}
spec:
  spec:
    devices:
      requests:
      - name: cpus
        firstAvailable:
        - {name: many, deviceClassName: cpu, capacity: {requests: {dra.cpu/cpu: "100"}}}
        - {name: some, deviceClassName: cpu, capacity: {requests: {dra.cpu/cpu: "AMOUNT"}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims: [{name: c, resourceClaimTemplateName: t}]
  containers: [{name: m, resources: {claims: [{name: c}]}}]
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "pod.yaml").write_text(POD.replace("AMOUNT", "10"))
    (tmp_path / "large.yaml").write_text(POD.replace("AMOUNT", "20"))
    return tmp_path


def plan(files: Path, pod: str, *options: str) -> list[str]:
    return ["plan", "--from", str(files / "cluster.yaml"), "-f", str(files / pod), *options]


def test_the_document_is_the_agreed_one(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(plan(files, "pod.yaml", "--output", "json")) == 0
    assert json.loads(capsys.readouterr().out) == {
        "feasible": True,
        "node": "n1",
        "nodes": [
            {"name": "n1", "fits": True, "reason": ""},
            {"name": "n2", "fits": False, "reason": "node(s) had untolerated taint {x: }"},
        ],
        "claims": [
            {
                "namespace": "default",
                "name": "p-c",
                "results": [
                    {
                        "request": "cpus/some",
                        "driver": "dra.cpu",
                        "pool": "n1",
                        "device": "numa1",
                        "consumedCapacity": {"dra.cpu/cpu": "10"},
                        "adminAccess": False,
                    }
                ],
            }
        ],
    }


def test_a_pod_that_does_not_fit_is_exit_code_1(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(plan(files, "large.yaml", "--output", "json")) == 1
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (document["feasible"], document["node"], document["claims"]) == (False, None, [])
    assert document["nodes"][0]["reason"] == "cannot allocate all claims"


def test_text_names_node_device_and_what_is_left(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(plan(files, "pod.yaml", "--node", "n1")) == 0
    out = capsys.readouterr().out
    assert "fits on node n1" in out
    assert "dra.cpu/n1/numa1 – 10 dra.cpu/cpu" in out
    assert "left on dra.cpu/n1/numa1: 6 of 16 dra.cpu/cpu" in out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: Pod\nspec: {resourceClaims: 3}", "not valid"),
        ("just a text", "not a Kubernetes object"),
        ("{", "not valid JSON"),
        ("a: [", "not valid YAML"),
        (
            "{kind: Pod, metadata: {name: p}, spec: {resourceClaims: [{name: a, resourceClaimName: b}]}}",
            "not valid JSON",
        ),
        (
            "kind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: a, resourceClaimName: b}]}",
            "ResourceClaim default/b not found",
        ),
        (
            (
                "kind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: r, "
                "exactly: {deviceClassName: cpu, selectors: [{cel: {expression: device.nope}}]}}]}}"
            ),
            "undefined field 'nope'",
        ),
    ],
)
def test_invalid_input_is_exit_code_2_with_a_reason(
    files: Path, text: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "bad.yaml").write_text(text)
    assert main(plan(files, "bad.yaml")) == 2
    assert complaint in capsys.readouterr().err


def test_a_missing_class_stops_the_pod(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (files / "pod.yaml").read_text().replace("deviceClassName: cpu", "deviceClassName: gpu")
    (files / "pod.yaml").write_text(text)
    assert main(plan(files, "pod.yaml", "--output", "json")) == 1
    reasons = {n["reason"] for n in json.loads(capsys.readouterr().out)["nodes"]}
    assert reasons == {"request cpus/many: device class gpu does not exist"}
