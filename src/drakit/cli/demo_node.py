"""Simulated node of ``drakit demo``: the fakes, the driver process, and pods."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import IO, Any, Final

from drakit.cluster import pod_using
from drakit.core.cpuset import CpuSet
from drakit.core.objects import ObjectMeta, ResourceClaim, ResourceSlice, from_builtins
from drakit.core.pods import Node
from drakit.draw.machine_map import draw
from drakit.draw.marks import Mark
from drakit.draw.terminal import Terminal
from drakit.local.local_drivers import simple_claim
from drakit.local.node import as_allocated, builtin_classes
from drakit.machine.discover import discover
from drakit.scheduler.explain import report, with_remedies
from drakit.scheduler.placement import ClusterSnapshot, NodeResult, SchedulingCycle, check_node, prepare
from drakit.testing.node import RunningPod, SimulatedNode
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree

DRIVER: Final = "dra.cpu"
_RESERVED: Final = CpuSet([0, 1])
_CLASSES: Final = builtin_classes(DRIVER)
_PROGRAM: Final = "from drakit.drivers.cpu.program import main; raise SystemExit(main())"


class DemoError(Exception):
    """A check failed."""


@asynccontextmanager
async def demo_node(directory: str) -> AsyncIterator[DemoNode]:
    """Run a simulated node with its driver."""
    root = os.path.join(directory, "machine")
    write_tree(build(sockets=2, llcs=2, cores=8, threads=2, memory_per_node=128 << 30), root)
    async with SimulatedNode(directory, name="demo-node", online_cpus="0-63") as simulated:
        with open(os.path.join(directory, "driver.log"), "wb") as log:  # noqa: ASYNC230
            node = DemoNode(root, simulated, log)
            try:
                await node.start_driver()
                yield node
            finally:
                await node.kill_driver()


class DemoNode:
    """Two-socket machine with 64 CPUs, and its pods."""

    def __init__(self, root: str, node: SimulatedNode, log: IO[bytes]) -> None:
        self.machine = discover(root)
        self._root = root
        self._node = node
        self._log = log
        self._driver: asyncio.subprocess.Process | None = None
        self._pods: dict[str, RunningPod] = {}
        self._claimed: list[str] = []

    async def start_driver(self) -> None:
        """Start the driver process and wait until it has published its slices."""
        arguments = [f"--sysfs-root={self._root}", f"--reserved-cpus={_RESERVED}"]
        self._driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PROGRAM, *self._node.arguments(), *arguments, stderr=self._log
        )
        await self._node.kubelet.registered(DRIVER, seconds=60)
        await self.until(lambda: bool(self._node.api.objects("resourceslices")), "slices published")

    async def kill_driver(self) -> None:
        """Kill the driver with SIGKILL."""
        if self._driver is not None and self._driver.returncode is None:
            self._driver.kill()
            await self._driver.wait()
            await self._node.runtime.plugin_gone()

    async def stop_driver(self) -> int:
        """Stop the driver with SIGTERM and return its exit code."""
        assert self._driver is not None
        self._driver.terminate()
        return await asyncio.wait_for(self._driver.wait(), 20)

    async def until(self, holds: Callable[[], bool], what: str, seconds: float = 30) -> None:
        """Wait for a condition; raises :class:`DemoError` after *seconds*."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():  # noqa: ASYNC110 - the state is another process's
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise DemoError(f"timeout after {seconds:g} s: {what}") from None

    async def start_pod(self, name: str) -> None:
        """Start a pod without claims."""
        self._pods[name] = await self._node.run_pod(name)

    async def start_claimed(self, name: str, cpus: int, policy: dict[str, Any] | None = None) -> None:
        """Start a pod with a claim, which is scheduled, prepared and pinned."""
        _, answer = self._schedule(name, cpus)
        if not answer.fits:
            raise DemoError(f"{name} does not fit: {answer.reason}")
        (chosen,) = answer.allocations
        allocation = as_allocated(chosen.claim, chosen, _CLASSES).status.allocation
        assert allocation is not None
        config = []
        if policy is not None:
            parameters = {"apiVersion": "v1alpha1", "cpuConfig": policy}
            config = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}]
        claim = f"{name}-cpus"
        self._node.allocate(claim, allocation.devices.results, consumers=[name], config=config)
        self._pods[name] = await self._node.run_pod(name, {"main": [claim]})
        self._claimed.append(name)

    async def end_pod(self, name: str) -> None:
        """End a pod and delete its claim."""
        await self._node.delete_pod(self._pods.pop(name))
        self._node.api.remove("resourceclaims", f"{name}-cpus", namespace="default")
        self._claimed.remove(name)

    def explain(self, name: str, cpus: int) -> list[str]:
        """Explain why a pod with a claim of *cpus* CPUs does not fit, and what would help."""
        scheduling, answer = self._schedule(name, cpus)
        if answer.fits:
            raise DemoError(f"{cpus} CPUs fit on the node")
        (node,) = scheduling.cluster.nodes
        found = with_remedies(scheduling, node, report(scheduling, node, answer))
        return [*found.findings, *(f"it would fit: {remedy}" for remedy in found.remedies)]

    def _schedule(self, name: str, cpus: int) -> tuple[SchedulingCycle, NodeResult]:
        api = self._node.api
        claim = ResourceClaim(
            metadata=ObjectMeta(name=f"{name}-cpus", namespace="default"), spec=simple_claim(cpus).spec
        )
        existing = [from_builtins(each, ResourceClaim) for each in api.objects("resourceclaims")]
        slices = [from_builtins(each, ResourceSlice) for each in api.objects("resourceslices")]
        node = Node(metadata=ObjectMeta(name="demo-node"))
        cluster = ClusterSnapshot(
            nodes=(node,), slices=tuple(slices), classes=tuple(_CLASSES.values()), claims=(*existing, claim)
        )
        scheduling = prepare(cluster, pod_using(name, "default", [claim]))
        return scheduling, check_node(scheduling, node)

    def cpus_of(self, name: str) -> CpuSet:
        """Return the CPUs in the cgroup of the pod's container."""
        return CpuSet.parse(self._pods[name].containers["main"].cpus)

    def mems_of(self, name: str) -> str:
        """Return the memory nodes in the cgroup of the pod's container."""
        return self._pods[name].containers["main"].mems

    def confined(self, name: str) -> bool:
        """Whether a pod without claims uses no claimed and no reserved CPU."""
        cpus = self.cpus_of(name)
        others = CpuSet.union(self.cpus_of(each) for each in self._claimed)
        return bool(cpus) and cpus.isdisjoint(others | _RESERVED)

    def all_confined(self) -> bool:
        """Whether no CPU has two owners and every pod without claims is confined."""
        owned = [cpu for name in self._claimed for cpu in self.cpus_of(name)]
        others = [name for name in self._pods if name not in self._claimed]
        return len(owned) == len(set(owned)) and all(map(self.confined, others))

    def picture(self, terminal: Terminal) -> str:
        """Draw the machine with the owners of its CPUs."""
        marks = {cpu: Mark("-", "reserved", 7) for cpu in _RESERVED}
        for number, name in enumerate(self._claimed):
            mark = Mark(name[0].upper(), name, number)
            marks.update(dict.fromkeys(self.cpus_of(name), mark))
        return draw(self.machine, marks, terminal)
