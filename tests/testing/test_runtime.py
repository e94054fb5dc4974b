"""The fake runtime is as unforgiving as the real ones: their rules, as tests of the fake."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from drakit.testing.containers import Merger, PluginConflictError, replace_env
from drakit.testing.runtime import FakeRuntime, FakeRuntimeError
from drakit.testing.runtime_releases import (
    CONTAINERD_1_7,
    CONTAINERD_2_2,
    CONTAINERD_2_3,
    CONTAINERD_2_4,
    EVERY_RELEASE,
    FakeRuntimeRelease,
)
from drakit.wire.cdi.directory import CdiDirectory
from drakit.wire.cdi.spec import ContainerEdits, claim_spec
from drakit.wire.nri import nri_pb2
from drakit.wire.nri.event_table import Event
from drakit.wire.nri.events import RUNTIME_SERVICE_NAME
from drakit.wire.nri.handler import Handler, PluginOptions
from drakit.wire.nri.mux import PLUGIN_SERVICE, RUNTIME_SERVICE
from drakit.wire.nri.plugin import NriPlugin
from drakit.wire.nri.session import RpcRequest, Session, StatusError
from drakit.wire.nri.transport import Transport
from drakit.wire.nri.values import (
    Adjustment,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    Resources,
    State,
    update_to,
)
from drakit.wire.nri.versions import NriVersion, infer_version


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "nri.sock")


class Pinning(Handler):
    def __init__(self, adjustment: Adjustment) -> None:
        self.adjustment = adjustment
        self.created: list[NriContainer] = []
        self.ended: list[str] = []

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        self.created.append(container)
        return self.adjustment

    async def stop(self, pod: PodSandbox, container: NriContainer) -> Sequence[ContainerUpdate]:
        self.ended.append("stop")
        return ()

    async def removed(self, pod: PodSandbox, container: NriContainer) -> None:
        self.ended.append("removed")

    async def pod_removed(self, pod: PodSandbox) -> None:
        self.ended.append("pod removed")


@contextlib.asynccontextmanager
async def plugin(
    runtime: FakeRuntime, handler: Handler, name: str = "demo", index: str = "10"
) -> AsyncIterator[NriPlugin]:
    options = PluginOptions(name=name, index=index, socket_path=runtime.socket_path)
    agent = NriPlugin(options)
    task = asyncio.create_task(agent.run(handler))
    before = len(runtime.plugins)
    while len(runtime.plugins) == before:
        await asyncio.sleep(0.001)
    try:
        yield agent
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class RawPlugin:
    """A plugin without manners: answers what it is told to answer."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.transport: Transport

    async def answer(self, request: RpcRequest) -> bytes:
        self.asked.append(request.method)
        if request.method not in self.answers:
            await asyncio.get_running_loop().create_future()
        return self.answers[request.method]

    async def connect(self, path: str) -> Transport:
        session = Session(serve=PLUGIN_SERVICE, call=RUNTIME_SERVICE)
        self.transport = Transport(session, answer=self.answer, time_limit=lambda request: 60)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.transport, path)
        return self.transport

    async def register(self, name: str = "raw", index: str = "50") -> None:
        request = nri_pb2.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        await self.transport.call(RUNTIME_SERVICE_NAME, "RegisterPlugin", request.SerializeToString(), 30)


def mask(events: int) -> bytes:
    return nri_pb2.ConfigureResponse(events=events).SerializeToString()


# -- registration -----------------------------------------------------------------------------------


@pytest.mark.parametrize("release", EVERY_RELEASE, ids=str)
async def test_unknown_event_bits_reject_the_registration(path: str, release: FakeRuntimeRelease) -> None:
    async with FakeRuntime(path, release=release) as runtime:
        raw = RawPlugin({"Configure": mask(0x4000)})
        transport = await raw.connect(path)
        await raw.register()
        await transport.closed
        assert "invalid plugin events" in runtime.drops[0]
        assert runtime.plugins == []


async def test_newer_bits_reject_the_registration_with_an_old_runtime(path: str) -> None:
    async with FakeRuntime(path, release=CONTAINERD_1_7) as runtime:
        raw = RawPlugin({"Configure": mask(0x2000)})
        transport = await raw.connect(path)
        await raw.register()
        await transport.closed
        assert "invalid plugin events 0x2000" in runtime.drops[0]


async def test_a_mask_of_zero_means_everything(path: str) -> None:
    async with FakeRuntime(path) as runtime:
        raw = RawPlugin({"Configure": b"", "Synchronize": b"", "RunPodSandbox": b""})
        transport = await raw.connect(path)
        await raw.register()
        await runtime.plugin_ready()
        await runtime.run_pod("web")
        assert raw.asked[-1] == "RunPodSandbox"
        await transport.close("done")


@pytest.mark.parametrize(
    ("name", "index", "release", "accepted"),
    [
        ("ok", "00", CONTAINERD_2_4, True),
        ("free text!", "00", CONTAINERD_2_2, True),
        ("free text!", "00", CONTAINERD_2_4, False),
        ("ok", "7", CONTAINERD_1_7, False),
        ("ok", "007", CONTAINERD_1_7, False),
        ("", "00", CONTAINERD_2_4, False),
    ],
)
async def test_names_are_checked_and_a_rejected_plugin_must_close(
    path: str, name: str, index: str, release: FakeRuntimeRelease, accepted: bool
) -> None:
    async with FakeRuntime(path, release=release, registration_timeout=30) as runtime:
        raw = RawPlugin({"Configure": mask(0x8), "Synchronize": b""})
        transport = await raw.connect(path)
        if accepted:
            await raw.register(name, index)
            assert await runtime.plugin_ready() == f"{index}-{name}"
        else:
            with pytest.raises(StatusError, match="invalid plugin"):
                await raw.register(name, index)
            assert not transport.closed.done()
        await transport.close("done")


async def test_a_plugin_that_does_not_register_is_closed(path: str) -> None:
    async with FakeRuntime(path, registration_timeout=0.05) as runtime:
        transport = await RawPlugin({}).connect(path)
        await transport.closed
        assert "registration timed out" in runtime.drops[0]


async def test_split_synchronization_must_be_understood(path: str) -> None:
    async with FakeRuntime(path, message_limit=500) as runtime:
        for n in range(20):
            await runtime.run_pod(f"pod{n}")
        raw = RawPlugin({"Configure": mask(0x8), "Synchronize": b""})
        transport = await raw.connect(path)
        await raw.register()
        await transport.closed
        assert "does not handle split sync requests" in runtime.drops[0]


@pytest.mark.parametrize(("release", "closed"), [(CONTAINERD_1_7, False), (CONTAINERD_2_2, True)], ids=str)
async def test_after_a_failed_synchronization_old_runtimes_send_no_events(
    path: str, release: FakeRuntimeRelease, closed: bool
) -> None:
    async with FakeRuntime(path, release=release, request_timeout=2.0) as runtime:
        raw = RawPlugin({"Configure": mask(0x8)})
        transport = await raw.connect(path)
        await raw.register()
        while not runtime.drops:
            await asyncio.sleep(0.001)
        if closed:
            await transport.closed
        assert transport.closed.done() is closed
        pod = await runtime.run_pod("web")
        await runtime.create(pod.id, "app")
        assert "CreateContainer" not in raw.asked
        await transport.close("done")


# -- fail open, fail closed -----------------------------------------------------------------------


async def test_a_late_plugin_is_dropped_and_the_container_created_without_it(path: str) -> None:
    async with FakeRuntime(path, request_timeout=2.0) as runtime:
        raw = RawPlugin({"Configure": mask(0x8), "Synchronize": b""})
        transport = await raw.connect(path)
        await raw.register()
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        container = await runtime.run(pod.id, "app")
        assert container.cpus == ""
        assert container.state is State.RUNNING
        assert runtime.plugins == []
        assert "CreateContainer" in runtime.drops[0]
        await transport.closed


async def test_a_failed_creation_is_undone(path: str) -> None:
    handler = Pinning(Adjustment())

    async with FakeRuntime(path) as runtime:
        async with plugin(runtime, handler):
            pod = await runtime.run_pod("web")
            handler.adjustment = Adjustment(resources=Resources(cpus="1"))
            async with plugin(runtime, handler):  # the same name twice contradicts itself
                with pytest.raises(FakeRuntimeError, match="both tried to set cpus"):
                    await runtime.create(pod.id, "app")
        assert handler.ended == ["stop", "stop", "removed", "removed"]
        assert runtime.containers == {}


async def test_plugins_are_called_in_order_and_see_earlier_changes(path: str) -> None:
    late = Pinning(Adjustment(resources=Resources(mems="1")))
    early = Pinning(Adjustment(resources=Resources(cpus="5"), env={"A": "early"}))
    async with (
        FakeRuntime(path) as runtime,
        plugin(runtime, late, "late", "20"),
        plugin(runtime, early, "early", "05"),
    ):
        assert runtime.plugins == ["05-early", "20-late"]
        pod = await runtime.run_pod("web")
        container = await runtime.create(pod.id, "app", env=["A=pod"])
        assert late.created[0].resources.cpus == "5"
        assert late.created[0].variable("A") == "early"
        assert (container.cpus, container.mems) == ("5", "1")


async def test_cpus_that_are_not_there_fail_the_start_and_are_logged_in_updates(path: str) -> None:
    async with FakeRuntime(path, online_cpus="0-3") as runtime:
        handler = Pinning(Adjustment(resources=Resources(cpus="9")))
        async with plugin(runtime, handler):
            pod = await runtime.run_pod("web")
            container = await runtime.create(pod.id, "app")
            with pytest.raises(FakeRuntimeError, match="9 is not online"):
                await runtime.start(container.id)
            other = await runtime.create_unnoticed(pod.id, "other")
            update = ContainerUpdate(container_id=other.id, resources=Resources(cpus="nonsense"))
            handler.adjustment = Adjustment(updates=(update,))
            await runtime.create(pod.id, "third")
            assert runtime.failed_updates[0][0] == other.id
            with pytest.raises(FakeRuntimeError, match="not online"):
                await runtime.update(other.id, Resources(cpus="8"))


# -- CDI ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", [CONTAINERD_2_2, CONTAINERD_2_3], ids=str)
async def test_cdi_devices_become_environment_before_plugins_are_asked(
    path: str, tmp_path: Path, release: FakeRuntimeRelease
) -> None:
    directory = CdiDirectory(str(tmp_path / "cdi"), "dra.cpu/claim")
    spec = claim_spec("dra.cpu/claim", "u1", {"r": ContainerEdits(env=("DRA_CPUSET_u1=2-3", "A=cdi"))})
    directory.write("u1", spec)
    handler = Pinning(Adjustment())
    async with (
        FakeRuntime(path, release=release, cdi_directories=[directory.path]) as runtime,
        plugin(runtime, handler),
    ):
        pod = await runtime.run_pod("web")
        device = spec.qualified_names()[0]
        container = await runtime.create(pod.id, "app", cdi_devices=[device], env=["A=pod", "B=2"])
        assert container.env == {"A": "cdi", "B": "2", "DRA_CPUSET_u1": "2-3"}
        seen = handler.created[0]
        assert seen.variable("DRA_CPUSET_u1") == "2-3"
        assert seen.cdi_devices == ((device,) if release is CONTAINERD_2_3 else ())
        directory.remove("u1")
        with pytest.raises(FakeRuntimeError, match="CDI device injection failed: unresolvable"):
            await runtime.create(pod.id, "again", cdi_devices=[device])
        assert len(handler.created) == 1  # plugins do not hear of it


# -- unsolicited updates --------------------------------------------------------------------------


def update_request(container: str, cpus: str) -> bytes:
    update = update_to(ContainerUpdate(container_id=container, resources=Resources(cpus=cpus)))
    return nri_pb2.UpdateContainersRequest(update=[update]).SerializeToString()


async def test_an_unsolicited_update_during_an_event_wedges_old_runtimes(path: str) -> None:
    async with FakeRuntime(path, release=CONTAINERD_2_3, request_timeout=30) as runtime:
        raw = RawPlugin({"Configure": mask(0x8), "Synchronize": b""})
        transport = await raw.connect(path)
        await raw.register()
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        creating = asyncio.create_task(runtime.create(pod.id, "app"))
        while "CreateContainer" not in raw.asked:
            await asyncio.sleep(0.001)
        pushing = asyncio.create_task(
            transport.call(RUNTIME_SERVICE_NAME, "UpdateContainers", update_request("x", "1"), 60)
        )
        while not runtime.wedged:
            await asyncio.sleep(0.001)
        await transport.close("done")
        with pytest.raises(ConnectionError):
            await pushing
        with contextlib.suppress(FakeRuntimeError):
            await creating
        with pytest.raises(FakeRuntimeError, match="wedged"):
            await runtime.run_pod("other")


async def test_newer_runtimes_let_it_wait(path: str) -> None:
    async with FakeRuntime(path, release=CONTAINERD_2_4) as runtime:
        raw = RawPlugin({"Configure": mask(0x8), "Synchronize": b"", "CreateContainer": b""})
        transport = await raw.connect(path)
        await raw.register()
        await runtime.plugin_ready()
        pod = await runtime.run_pod("web")
        container = await runtime.run(pod.id, "app")
        request = update_request(container.id, "4")
        await transport.call(RUNTIME_SERVICE_NAME, "UpdateContainers", request, 30)
        assert container.cpus == "4"
        unknown = update_request("unknown", "4")
        await transport.call(RUNTIME_SERVICE_NAME, "UpdateContainers", unknown, 30)
        with pytest.raises(StatusError, match="some containers failed"):
            wrong = update_request(container.id, "99999")
            await transport.call(RUNTIME_SERVICE_NAME, "UpdateContainers", wrong, 30)
        with pytest.raises(StatusError, match="method Nonsense"):
            await transport.call(RUNTIME_SERVICE_NAME, "Nonsense", b"", 30)
        with pytest.raises(StatusError, match="service Nonsense"):
            await transport.call("Nonsense", "RegisterPlugin", b"", 30)
        await transport.close("done")


# -- its life and its mirror ----------------------------------------------------------------------


async def test_the_end_of_pods_from_before_a_restart_is_not_reported(path: str) -> None:
    handler = Pinning(Adjustment())
    async with FakeRuntime(path) as runtime, plugin(runtime, handler):
        pod = await runtime.run_pod("web")
        await runtime.run(pod.id, "app")
        await runtime.restart()
        await runtime.plugin_ready()
        await runtime.remove_pod(pod.id)
        assert handler.ended == ["stop", "removed"]  # but not "pod removed"
        await runtime.remove_pod((await runtime.run_pod("new")).id)
        assert handler.ended[-1] == "pod removed"


async def test_cgroups_are_mirrored_and_others_may_write_them(path: str, tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    async with FakeRuntime(path, cgroup_root=str(root)) as runtime:
        pod = await runtime.run_pod("web", uid="u1")
        container = await runtime.run(
            pod.id, "app", resources=Resources(cpus="1-2", memory_limit=5, unified={"cpu.idle": "1"})
        )  # fmt: skip
        where = root / "kubepods" / "podu1" / container.id
        assert (where / "cpuset.cpus").read_text() == "1-2\n"
        assert (where / "memory.max").read_text() == "5\n"
        assert (where / "cpu.idle").read_text() == "1\n"
        (where / "cpuset.cpus").write_text("7\n")
        assert container.cpus == "7"
        await runtime.remove(container.id)
        assert not where.exists()


async def test_an_unnoticed_container_is_first_seen_at_its_start(path: str) -> None:
    class Watching(Handler):
        seen: list[str] = []

        async def starting(self, pod: PodSandbox, container: NriContainer) -> None:
            self.seen.append(container.name)

    handler = Watching()
    async with FakeRuntime(path) as runtime, plugin(runtime, handler):
        pod = await runtime.run_pod("web")
        container = await runtime.create_unnoticed(pod.id, "missed")
        await runtime.start(container.id)
        assert handler.seen == ["missed"]


def test_releases_have_the_versions_of_the_table() -> None:
    for release in EVERY_RELEASE:
        declared = f"v{release.nri}" if release.reports_nri_version else ""
        assert infer_version(release.name, release.version, declared) == release.nri
    assert CONTAINERD_2_4.nri > NriVersion(0, 12, 1) > CONTAINERD_2_3.nri


# -- merging --------------------------------------------------------------------------------------


def merger() -> Merger:
    return Merger(NriContainer(id="new", env=("A=1", "B=2")))


def test_one_writer_per_field() -> None:
    merging = merger()
    merging.adjust("a", Adjustment(resources=Resources(cpus="1", unified={"x": "1"})))
    merging.adjust("b", Adjustment(resources=Resources(mems="1", unified={"y": "1"})))
    assert merging.target.resources.unified == {"x": "1", "y": "1"}
    for wanted in (
        Adjustment(resources=Resources(cpus="2")),
        Adjustment(resources=Resources(unified={"y": "2"})),
    ):
        with pytest.raises(PluginConflictError, match="both tried to set"):
            merging.adjust("c", wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        Adjustment(env={"A": "2"}),
        Adjustment(annotations={"k": "v"}),
        Adjustment(cdi_devices=("v/c=d",)),
        Adjustment(resources=Resources(hugepage_limits={"2MB": 1})),
        Adjustment(resources=Resources(memory_limit=1)),
    ],
)
def test_the_same_plugin_twice_is_two_writers(wanted: Adjustment) -> None:
    merging = merger()
    merging.adjust("a", wanted)
    with pytest.raises(PluginConflictError, match="plugins a and a both"):
        merging.adjust("a", wanted)


def test_updates_conflict_too_unless_their_failure_may_be_ignored() -> None:
    merging = merger()
    update = ContainerUpdate(container_id="x", resources=Resources(cpus="1"))
    merging.update("a", [update])
    with pytest.raises(PluginConflictError, match="cpus of container x"):
        merging.update("b", [update])
    optional = ContainerUpdate(container_id="x", resources=Resources(cpus="2"), ignore_failure=True)
    merging.update("b", [optional, ContainerUpdate(container_id="x", resources=Resources(mems="0"))])
    assert merging.updates["x"] == Resources(cpus="1", mems="0")


def test_an_update_for_the_container_being_created_is_an_error() -> None:
    own = ContainerUpdate(container_id="new", resources=Resources(cpus="1"))
    with pytest.raises(PluginConflictError, match="while it is being created"):
        merger().adjust("a", Adjustment(updates=(own,)))


def test_variables_are_replaced_in_place() -> None:
    assert replace_env(("A=1", "B=2"), {"B": "3", "C": "4"}) == ("A=1", "B=3", "C=4")


def test_every_event_has_its_own_bit() -> None:
    assert len({event.bit for event in Event}) == len(Event)
