"""Driver deployed with its chart, as a user deploys it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .deploy import deploy_manifests, render_chart, wait_for_daemon_set
from .kubernetes import Manifest
from .node import Node
from .waiting import NotYetError

_NAMESPACE = "drakit-system"


class ChartDriver:
    """One release of a chart below ``deploy/helm``: install, upgrade, disrupt, remove."""

    def __init__(self, cluster: Cluster, chart: str, driver: str, image: Path) -> None:
        """``chart`` is also the DaemonSet's name, ``driver`` the DRA driver's."""
        self._cluster, self.chart, self.name = cluster, chart, driver
        self.namespace = _NAMESPACE
        self._image = image
        self._values: dict[str, Any] = {}

    def deploy(self, **values: Any) -> None:
        """Install or upgrade with these chart values and wait until the driver is ready on all nodes."""
        for node in self._cluster.nodes:
            node.load_image(self._image)
        self._values = {"image": {"pullPolicy": "Never"}, **values}
        self._apply()
        self.wait_until_serving()

    def restart(self) -> None:
        """Replace the driver by a new instance; the old one stops when the new one is ready."""
        count = int(self._values.get("podAnnotations", {}).get("bed/restart", 0)) + 1
        self._values["podAnnotations"] = {"bed/restart": str(count)}
        self._apply()
        self.wait_until_serving()

    def remove(self) -> None:
        """Remove the driver from the nodes; claims, classes and permissions stay."""
        self._cluster.api.delete("apps/v1", "DaemonSet", self.chart, self.namespace)
        self._cluster.wait("the driver's pods to be gone", lambda: not self._pods())

    def uninstall(self) -> None:
        """Delete all objects of the chart, in any namespace, so that another release can create them."""
        for manifest in render_chart(self._cluster.pins, self.chart, self.namespace, self._values):
            namespace = manifest["metadata"].get("namespace", self.namespace)
            kind = manifest["apiVersion"], manifest["kind"]
            self._cluster.api.delete(*kind, manifest["metadata"]["name"], namespace)
        self._cluster.wait("the driver's pods to be gone", lambda: not self._pods())

    def retire(self) -> None:
        """Uninstall after all claims are gone, like an administrator who drains the nodes first."""

        def drained() -> bool:
            left = {node.name: list(self.checkpoint(node)) for node in self._cluster.nodes}
            if any(left.values()):
                raise NotYetError(f"claims that are left: {left}")
            return True

        if self._pods():
            self._cluster.wait(f"all claims of {self.name} to end", drained)
        self.uninstall()

    def wait_until_serving(self) -> None:
        """Wait until every instance is ready and every node's slices are published."""
        wait_for_daemon_set(self._cluster, self.chart, self.namespace)

        def published() -> bool:
            for node in self._cluster.nodes:
                self.pod(
                    node
                )  # the status of a DaemonSet and the slices of a node outlive an instance for a while
                slices = self._cluster.slices(self.name, node.name)
                if not slices:
                    raise NotYetError(f"{node.name} has no slice of {self.name}")
                pool = slices[0]["spec"]["pool"]
                if len(slices) != pool["resourceSliceCount"]:
                    raise NotYetError(f"{len(slices)} slices of {pool}")
            return True

        self._cluster.wait(f"the slices of {self.name}", published)

    def pod(self, node: Node) -> Manifest:
        """The ready instance on a node."""
        for pod in self._pods():
            statuses = pod["status"].get("containerStatuses", [])
            ready = bool(statuses) and all(entry["ready"] for entry in statuses)
            if pod["spec"].get("nodeName") == node.name and ready:
                return pod
        raise NotYetError(f"no ready instance of {self.chart} on {node.name}")

    def delete_pod(self, node: Node) -> None:
        """Delete the instance gracefully and wait for the replacement by the DaemonSet."""
        old = self.pod(node)["metadata"]
        self._cluster.api.delete("v1", "Pod", old["name"], self.namespace)
        self._cluster.wait_for_gone("v1", "Pod", old["name"], self.namespace)
        self.wait_until_serving()

    def kill(self, node: Node) -> None:
        """``kill -9`` the driver's process and wait until the kubelet has restarted it."""
        pod = self.pod(node)
        container = self._cluster.container_id(pod)
        pids = " ".join(map(str, node.pids(container)))
        node.run(f"kill -9 {pids}")

        def started_again() -> bool:
            now = self.pod(node)
            return self._cluster.container_id(now) != container

        self._cluster.wait("the kubelet to start the driver again", started_again)
        self.wait_until_serving()

    def log(self, node: Node) -> str:
        """The log of the instance on a node."""
        return self._cluster.logs(self.pod(node)["metadata"]["name"], self.namespace)

    def get(self, node: Node, path: str) -> str:
        """Send a request to the HTTP server of the instance, for example for ``/metrics``."""
        pod = self.pod(node)
        port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
        url = f"http://{pod['status']['podIP']}:{port}{path}"
        source = "import urllib.request\nresult = urllib.request.urlopen(url, timeout=20).read().decode()"
        return str(node.python(source, url=url))

    def checkpoint(self, node: Node) -> dict[str, str]:
        """The checkpoint files on the node's disk, by name."""
        directory = f"/var/lib/kubelet/plugins/{self.name}/claims"
        files: dict[str, str] = node.python(_READ_ALL, directory=directory)
        return files

    def _apply(self) -> None:
        manifests = render_chart(self._cluster.pins, self.chart, self.namespace, self._values)
        namespace: Mapping[str, Any] = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self.namespace},
        }
        deploy_manifests(self._cluster, [dict(namespace), *manifests], self.namespace)

    def _pods(self) -> list[Manifest]:
        found = self._cluster.api.list("v1", "Pod", self.namespace)
        return [
            pod
            for pod in found
            if any(
                owner["name"] == self.chart and owner["kind"] == "DaemonSet"
                for owner in pod["metadata"].get("ownerReferences", [])
            )
        ]


# A file may disappear between listing and reading.
_READ_ALL = """
import contextlib, os
result = {}
names = os.listdir(directory) if os.path.isdir(directory) else []
for name in (each for each in names if not each.startswith(".")):
    with contextlib.suppress(FileNotFoundError), open(os.path.join(directory, name)) as file:
        result[name] = file.read()
"""
