"""Problems as people have them: in files, of every shape `drakit plan` reads."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

from drakit.core.kubernetes_releases import V1_37, KubernetesRelease
from drakit.core.objects import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice, from_builtins
from drakit.core.pods import Node
from drakit.scheduler.placement import ClusterSnapshot
from tests.scheduler.problems import Json

DRA = "resource.k8s.io/v1"


def typed_cluster(items: list[Json], release: KubernetesRelease = V1_37) -> ClusterSnapshot:
    """API objects as the cluster the scheduler's model works on."""

    def of(kind: str, to: type[Any]) -> tuple[Any, ...]:
        return tuple(from_builtins(item, to) for item in items if item["kind"] == kind)

    return ClusterSnapshot(
        nodes=of("Node", Node),
        slices=of("ResourceSlice", ResourceSlice),
        classes=of("DeviceClass", DeviceClass),
        taint_rules=of("DeviceTaintRule", DeviceTaintRule),
        claims=of("ResourceClaim", ResourceClaim),
        release=release,
    )


def write_problem(
    choice: random.Random, directory: Path, cluster: list[Json], claims: list[Json], pod: Json
) -> list[str]:
    """Write the objects in one of many forms; returns the arguments for ``drakit plan``."""
    for old in sorted(directory.rglob("*"), reverse=True):
        old.rmdir() if old.is_dir() else old.unlink()
    wanted = [pod, *claims]
    if choice.random() < 0.5 and not any(c.get("status", {}).get("allocation") for c in claims):
        wanted = _with_templates(pod, claims)
    elif choice.random() < 0.5:  # the claims are in the cluster already
        cluster, wanted = [*cluster, *claims], [pod]
    choice.shuffle(wanted)
    cluster = list(cluster)
    choice.shuffle(cluster)
    sources = choice.choice((_one_file, _several_files, _a_directory))(choice, directory, cluster)
    file = _write(choice, directory / "wanted", wanted)
    given = ["--from", *sources, "-f", file]
    return given if choice.random() < 0.5 else ["-f", file, "--from", *sources]


def _with_templates(pod: Json, claims: list[Json]) -> list[Json]:
    """The pod with templates instead of its claims."""
    spec = dict(pod["spec"])
    spec["resourceClaims"] = [
        {"name": entry["name"], "resourceClaimTemplateName": f"t-{entry['resourceClaimName']}"}
        for entry in spec["resourceClaims"]
    ]
    templates = [
        {
            "apiVersion": DRA,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": f"t-{c['metadata']['name']}", "namespace": "default"},
            "spec": {"spec": c["spec"]},
        }
        for c in claims
    ]
    return [{**pod, "spec": spec}, *templates]


def _one_file(choice: random.Random, directory: Path, items: list[Json]) -> list[str]:
    return [_write(choice, directory / "cluster", items)]


def _several_files(choice: random.Random, directory: Path, items: list[Json]) -> list[str]:
    at = choice.randrange(len(items) + 1)
    parts = [part for part in (items[:at], items[at:]) if part]
    return [_write(choice, directory / f"part-{i}", part) for i, part in enumerate(parts)]


def _a_directory(choice: random.Random, directory: Path, items: list[Json]) -> list[str]:
    for index, item in enumerate(items):
        place = directory / "dump" / item["kind"].lower()
        place.mkdir(parents=True, exist_ok=True)
        _write(choice, place / str(index), [item])
    (directory / "dump" / "README.txt").write_text("not a manifest")
    return [str(directory / "dump")]


def _write(choice: random.Random, path: Path, items: list[Json]) -> str:
    form = choice.choice(("documents", "list", "json", "bare"))
    if form == "documents":
        file = path.with_suffix(".yaml")
        file.write_text(yaml.dump_all(items, Dumper=yaml.CSafeDumper))
    elif form == "list":
        file = path.with_suffix(".yml")
        whole = {"apiVersion": "v1", "kind": "List", "items": items}
        file.write_text(yaml.dump(whole, Dumper=yaml.CSafeDumper))
    elif form == "json":
        file = path.with_suffix(".json")
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
    else:
        file = path.with_suffix(".json")
        file.write_text("\n".join(json.dumps(item) for item in items))
    return str(file)
