"""A simulated node whose driver is another process, honest or old, and a record of all that happens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import drakit
from drakit.core.objects import DeviceRequestAllocationResult
from drakit.core.quantity import Quantity
from drakit.machine.model import HugepagePool, Machine
from drakit.testing.node import RunningPod, SimulatedNode
from drakit.testing.runtime_releases import CONTAINERD_2_4, FakeRuntimeRelease
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree

from .fakes import NodeRecording
from .recorder import Recorder

GI = 1 << 30
MACHINE: Machine = build(
    sockets=2, cores=4, threads=2, memory_per_node=8 * GI, hugepages=[HugepagePool(2 << 20, 512, 512, 0)]
)
"""16 CPUs on two NUMA nodes."""
NEW_SOURCES = str(Path(drakit.__file__).parents[1])
PATIENCE = 120.0


@dataclass(frozen=True)
class Kind:
    """One of the two drivers: how it is started, and what its claims ask for."""

    name: str
    """Of the DRA driver."""
    module: str
    devices: tuple[str, ...]

    def result(self, device: int, cpus: int) -> DeviceRequestAllocationResult:
        """What the scheduler would have allocated on the n-th device."""
        name = self.devices[device % len(self.devices)]
        amounts = {"cpu": str(cpus)}
        if self.name == "dra.cpumem":
            amounts |= {"memory": "64Mi", "hugepages2Mi": "4Mi"}
        return DeviceRequestAllocationResult(
            request="r",
            driver=self.name,
            pool="node-1",
            device=name,
            share_id=f"share-{next(_shares)}",
            consumed_capacity={f"{self.name}/{key}": Quantity(v) for key, v in amounts.items()},
        )


_shares = itertools.count(1)
CPU = Kind("dra.cpu", "drakit.drivers.cpu.program", ("cpudevnuma000", "cpudevnuma001"))
CPUMEM = Kind("dra.cpumem", "drakit.drivers.cpumem.program", ("numa0", "numa1"))


_LIKE_THE_KERNEL = """
import os, sys
_open = os.open
def _open_like_the_kernel(path, flags, *rest, **more):
    if flags & os.O_WRONLY and os.path.basename(str(path)).startswith("cpuset."):
        flags |= os.O_TRUNC
    return _open(path, flags, *rest, **more)
os.open = _open_like_the_kernel
"""
"""A write to a cgroup's file replaces all of it; the simulated node's are plain files."""


class DriverProcess:
    """A driver's process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process, self.log = process, log

    async def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for its end; an orderly one must succeed."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), PATIENCE)
        assert number == signal.SIGKILL or code == 0, self.log.read_text()[-3000:]


@dataclass
class RecordedNode:
    """The node, its driver processes and its record."""

    node: SimulatedNode
    kind: Kind
    history: NodeRecording
    before: str = ""
    """Python that runs first in every instance: what breaks it."""
    drivers: list[DriverProcess] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def claims_directory(self) -> str:
        """Where the checkpoints are."""
        return os.path.join(self.node.kubelet_root, "plugins", self.kind.name, "claims")

    # -- the driver --------------------------------------------------------------------------------

    async def start_driver(self, sources: str = NEW_SOURCES) -> DriverProcess:
        """Start a further instance from *sources* and wait until it is registered."""
        number = next(self._numbers)
        log = Path(self.node.directory, f"driver-{number}.log")
        start = (
            f"import drakit\nassert drakit.__file__.startswith({sources!r}), drakit.__file__\n"
            f"from {self.kind.module} import main\nsys.exit(main())"
        )
        code = f"{_LIKE_THE_KERNEL}\n{self.before}\n{start}"
        flags = [*self.node.arguments(), f"--pod-uid=instance-{number}", "--verify-seconds=1"]
        flags += [f"--sysfs-root={self.node.directory}/machine", "--reserved-cpus=0"]
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code, *flags), env={**os.environ, "PYTHONPATH": sources}, stderr=file
            )
        driver = DriverProcess(process, log)
        self.drivers.append(driver)
        await self._registered(driver)
        return driver

    async def _registered(self, driver: DriverProcess) -> None:
        there = asyncio.ensure_future(
            self.node.kubelet.registered(self.kind.name, len(self.drivers), PATIENCE)
        )
        gone = asyncio.ensure_future(driver.process.wait())
        await asyncio.wait({there, gone}, return_when=asyncio.FIRST_COMPLETED)
        ended = gone.done()
        gone.cancel()
        if ended:
            there.cancel()
            raise AssertionError(f"the driver ended: {driver.log.read_text()[-3000:]}")
        await there
        await self.node.runtime.plugin_ready()

    @contextlib.contextmanager
    def away(self) -> AsyncIterator[None]:  # type: ignore[misc]
        """Inside, containers may be created without a driver."""
        with self.history.recorder.driver_away():
            yield

    async def restart_driver(self, sources: str = NEW_SOURCES, number: int = signal.SIGTERM) -> None:
        """End the only instance, and start another."""
        with self.away():
            await self._end(self.drivers[0], number)
            if number != signal.SIGKILL:  # who is killed leaves its sockets behind
                await self.node.kubelet.unregistered(self.kind.name)
            await self.node.runtime.plugin_gone()
            await self.start_driver(sources)

    async def roll(self, sources: str = NEW_SOURCES) -> None:
        """A rolling update: the new one beside the old one, then the old one ends."""
        await self.start_driver(sources)
        with self.away():
            before = self.node.runtime.connections
            await self.end_oldest()
            await self.connected_again(before)

    async def end_oldest(self) -> None:
        """The oldest instance ends in order."""
        await self._end(self.drivers[0])
        await self.node.kubelet.registered(self.kind.name, len(self.drivers), PATIENCE)

    async def connected_again(self, before: int) -> None:
        """Wait until the runtime has a plugin once more than *before*."""
        await eventually(lambda: self.node.runtime.connections > before)
        await self.node.runtime.plugin_ready()

    async def _end(self, driver: DriverProcess, number: int = signal.SIGTERM) -> None:
        self.drivers.remove(driver)
        await driver.end(number)

    async def close(self) -> None:
        """End all instances."""
        while self.drivers:
            await self._end(self.drivers[-1], signal.SIGKILL)

    # -- pods --------------------------------------------------------------------------------------

    async def claimed_pod(self, name: str, device: int = 0, cpus: int = 2) -> RunningPod:
        """A pod with a container that has a claim of its own."""
        self.node.allocate(name, [self.kind.result(device, cpus)], consumers=[name])
        return await self.node.run_pod(name, {"main": [name]})


async def eventually(look: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not look():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def recorded_node(
    kind: Kind, record: Path, release: FakeRuntimeRelease = CONTAINERD_2_4, before: str = ""
) -> AsyncIterator[RecordedNode]:
    """A node without a driver, watched all the time; the record is in *record* afterwards."""
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        write_tree(MACHINE, os.path.join(directory, "machine"))
        online = str(MACHINE.online)
        async with SimulatedNode(directory, release=release, online_cpus=online) as node:
            claims = os.path.join(node.kubelet_root, "plugins", kind.name, "claims")
            history = NodeRecording(Recorder(record), claims)
            history.follow_kubelet(node.kubelet)
            history.follow_runtime(node.runtime)
            recorded = RecordedNode(node, kind, history, before)
            async with history.looking(), contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(recorded.close)
                yield recorded
