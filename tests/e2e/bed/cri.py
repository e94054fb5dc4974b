"""CRI client for tests that act as the kubelet: pods and containers of a node.

The client is synchronous for the test and runs in a separate thread, so that a test may
read the guest, or run a plugin in its own event loop, while the runtime works.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from grpclib.client import Channel, UnaryUnaryMethod

from tests.e2e.proto import cri_pb2 as cri

from .busybox import IMAGE
from .guest import Guest
from .node import Node

T = TypeVar("T")
_CALL_LIMIT = 120.0
_SERVICE = "/runtime.v1.RuntimeService"
# The kubelet's defaults. A sandbox with a shared process namespace would have its own process,
# which only a kill ends.
_NAMESPACES = {"network": cri.NODE, "pid": cri.CONTAINER}


@dataclass(frozen=True)
class Pod:
    """A running sandbox."""

    id: str
    name: str
    uid: str
    config: Any = field(repr=False)


def _labels(name: str, uid: str) -> dict[str, str]:
    """Labels that the kubelet sets; CRI-O takes the name of a container only from a label."""
    prefix = "io.kubernetes.pod"
    return {f"{prefix}.name": name, f"{prefix}.namespace": "default", f"{prefix}.uid": uid}


class Cri:
    """CRI client of one runtime; a rejected call raises ``GRPCError`` with the runtime's message."""

    def __init__(self, path: str, guest: Guest) -> None:
        """Connect to the runtime's socket, forwarded to ``path`` on this machine."""
        self._guest = guest
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._channel = self._await(self._open(path))

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._await(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def version(self) -> tuple[str, str]:
        """Name and version of the runtime."""
        answer = self._call("Version", cri.VersionRequest(), cri.VersionResponse)
        return answer.runtime_name, answer.runtime_version

    def run_pod(self, name: str = "", *, annotations: Mapping[str, str] | None = None) -> Pod:
        """Start a host-network sandbox; its cgroup is one of ``Guest.node_tier_pods``."""
        uid = secrets.token_hex(8)
        name = name or f"pod-{uid}"
        config = cri.PodSandboxConfig(
            metadata={"name": name, "uid": uid, "namespace": "default"},
            log_directory=f"/var/log/pods/{name}",
            labels=_labels(name, uid),
            annotations=annotations or {},
            linux={
                "cgroup_parent": self._guest.cgroup_parent(uid),
                "security_context": {"namespace_options": _NAMESPACES},
            },
        )
        request = cri.RunPodSandboxRequest(config=config)
        answer = self._call("RunPodSandbox", request, cri.RunPodSandboxResponse)
        return Pod(answer.pod_sandbox_id, name, uid, config)

    def create(
        self,
        pod: Pod,
        name: str = "main",
        command: str = "exec sleep 100000",
        *,
        environment: Mapping[str, str] | None = None,
        devices: Sequence[str] = (),
        attempt: int = 0,
        resources: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a container of the test image; ``devices`` are CDI device names."""
        variables = (environment or {}).items()
        config = cri.ContainerConfig(
            metadata={"name": name, "attempt": attempt},
            labels={**_labels(pod.name, pod.uid), "io.kubernetes.container.name": name},
            image={"image": IMAGE},
            command=["/bin/sh", "-c", command],
            envs=[cri.KeyValue(key=key, value=value.encode()) for key, value in variables],
            log_path=f"{name}_{attempt}.log",
            linux={"resources": resources or {}, "security_context": {"namespace_options": _NAMESPACES}},
            CDI_devices=[cri.CDIDevice(name=device) for device in devices],
        )
        request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        return str(self._call("CreateContainer", request, cri.CreateContainerResponse).container_id)

    def start(self, container: str) -> None:
        """Start a created container."""
        self._call("StartContainer", cri.StartContainerRequest(container_id=container), cri.Empty)

    def run_container(self, pod: Pod, name: str = "main", **options: Any) -> str:
        """Create and start a container."""
        container = self.create(pod, name, **options)
        self.start(container)
        return container

    def update(self, container: str, **resources: Any) -> None:
        """Change a container's resources, as an in-place resize does."""
        request = cri.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        self._call("UpdateContainerResources", request, cri.Empty)

    def exec(self, container: str, *command: str) -> tuple[int, str]:
        """Run a command in a container: exit status and output."""
        request = cri.ExecSyncRequest(container_id=container, cmd=command, timeout=60)
        answer = self._call("ExecSync", request, cri.ExecSyncResponse)
        return answer.exit_code, (answer.stdout + answer.stderr).decode()

    def stop(self, container: str) -> None:
        """Stop a container immediately."""
        request = cri.StopContainerRequest(container_id=container, timeout=0)
        self._call("StopContainer", request, cri.Empty)

    def remove(self, container: str) -> None:
        """Remove a container, running or not."""
        request = cri.RemoveContainerRequest(container_id=container)
        self._call("RemoveContainer", request, cri.Empty)

    def state(self, container: str) -> str:
        """``CONTAINER_CREATED``, ``CONTAINER_RUNNING``, ``CONTAINER_EXITED``."""
        request = cri.ContainerStatusRequest(container_id=container)
        answer = self._call("ContainerStatus", request, cri.ContainerStatusResponse)
        return str(cri.ContainerState.Name(answer.status.state))

    def containers(self) -> dict[str, str]:
        """Every container's state by id."""
        return {entry.id: cri.ContainerState.Name(entry.state) for entry in self._containers()}

    def _containers(self) -> Sequence[Any]:
        request = cri.ListContainersRequest()
        answer = self._call("ListContainers", request, cri.ListContainersResponse)
        found: Sequence[Any] = answer.containers
        return found

    def remove_pod(self, pod: Pod) -> None:
        """Stop a pod's containers and its sandbox and remove it, in the kubelet's order.

        When a sandbox is stopped, CRI-O waits for its containers until the call times out.
        """
        for entry in self._containers():
            if entry.pod_sandbox_id == pod.id and entry.state == cri.CONTAINER_RUNNING:
                self.stop(entry.id)
        self._call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=pod.id), cri.Empty)
        request = cri.RemovePodSandboxRequest(pod_sandbox_id=pod.id)
        self._call("RemovePodSandbox", request, cri.Empty)

    def remove_all_pods(self) -> None:
        """Leave the runtime empty, for the next test."""
        answer = self._call("ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse)
        for item in answer.items:
            self.remove_pod(Pod(item.id, item.metadata.name, item.metadata.uid, None))

    async def _open(self, path: str) -> Channel:
        return Channel(path=path)  # grpclib takes the running loop, so it must be made in it

    async def _shut(self) -> None:
        self._channel.close()
        for _ in range(3):  # a transport closes its socket in a later turn of the loop
            await asyncio.sleep(0)

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        call = UnaryUnaryMethod(self._channel, f"{_SERVICE}/{method}", type(request), answer)
        return self._await(call(request, timeout=_CALL_LIMIT))

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_LIMIT + 30)


@contextmanager
def cri_of(node: Node) -> Iterator[Cri]:
    """The CRI of a node's runtime; its pods are removed afterwards."""
    with node.forward(node.runtime.socket) as path:
        client = Cri(str(path), node.guest)
        try:
            yield client
            client.remove_all_pods()
        finally:
            client.close()


@contextmanager
def cri_of_second_client(node: Node) -> Iterator[Cri]:
    """A second connection, for a call during another one; it does not clean up."""
    with node.forward(node.runtime.socket) as path:
        client = Cri(str(path), node.guest)
        try:
            yield client
        finally:
            client.close()
