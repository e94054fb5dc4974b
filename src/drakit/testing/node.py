"""Simulated node: fake kubelet, container runtime and API server around a real driver.

Pods run in the order of a real node: the kubelet prepares the claims, the runtime creates sandbox and
containers with the CDI devices, and at the end the containers stop before the claims are unprepared.
The driver runs in this process (:class:`~drakit.kit.host.Host`) or in another one
(:meth:`SimulatedNode.arguments`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from drakit.core.objects import DeviceRequestAllocationResult, ResourceClaim, from_builtins, to_builtins
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import Discover
from drakit.kit.host import DriverGauges, Host
from drakit.kit.reconciler import Reconciler
from drakit.testing.apiserver import FakeApiServer
from drakit.testing.kubelet import ContainerClaim, FakeKubelet, FakePod, PodClaim
from drakit.testing.kubelet_plugin_manager import QUICK, Timing
from drakit.testing.runtime import FakeContainer, FakeRuntime
from drakit.testing.runtime_releases import CONTAINERD_2_4, FakeRuntimeRelease
from drakit.wire.kube import Client


@dataclass(frozen=True)
class RunningPod:
    """A pod on the simulated node."""

    pod: FakePod
    sandbox_id: str
    containers: Mapping[str, FakeContainer] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.pod.uid


class SimulatedNode:
    """The fakes, connected with each other in *directory*; start it with ``async with``.

    The directory's path must be short: it contains unix sockets.
    """

    def __init__(
        self,
        directory: str,
        *,
        name: str = "node-1",
        version: str = "1.37",
        release: FakeRuntimeRelease = CONTAINERD_2_4,
        timing: Timing = QUICK,
        online_cpus: str = "0-1023",
        request_timeout: float = 30.0,
    ) -> None:
        self.directory = directory
        self.name = name
        self.cdi_dir = os.path.join(directory, "cdi")
        self.cgroup_root = os.path.join(directory, "cgroup")
        self.nri_socket = os.path.join(directory, "nri.sock")
        self.kubelet_root = os.path.join(directory, "kubelet")
        for path in (self.cdi_dir, self.cgroup_root, self.kubelet_root):
            os.makedirs(path, exist_ok=True)
        with open(os.path.join(self.cgroup_root, "cgroup.controllers"), "w") as file:
            file.write("cpuset cpu memory hugetlb\n")  # distinguishes cgroup v2 from v1
        self.api = FakeApiServer(version=version)
        self.kubelet = FakeKubelet(
            self.kubelet_root,
            node=name,
            version=version,
            timing=timing,
            wipe=self.api.wipe_slices,
            get_claim=self._claim,
        )
        self.runtime = FakeRuntime(
            self.nri_socket,
            release=release,
            cdi_directories=[self.cdi_dir],
            online_cpus=online_cpus,
            request_timeout=request_timeout,
            cgroup_root=self.cgroup_root,
        )

    async def __aenter__(self) -> Self:
        self.api.add("nodes", {"metadata": {"name": self.name}})
        await self.api.start()
        await self.runtime.up()
        await self.kubelet.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.api.stop)
            stack.push_async_callback(self.runtime.down)
            stack.push_async_callback(self.kubelet.stop)

    def settings(self) -> dict[str, Any]:
        """Settings of :class:`HostOptions` for a driver on this node."""
        return {
            "hostname_override": self.name,
            "kubelet_root_dir": self.kubelet_root,
            "kubelet_config_dir": os.path.join(self.kubelet_root, "kubelet.conf.d"),
            "nri_socket": self.nri_socket,
            "cdi_dir": self.cdi_dir,
            "cgroup_root": self.cgroup_root,
            "bind_address": "127.0.0.1:0",
        }

    def arguments(self) -> list[str]:
        """The same as command-line flags, with a kubeconfig for the fake API server."""
        kubeconfig = os.path.join(self.directory, "kubeconfig.json")
        with open(kubeconfig, "w", encoding="utf-8") as file:
            file.write(self.api.kubeconfig())
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in self.settings().items()]
        return [*flags, f"--kubeconfig={kubeconfig}"]

    def host(
        self,
        discover: Discover,
        options: HostOptions,
        gauges: DriverGauges | None = None,
        reconciler: Reconciler | None = None,
    ) -> Host:
        """A host for this node, to be run by the caller; *options* come from :meth:`settings`."""
        client = Client(self.api.cluster())
        return Host(discover, options, node=self.name, client=client, gauges=gauges, reconciler=reconciler)

    def allocate(
        self,
        name: str,
        results: Iterable[DeviceRequestAllocationResult],
        *,
        config: Sequence[Mapping[str, Any]] = (),
        consumers: Sequence[str] = (),
        namespace: str = "default",
        annotations: Mapping[str, str] | None = None,
    ) -> ResourceClaim:
        """Create a claim allocated to *results* and reserved for the pods *consumers*.

        The UID of a pod is ``uid-of-<name>``.
        """
        reserved = [{"resource": "pods", "name": each, "uid": f"uid-of-{each}"} for each in consumers]
        document = {
            "metadata": {"name": name, "namespace": namespace, "annotations": dict(annotations or {})},
            "spec": {"devices": {"requests": []}},
            "status": {
                "allocation": {
                    "devices": {"results": list(map(to_builtins, results)), "config": list(config)}
                },
                "reservedFor": reserved,
            },
        }
        return from_builtins(self.api.add("resourceclaims", document, namespace=namespace), ResourceClaim)

    async def run_pod(
        self,
        name: str,
        containers: Mapping[str, Sequence[str | tuple[str, str]]] | None = None,
        *,
        namespace: str = "default",
    ) -> RunningPod:
        """Start a pod whose containers use claims, or single requests as (claim, request).

        Raises ``PrepareError`` of the kubelet or ``FakeRuntimeError`` of the runtime.
        """
        wanted = {
            container: tuple(ContainerClaim(u) if isinstance(u, str) else ContainerClaim(*u) for u in uses)
            for container, uses in (containers or {"main": ()}).items()
        }
        claims = dict.fromkeys(use.claim for uses in wanted.values() for use in uses)
        pod_claims = tuple(PodClaim(claim, claim) for claim in claims)
        pod = FakePod(name, namespace=namespace, claims=pod_claims, containers=wanted)
        running = await self.kubelet.run_pod(pod)
        sandbox = await self.runtime.run_pod(name, namespace=namespace, uid=pod.uid)
        made = {
            container: await self.runtime.run(sandbox.id, container, cdi_devices=devices)
            for container, devices in running.cdi_devices.items()
        }
        return RunningPod(pod, sandbox.id, made)

    async def restart_container(self, running: RunningPod, name: str) -> FakeContainer:
        """Stop a container and create it again with the same CDI devices; no driver is called."""
        devices = self.kubelet.cdi_devices(running.uid)[name]
        old = running.containers[name]
        await self.runtime.stop(old.id)
        new = await self.runtime.run(running.sandbox_id, name, cdi_devices=devices)
        await self.runtime.remove(old.id)
        return new

    async def delete_pod(self, running: RunningPod) -> None:
        """End a pod in the kubelet's order: containers, claims, sandbox."""
        await self.runtime.stop_pod(running.sandbox_id)
        await self.kubelet.stop_pod(running.uid)
        await self.runtime.remove_pod(running.sandbox_id)

    async def _claim(self, namespace: str, name: str) -> ResourceClaim | None:
        found = self.api.objects("resourceclaims", fields=f"metadata.name={name}", namespace=namespace)
        return from_builtins(found[0], ResourceClaim) if found else None
