"""Simulation of a manifest with one pod: scheduler, kubelet, runtime and the real driver.

The offline scheduler allocates the claims of the pod from the published devices, the fake kubelet prepares
them, and the fake runtime creates every container and applies the response of the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drakit.cluster import read_claims, read_manifests
from drakit.core.objects import DeviceRequestAllocationResult, ResourceClaim
from drakit.core.pods import Pod
from drakit.drivers.cpumem.discovery import CpuMemDiscovery
from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.layouts import combined_classes, split_classes
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.driver import Driver, PreparedClaims
from drakit.kit.host import Host
from drakit.local.node import NODE_NAME, LocalNode, fresh_claim
from drakit.machine.model import HugepagePool, Machine
from drakit.scheduler.allocator.search import ClaimAllocation
from drakit.testing.containers import FakeContainer
from drakit.testing.kubelet import ContainerClaim, FakePod, PodClaim
from drakit.testing.node import SimulatedNode
from drakit.testing.synthetic import NumaSpec, assemble, grid
from drakit.testing.sysfs_writer import write_tree
from drakit.wire.nri.values import Resources

GI = 1 << 30
MI = 1 << 20
_POOLS = (HugepagePool(2 * MI, 1024, 1024, 0), HugepagePool(GI, 4, 4, 0))
MACHINE: Machine = assemble(
    grid(sockets=2, cores=8, threads=2),
    nodes={
        0: NumaSpec(64 * GI, hugepages=_POOLS),
        1: NumaSpec(64 * GI, hugepages=_POOLS),
        2: NumaSpec(128 * GI, hugepages=(HugepagePool(2 * MI, 0, 0, 0), HugepagePool(GI, 0, 0, 0))),
    },
)
"""The machine of docs/cpumem.md: 2 sockets of 8 cores with 64 GiB each, and 128 GiB without CPUs."""
_KUBEPODS = "kubepods"
_KUBELETS = {"memory.min": "0", "memory.low": "0", "memory.high": "max"}


@dataclass(frozen=True)
class Ran:
    """A running pod: its containers, including init containers, and the files of its cgroup."""

    node: SimulatedNode
    host: Host
    containers: Mapping[str, FakeContainer]
    pod_cgroup: str

    def pod_file(self, name: str) -> str:
        """A file of the pod's cgroup."""
        return Path(self.node.cgroup_root, self.pod_cgroup, name).read_text().strip()

    def root_file(self, name: str) -> str:
        """A file of the cgroup above all pods."""
        return Path(self.node.cgroup_root, _KUBEPODS, name).read_text().strip()


def schedule(driver: Driver, claims: Sequence[ResourceClaim], directory: str) -> list[ClaimAllocation]:
    """The allocation of these claims by kube-scheduler on an empty node."""
    local = LocalNode(driver, directory, (*combined_classes(), *split_classes()))
    _scheduling, answer = local.schedule(claims, PreparedClaims())
    assert answer.fits, answer.reason
    return list(answer.allocations)


@contextlib.asynccontextmanager
async def running(path: Path, kubelet_config: str = "", **settings: Any) -> AsyncIterator[Ran]:
    """The pod of a manifest on a node whose dra-driver-cpumem has these *settings*."""
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        write_tree(MACHINE, f"{directory}/machine")
        async with SimulatedNode(directory, name=NODE_NAME, online_cpus="0-31") as node:
            config = CpuMemConfig(**{**node.settings(), "sysfs_root": f"{directory}/machine", **settings})
            Path(node.kubelet_root, "config.yaml").write_text(kubelet_config)
            discovery = CpuMemDiscovery()
            reconciler = discovery.reconciler(config, NODE_NAME)
            await reconciler.establish(PreparedClaims())

            def discover() -> Driver:
                return discovery(config, NODE_NAME)

            host = node.host(
                discover, config, gauges=lambda driver, claims: driver.gauges(claims), reconciler=reconciler
            )
            serving = asyncio.create_task(host.run())
            try:
                await node.kubelet.registered(DRIVER)
                await node.runtime.plugin_ready()
                yield await _run_pod(node, host, path, f"{directory}/scheduler")
            finally:
                host.stop()
                await asyncio.wait_for(serving, 60)


async def _run_pod(node: SimulatedNode, host: Host, path: Path, directory: str) -> Ran:
    (pod,) = read_manifests([str(path)]).values("Pod")
    claims = [fresh_claim(claim) for claim in read_claims(str(path)).claims]
    for allocation in schedule(host.driver, claims, directory):
        _allocate(node, pod, allocation)
    entries = pod.spec.resource_claims
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    wanted = FakePod(
        name=pod.metadata.name,
        claims=tuple(
            PodClaim(entry.name, claim.metadata.name) for entry, claim in zip(entries, claims, strict=True)
        ),
        containers={
            each.name: tuple(ContainerClaim(use.name, use.request) for use in each.resources.claims)
            for each in containers
        },
    )
    cgroup = _make_pod_cgroup(node, wanted.uid)
    prepared = await node.kubelet.run_pod(wanted)
    sandbox = await node.runtime.run_pod(wanted.name, uid=wanted.uid)
    made = {
        each.name: await node.runtime.run(
            sandbox.id,
            each.name,
            cdi_devices=prepared.cdi_devices.get(each.name, ()),
            resources=_limits(pod, each.name),
        )
        for each in containers
    }
    return Ran(node, host, made, cgroup)


def _allocate(node: SimulatedNode, pod: Pod, allocation: ClaimAllocation) -> None:
    """Write the allocation to the fake API server, like kube-scheduler."""
    claim = allocation.claim
    results = [
        DeviceRequestAllocationResult(
            request=str(pick.request),
            driver=pick.device.driver,
            pool=pick.device.pool,
            device=pick.device.device,
            share_id=str(uuid.uuid4()),
            consumed_capacity=pick.consumed,
        )
        for pick in allocation.picks
    ]
    config = [
        {
            "source": "FromClaim",
            "requests": list(entry.requests),
            "opaque": {"driver": entry.opaque.driver, "parameters": entry.opaque.parameters},
        }
        for entry in claim.spec.devices.config
        if entry.opaque is not None
    ]
    node.allocate(claim.metadata.name, results, config=config, consumers=[pod.metadata.name])


def _make_pod_cgroup(node: SimulatedNode, uid: str) -> str:
    """Create the pod's cgroup like the kubelet: no hugepages without a classic request."""
    path = f"{_KUBEPODS}/pod{uid}"
    for place, pages in ((_KUBEPODS, str(1 << 62)), (path, "0")):
        directory = os.path.join(node.cgroup_root, place)
        os.makedirs(directory)
        limits = {f"hugetlb.{s}.{file}": pages for s in ("2MB", "1GB") for file in ("max", "rsvd.max")}
        for name, value in {**_KUBELETS, **limits}.items():
            Path(directory, name).write_text(f"{value}\n")
    return path


def _limits(pod: Pod, container: str) -> Resources:
    """The memory limit that the kubelet passes to the runtime."""
    (found,) = [c for c in (*pod.spec.init_containers, *pod.spec.containers) if c.name == container]
    limit = found.resources.limits.get("memory")
    return Resources(memory_limit=limit.ceil()) if limit is not None else Resources()
