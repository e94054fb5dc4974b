"""NRI plugins of the node tier: a recording plugin, run in a thread and connected to the guest's runtime."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from drakit.wire.nri.handler import ContainerRejectedError, Disconnect, Handler, PluginOptions, RuntimeInfo
from drakit.wire.nri.plugin import NriPlugin
from drakit.wire.nri.values import Adjustment, ContainerUpdate, NriContainer, PodSandbox, Resources
from tests.e2e.bed.node import Node


class RecordingPlugin(Handler):
    """Plugin that responds by container name and records all events."""

    def __init__(self) -> None:
        self.answers: dict[str, Adjustment] = {}
        self.update_answers: dict[str, Resources] = {}
        self.on_synchronize: dict[str, Resources] = {}
        self.hanging: set[str] = set()
        self.rejected: dict[str, str] = {}
        self.rejected_starts: set[str] = set()
        self.events: list[tuple[str, str]] = []
        self.seen: dict[str, NriContainer] = {}
        self.synchronized: list[list[NriContainer]] = []
        self.runtimes: list[RuntimeInfo] = []
        self.ends: list[Disconnect] = []

    def connected(self, runtime: RuntimeInfo) -> None:
        self.runtimes.append(runtime)

    def disconnected(self, end: Disconnect) -> None:
        self.ends.append(end)

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[NriContainer]
    ) -> Sequence[ContainerUpdate]:
        self.synchronized.append(list(containers))
        return [
            ContainerUpdate(container_id=each.id, resources=self.on_synchronize[each.name])
            for each in containers
            if each.name in self.on_synchronize
        ]

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        self.events.append(("create", container.name))
        self.seen[container.id] = container
        if container.name in self.hanging:
            await asyncio.get_running_loop().create_future()
        if container.name in self.rejected:
            raise ContainerRejectedError(self.rejected[container.name])
        return self.answers.get(container.name, Adjustment())

    async def update(
        self, pod: PodSandbox, container: NriContainer, resources: Resources
    ) -> Sequence[ContainerUpdate]:
        self.events.append(("update", container.name))
        wanted = self.update_answers.get(container.name)
        return [ContainerUpdate(container_id=container.id, resources=wanted)] if wanted else ()

    async def stop(self, pod: PodSandbox, container: NriContainer) -> Sequence[ContainerUpdate]:
        self.events.append(("stop", container.name))
        return ()

    async def starting(self, pod: PodSandbox, container: NriContainer) -> None:
        self.events.append(("starting", container.name))
        if container.name in self.rejected_starts:
            raise ContainerRejectedError("it must not start")

    async def started(self, pod: PodSandbox, container: NriContainer) -> None:
        self.events.append(("started", container.name))

    async def removed(self, pod: PodSandbox, container: NriContainer) -> None:
        self.events.append(("removed", container.name))


class PluginThread:
    """Our plugin in a thread, connected to the guest's runtime; can be stopped and started."""

    def __init__(self, socket_path: str, handler: Handler) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._options = PluginOptions(name="bed", index="50", socket_path=socket_path)
        self._handler = handler
        self.plugin: NriPlugin
        self._task: asyncio.Task[None]

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def start(self) -> None:
        self.plugin = NriPlugin(self._options)

        async def begin() -> None:
            self._task = asyncio.ensure_future(self.plugin.run(self._handler))

        self._call(begin())

    def stop(self) -> None:
        async def end() -> None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

        self._call(end())

    def push(self, updates: Sequence[ContainerUpdate]) -> None:
        self._call(self.plugin.push(updates))

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def connected(runtime: Node, handler: Handler, **changes: Any) -> Iterator[PluginThread]:
    """A plugin with changed options that connects until the end of the block."""
    with runtime.forward("/var/run/nri/nri.sock") as path:
        made = PluginThread(str(path), handler)
        for name, value in changes.items():
            msgspec.structs.force_setattr(made._options, name, value)  # also what we would reject
        made.start()
        try:
            yield made
        finally:
            made.close()


def restart_runtime(node: Node, plugin: RecordingPlugin) -> list[NriContainer]:
    """Restart the runtime and return the containers of the following Synchronize."""
    before = len(plugin.synchronized)
    node.restart_service("runtime")
    wait_until("our plugin is back", lambda: len(plugin.synchronized) > before, node)
    return plugin.synchronized[-1]


def wait_until(why: str, condition: Callable[[], object], runtime: Node) -> None:
    runtime.wait(why, lambda: bool(condition()))


def cpus(text: str) -> Adjustment:
    return Adjustment(resources=Resources(cpus=text))
