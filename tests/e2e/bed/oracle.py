"""Real scheduler as an oracle, without nodes: etcd, kube-apiserver, kube-scheduler.

``with Oracle() as oracle`` starts an API server in which tests create Nodes, ResourceSlices,
DeviceClasses, claims and pods; the scheduler responds by binding the pod and writing the
claim's allocation, or with the message of the PodScheduled condition.
Needs Go (once, to build) and openssl; no root, no VM.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .controlplane import ControlPlane
from .kubernetes import Api, ApiError, Manifest
from .pins import load_pins
from .processes import Run
from .waiting import NotYetError, wait_for


@dataclass(frozen=True, slots=True)
class Answer:
    """Decision of the scheduler about one pod."""

    node: str
    message: str

    @property
    def scheduled(self) -> bool:
        """True if the pod was bound to a node."""
        return bool(self.node)


class Oracle:
    """A context manager with a running scheduler; everything is removed afterwards."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._plane: ControlPlane | None = None

    def __enter__(self) -> Self:
        self._run = Run.begin()
        try:
            self._plane = ControlPlane.start_oracle(self._run, load_pins())
            self._wait_for_default_namespace()
        except BaseException:
            self._run.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._run is not None
        self._run.end()

    @property
    def plane(self) -> ControlPlane:
        """The running control plane."""
        if self._plane is None:
            raise RuntimeError("the oracle is not running: use `with Oracle() as oracle`")
        return self._plane

    @property
    def api(self) -> Api:
        """Administrator's access to the API server."""
        return self.plane.api

    @property
    def url(self) -> str:
        """Base URL of the API server."""
        return self.plane.url

    @property
    def ca(self) -> Path:
        """The certificate that verifies the server."""
        return self.plane.keys.authority.certificate

    @property
    def client_certificate(self) -> Path:
        """The administrator's certificate."""
        return self.plane.keys.admin.certificate

    @property
    def client_key(self) -> Path:
        """The administrator's key."""
        return self.plane.keys.admin.key

    def add_node(self, name: str, labels: dict[str, str] | None = None, **allocatable: str) -> None:
        """Create a Ready node; resources default to 64 CPUs, 256Gi, 500 pods."""
        resources = {"cpu": "64", "memory": "256Gi", "pods": "500", **allocatable}
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        status = {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "HandMade"}],
        }
        path = self.api.path("v1", "Node", name=name) + "/status"
        merge = "application/merge-patch+json"
        self.api.call("PATCH", path, {"status": status}, content_type=merge)

    def set_status(
        self, api_version: str, kind: str, name: str, status: dict[str, Any], namespace: str = ""
    ) -> Manifest:
        """Merge into an object's status, for example the allocation of a claim."""
        path = self.api.path(api_version, kind, namespace, name) + "/status"
        merge = "application/merge-patch+json"
        result: Manifest = self.api.call("PATCH", path, {"status": status}, content_type=merge)
        return result

    def answer(self, pod: str, namespace: str = "default", limit: float = 60.0) -> Answer:
        """Wait until the scheduler has bound the pod or reported why it cannot."""

        def decided() -> Answer:
            found = self.api.get("v1", "Pod", pod, namespace)
            node = found["spec"].get("nodeName", "")
            if node:
                return Answer(node, "")
            for condition in found.get("status", {}).get("conditions", []):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    return Answer("", condition.get("message", ""))
            raise NotYetError("no nodeName and no PodScheduled condition")

        return wait_for(
            f"the scheduler's answer for pod {namespace}/{pod}",
            decided,
            limit=limit,
            pause=0.02,
            alive=self.plane.check,
        )

    def _wait_for_default_namespace(self) -> None:
        def there() -> bool:
            try:
                return self.api.find("v1", "Namespace", "default") is not None
            except (ApiError, OSError) as error:
                raise NotYetError(str(error)) from error

        wait_for("the default namespace", there, alive=self.plane.check)


def main() -> int:
    """Run an oracle until Ctrl-C and print its address."""
    begin = time.monotonic()
    with Oracle() as oracle:
        print(f"ready after {time.monotonic() - begin:.1f} s", flush=True)
        print(f"url={oracle.url}\nca={oracle.ca}", flush=True)
        print(f"cert={oracle.client_certificate}\nkey={oracle.client_key}", flush=True)
        print(f"kubeconfig={oracle.plane.admin_kubeconfig()}", flush=True)
        try:
            while True:
                oracle.plane.check()
                time.sleep(1)
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
