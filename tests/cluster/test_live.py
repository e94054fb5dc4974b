"""``plan`` and ``explain`` on a live cluster: nothing is written, errors name what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drakit.cli import main
from drakit.testing.apiserver import FakeApiServer

Json = dict[str, Any]
CLAIM: Json = {
    "metadata": {"name": "c", "namespace": "team"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
}
POD: Json = {
    "metadata": {"name": "p", "namespace": "team"},
    "spec": {
        "containers": [{"name": "m", "image": "i"}],
        "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
    },
}


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer().in_thread() as running:
        running.add("nodes", {"metadata": {"name": "n1"}})
        selector = {"cel": {"expression": 'device.driver == "gpu.io"'}}
        running.add("deviceclasses", {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.io", "nodeName": "n1", "pool": pool, "devices": [{"name": "g0"}]}
        running.add("resourceslices", {"metadata": {"name": "s1"}, "spec": spec})
        running.add("resourceclaims", CLAIM)
        running.add("pods", POD)
        yield running


@pytest.fixture
def kubeconfig(server: FakeApiServer, tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig.json"
    path.write_text(server.kubeconfig())
    return str(path)


def test_a_pod_of_the_cluster_is_explained_without_a_write(
    server: FakeApiServer, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "p", "-n", "team", "--kubeconfig", kubeconfig]) == 0
    assert "fits on 1 of 1 nodes: n1" in capsys.readouterr().out
    assert {seen.method for seen in server.requests} == {"GET"}


def test_a_pod_from_a_file_is_planned_on_the_cluster(
    kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(
        "kind: Pod\nmetadata: {name: q, namespace: team}\n"
        "spec: {resourceClaims: [{name: c, resourceClaimName: c}]}\n"
    )
    assert main(["plan", "-f", str(file), "--kubeconfig", kubeconfig]) == 0
    assert "r: gpu.io/n1/g0" in capsys.readouterr().out


def test_forbidden_resources_are_named_with_a_remedy(
    server: FakeApiServer, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.forbidden.add(("list", "resourceslices"))
    assert main(["explain", "p", "-n", "team", "--kubeconfig", kubeconfig]) == 2
    printed = capsys.readouterr().err
    assert "cannot list resourceslices" in printed
    assert "kubectl get" in printed


def test_taint_rules_that_may_not_be_read_are_only_noted(
    server: FakeApiServer, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.forbidden.add(("list", "devicetaintrules"))
    assert main(["explain", "p", "-n", "team", "--kubeconfig", kubeconfig]) == 0
    assert "devicetaintrules cannot be read" in capsys.readouterr().err


def test_a_server_without_taint_rules_is_supported(
    server: FakeApiServer, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.unserved.add("devicetaintrules")
    assert main(["explain", "p", "-n", "team", "--kubeconfig", kubeconfig]) == 0
    assert capsys.readouterr().err == ""


def test_an_unreachable_server_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeApiServer().in_thread() as gone:
        text = gone.kubeconfig()
    (tmp_path / "kubeconfig.json").write_text(text)
    assert main(["explain", "p", "--kubeconfig", str(tmp_path / "kubeconfig.json")]) == 2
    assert "can be reached from here" in capsys.readouterr().err


def test_a_missing_kubeconfig_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "p", "--kubeconfig", "/no/such/file"]) == 2
    assert "/no/such/file" in capsys.readouterr().err
