"""The plugin against a runtime: it answers in time whatever its handler does, and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from drakit.testing.runtime import FakeRuntime, FakeRuntimeError
from drakit.testing.runtime_releases import (
    CONTAINERD_1_7,
    CONTAINERD_2_3,
    CONTAINERD_2_4,
    EVERY_RELEASE,
    FakeRuntimeRelease,
)
from drakit.testing.stream_server import serving_unix
from drakit.wire.nri import nri_pb2
from drakit.wire.nri.connection import RuntimeConnection
from drakit.wire.nri.event_table import Event
from drakit.wire.nri.events import PLUGIN_SERVICE_NAME, Configure, Synchronize, encode_call
from drakit.wire.nri.handler import (
    Cause,
    ContainerRejectedError,
    Disconnect,
    Handler,
    PluginOptions,
    RuntimeInfo,
)
from drakit.wire.nri.mux import PLUGIN_SERVICE, RUNTIME_SERVICE
from drakit.wire.nri.plugin import NriPlugin, PushFailedError, UpdateRejectedError, _in_io_loop
from drakit.wire.nri.session import RpcRequest, RpcResponse, Session
from drakit.wire.nri.transport import Transport
from drakit.wire.nri.values import Adjustment, ContainerUpdate, NriContainer, PodSandbox, Resources

LATE = 4.0
"""How long the runtime waits in tests of lateness; a quarter of it is for a slow machine."""
EVERYTHING = frozenset(Event) - {Event.VALIDATE_CONTAINER_ADJUSTMENT}


class Recorder(Handler):
    """Notes what it is told; pins every new container to CPUs 2-3."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.runtime: RuntimeInfo | None = None
        self.ends: list[Disconnect] = []
        self.told = asyncio.Event()
        self.pods: Sequence[PodSandbox] = ()
        self.containers: Sequence[NriContainer] = ()
        self.answer = Adjustment(resources=Resources(cpus="2-3"))
        self.updates: Sequence[ContainerUpdate] = ()
        self.to_synchronize: Sequence[ContainerUpdate] = ()

    def connected(self, runtime: RuntimeInfo) -> None:
        self.runtime = runtime

    def disconnected(self, end: Disconnect) -> None:
        self.ends.append(end)
        self.told.set()

    async def end(self, cause: Cause) -> Disconnect:
        """Wait for an end of that cause."""
        while True:
            for end in self.ends:
                if end.cause is cause:
                    return end
            self.told.clear()
            await self.told.wait()

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[NriContainer]
    ) -> Sequence[ContainerUpdate]:
        self.seen.append("synchronize")
        self.pods, self.containers = pods, containers
        return self.to_synchronize

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        self.seen.append(f"create {pod.name}/{container.name}")
        return self.answer

    async def update(
        self, pod: PodSandbox, container: NriContainer, resources: Resources
    ) -> Sequence[ContainerUpdate]:
        self.seen.append(f"update {container.name} {resources.cpus}")
        return self.updates

    async def stop(self, pod: PodSandbox, container: NriContainer) -> Sequence[ContainerUpdate]:
        self.seen.append(f"stop {container.name}")
        return ()

    async def starting(self, pod: PodSandbox, container: NriContainer) -> None:
        self.seen.append(f"starting {container.name}")

    async def started(self, pod: PodSandbox, container: NriContainer) -> None:
        self.seen.append(f"started {container.name}")

    async def removed(self, pod: PodSandbox, container: NriContainer) -> None:
        self.seen.append(f"removed {container.name}")

    async def pod_started(self, pod: PodSandbox) -> None:
        self.seen.append(f"pod started {pod.name}")

    async def pod_stopped(self, pod: PodSandbox) -> None:
        self.seen.append(f"pod stopped {pod.name}")

    async def pod_removed(self, pod: PodSandbox) -> None:
        self.seen.append(f"pod removed {pod.name}")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "nri.sock")


@contextlib.asynccontextmanager
async def running(
    path: str, handler: Handler, events: frozenset[Event] = EVERYTHING
) -> AsyncIterator[NriPlugin]:
    options = PluginOptions(
        name="demo", index="10", socket_path=path, events=events, first_delay=0, longest_delay=0
    )
    plugin = NriPlugin(options)
    task = asyncio.create_task(plugin.run(handler))
    try:
        yield plugin
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert plugin.runtime is None


# -- what it is told ------------------------------------------------------------------------------


@pytest.mark.parametrize("release", EVERY_RELEASE, ids=str)
async def test_every_release_sends_the_same_events(path: str, release: FakeRuntimeRelease) -> None:
    handler = Recorder()
    async with FakeRuntime(path, release=release) as runtime, running(path, handler):
        assert await runtime.plugin_ready() == "10-demo"
        pod = await runtime.run_pod("web")
        container = await runtime.run(pod.id, "app")
        await runtime.update(container.id, Resources(cpus="0-7"))
        await runtime.remove_pod(pod.id)
        assert handler.runtime is not None
        assert handler.runtime.nri == release.nri
        assert handler.seen == [
            "synchronize",
            "pod started web",
            "create web/app",
            "starting app",
            "started app",
            "update app 0-7",
            "stop app",
            "pod stopped web",
            "removed app",
            "pod removed web",
        ]
        assert not runtime.drops


async def test_an_adjustment_and_an_update_beside_it_are_applied(path: str) -> None:
    handler = Recorder()
    async with FakeRuntime(path) as runtime, running(path, handler):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        first = await runtime.run(pod.id, "first")
        handler.answer = Adjustment(
            resources=Resources(cpus="4-5", mems="1", memory_limit=7, unified={"memory.high": "9"}),
            env={"ADDED": "yes"},
            updates=(ContainerUpdate(container_id=first.id, resources=Resources(cpus="6")),),
        )
        second = await runtime.run(pod.id, "second", env=["A=1"])
        assert first.cpus == "6"
        assert (second.cpus, second.mems) == ("4-5", "1")
        assert second.resources.memory_limit == 7
        assert second.env == {"A": "1", "ADDED": "yes"}


async def test_an_update_for_the_same_container_overrides_the_request(path: str) -> None:
    handler = Recorder()
    async with FakeRuntime(path) as runtime, running(path, handler):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        container = await runtime.run(pod.id, "app")
        handler.updates = [ContainerUpdate(container_id=container.id, resources=Resources(cpus="2-3"))]
        await runtime.update(container.id, Resources(cpus="0-7", shares=512))
        assert container.cpus == "2-3"
        assert container.resources.shares == 512


@pytest.mark.parametrize("release", EVERY_RELEASE, ids=str)
async def test_a_split_synchronize_has_the_same_result(path: str, release: FakeRuntimeRelease) -> None:
    handler = Recorder()
    async with FakeRuntime(path, release=release, message_limit=4000) as runtime:
        pods = [await runtime.run_pod(f"pod{n}") for n in range(30)]
        made = [await runtime.run(pod.id, "app", env=["X=" + "y" * 100]) for pod in pods]
        handler.to_synchronize = [
            ContainerUpdate(container_id=each.id, resources=Resources(cpus=str(n)))
            for n, each in enumerate(made)
        ]
        async with running(path, handler):
            await runtime.plugin_ready()
            assert [pod.name for pod in handler.pods] == [pod.name for pod in pods]
            assert [each.id for each in handler.containers] == [each.id for each in made]
            assert [each.cpus for each in made] == [str(n) for n in range(30)]
            parts = [call for call in runtime.calls if call.method == "Synchronize"]
            assert (len(parts) > 3) == release.splits_synchronize
            assert handler.seen == ["synchronize"]


async def test_a_synchronize_longer_than_ttrpc_allows_is_read(path: str) -> None:
    handler = Recorder()
    async with FakeRuntime(path, release=CONTAINERD_1_7, request_timeout=60) as runtime:
        pod = await runtime.run_pod("big")
        for _ in range(5):
            await runtime.run(pod.id, "app", env=["X=" + "y" * (1 << 20)])
        async with running(path, handler):
            await runtime.plugin_ready()
            assert len(handler.containers) == 5


async def test_an_empty_node_is_synchronized_too(path: str) -> None:
    handler = Recorder()
    async with FakeRuntime(path) as runtime, running(path, handler) as plugin:
        await runtime.plugin_ready()
        assert (handler.pods, handler.containers) == ((), ())
        assert plugin.runtime == handler.runtime


async def test_only_known_events_are_asked_for(path: str) -> None:
    async with (
        FakeRuntime(path, release=CONTAINERD_1_7) as runtime,
        running(path, Recorder(), frozenset(Event)),
    ):
        await runtime.plugin_ready()  # one unknown bit would reject the registration
        assert not runtime.drops


# -- handlers that misbehave ----------------------------------------------------------------------


class Stubborn(Recorder):
    """Hangs in create; when cancelled, goes on hanging until released, then answers."""

    def __init__(self) -> None:
        super().__init__()
        self.release = asyncio.Event()
        self.ended = asyncio.Event()

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        while not self.release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.release.wait()
        self.ended.set()
        return self.answer


class Hanging(Recorder):
    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("never reached")


async def test_a_hanging_handler_rejects_the_container_and_keeps_the_connection(path: str) -> None:
    handler = Hanging()
    async with FakeRuntime(path, request_timeout=LATE) as runtime, running(path, handler):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        with pytest.raises(FakeRuntimeError, match="not decided before the runtime's deadline"):
            await runtime.create(pod.id, "app")
        assert not runtime.drops
        assert runtime.plugins == ["10-demo"]
        assert handler.seen[-2:] == ["stop app", "removed app"]  # the runtime undoes


async def test_a_late_answer_is_dropped(path: str) -> None:
    handler = Stubborn()
    async with FakeRuntime(path, request_timeout=LATE) as runtime, running(path, handler):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        with pytest.raises(FakeRuntimeError, match="not decided"):
            await runtime.create(pod.id, "app")
        handler.release.set()
        await handler.ended.wait()
        container = await runtime.run(pod.id, "app")
        assert container.cpus == "2-3"
        assert not runtime.drops


class Blocked(Recorder):
    """Decides only after the deadline, without ever giving the loop back: a slow disk, for one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = threading.Event()
        self.late = asyncio.Event()
        self.lost: list[Adjustment | Sequence[ContainerUpdate]] = []
        self.answer = Adjustment(
            resources=Resources(cpus="2-3"),
            updates=(ContainerUpdate(container_id="other", resources=Resources(cpus="4")),),
        )

    def undelivered(self, answer: Adjustment | Sequence[ContainerUpdate]) -> None:
        self.lost.append(answer)
        self.late.set()

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        self.blocks.wait()
        return await super().create(pod, container)


async def test_a_handler_is_called_when_its_answer_is_too_late(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime applied none of its updates, so they must not count as sent."""
    handler = Blocked()
    late = RuntimeConnection._on_late

    def noticed(self: RuntimeConnection, request: RpcRequest) -> None:  # in the socket's thread
        late(self, request)
        handler.blocks.set()

    monkeypatch.setattr(RuntimeConnection, "_on_late", noticed)
    async with FakeRuntime(path, request_timeout=LATE) as runtime, running(path, handler):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        with pytest.raises(FakeRuntimeError, match="not decided"):
            await runtime.create(pod.id, "app")
        await handler.late.wait()
        assert handler.lost == [handler.answer]


@pytest.mark.parametrize("in_time", [True, False])
async def test_only_late_answers_are_reported_as_undelivered(path: str, in_time: bool) -> None:
    class Slow(Stubborn):
        def __init__(self) -> None:
            super().__init__()
            self.lost: list[object] = []

        def undelivered(self, answer: Adjustment | Sequence[ContainerUpdate]) -> None:
            self.lost.append(answer)

    handler = Slow()
    async with FakeRuntime(path, request_timeout=LATE) as runtime, running(path, handler):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        if in_time:
            handler.release.set()
            await runtime.create(pod.id, "app")
            assert handler.lost == []
        else:
            with pytest.raises(FakeRuntimeError, match="not decided"):
                await runtime.create(pod.id, "app")
            handler.release.set()
            await handler.ended.wait()
            await asyncio.sleep(0)
            assert handler.lost == [handler.answer]


async def test_a_deadline_that_has_passed_is_answered_at_once(path: str) -> None:
    handler = Recorder()
    async with scripted(path) as script, running(path, handler):
        peer = await script()
        await peer.registration()
        await peer.say("CreateContainer", b"", timeout=-1)
        answer = await peer.answer()
        assert answer.error is not None
        assert "deadline" in answer.error.message
        assert handler.seen == []


def test_a_program_that_is_stuck_still_rejects_in_time(path: str) -> None:
    """The home loop blocks for as long as the runtime waits: the answer comes all the same."""
    rejected = threading.Event()
    problems: list[BaseException] = []

    class Blocking(Recorder):
        async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
            if not rejected.wait(timeout=60):
                problems.append(AssertionError("the runtime was never answered"))
            return self.answer

    async def kubelet(ready: threading.Event) -> None:
        async with FakeRuntime(path, request_timeout=LATE) as runtime:
            ready.set()
            await runtime.plugin_ready()
            pod = await runtime.run_pod("web")
            try:
                with pytest.raises(FakeRuntimeError, match="not decided"):
                    await runtime.create(pod.id, "app")
                assert not runtime.drops
            except BaseException as error:
                problems.append(error)
                raise
            finally:
                rejected.set()

    async def program() -> None:
        ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(kubelet(ready)))
        thread.start()
        ready.wait()
        async with running(path, Blocking()):
            while thread.is_alive():
                await asyncio.sleep(0.01)
        thread.join()

    asyncio.run(program())
    assert not problems


class Raising(Recorder):
    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self.problem = problem

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        raise self.problem


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (ContainerRejectedError("claim c holds no CPUs"), "^claim c holds no CPUs$"),
        (ValueError("oops"), "CreateContainer: ValueError: oops"),
        (RuntimeError("file \udcff"), "file \\?"),
    ],
)
async def test_exceptions_reject_the_container(path: str, problem: Exception, text: str) -> None:
    async with FakeRuntime(path) as runtime, running(path, Raising(problem)):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        with pytest.raises(FakeRuntimeError, match=text):
            await runtime.create(pod.id, "app")
        assert not runtime.drops


async def test_starting_can_be_rejected(path: str) -> None:
    class Guard(Recorder):
        async def starting(self, pod: PodSandbox, container: NriContainer) -> None:
            raise ContainerRejectedError("its creation was missed")

    async with FakeRuntime(path) as runtime, running(path, Guard()):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        container = await runtime.create(pod.id, "app")
        with pytest.raises(FakeRuntimeError, match="missed"):
            await runtime.start(container.id)


@pytest.mark.parametrize(
    ("updates", "text"), [(lambda c: [c.id, c.id], "twice"), (lambda c: ["created"], "being created")]
)
async def test_answers_the_runtime_would_choke_on_are_not_sent(
    path: str, updates: Callable[[NriContainer], list[str]], text: str
) -> None:
    class Wrong(Recorder):
        async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
            ids = [container.id if id_ == "created" else id_ for id_ in updates(container)]
            changes = [ContainerUpdate(container_id=i, resources=Resources(cpus="1")) for i in ids]
            return Adjustment(updates=tuple(changes))

    async with FakeRuntime(path) as runtime, running(path, Wrong()):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        with pytest.raises(FakeRuntimeError, match="update for container"):
            await runtime.create(pod.id, "app")
        assert text


async def test_an_oversize_answer_rejects_the_container_and_keeps_the_connection(path: str) -> None:
    handler = Recorder()
    handler.answer = Adjustment(env={"HUGE": "x" * (5 << 20)})
    async with FakeRuntime(path, request_timeout=30) as runtime, running(path, handler):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        with pytest.raises(FakeRuntimeError, match="longer than ttrpc allows"):
            await runtime.create(pod.id, "app")
        handler.answer = Adjustment(env={"LARGE": "x" * (3 << 20)})
        assert len((await runtime.run(pod.id, "app")).env["LARGE"]) == 3 << 20
        assert not runtime.drops


@pytest.mark.parametrize("release", [CONTAINERD_1_7, CONTAINERD_2_4], ids=str)
async def test_a_failed_synchronization_is_tried_again(path: str, release: FakeRuntimeRelease) -> None:
    class Once(Recorder):
        async def synchronize(
            self, pods: Sequence[PodSandbox], containers: Sequence[NriContainer]
        ) -> Sequence[ContainerUpdate]:
            self.seen.append("synchronize")
            if self.seen.count("synchronize") == 1:
                raise RuntimeError("not yet")
            return ()

    handler = Once()
    async with FakeRuntime(path, release=release) as runtime, running(path, handler):
        await runtime.plugin_ready()
        await handler.end(Cause.NOT_SYNCHRONIZED)
        assert runtime.connections == 2


async def test_a_hanging_synchronization_is_tried_again(path: str) -> None:
    class Once(Recorder):
        async def synchronize(
            self, pods: Sequence[PodSandbox], containers: Sequence[NriContainer]
        ) -> Sequence[ContainerUpdate]:
            self.seen.append("synchronize")
            if self.seen.count("synchronize") == 1:
                await asyncio.get_running_loop().create_future()
            return ()

    handler = Once()
    async with FakeRuntime(path, request_timeout=LATE) as runtime, running(path, handler):
        await runtime.plugin_ready()
        assert runtime.connections == 2


async def test_the_end_waits_for_an_answer_in_progress(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drakit.wire.nri.plugin._DRAIN_SECONDS", 60.0)

    class Slow(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go = asyncio.Event(), asyncio.Event()

        async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
            self.begun.set()
            await self.go.wait()
            return self.answer

    handler = Slow()
    async with FakeRuntime(path, request_timeout=30) as runtime:
        options = PluginOptions(name="demo", socket_path=path, events=EVERYTHING)
        task = asyncio.create_task(NriPlugin(options).run(handler))
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        creation = asyncio.create_task(runtime.create(pod.id, "app"))
        await handler.begun.wait()
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, handler.go.set)
        assert (await creation).cpus == "2-3"
        with pytest.raises(asyncio.CancelledError):
            await task


# -- pushing --------------------------------------------------------------------------------------


async def test_updates_are_pushed_one_container_a_call(path: str) -> None:
    async with FakeRuntime(path) as runtime, running(path, Recorder()) as plugin:
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        made = [await runtime.run(pod.id, f"c{n}") for n in range(3)]
        pushed = [ContainerUpdate(container_id=c.id, resources=Resources(cpus="7")) for c in made]
        gone = ContainerUpdate(container_id="gone", resources=Resources(cpus="7"))
        await plugin.push([*pushed, gone])
        assert [each.cpus for each in made] == ["7"] * 3


@pytest.mark.parametrize("release", [r for r in EVERY_RELEASE if r is not CONTAINERD_2_4], ids=str)
async def test_nothing_is_pushed_to_a_runtime_that_could_wedge(
    path: str, release: FakeRuntimeRelease
) -> None:
    async with FakeRuntime(path, release=release) as runtime, running(path, Recorder()) as plugin:
        await runtime.plugin_ready()
        with pytest.raises(UpdateRejectedError, match=r"before 0\.12\.1"):
            await plugin.push([ContainerUpdate(container_id="c", resources=Resources(cpus="7"))])
        assert not runtime.wedged


async def test_nothing_is_pushed_without_a_runtime(path: str) -> None:
    async with running(path, Recorder()) as plugin:
        with pytest.raises(UpdateRejectedError, match="no runtime is synchronized"):
            await plugin.push([])


async def test_nothing_is_pushed_from_within_a_handler(path: str) -> None:
    class Pushy(Recorder):
        plugin: NriPlugin
        later: asyncio.Task[None]
        problem: Exception | None = None
        go = asyncio.Event()

        async def push_later(self, update: ContainerUpdate) -> None:
            await self.go.wait()
            await self.plugin.push([update])

        async def started(self, pod: PodSandbox, container: NriContainer) -> None:
            update = ContainerUpdate(container_id=container.id, resources=Resources(cpus="9"))
            try:
                await self.plugin.push([update])
            except UpdateRejectedError as error:
                self.problem = error
            self.later = asyncio.create_task(self.push_later(update))

    handler = Pushy()
    async with FakeRuntime(path) as runtime, running(path, handler) as plugin:
        handler.plugin = plugin
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        container = await runtime.run(pod.id, "app")
        assert "while an event is handled" in str(handler.problem)
        assert container.cpus == "2-3"
        handler.go.set()
        await handler.later
        assert container.cpus == "9"


async def test_failures_of_pushed_updates_are_reported_by_container(path: str) -> None:
    async with FakeRuntime(path, online_cpus="0-7") as runtime, running(path, Recorder()) as plugin:
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        one, two = await runtime.run(pod.id, "one"), await runtime.run(pod.id, "two")
        with pytest.raises(PushFailedError) as caught:
            await plugin.push(
                [
                    ContainerUpdate(container_id=one.id, resources=Resources(cpus="99")),
                    ContainerUpdate(container_id=two.id, resources=Resources(cpus="5")),
                ]
            )
        assert list(caught.value.failed) == [one.id]
        assert (one.cpus, two.cpus) == ("2-3", "5")


# -- connecting, losing, connecting again -----------------------------------------------------------


async def test_a_restarted_runtime_is_synchronized_again(path: str) -> None:
    handler = Recorder()
    async with FakeRuntime(path) as runtime, running(path, handler):
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        container = await runtime.run(pod.id, "app")
        for _ in range(3):
            await runtime.restart()
            await runtime.plugin_ready()
            assert [each.id for each in handler.containers] == [container.id]
            assert handler.containers[0].resources.cpus == "2-3"
        assert handler.seen.count("synchronize") == 4
        assert {end.cause for end in handler.ends} >= {Cause.LOST}


async def test_each_reason_for_a_missing_connection_is_reported_once(path: str, tmp_path: Path) -> None:
    handler = Recorder()
    async with running(path, handler):
        end = await handler.end(Cause.NO_SOCKET)
        assert "NRI is off" in str(end)
        runtime = FakeRuntime(path)
        async with runtime:
            await runtime.plugin_ready()
            await runtime.down()  # the socket file stays
            assert "down or starting" in str(await handler.end(Cause.REFUSED))
            assert [end.cause for end in handler.ends].count(Cause.NO_SOCKET) == 1


async def test_a_path_that_is_not_a_socket_is_unreachable_or_rejected(path: str) -> None:
    Path(path).write_text("")
    handler = Recorder()
    async with running(path, handler):
        assert await handler.end(Cause.REFUSED)


async def test_an_inherited_descriptor_is_used_and_not_replaced(path: str) -> None:
    handler = Recorder()
    async with FakeRuntime(path) as runtime:
        environment = {
            "NRI_PLUGIN_SOCKET": str(await runtime.launch()),
            "NRI_PLUGIN_NAME": "launched",
            "NRI_PLUGIN_IDX": "07",
        }
        options = PluginOptions(name="demo", socket_path="/nowhere").with_environment(environment)
        task = asyncio.create_task(NriPlugin(options).run(handler))
        assert await runtime.plugin_ready() == "07-launched"
        await runtime.down()
        await task  # ends by itself: nobody will give it another socket
        assert [end.cause for end in handler.ends] == [Cause.LOST]


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="two digits"):
        PluginOptions(name="demo", index="7")
    with pytest.raises(ValueError, match="only letters"):
        PluginOptions(name="de mo")
    with pytest.raises(ValueError, match="not a file descriptor"):
        PluginOptions(name="demo").with_environment({"NRI_PLUGIN_SOCKET": "x"})
    same = PluginOptions(name="demo")
    assert same.with_environment({}) is same


class Peer:
    """The runtime's end of one connection, moved by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.session = Session(serve=RUNTIME_SERVICE, call=PLUGIN_SERVICE)
        self.events: list[RpcRequest | RpcResponse] = []

    async def next(self) -> RpcRequest | RpcResponse:
        while not self.events:
            data = await self.reader.read(65536)
            assert data, "the plugin closed the connection"
            self.events += self.session.receive(data)
        return self.events.pop(0)

    async def registration(self) -> RpcRequest:
        event = await self.next()
        assert isinstance(event, RpcRequest)
        assert event.method == "RegisterPlugin"
        return event

    async def accept(self, request: RpcRequest) -> None:
        self.session.respond(request.stream, b"")
        await self.flush()

    async def say(self, method: str, payload: bytes, timeout: float = 60.0) -> None:
        self.session.call(PLUGIN_SERVICE_NAME, method, payload, timeout)
        await self.flush()

    async def answer(self) -> RpcResponse:
        event = await self.next()
        assert isinstance(event, RpcResponse)
        return event

    async def flush(self) -> None:
        self.writer.write(self.session.output())
        await self.writer.drain()

    async def closed(self) -> None:
        """Wait until the plugin closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def scripted(path: str) -> AsyncIterator[Callable[[], asyncio.Future[Peer]]]:
    """A socket whose connections the test moves by hand."""
    waiting: asyncio.Queue[Peer] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.put_nowait(Peer(reader, writer))
        await writer.wait_closed()

    async with serving_unix(path, take):
        yield lambda: asyncio.ensure_future(waiting.get())


CONFIGURE = encode_call(Configure(runtime_name="containerd", runtime_version="v2.4.0"))
PART = encode_call(Synchronize(pods=(PodSandbox(id="p"),), more=True))
LAST = encode_call(Synchronize())


async def until(peer: Peer, state: int) -> None:
    """Bring the conversation to its n-th state, of :data:`STATES`."""
    request = await peer.registration()
    if state == 0:
        return
    await peer.say(*CONFIGURE)  # before the registration is answered, as real runtimes do
    if state == 1:
        return
    mask = nri_pb2.ConfigureResponse.FromString((await peer.answer()).payload).events
    assert mask
    if state == 2:
        return
    await peer.accept(request)
    if state == 3:
        return
    await peer.say(*PART)
    answer = nri_pb2.SynchronizeResponse.FromString((await peer.answer()).payload)
    assert answer.more
    assert not answer.update
    if state == 4:
        return
    await peer.say(*LAST)
    if state == 5:
        return
    assert not nri_pb2.SynchronizeResponse.FromString((await peer.answer()).payload).more
    if state == 6:
        return
    peer.session.call(PLUGIN_SERVICE_NAME, "CreateContainer", b"", 60.0)
    peer.writer.write(peer.session.output()[:-3])  # the end comes inside a message
    await peer.writer.drain()


STATES = range(8)


@pytest.mark.parametrize("state", STATES)
async def test_an_end_of_file_in_any_state_leads_to_a_new_connection(path: str, state: int) -> None:
    handler = Recorder()
    async with scripted(path) as script, running(path, handler):
        peer = await script()
        await until(peer, state)
        peer.writer.close()
        again = await script()
        assert (await handler.end(Cause.LOST)).cause is Cause.LOST
        await until(again, 6)


@pytest.mark.parametrize("state", STATES)
async def test_garbage_in_any_state_leads_to_a_new_connection(path: str, state: int) -> None:
    handler = Recorder()
    async with scripted(path) as script, running(path, handler):
        peer = await script()
        await until(peer, state)
        peer.writer.write(b"\xff" * 64)
        await peer.closed()
        await until(await script(), 6)
        assert handler.seen.count("synchronize") >= 1


async def test_a_rejected_registration_is_reported_and_retried(path: str) -> None:
    handler = Recorder()
    async with scripted(path) as script, running(path, handler):
        peer = await script()
        request = await peer.registration()
        peer.session.fail(request.stream, 2, "invalid plugin index")
        await peer.flush()
        await peer.closed()  # the runtime does not close it: the plugin must
        assert (await handler.end(Cause.REGISTRATION_REFUSED)).detail == "invalid plugin index"
        await until(await script(), 6)


async def impatient(path: str, handler: Handler, **limits: float) -> asyncio.Task[None]:
    options = PluginOptions(name="demo", socket_path=path, first_delay=0, longest_delay=0.01, **limits)  # type: ignore[arg-type]
    return asyncio.create_task(NriPlugin(options).run(handler))


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_runtime_that_does_not_answer_the_registration_is_left(path: str) -> None:
    handler = Recorder()
    async with scripted(path) as script:
        task = await impatient(path, handler, registration_timeout=0.5)
        peer = await script()
        await peer.registration()
        await peer.closed()
        assert "not answered within" in str(await handler.end(Cause.REGISTRATION_REFUSED))
        await script()  # and tried again
        await ended(task)


async def test_a_runtime_that_never_synchronizes_is_left(path: str) -> None:
    handler = Recorder()
    async with scripted(path) as script:
        task = await impatient(path, handler, synchronization_timeout=0.5)
        peer = await script()
        await peer.accept(await peer.registration())
        await peer.say(*CONFIGURE)
        await peer.closed()
        assert "did not synchronize" in str(await handler.end(Cause.NOT_SYNCHRONIZED))
        await script()
        await ended(task)


async def test_two_messages_in_one_read_and_one_in_many(path: str) -> None:
    handler = Recorder()
    async with scripted(path) as script, running(path, handler):
        peer = await script()
        await until(peer, 6)
        change = nri_pb2.ContainerEvent(container={"id": "x", "name": "n"}).SerializeToString()
        peer.session.call(PLUGIN_SERVICE_NAME, "PostStartContainer", change, 60.0)
        peer.session.call(PLUGIN_SERVICE_NAME, "RemoveContainer", change, 60.0)
        await peer.flush()
        await peer.answer()
        await peer.answer()
        peer.session.call(PLUGIN_SERVICE_NAME, "StopContainer", change, 60.0)
        for byte in peer.session.output():
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()
        await peer.answer()
        assert sorted(handler.seen[1:]) == ["removed n", "started n", "stop n"]


async def test_unknown_methods_are_unimplemented_and_validation_is_accepted(path: str) -> None:
    async with scripted(path) as script, running(path, Recorder()):
        peer = await script()
        await until(peer, 6)
        await peer.say("FutureMethod", b"")
        answer = await peer.answer()
        assert answer.error is not None
        assert answer.error.code == 12
        await peer.say("ValidateContainerAdjustment", b"")
        assert (await peer.answer()).error is None
        await peer.say("CreateContainer", b"\xff")
        answer = await peer.answer()
        assert answer.error is not None
        assert answer.error.code == 3


async def test_the_old_connection_is_closed_before_the_new_one_is_made(path: str) -> None:
    live, most = 0, 0

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        peer = Peer(reader, writer)
        with contextlib.suppress(AssertionError, ConnectionError):
            await until(peer, 5)
            peer.writer.write(b"\xff" * 32)
            await peer.closed()
        live -= 1
        count.release()

    count = asyncio.Semaphore(0)
    async with serving_unix(path, take), running(path, Recorder()):
        for _ in range(20):
            await count.acquire()
    assert most == 1


def _alive(kind: type) -> int:
    return sum(1 for each in gc.get_objects() if isinstance(each, kind))


async def test_a_thousand_reconnects_leave_nothing_behind(path: str, scale: int) -> None:
    handler = Recorder()
    async with FakeRuntime(path) as runtime, running(path, handler):
        await runtime.plugin_ready()
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        before = (_alive(RuntimeConnection), _alive(Transport))  # earlier tests' log records hold some
        for _ in range(1000 * scale):
            runtime.disconnect_plugins()
            await runtime.plugin_gone()
            await runtime.plugin_ready()
        assert handler.seen.count("synchronize") == 1000 * scale + 1
        gc.collect()
        assert _alive(RuntimeConnection) <= before[0] + 1
        assert _alive(Transport) <= before[1] + 2
        assert threading.active_count() == threads
        assert len(os.listdir("/proc/self/fd")) <= files + 1


async def test_stopping_immediately_and_twice_works(path: str) -> None:
    task = asyncio.create_task(NriPlugin(PluginOptions(name="a", socket_path=path)).run(Handler()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_push_while_the_plugin_ends_is_rejected(path: str) -> None:
    async with FakeRuntime(path) as runtime:
        plugin = NriPlugin(PluginOptions(name="a", socket_path=path))
        task = asyncio.create_task(plugin.run(Handler()))
        await runtime.plugin_ready()
        async with runtime._plugins.lock:  # so the runtime does not answer
            updates = [ContainerUpdate(container_id=n, resources=Resources(cpus="1")) for n in "abc"]
            push = asyncio.create_task(plugin.push(updates))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises((PushFailedError, UpdateRejectedError)):
                await push
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(UpdateRejectedError, match="no runtime"):
            await plugin.push(updates)


async def test_a_push_after_the_io_loop_ended_is_rejected() -> None:
    """Between the look at the connection and the call, the connection's loop may end."""

    async def push() -> dict[str, str]:
        return {}

    line = asyncio.new_event_loop()
    line.close()
    with pytest.raises(UpdateRejectedError, match="has ended"):
        await _in_io_loop(line, push())


async def test_a_full_backlog_or_odd_socket_does_not_end_the_plugin(path: str) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(path)
    handler = Recorder()
    async with running(path, handler):
        assert await handler.end(Cause.UNREACHABLE)
    listener.close()


async def test_a_release_without_news_is_served_by_fallback(path: str) -> None:
    """A runtime that has dedicated methods falls back to StateChange for plugins without."""
    handler = Recorder()
    async with FakeRuntime(path, release=CONTAINERD_2_3) as runtime, running(path, handler):
        await runtime.plugin_ready()
        for peer in runtime._plugins.peers:
            peer.old_style = True
        pod = await runtime.run_pod("web")
        await runtime.run(pod.id, "app")
        assert "started app" in handler.seen
        assert "StateChange" in {call.method for call in runtime.calls}
