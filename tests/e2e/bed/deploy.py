"""Deployment of drakit on a node: as a directory of packages, or as an image in a pod.

In both cases it uses its own service account with the permissions of its manifests, never
those of an administrator.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from .cluster import Cluster
from .gobuild import helm_program
from .kubeconfig import with_token_file
from .kubernetes import Manifest
from .node import GuestProcess, Node
from .pins import REPOSITORY, Pins
from .progress import run_step
from .waiting import NotYetError

PACKAGES_IN_GUEST = "/opt/drakit"
"""The same path as in the image, because the bytecode contains it."""


def unpack_packages(image: Path, target: Path) -> Path:
    """Fill ``target`` with drakit and its dependencies from the drivers' image.

    The image and the guest have the same Debian release, so the bytecode is valid in the guest; compiling
    it would take the emulated machine ten seconds.
    """
    with tarfile.open(image) as archive:
        index = json.load(_member(archive, "manifest.json"))
        (layer,) = index[0]["Layers"]
        with tarfile.open(fileobj=_member(archive, layer), mode="r:gz") as files:
            prefix = PACKAGES_IN_GUEST.lstrip("/") + "/"
            inside = [entry for entry in files if entry.name.startswith(prefix)]
            for entry in inside:
                entry.name = entry.name.removeprefix(prefix)
            files.extractall(target, inside, filter="data")
    return target


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None
    return found


def install_packages(node: Node, packages: Path) -> None:
    """Copy a directory made by ``unpack_packages`` into the guest."""
    node.put_tree(packages, PACKAGES_IN_GUEST)


@dataclass(frozen=True, slots=True)
class Identity:
    """The service account of a driver."""

    namespace: str
    account: str


def kubeconfig_in_guest(cluster: Cluster, node: Node, identity: Identity) -> str:
    """Write a kubeconfig for a service account to the guest and return its path there.

    The token is bound to the node, like that of a driver's pod.
    """
    directory = f"/var/lib/bed/{identity.namespace}-{identity.account}"
    token = cluster.api.token(
        identity.namespace, identity.account, bound_to=cluster.api.get("v1", "Node", node.name)
    )
    node.put(f"{directory}/token", token, 0o600)
    text = with_token_file(
        f"https://{node.network.host}:{cluster.plane.port}",
        cluster.plane.keys.authority.certificate,
        f"{directory}/token",
    )
    node.put(f"{directory}/kubeconfig", text, 0o600)
    return f"{directory}/kubeconfig"


def run_module(
    node: Node,
    name: str,
    module: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> GuestProcess:
    """Start ``python3 -m module`` of the installed packages in the guest, in the background."""
    variables = {"PYTHONPATH": PACKAGES_IN_GUEST, "PYTHONUNBUFFERED": "1", **(environment or {})}
    return node.spawn(name, ["python3", "-m", module, *arguments], variables)


def deploy_manifests(cluster: Cluster, manifests: Sequence[Manifest], namespace: str) -> None:
    """Apply rendered manifests (namespaces first) and wait for their service accounts."""
    order = {"Namespace": 0, "ServiceAccount": 1, "ClusterRole": 2, "ClusterRoleBinding": 3}
    for manifest in sorted(manifests, key=lambda entry: order.get(entry["kind"], 9)):
        cluster.apply(manifest, namespace)


def build_image(target: Path) -> Path:
    """Build the image of the drivers from this tree, like ``make image``."""
    tool = [sys.executable, str(REPOSITORY / "tools" / "build_image.py"), "--output", str(target)]
    run_step("the drivers' image", tool, log=target.with_suffix(".log"), cwd=REPOSITORY)
    return target


def render_chart(pins: Pins, chart: str, namespace: str, values: Mapping[str, Any]) -> list[Manifest]:
    """Render a chart below ``deploy/helm`` with ``helm template``."""
    helm = [str(helm_program(pins).path()), "template", chart, f"deploy/helm/{chart}"]
    version = ["--kube-version", pins.kubernetes, "--namespace", namespace]
    done = subprocess.run(
        [*helm, *version, "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    if done.returncode != 0:
        raise RuntimeError(f"helm template {chart}: {done.stderr.strip()}")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def wait_for_daemon_set(cluster: Cluster, name: str, namespace: str, limit: float = 300.0) -> None:
    """Wait until every pod of a DaemonSet is up to date and ready."""

    def ready() -> bool:
        found = cluster.api.get("apps/v1", "DaemonSet", name, namespace)
        status = found["status"]
        wanted = status.get("desiredNumberScheduled", 0)
        if (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and wanted > 0
            and status.get("updatedNumberScheduled", 0) == wanted
            and status.get("numberReady", 0) == wanted
        ):
            return True
        pods = cluster.api.list("v1", "Pod", namespace)
        raise NotYetError("; ".join(cluster.why_not(pod) for pod in pods) or f"no pods: {status}")

    cluster.wait(f"DaemonSet {namespace}/{name} to be ready", ready, limit)
