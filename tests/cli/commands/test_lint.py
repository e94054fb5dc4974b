"""``drakit lint``: every rule finds its mistake, with file, line and fix, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drakit.cli import main

CLUSTER = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.io"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.io
  nodeName: n
  pool: {name: n, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: g0, attributes: {model: {string: a100}}, capacity: {memory: {value: 40Gi}}}
"""
CLAIM = """apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec:
  devices:
    requests:
"""
GOOD = """    - name: r
      exactly:
        deviceClassName: gpu
        selectors:
        - cel: {expression: 'device.attributes["gpu.io"].?model.orValue("") == "a100"'}
        capacity: {requests: {memory: 1Gi}}
"""


def exact(text: str) -> str:
    return f"    - name: r\n      exactly:\n        deviceClassName: gpu\n        {text}\n"


RULES = {
    "unguarded-access": (
        exact("""selectors: [{cel: {expression: 'device.attributes["gpu.io"].model == "x"'}}]"""), 9),
    "refused-expression": (exact("selectors: [{cel: {expression: 'device.nope'}}]"), 10),
    "too-many-devices": (exact("count: 33"), 10),
    "wrong-capacity-key": (exact("capacity: {requests: {gpu.io/memory: 1Gi}}"), 10),
    "no-device": (exact("selectors: [{cel: {expression: 'device.driver == \"x.io\"'}}]"), 7),
    "unreachable-alternative": (
        ("    - name: r\n      firstAvailable:\n"
         "      - {name: one, deviceClassName: gpu, count: 1}\n"
         "      - {name: two, deviceClassName: gpu, count: 2}\n"), 10),
    "unpublished-attribute": (GOOD + "    constraints: [{matchAttribute: gpu.io/numa}]\n", 13),
    "unknown-request": (
        GOOD + "    constraints: [{matchAttribute: gpu.io/model, requests: [other]}]\n", 13),
    "unknown-class": (exact("").replace("gpu", "tpu"), 9),
}  # fmt: skip


def lint(tmp_path: Path, text: str) -> int:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "it.yaml").write_text(text)
    source = str(tmp_path / "cluster.yaml")
    return main(["lint", str(tmp_path / "it.yaml"), "--from", source, "--output", "json"])


@pytest.mark.parametrize("rule", RULES)
def test_the_mistake_is_found(rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, line = RULES[rule]
    assert lint(tmp_path, CLAIM + text) == 1
    found = {f["rule"]: f for f in json.loads(capsys.readouterr().out)}
    assert rule in found
    assert found[rule]["fix"]
    assert abs(found[rule]["line"] - line) <= 1


def test_a_correct_claim_has_no_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, CLAIM + GOOD) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_claim_without_a_container(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = "kind: Pod\nmetadata: {name: p}\nspec:\n  resourceClaims: [{name: c, resourceClaimName: c}]\n"
    assert lint(tmp_path, pod) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["rule"], found["line"]) == ("unused-claim", 4)


DUPLICATE = """\
kind: ResourceClaim
metadata: {name: twice}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: gpu, count: 1, count: 2}
"""


@pytest.mark.parametrize("command", [["lint"], ["plan", "-f"], ["explain", "-f"], ["lint", "--from"]])
def test_a_duplicate_key_is_an_error_with_file_and_line(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(DUPLICATE)
    arguments = [*command, str(file)]
    if command[-1] == "--from":
        good = tmp_path / "good.yaml"
        good.write_text(DUPLICATE.replace(", count: 2", ""))
        arguments = ["lint", str(good), "--from", str(file)]
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert f"{file}: line 7: 'count' is given twice" in message


def test_a_duplicate_key_in_a_later_document_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text(DUPLICATE.replace(", count: 2", "") + "---\n" + DUPLICATE)
    assert main(["lint", str(file)]) == 2
    assert f"{file}: line 15: 'count' is given twice" in capsys.readouterr().err


def test_a_syntax_error_names_the_file_and_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text("kind: ResourceClaim\nmetadata: {name: [}\n")
    assert main(["lint", str(file)]) == 2
    message = capsys.readouterr().err
    assert f"{file}: not valid YAML: " in message
    assert "line 2" in message
    assert "string>" not in message


def test_one_object_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(DUPLICATE.replace(", count: 2", ""))
    assert main(["lint", str(file)]) == 0
    assert capsys.readouterr().out == "1 object checked, 0 findings\n"
