"""Test cluster: a control plane on this machine and its nodes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from .busybox import IMAGE
from .controlplane import ControlPlane
from .egress import add_route
from .kubernetes import Api, ApiError, Manifest
from .node import Node
from .pins import Pins
from .processes import Run
from .progress import say
from .shapes import Shape
from .waiting import NotYetError, wait_for

T = TypeVar("T")
_COLLECTED = (
    ("v1", "Node"),
    ("v1", "Pod"),
    ("resource.k8s.io/v1", "ResourceSlice"),
    ("resource.k8s.io/v1", "ResourceClaim"),
    ("resource.k8s.io/v1", "DeviceClass"),
    ("apps/v1", "DaemonSet"),
)


class Cluster:
    """A running cluster; ``api`` has administrator access, ``node`` is the first node."""

    def __init__(self, run: Run, pins: Pins) -> None:
        """Start the control plane; add nodes with ``add_node``."""
        self._run, self.pins = run, pins
        self.plane = ControlPlane.start(run, pins)
        self.api: Api = self.plane.api
        self.nodes: list[Node] = []

    @property
    def node(self) -> Node:
        """The first node; most tests need only this one."""
        return self.nodes[0]

    def add_node(self, name: str, shape: Shape) -> Node:
        """Start a machine and wait until its node is Ready."""
        node = self.switch_node_on(name, shape)
        self.wait_for_node(node)
        return node

    def switch_node_on(self, name: str, shape: Shape) -> Node:
        """Start a machine without waiting; it is a node after ``wait_for_node``."""
        node = Node(self._run, self.pins, name, shape, self.plane)
        add_route(self.plane.routes, name, node.network.kubelet_port)
        self.nodes.append(node)
        say(f"booting {name} ({shape.name})")
        node.switch_on()
        return node

    def wait_for_node(self, node: Node) -> None:
        """Wait until a machine has booted and its node is Ready."""
        node.wait_until_up()
        say(f"{node.name} is up")
        self.wait_for_ready(node)
        say(f"{node.name} is Ready")

    def remove_node(self, node: Node) -> None:
        """Stop a node and remove it from the cluster."""
        node.cut_power()
        self.nodes.remove(node)
        self.api.delete("v1", "Node", node.name)

    def check(self) -> None:
        """Raise an error if a machine or a component of the control plane has died."""
        for node in self.nodes:
            node.check()
        self.plane.check()

    # Objects ----------------------------------------------------------------------------

    def apply(
        self, manifests: str | Manifest | Iterable[Manifest], namespace: str = "default"
    ) -> list[Manifest]:
        """Server-side apply manifests: YAML text (``---`` between them), one, or several."""
        if isinstance(manifests, str):
            manifests = [document for document in yaml.safe_load_all(manifests) if document]
        elif isinstance(manifests, dict):
            manifests = [manifests]
        return self.api.apply(manifests, namespace)

    @contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """A new namespace that is deleted afterwards.

        Names must be new: the kubelet rejects a claim with a name that it still has in memory.
        """
        name = f"{prefix[:40]}-{secrets.token_hex(3)}"
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.wait(
            f"the default service account of {name}",
            lambda: self.api.find("v1", "ServiceAccount", "default", name),
        )
        try:
            yield name
        finally:
            for pod in self.api.list("v1", "Pod", name):
                self.api.delete("v1", "Pod", pod["metadata"]["name"], name, grace=1)
            self.api.delete("v1", "Namespace", name)

    def events(self, namespace: str, about: str = "") -> list[str]:
        """Events as in ``kubectl describe``: ``Reason: message``, oldest first."""
        return [
            f"{event['reason']}: {event.get('message', '')}"
            for event in self.api.list("v1", "Event", namespace)
            if about in ("", event["involvedObject"].get("name"))
        ]

    def slices(self, driver: str, node: str = "") -> list[Manifest]:
        """The ResourceSlices of a driver, of one node or of all."""
        slices = self.api.list("resource.k8s.io/v1", "ResourceSlice")
        return [
            entry
            for entry in slices
            if entry["spec"]["driver"] == driver and (not node or entry["spec"].get("nodeName") == node)
        ]

    # Waiting ----------------------------------------------------------------------------

    def wait(self, why: str, condition: Callable[[], T], limit: float = 180.0) -> T:
        """Wait for a condition while all processes are alive; a timeout reports the last observed state.

        The condition returns a true value, or raises ``NotYetError`` with the observed state.
        """

        def tolerant() -> T:
            try:
                return condition()
            except (ApiError, OSError) as error:
                raise NotYetError(f"{type(error).__name__}: {error}") from error

        return wait_for(why, tolerant, limit=limit, alive=self.check)

    def wait_for_ready(self, node: Node, limit: float = 300.0) -> None:
        """Wait until the node is Ready, as reported by a kubelet started after the last boot."""

        def ready() -> bool:
            found = self.api.get("v1", "Node", node.name)
            booted = node.read("/proc/sys/kernel/random/boot_id").strip()
            if found["status"].get("nodeInfo", {}).get("bootID") != booted:
                raise NotYetError("the kubelet has not reported since the last boot")
            for condition in found["status"].get("conditions", []):
                if condition["type"] == "Ready":
                    if condition["status"] == "True":
                        return True
                    raise NotYetError(condition.get("message", "not Ready"))
            raise NotYetError("no Ready condition")

        self.wait(f"node {node.name} to be Ready", ready, limit)

    def wait_for_pod(
        self, name: str, namespace: str, phase: str = "Running", limit: float = 240.0
    ) -> Manifest:
        """Wait until a pod is Running with all containers ready (or in another phase)."""

        def there() -> Manifest:
            pod = self.api.get("v1", "Pod", name, namespace)
            status = pod["status"]
            statuses = status.get("containerStatuses", [])
            complete = phase != "Running" or (statuses and all(container["ready"] for container in statuses))
            if status.get("phase") == phase and complete:
                return pod
            raise NotYetError(self.why_not(pod))

        return self.wait(f"pod {namespace}/{name} to be {phase}", there, limit)

    def wait_for_gone(
        self, api_version: str, kind: str, name: str, namespace: str = "", limit: float = 180.0
    ) -> None:
        """Wait until an object no longer exists."""
        self.wait(
            f"{kind} {name} to be gone",
            lambda: self.api.find(api_version, kind, name, namespace) is None,
            limit,
        )

    def wait_for_event(self, namespace: str, text: str, *, about: str = "", limit: float = 180.0) -> str:
        """Wait until an event (``about`` one object) contains ``text``, and return the event."""

        def seen() -> str:
            events = self.events(namespace, about)
            for event in events:
                if text in event:
                    return event
            raise NotYetError(f"events so far: {events[-5:]}")

        return self.wait(f"an event with {text!r} in {namespace}", seen, limit)

    def why_not(self, pod: Manifest) -> str:
        """Why a pod is not running, in one line: conditions, containers, last events."""
        status, metadata = pod["status"], pod["metadata"]
        reasons = [f"{metadata['name']}: phase {status.get('phase')}"]
        reasons += [
            condition.get("message", f"not {condition['type']}")
            for condition in status.get("conditions", [])
            if condition["status"] != "True"
        ]
        for container in status.get("containerStatuses", []):
            waiting = container["state"].get("waiting")
            if waiting:
                reasons.append(f"{container['name']}: {waiting}")
        reasons += self.events(metadata["namespace"], metadata["name"])[-3:]
        return "; ".join(reasons)

    # Containers -------------------------------------------------------------------------

    def logs(self, pod: str, namespace: str, container: str = "") -> str:
        """The log of a container, as in ``kubectl logs``."""
        query = f"?container={container}" if container else ""
        return self.api.raw("GET", self.api.path("v1", "Pod", namespace, pod) + f"/log{query}").decode()

    def container_id(self, pod: Manifest, container: str = "") -> str:
        """The runtime's id of a container of a running pod (its first one by default)."""
        for status in pod["status"]["containerStatuses"]:
            if container in ("", status["name"]):
                return str(status["containerID"].partition("://")[2])
        raise KeyError(f"pod {pod['metadata']['name']} has no container {container!r}")

    def node_of(self, pod: Manifest) -> Node:
        """The node a pod runs on."""
        return next(node for node in self.nodes if node.name == pod["spec"]["nodeName"])

    def collect(self, folder: Path) -> None:
        """Write objects, events and logs to ``folder``, for the analysis of a failure."""
        folder.mkdir(parents=True, exist_ok=True)
        for api_version, kind in _COLLECTED:
            try:
                found: Any = self.api.list(api_version, kind)
            except (ApiError, OSError) as error:
                found = str(error)
            (folder / f"{kind.lower()}s.json").write_text(json.dumps(found, indent=1))
        try:
            events = self.api.list("v1", "Event")
            lines = [_event_line(event) for event in events]
            (folder / "events.txt").write_text("\n".join(sorted(lines)))
        except (ApiError, OSError) as error:
            (folder / "events.txt").write_text(str(error))
        for name, child in self.plane.children.items():
            (folder / f"{name}.log").write_text(child.tail(3000))
        for node in self.nodes:
            node.collect(folder / node.name)


def _event_line(event: Manifest) -> str:
    when = event.get("lastTimestamp") or event.get("eventTime") or ""
    what = event["involvedObject"]
    name = f"{what.get('kind')}/{what.get('namespace', '')}/{what.get('name')}"
    return f"{when} {name} {event['reason']}: {event.get('message', '')}"


def busybox_pod(
    name: str, command: str = "sleep infinity", *, claims: Iterable[Manifest] = (), **spec: Any
) -> Manifest:
    """A small pod that runs a shell command and terminates immediately on request.

    ``claims`` are entries of ``spec.resourceClaims``; the container uses them all.
    """
    references = list(claims)
    container: Manifest = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "resources": {"claims": [{"name": claim["name"]} for claim in references]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "resourceClaims": references,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            # It does not use the network: a pod network would cost three programs at its start and end.
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            **spec,
        },
    }
