"""``drakit plan`` gives the same answer for every form of input."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from drakit.cli import main
from drakit.core.objects import from_builtins
from drakit.core.pods import Pod
from drakit.scheduler.placement import SchedulingResult, place
from tests.scheduler.wide_problems import claim_objects, cluster_objects, pod_object, private, wide_problem
from tests.scheduler.written import typed_cluster, write_problem

Json = dict[str, Any]


def shown(placement: SchedulingResult) -> Json:
    """What the document of ``drakit plan`` must say, claims by position."""
    return {
        "feasible": placement.feasible,
        "node": placement.node,
        "fits": [(a.name, a.fits) for a in placement.nodes],
        "results": [[[str(p.request), *p.device, p.admin] for p in a.picks] for a in placement.allocations],
    }


def told(document: Json, claims: list[Json]) -> Json:
    pending = [not c.get("status", {}).get("allocation") for c in claims]
    return {
        "feasible": document["feasible"],
        "node": document["node"],
        "fits": [(n["name"], n["fits"]) for n in document["nodes"]],
        "results": [
            [[r[k] for k in ("request", "driver", "pool", "device", "adminAccess")]
             for r in claim["results"]]
            for claim, new in zip(document["claims"], pending, strict=False) if new
        ],
    }  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_the_answer_does_not_depend_on_the_form(
    part: int, scale: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feasible = 0
    for seed in range(40_000 + part, 40_000 + 40 * scale, 4):
        posed = private(wide_problem(seed))
        cluster, claims, pod = cluster_objects(posed), claim_objects(posed), pod_object(posed)
        placement = place(typed_cluster([*cluster, *claims]), from_builtins(pod, Pod))
        arguments = write_problem(random.Random(seed), tmp_path, cluster, claims, pod)
        code = main(["plan", *arguments, "--output", "json"])
        document = json.loads(capsys.readouterr().out)
        assert code == (0 if placement.feasible else 1), f"seed {seed}"
        assert told(document, claims) == shown(placement), f"seed {seed}: {arguments}"
        feasible += placement.feasible
    assert feasible > 0


# -- older API versions --------------------------------------------------------------------------------

NODE: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
GROUP = "resource.k8s.io"


def old_objects(version: str) -> list[Json]:
    """A cluster and a claim as ``v1beta1`` wrote them."""
    capacity: Any = "8Gi" if version == "v1alpha3" else {"value": "8Gi"}
    basic = {"attributes": {"model": {"string": "a"}}, "capacity": {"memory": capacity}}
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "g0", "basic": basic}, {"name": "g1", "basic": {}}]
    spec = {"driver": "gpu.io", "nodeName": "n1", "pool": pool, "devices": devices}
    wish = {
        "name": "r",
        "deviceClassName": "gpu",
        "selectors": [{"cel": {"expression": 'device.attributes["gpu.io"].?model.orValue("") == "a"'}}],
    }
    api_version = f"{GROUP}/{version}"
    template = {"spec": {"devices": {"requests": [wish]}}}
    return [
        {"apiVersion": api_version, "kind": "DeviceClass", "metadata": {"name": "gpu"}},
        {"apiVersion": api_version, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec},
        {
            "apiVersion": api_version,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t"},
            "spec": template,
        },
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3"])
@pytest.mark.parametrize("form", ["List", "documents"])
def test_older_versions_are_understood(
    version: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device_class, entry, template = old_objects(version)
    items = [NODE, device_class, entry]
    text = json.dumps({"kind": "List", "items": items}) if form == "List" else "\n---\n".join(
        json.dumps(i) for i in items
    )  # fmt: skip
    (tmp_path / "cluster.yaml").write_text(text if form == "List" else f"---\n{text}")
    (tmp_path / "claim.yaml").write_text(f"---\n{json.dumps(template)}")
    given = ["--from", str(tmp_path / "cluster.yaml"), "-f", str(tmp_path / "claim.yaml")]
    assert main(["plan", *given, "--output", "json"]) == 0
    (claim,) = json.loads(capsys.readouterr().out)["claims"]
    assert [r["device"] for r in claim["results"]] == ["g0"]


def test_an_unsupported_api_version_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"kind": "List", "items": old_objects("v9")}))
    assert main(["plan", "--from", str(tmp_path), "-f", str(tmp_path / "c.json")]) == 2
    assert "unsupported API version resource.k8s.io/v9" in capsys.readouterr().err


def test_namesakes_of_other_groups_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"apiVersion": "config.example.com/v1", "kind": "Node", "metadata": {"name": "other"}}
    *cluster, template = old_objects("v1beta1")
    (tmp_path / "c.json").write_text(json.dumps({"kind": "List", "items": [NODE, other, *cluster]}))
    (tmp_path / "t.json").write_text(json.dumps(template))
    given = ["--from", str(tmp_path / "c.json"), "-f", str(tmp_path / "t.json")]
    assert main(["plan", *given, "--output", "json"]) == 0
    assert [n["name"] for n in json.loads(capsys.readouterr().out)["nodes"]] == ["n1"]


# -- slips ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["pod.yaml", "--from", "cluster.yaml"], "write -f pod.yaml"),
        (["--from", "cluster.yaml", "pod.yaml"], "write -f pod.yaml if that is it"),
        (["--from", "cluster.yaml"], "give the file with the pod with -f"),
        ([], "give the file with the pod with -f"),
    ],
)
def test_a_file_without_its_option_is_pointed_out(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    assert hint in capsys.readouterr().err


def test_sources_may_be_given_in_any_order_and_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device_class, entry, template = old_objects("v1beta1")
    for name, item in (("n", NODE), ("c", device_class), ("s", entry), ("t", template)):
        (tmp_path / f"{name}.json").write_text(json.dumps(item))
    n, c, s, t = (str(tmp_path / f"{name}.json") for name in "ncst")
    for words in (
        ["--from", n, c, s, "-f", t],
        ["-f", t, "--from", n, c, s],
        ["--from", n, "--from", c, s, "-f", t],
        ["--from", n, "-f", t, "--from", c, "--from", s],
    ):
        assert main(["plan", *words, "--output", "json"]) == 0
    assert main(["explain", "--from", n, c, s, t, "-f", t]) == 0
    capsys.readouterr()
    assert main(["explain", "--from", n, c, s, "nobody"]) == 2
    assert "no pod or claim 'nobody'" in capsys.readouterr().err
