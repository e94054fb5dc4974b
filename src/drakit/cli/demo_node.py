"""The simulated node of ``drakit demo``: the doubles, the driver process, and what can be asked."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from drakit.cli.commands.run import simple_claim
from drakit.core.cpuset import CpuSet
from drakit.core.objects import (
    DeviceRequestAllocationResult,
    ObjectMeta,
    ResourceClaim,
    ResourceSlice,
    from_builtins,
)
from drakit.core.pods import Node, Pod, PodResourceClaim, PodSpec
from drakit.draw.machine_map import draw
from drakit.draw.marks import Mark
from drakit.draw.terminal import Terminal
from drakit.local.node import builtin_classes
from drakit.machine.discover import discover
from drakit.scheduler.explain import report, with_remedies
from drakit.scheduler.placement import (
    ClusterSnapshot,
    NodeResult,
    SchedulingCycle,
    check_node,
    prepare,
)
from drakit.testing.node import RunningPod, SimulatedNode
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree

DRIVER = "dra.cpu"
_RESERVED = CpuSet([0, 1])
_PROGRAM = "from drakit.drivers.cpu.program import main; raise SystemExit(main())"


class Broken(Exception):  # noqa: N818 - the demo's own word
    """A promise did not hold."""


class _Stage(Protocol):
    terminal: Terminal

    def check(self, what: str, holds: bool) -> None: ...


class DemoNode:
    """A two-socket machine with 64 CPUs, and pods on it."""

    def __init__(self, directory: str, stage: _Stage) -> None:
        self._stage = stage
        self._root = os.path.join(directory, "machine")
        write_tree(
            build(sockets=2, llcs=2, cores=8, threads=2, memory_per_node=128 << 30), self._root
        )
        self.machine = discover(self._root)
        self._node = SimulatedNode(directory, name="demo-node", online_cpus="0-63")
        self._driver: asyncio.subprocess.Process | None = None
        self._log = open(os.path.join(directory, "driver.log"), "wb")  # noqa: SIM115 - closed below
        self._pods: dict[str, RunningPod] = {}
        self._claimed: list[str] = []

    async def __aenter__(self) -> Self:
        await self._node.__aenter__()
        await self.start_driver()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill_driver()
        await self._node.__aexit__(kind, error, trace)
        self._log.close()

    # -- the driver ------------------------------------------------------------------------------

    async def start_driver(self) -> None:
        """Start the driver process and wait until it serves."""
        self._driver = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _PROGRAM,
            *self._node.arguments(),
            f"--sysfs-root={self._root}",
            f"--reserved-cpus={_RESERVED}",
            stderr=self._log,
        )
        await self._node.kubelet.registered(DRIVER, seconds=60)
        await self.until(lambda: bool(self._node.api.objects("resourceslices")), "slices published")

    async def kill_driver(self) -> None:
        """``kill -9``."""
        if self._driver is not None and self._driver.returncode is None:
            self._driver.kill()
            await self._driver.wait()
            await self._node.runtime.plugin_gone()

    async def stop_driver(self) -> None:
        """An orderly end, which must be quick and without error."""
        assert self._driver is not None
        self._driver.terminate()
        code = await asyncio.wait_for(self._driver.wait(), 20)
        self._stage.check("the driver stops in order when told to", code == 0)

    async def until(self, look: Callable[[], bool], what: str, seconds: float = 30) -> None:
        """Wait until something is so."""
        try:
            async with asyncio.timeout(seconds):
                while not look():  # noqa: ASYNC110 - the state is another process's
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise Broken(f"not within {seconds:g} s: {what}") from None

    # -- pods ------------------------------------------------------------------------------------

    async def start_pod(self, name: str) -> None:
        """An ordinary pod."""
        self._pods[name] = await self._node.run_pod(name)

    async def start_claimed(
        self, name: str, cpus: int, policy: dict[str, Any] | None = None
    ) -> None:
        """A pod with a claim: placed by the scheduler's model, prepared by the driver, pinned."""
        _, answer = self._schedule(name, cpus)
        if not answer.fits:
            raise Broken(f"{name} does not fit: {answer.reason}")
        results = [
            DeviceRequestAllocationResult(
                request=str(pick.request),
                driver=pick.device.driver,
                pool=pick.device.pool,
                device=pick.device.device,
                share_id=str(uuid.uuid4()),
                consumed_capacity=pick.consumed,
            )
            for pick in answer.allocations[0].picks
        ]
        config = []
        if policy is not None:
            parameters = {"apiVersion": "v1alpha1", "cpuConfig": policy}
            config = [
                {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
            ]
        claim = f"{name}-cpus"
        self._node.allocate(claim, results, consumers=[name], config=config)
        self._pods[name] = await self._node.run_pod(name, {"main": [claim]})
        self._claimed.append(name)

    async def end_pod(self, name: str) -> None:
        """A pod ends, and its claim with it."""
        await self._node.delete_pod(self._pods.pop(name))
        self._node.api.remove("resourceclaims", f"{name}-cpus", namespace="default")
        self._claimed.remove(name)

    def explain(self, name: str, cpus: int) -> list[str]:
        """Why a pod with a claim of so many CPUs does not fit, and what would help."""
        scheduling, answer = self._schedule(name, cpus)
        if answer.fits:
            raise Broken(f"{cpus} CPUs fit on the node")
        (node,) = scheduling.cluster.nodes
        found = with_remedies(scheduling, node, report(scheduling, node, answer))
        return [*found.findings, *(f"it would fit: {remedy}" for remedy in found.remedies)]

    def _schedule(self, name: str, cpus: int) -> tuple[SchedulingCycle, NodeResult]:
        api = self._node.api
        held = [from_builtins(d, ResourceClaim) for d in api.objects("resourceclaims")]
        wish = simple_claim(cpus)
        claim = ResourceClaim(
            metadata=ObjectMeta(name=f"{name}-cpus", namespace="default"), spec=wish.spec
        )
        use = PodResourceClaim(name="cpus", resource_claim_name=claim.metadata.name)
        pod = Pod(
            metadata=ObjectMeta(name=name, namespace="default"),
            spec=PodSpec(resource_claims=(use,)),
        )
        node = Node(metadata=ObjectMeta(name="demo-node"))
        cluster = ClusterSnapshot(
            nodes=(node,),
            slices=tuple(from_builtins(d, ResourceSlice) for d in api.objects("resourceslices")),
            classes=tuple(builtin_classes(DRIVER).values()),
            claims=(*held, claim),
        )
        scheduling = prepare(cluster, pod)
        return scheduling, check_node(scheduling, node)

    # -- asking ----------------------------------------------------------------------------------

    def cpus_of(self, name: str) -> CpuSet:
        """The CPUs in the cgroup of the pod's container."""
        return CpuSet.parse(self._pods[name].containers["main"].cpus)

    def mems_of(self, name: str) -> str:
        """The memory nodes in the cgroup of the pod's container."""
        return self._pods[name].containers["main"].mems

    def whole_cores(self, cpus: CpuSet) -> bool:
        """Whether *cpus* are whole cores, with all their threads."""
        return all(self.machine.by_id[cpu].siblings <= cpus for cpu in cpus)

    def numa_nodes(self, cpus: CpuSet) -> int:
        """How many NUMA nodes *cpus* are of."""
        return len(self.machine.nodes_of(cpus))

    def confined(self, name: str) -> bool:
        """Whether an ordinary pod keeps off everybody's claims and the reserved CPUs."""
        cpus = self.cpus_of(name)
        others = CpuSet.union(self.cpus_of(each) for each in self._claimed)
        return bool(cpus) and cpus.isdisjoint(others | _RESERVED)

    def check_everything(self) -> None:
        """No CPU has two owners, and ordinary pods are where they should be."""
        owned: dict[int, str] = {}
        for name in self._claimed:
            for cpu in self.cpus_of(name):
                if cpu in owned:
                    raise Broken(f"CPU {cpu} is owned by {owned[cpu]} and {name}")
                owned[cpu] = name
        strays = [n for n in self._pods if n not in self._claimed and not self.confined(n)]
        self._stage.check("no CPU has two owners, and all others keep off", not strays)

    def picture(self) -> str:
        """The machine with its owners."""
        marks = {cpu: Mark("-", "reserved", 7) for cpu in _RESERVED}
        for number, name in enumerate(self._claimed):
            mark = Mark(name[0].upper(), name, number)
            marks.update(dict.fromkeys(self.cpus_of(name), mark))
        terminal = self._stage.terminal
        return draw(
            self.machine,
            marks,
            width=terminal.width,
            color=terminal.color,
            unicode=terminal.unicode,
        )
