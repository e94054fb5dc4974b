"""Fake container runtime: the other end of NRI, in memory, for tests of drivers.

It listens on a socket, registers and synchronizes plugins, sends the events of scripted pods and
containers, and applies the answers to its model of the containers' limits::

    async with FakeRuntime(socket_path, cdi_directories=[cdi]) as runtime:
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        container = await runtime.create(pod.id, "app", cdi_devices=["dra.cpu/claim=…"])
        await runtime.start(container.id)
        assert runtime.container(container.id).cpus == "2-3"

It is as strict as real runtimes: a late plugin is disconnected and the container created without it,
unknown event bits reject the registration, and contradictions fail the creation.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from drakit.cgroups.paths import relative_path
from drakit.core.cpuset import CpuSet
from drakit.testing.cdi import Catalog
from drakit.testing.containers import FakeContainer, Merger, PluginConflictError, replace_env
from drakit.testing.plugins import ConnectedPlugins, FakeRuntimeError, PluginCall
from drakit.testing.runtime_releases import CONTAINERD_2_4, FakeRuntimeRelease
from drakit.wire.cdi.spec import CdiError
from drakit.wire.nri import nri_pb2
from drakit.wire.nri.event_table import Event
from drakit.wire.nri.events import RuntimeEvent, Synchronize
from drakit.wire.nri.frames import LONGEST_SENT
from drakit.wire.nri.session import StatusError
from drakit.wire.nri.values import (
    NOTHING,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    Resources,
    State,
    adjustment_from,
    update_from,
)

__all__ = ["FakeContainer", "FakeRuntime", "FakeRuntimeError", "PluginCall"]


class FakeRuntime:
    """The runtime side of NRI over a model of pods and containers.

    *release* selects the NRI version and its behavior; *online_cpus* are the CPUs that the kernel would
    accept; *message_limit* is where Synchronize is split (4 MiB in real runtimes). With *cgroup_root* every
    container has a directory with cgroup v2 files there, which a driver may write too. The default timeouts
    are longer than the real 2 and 5 seconds, so that a busy machine does not look like a hanging plugin.
    """

    def __init__(
        self,
        socket_path: str,
        *,
        release: FakeRuntimeRelease = CONTAINERD_2_4,
        cdi_directories: Sequence[str] = (),
        online_cpus: str = "0-1023",
        request_timeout: float = 30.0,
        registration_timeout: float = 30.0,
        message_limit: int = LONGEST_SENT,
        cgroup_root: str | None = None,
    ) -> None:
        self.socket_path = socket_path
        self.release = release
        self.cdi_directories = tuple(cdi_directories)
        self.online_cpus = CpuSet.parse(online_cpus)
        self.cgroup_root = cgroup_root
        self.pods: dict[str, PodSandbox] = {}
        self.containers: dict[str, FakeContainer] = {}
        self.failed_updates: list[tuple[str, str]] = []
        """(container, reason) of failed updates: real runtimes only log them."""
        self._plugins = ConnectedPlugins(
            release,
            self.snapshot,
            self.apply,
            request_timeout=request_timeout,
            registration_timeout=registration_timeout,
            message_limit=message_limit,
        )
        self.calls = self._plugins.calls
        """The last 100,000 calls to plugins, the latest last."""
        self.drops = self._plugins.drops
        """Why plugins were disconnected; afterwards containers are created without them."""
        self._forgotten_pods: set[str] = set()
        self._numbers = itertools.count(1)
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.down()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket_path)

    async def up(self) -> None:
        """Start listening, replacing a socket file that is left from before."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket_path)
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        listener.bind(self.socket_path)
        listener.listen(16)
        self._accepting = asyncio.create_task(self._plugins.accept(listener))

    async def down(self) -> None:
        """Stop: every connection is closed; containers keep running, the socket file remains."""
        try:
            if self._accepting is not None:
                self._accepting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._accepting
        finally:
            self._accepting = None
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            await self._plugins.close("the runtime stopped")
        self._forgotten_pods.update(self.pods)

    async def restart(self) -> None:
        """Stop and start while all pods and containers keep running.

        As with containerd, plugins get no event for the end of pods from before.
        """
        await self.down()
        if self.release.forgets_updates:
            for container in self.containers.values():
                container.forget_updates()
        await self.up()

    async def launch(self) -> int:
        """The descriptor that a plugin inherits which the runtime launches itself.

        The plugin is set up in the background.
        """
        mine, inherited = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        mine.setblocking(False)
        self._plugins.set_up_later(mine)
        return inherited.detach()

    async def plugin_ready(self, name: str | None = None) -> str:
        """Wait until a plugin (of that name) is synchronized; returns ``index-name``."""
        async with self._plugins.changed:
            while True:
                for peer in self._plugins.peers:
                    if name is None or peer.name == name:
                        return str(peer)
                await self._plugins.changed.wait()

    async def plugin_gone(self) -> None:
        """Wait until no plugin is connected and synchronized."""
        async with self._plugins.changed:
            await self._plugins.changed.wait_for(lambda: not self._plugins.peers)

    def disconnect_plugins(self, reason: str = "on purpose") -> None:
        """Close all connections; plugins may connect again immediately."""
        self._plugins.disconnect(reason)

    @property
    def plugins(self) -> list[str]:
        """The synchronized plugins in the order they are called, as ``index-name``."""
        return [str(peer) for peer in self._plugins.peers]

    @property
    def connections(self) -> int:
        """The number of connections so far."""
        return self._plugins.connections

    @property
    def wedged(self) -> bool:
        """Whether an unsolicited update arrived during an event in a release that deadlocks then."""
        return self._plugins.wedged

    async def run_pod(
        self,
        name: str,
        *,
        namespace: str = "default",
        uid: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> PodSandbox:
        """Start a pod's sandbox. Raises :class:`FakeRuntimeError` when a plugin rejects it."""
        number = next(self._numbers)
        uid = uid or f"00000000-0000-4000-8000-{number:012x}"
        pod = PodSandbox(
            id=f"{number:064x}",
            name=name,
            namespace=namespace,
            uid=uid,
            labels=labels or {},
            annotations=annotations or {},
            cgroup_parent=f"/kubepods/pod{uid}",
        )
        async with self._plugins.lock:
            event = RuntimeEvent(event=Event.RUN_POD_SANDBOX, pod=pod)
            await self._plugins.notify(event, can_reject=True)
            self.pods[pod.id] = pod
        return pod

    async def stop_pod(self, pod_id: str) -> None:
        """Stop a pod: its containers first, then the sandbox."""
        for container in self.containers_of(pod_id):
            if container.state is not State.STOPPED:
                await self.stop(container.id)
        await self._pod_end(Event.STOP_POD_SANDBOX, pod_id)

    async def remove_pod(self, pod_id: str) -> None:
        """Stop and remove a pod with all of its containers."""
        await self.stop_pod(pod_id)
        for container in self.containers_of(pod_id):
            await self.remove(container.id)
        await self._pod_end(Event.REMOVE_POD_SANDBOX, pod_id)
        del self.pods[pod_id]

    async def _pod_end(self, event: Event, pod_id: str) -> None:
        if pod_id in self._forgotten_pods:
            return
        async with self._plugins.lock:
            await self._plugins.notify(RuntimeEvent(event=event, pod=self.pods[pod_id]))

    def container(self, id_: str) -> FakeContainer:
        """The container *id_*, also after it stopped, until it is removed."""
        return self.containers[id_]

    def containers_of(self, pod_id: str) -> list[FakeContainer]:
        """The containers of a pod, in the order they were created."""
        return [each for each in self.containers.values() if each.value.pod_id == pod_id]

    async def create(
        self,
        pod_id: str,
        name: str,
        *,
        cdi_devices: Sequence[str] = (),
        env: Sequence[str] = (),
        resources: Resources = NOTHING,
    ) -> FakeContainer:
        """Create a container, calling all plugins. Raises :class:`FakeRuntimeError`.

        A creation that fails after the plugins were called is undone with a stop and a removal.
        """
        pod = self.pods[pod_id]
        try:
            injected = self._inject(tuple(env), cdi_devices)
        except CdiError as error:
            raise FakeRuntimeError(f"CDI device injection failed: {error}") from error
        draft = self._draft(pod, name, env=injected, cdi_devices=cdi_devices, resources=resources)
        async with self._plugins.lock:
            try:
                merger = await self._consult(pod, draft)
            except (StatusError, PluginConflictError) as error:
                if self.release.undoes_rejected_creation:
                    await self._stopped(pod, draft)
                    await self._plugins.notify(self._container_event(Event.REMOVE_CONTAINER, pod, draft))
                raise FakeRuntimeError(str(error)) from error
            container = self._add(merger.target)
            self._apply_all(merger)
            await self._plugins.notify(self._event(Event.POST_CREATE_CONTAINER, container))
        return container

    async def create_unnoticed(
        self, pod_id: str, name: str, *, resources: Resources = NOTHING, env: Sequence[str] = ()
    ) -> FakeContainer:
        """Create a container without calling plugins, as a race with Synchronize can do."""
        return self._add(self._draft(self.pods[pod_id], name, env=env, resources=resources))

    def _add(self, draft: NriContainer) -> FakeContainer:
        path = relative_path(draft.cgroups_path)
        directory = None if self.cgroup_root is None or path is None else os.path.join(self.cgroup_root, path)
        container = FakeContainer(msgspec.structs.replace(draft, state=State.CREATED), directory)
        self.containers[draft.id] = container
        return container

    def _draft(
        self,
        pod: PodSandbox,
        name: str,
        *,
        env: Sequence[str],
        cdi_devices: Sequence[str] = (),
        resources: Resources,
    ) -> NriContainer:
        id_ = f"{next(self._numbers):064x}"
        return NriContainer(
            id=id_,
            pod_id=pod.id,
            name=name,
            labels={"io.kubernetes.container.name": name},
            env=tuple(env),
            cdi_devices=tuple(cdi_devices),
            annotations=dict(pod.annotations) if self.release.copies_pod_annotations else {},
            cgroups_path=f"{pod.cgroup_parent}/{self.release.container_cgroup_prefix}{id_}",
            resources=resources,
        )

    async def start(self, id_: str) -> None:
        """Start a created container. Raises :class:`FakeRuntimeError`."""
        container = self.containers[id_]
        async with self._plugins.lock:
            # As in containerd: the task, and with it the cgroup, exists before plugins are called.
            if reason := self._impossible(container.resources):
                raise FakeRuntimeError(f"failed to create task: {reason}")
            container.write_cgroup()
            try:
                start = self._event(Event.START_CONTAINER, container)
                await self._plugins.notify(start, can_reject=True)
            except FakeRuntimeError:
                if self.release.honors_start_errors:
                    container.remove_cgroup()
                    raise
            container.set_state(State.RUNNING)
            await self._plugins.notify(self._event(Event.POST_START_CONTAINER, container))

    async def run(
        self,
        pod_id: str,
        name: str,
        *,
        cdi_devices: Sequence[str] = (),
        env: Sequence[str] = (),
        resources: Resources = NOTHING,
    ) -> FakeContainer:
        """Create and start a container."""
        container = await self.create(pod_id, name, cdi_devices=cdi_devices, env=env, resources=resources)
        await self.start(container.id)
        return container

    async def update(self, id_: str, resources: Resources) -> None:
        """Change a container as the kubelet would (vertical resize, static CPU manager)."""
        container = self.containers[id_]
        async with self._plugins.lock:
            merger = Merger(msgspec.structs.replace(container.value, resources=resources))
            for peer in self._plugins.subscribers(Event.UPDATE_CONTAINER):
                call = RuntimeEvent(
                    event=Event.UPDATE_CONTAINER,
                    pod=self._pod_of(container),
                    container=self._seen(container.value),
                    resources=merger.target.resources,
                )
                try:
                    payload = await self._plugins.ask(peer, call)
                    if payload is not None:
                        answer = nri_pb2.UpdateContainerResponse.FromString(payload)
                        merger.update(str(peer), [update_from(each) for each in answer.update])
                except (StatusError, PluginConflictError) as error:
                    raise FakeRuntimeError(str(error)) from error
            if reason := self._impossible(merger.target.resources):
                raise FakeRuntimeError(f"failed to update resources: {reason}")
            container.change(merger.target.resources)
            self._apply_all(merger)
            await self._plugins.notify(self._event(Event.POST_UPDATE_CONTAINER, container))

    async def stop(self, id_: str) -> None:
        """End a container's process; plugins are called afterwards."""
        container = self.containers[id_]
        container.set_state(State.STOPPED)
        container.remove_cgroup()
        async with self._plugins.lock:
            await self._stopped(self._pod_of(container), container.value)

    async def remove(self, id_: str) -> None:
        """Remove a container, stopping it first if necessary."""
        if self.containers[id_].state is not State.STOPPED:
            await self.stop(id_)
        container = self.containers.pop(id_)
        async with self._plugins.lock:
            await self._plugins.notify(self._event(Event.REMOVE_CONTAINER, container))

    def snapshot(self) -> Synchronize:
        """The content of Synchronize: all pods, and the containers that can still run."""
        return Synchronize(
            pods=tuple(self.pods.values()),
            containers=tuple(
                self._seen(each.value)
                for each in self.containers.values()
                if each.state in {State.CREATED, State.RUNNING}
            ),
        )

    def apply(self, update: ContainerUpdate) -> str:
        """Apply one update; returns the reason if it failed. An unknown container is not an error."""
        container = self.containers.get(update.container_id)
        if container is None or container.state is State.STOPPED:
            return ""
        reason = self._impossible(update.resources)
        if reason:
            self.failed_updates.append((update.container_id, reason))
        else:
            container.change(update.resources)
        return reason

    async def _consult(self, pod: PodSandbox, draft: NriContainer) -> Merger:
        merger = Merger(draft)
        for peer in self._plugins.subscribers(Event.CREATE_CONTAINER):
            call = self._container_event(Event.CREATE_CONTAINER, pod, merger.target)
            payload = await self._plugins.ask(peer, call)
            if payload is not None:
                answer = nri_pb2.CreateContainerResponse.FromString(payload)
                merger.adjust(str(peer), adjustment_from(answer))
        return merger

    async def _stopped(self, pod: PodSandbox, container: NriContainer) -> None:
        merger = Merger(container)
        call = self._container_event(Event.STOP_CONTAINER, pod, container)
        for peer in self._plugins.subscribers(Event.STOP_CONTAINER):
            try:
                payload = await self._plugins.ask(peer, call)
                if payload is not None:
                    answer = nri_pb2.StopContainerResponse.FromString(payload)
                    merger.update(str(peer), [update_from(each) for each in answer.update])
            except (StatusError, PluginConflictError) as error:
                self.failed_updates.append((container.id, str(error)))
        self._apply_all(merger)

    def _inject(self, env: tuple[str, ...], devices: Iterable[str]) -> tuple[str, ...]:
        """The environment after the CDI edits of *devices*. Raises :class:`CdiError`."""
        names = tuple(devices)
        if not names:
            return env
        for edits in Catalog.read(self.cdi_directories).edits_for(names):
            env = replace_env(env, dict(each.partition("=")[::2] for each in edits.env))
        return env

    def _apply_all(self, merger: Merger) -> None:
        for id_, resources in merger.updates.items():
            self.apply(ContainerUpdate(container_id=id_, resources=resources))

    def _impossible(self, resources: Resources) -> str:
        """Why the kernel would reject these limits; empty if it accepts them."""
        if not resources.cpus:
            return ""
        try:
            cpus = CpuSet.parse(resources.cpus)
        except ValueError as error:
            return str(error)
        return "" if cpus <= self.online_cpus else f"cpuset {cpus} is not online: invalid argument"

    def _seen(self, container: NriContainer) -> NriContainer:
        """The container as this release reports it to plugins."""
        if self.release.reports_cdi_devices:
            return container
        return msgspec.structs.replace(container, cdi_devices=())

    def _event(self, event: Event, container: FakeContainer) -> RuntimeEvent:
        return self._container_event(event, self._pod_of(container), container.value)

    def _container_event(self, event: Event, pod: PodSandbox, container: NriContainer) -> RuntimeEvent:
        return RuntimeEvent(event=event, pod=pod, container=self._seen(container))

    def _pod_of(self, container: FakeContainer) -> PodSandbox:
        return self.pods[container.value.pod_id]
