"""The runtime host against the fake runtime: containers follow the checkpoint whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from drakit.core.cpuset import CpuSet
from drakit.core.filelock import FileLock
from drakit.kit.claims import cdi_names as names
from drakit.kit.claims.cdi_specs import ClaimSpecs
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import (
    Assignment,
    Claim,
    ContainerView,
    DesiredResources,
    Offer,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
)
from drakit.kit.runtime.nri_hooks import RuntimeHost
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.testing.runtime import FakeContainer, FakeRuntime, FakeRuntimeError
from drakit.testing.runtime_releases import (
    CONTAINERD_1_7,
    CONTAINERD_2_2,
    CONTAINERD_2_3,
    CONTAINERD_2_4,
    EVERY_RELEASE,
    FakeRuntimeRelease,
)
from drakit.wire.nri.handler import Handler, PluginOptions
from drakit.wire.nri.plugin import NriPlugin
from drakit.wire.nri.values import Adjustment, ContainerUpdate, NriContainer, PodSandbox, Resources
from tests.kit.claimworld import Claims, resource_claim

KIND = "dra.k8s.io/cpu"
ALL = CpuSet.range(0, 8)
POD = "00000000-0000-4000-8000-00000000aaaa"


@dataclass(frozen=True)
class Pinner:
    """Claims are pinned, everybody else shares what is left."""

    name: str = "dra.toy"
    cdi_kind: str = KIND
    cpuset_kinds: frozenset[str] = frozenset({"cpu"})

    def offer(self) -> Offer:
        return Offer(())

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        raise NotImplementedError

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        mine = CpuSet.union(g.exclusive["cpu"] for use in container.uses for g in use.devices)
        rest = ALL - prepared_claims.exclusive("cpu")
        if not mine and not rest:
            raise RejectedError("no CPU is left to share", reason="capacity")
        return DesiredResources(cpus=mine or rest)


class World:
    """A node: checkpoint, CDI directory, runtime, and the host between them."""

    def __init__(self, directory: Path, release: FakeRuntimeRelease, **options: object) -> None:
        self.directory = directory
        self.cdi = str(directory / "cdi")
        self.checkpoint = Checkpoint(str(directory / "claims"))
        self.checkpoint.load()
        self.specs = ClaimSpecs(self.cdi, KIND)
        self.runtime = FakeRuntime(
            str(directory / "nri.sock"), release=release, cdi_directories=[self.cdi],
            online_cpus="0-7", cgroup_root=str(directory / "cgroup"),
        )  # fmt: skip
        (directory / "cgroup").mkdir(exist_ok=True)
        (directory / "cgroup" / "cgroup.controllers").write_text("cpuset\n")
        self.metrics = HostMetrics("dra.toy")
        self.options = HostOptions(
            nri_socket=self.runtime.socket_path, cdi_dir=self.cdi,
            cgroup_root=str(directory / "cgroup"), **options  # type: ignore[arg-type]
        )  # fmt: skip
        self.claims = Claims()
        self.host = RuntimeHost(Pinner, self.checkpoint, self.options, self.metrics, self.claims)
        self.task: asyncio.Task[None] | None = None

    async def prepare(self, uid: str, cpus: str, pods: Sequence[str] = (POD,)) -> list[str]:
        """Put a claim into the checkpoint as the preparer would; returns its CDI devices."""
        prepared = PreparedDevice(
            request="r", pool="p", device=f"d-{uid}", exclusive={"cpu": CpuSet.parse(cpus)}
        )
        entry = PreparedClaim(uid=uid, namespace="ns", name=uid, devices=(prepared,), consumers=tuple(pods))
        async with self.checkpoint.transaction() as books:
            books.put(entry, Offer(()))
        return list(self.specs.write(entry, {}).values())

    async def unprepare(self, uid: str) -> None:
        async with self.checkpoint.transaction() as books:
            books.remove(uid)
        self.specs.remove(uid)

    def start(self) -> None:
        lock = str(self.directory / "nri.lock")
        self.task = asyncio.create_task(self.host.run(lock))

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    def cpuset_file(self, container: FakeContainer) -> Path:
        """What the kernel has of a container's CPUs."""
        return self.directory / "cgroup" / container.value.cgroups_path.strip("/") / "cpuset.cpus"

    def exclusive_is_exclusive(self) -> bool:
        """No running container may use a CPU that is somebody else's."""
        owners: dict[int, str] = {}
        for entry in self.checkpoint.prepared_claims:
            for cpu in entry.exclusive("cpu"):
                owners[cpu] = entry.uid
        for container in self.runtime.containers.values():
            mine = {n.rpartition("claim-")[2].partition("_")[0] for n in container.value.cdi_devices}
            for cpu in CpuSet.parse(container.cpus or str(ALL)):
                if cpu in owners and owners[cpu] not in mine:
                    return False
        return True


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="drakit-") as path:  # short: it holds sockets
        yield Path(path)


@contextlib.asynccontextmanager
async def world(directory: Path, release: FakeRuntimeRelease, **options: object) -> AsyncIterator[World]:
    made = World(directory, release, **options)
    async with made.runtime:
        made.start()
        await made.host.ready.wait()
        await made.runtime.plugin_ready()
        try:
            yield made
        finally:
            await made.stop()


async def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("release", EVERY_RELEASE, ids=str)
async def test_a_claim_is_pinned_and_others_make_room_on_every_release(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    async with world(directory, release) as it:
        shared_pod = await it.runtime.run_pod("web")
        shared = await it.runtime.run(shared_pod.id, "app")
        assert shared.cpus == "0-7"
        devices = await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        pinned = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        assert pinned.cpus == "2-3"
        assert shared.cpus == "0-1,4-7"
        assert it.exclusive_is_exclusive()
        assert not it.runtime.drops
        await it.runtime.remove_pod(pod.id)
        await it.unprepare("a")
        later = await it.runtime.run(shared_pod.id, "later")
        assert later.cpus == "0-7"
        assert shared.cpus == "0-7", "the next answer carries what could not be pushed"


async def test_a_claim_that_ends_is_given_back_at_once_where_the_runtime_allows(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_4) as it:
        devices = await it.prepare("a", "2-3")
        shared = await it.runtime.run((await it.runtime.run_pod("web")).id, "app")
        pod = await it.runtime.run_pod("db", uid=POD)
        await it.runtime.run(pod.id, "main", cdi_devices=devices)
        assert shared.cpus == "0-1,4-7"
        await it.runtime.remove_pod(pod.id)
        await it.unprepare("a")
        await it.host.checkpoint_changed()
        assert shared.cpus == "0-7"


@pytest.mark.parametrize("release", [CONTAINERD_1_7, CONTAINERD_2_3], ids=str)
async def test_nothing_is_pushed_where_it_could_wedge_the_runtime(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    async with world(directory, release) as it:
        shared = await it.runtime.run((await it.runtime.run_pod("web")).id, "app")
        await it.prepare("a", "2-3")
        await it.host.checkpoint_changed()
        assert shared.cpus == "0-7"
        assert not it.runtime.wedged
        await it.runtime.run((await it.runtime.run_pod("other")).id, "app")
        assert shared.cpus == "0-1,4-7"


@pytest.mark.parametrize("release", EVERY_RELEASE, ids=str)
async def test_a_forged_variable_opens_nothing(directory: Path, release: FakeRuntimeRelease) -> None:
    async with world(directory, release) as it:
        await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("thief", uid="another-pod")
        forged = f"{names.marker_variable(names.ClaimRequest('a', 'r'))}={KIND}"
        if release.reports_cdi_devices:  # the variable means nothing
            container = await it.runtime.run(pod.id, "main", env=[forged, "DRA_CPUSET_a=2-3"])
            assert container.cpus == "0-1,4-7"
        else:
            with pytest.raises(FakeRuntimeError, match="not reserved for its pod"):
                await it.runtime.create(pod.id, "main", env=[forged])
        assert it.exclusive_is_exclusive()


@pytest.mark.parametrize("release", EVERY_RELEASE, ids=str)
async def test_a_second_pod_that_shares_the_claim_is_served_although_the_kubelet_does_not_report_it(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    async with world(directory, release) as it:
        devices = await it.prepare("a", "2-3", pods=[POD])
        it.claims.documents["ns", "a"] = resource_claim("a", uid="a", pods=[POD, "second-pod"])
        pod = await it.runtime.run_pod("second", uid="second-pod")
        container = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        assert container.cpus == "2-3"
        it.claims.away = True  # and again, also without the API server
        await it.runtime.remove(container.id)
        again = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        assert again.cpus == "2-3"
        await it.runtime.remove_pod(pod.id)
        assert not it.host.enforcer._resolver.confirmed


async def test_a_shared_claims_second_pod_is_confirmed_after_a_restart_of_the_driver(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_2) as it:
        devices = await it.prepare("a", "2-3", pods=[POD])
        it.claims.documents["ns", "a"] = resource_claim("a", uid="a", pods=[POD, "second-pod"])
        pod = await it.runtime.run_pod("second", uid="second-pod")
        await it.stop()
        await it.runtime.plugin_gone()
        container = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        it.host = RuntimeHost(Pinner, it.checkpoint, it.options, HostMetrics("dra.toy"), it.claims)
        it.start()
        await it.runtime.plugin_ready()
        await until(lambda: it.host.enforcer._resolver.confirmed)
        await it.runtime.run((await it.runtime.run_pod("any")).id, "any")
        assert container.cpus == "2-3"
        assert not it.host.enforcer.conflicts()


@pytest.mark.parametrize("trouble", ["away", "replaced", "gone", "not reserved"])
async def test_without_a_witness_the_container_is_rejected(directory: Path, trouble: str) -> None:
    async with world(directory, CONTAINERD_2_2) as it:
        devices = await it.prepare("a", "2-3", pods=[POD])
        pods = [POD] if trouble == "not reserved" else [POD, "second-pod"]
        if trouble != "gone":
            uid = "other" if trouble == "replaced" else "a"
            it.claims.documents["ns", "a"] = resource_claim("a", uid=uid, pods=pods)
        it.claims.away = trouble == "away"
        pod = await it.runtime.run_pod("second", uid="second-pod")
        with pytest.raises(FakeRuntimeError, match="not reserved for its pod"):
            await it.runtime.create(pod.id, "main", cdi_devices=devices)


@pytest.mark.parametrize("release", [CONTAINERD_2_2, CONTAINERD_2_4], ids=str)
async def test_a_claim_that_is_not_prepared_is_rejected_with_a_reason(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    async with world(directory, release) as it:
        devices = await it.prepare("a", "2-3")
        async with it.checkpoint.transaction() as books:
            books.remove("a")  # the CDI file is still there
        pod = await it.runtime.run_pod("db", uid=POD)
        with pytest.raises(FakeRuntimeError, match="has not prepared"):
            await it.runtime.create(pod.id, "main", cdi_devices=devices)
        assert await it.runtime.run(pod.id, "sidecar")
        assert not it.runtime.drops


async def test_containers_created_while_disconnected_are_corrected_on_reconnect(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_2) as it:
        await it.stop()
        await it.runtime.plugin_gone()
        devices = await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        pinned = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        shared = await it.runtime.run((await it.runtime.run_pod("web")).id, "app")
        assert not it.exclusive_is_exclusive()
        it.host = RuntimeHost(Pinner, it.checkpoint, it.options, HostMetrics("dra.toy"))
        it.start()
        await it.runtime.plugin_ready()
        assert (pinned.cpus, shared.cpus) == ("2-3", "0-1,4-7")


async def test_a_missed_creation_is_corrected_at_the_start_where_updates_can_be_pushed(
    directory: Path,
) -> None:
    async with world(directory, CONTAINERD_2_4) as it:
        await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("web")
        missed = await it.runtime.create_unnoticed(pod.id, "missed")
        await it.runtime.start(missed.id)
        await until(lambda: missed.cpus == "0-1,4-7")
        assert it.exclusive_is_exclusive()


async def test_a_missed_creation_is_corrected_with_the_next_answer_elsewhere(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_2) as it:
        await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("web")
        missed = await it.runtime.create_unnoticed(pod.id, "missed")
        await it.runtime.start(missed.id)
        await it.runtime.run(pod.id, "next")
        assert missed.cpus == "0-1,4-7"


async def test_a_missed_container_with_a_claim_does_not_start_where_it_cannot_be_corrected(
    directory: Path,
) -> None:
    async with world(directory, CONTAINERD_2_2) as it:
        await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        marker = f"{names.marker_variable(names.ClaimRequest('a', 'r'))}={KIND}"
        missed = await it.runtime.create_unnoticed(pod.id, "missed", env=[marker])
        with pytest.raises(FakeRuntimeError, match="creation was missed"):
            await it.runtime.start(missed.id)
        right = await it.runtime.create_unnoticed(
            pod.id, "right", env=[marker], resources=Resources(cpus="2-3")
        )
        await it.runtime.start(right.id)


@pytest.mark.parametrize("release", [CONTAINERD_2_2, CONTAINERD_2_4], ids=str)
async def test_a_container_that_starts_with_old_limits_is_corrected_immediately(
    directory: Path, release: FakeRuntimeRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """containerd loses an update that comes while it starts the container: only the kernel knows."""
    async with world(directory, release) as it:
        pod = await it.runtime.run_pod("web")
        created = await it.runtime.create(pod.id, "app")
        await it.prepare("a", "2-3")
        await it.runtime.run(pod.id, "other")  # its answer moves the first
        assert created.resources.cpus == "0-1,4-7"
        mirror = FakeContainer.write_cgroup

        def stale(container: FakeContainer) -> None:
            mirror(container)
            if container is created:
                files = (directory / "cgroup").rglob(f"{created.id}/cpuset.cpus")
                next(files).write_text("0-7\n")

        monkeypatch.setattr(FakeContainer, "write_cgroup", stale)
        starting = asyncio.create_task(it.runtime.start(created.id))
        await starting
        monkeypatch.undo()
        await until(lambda: created.cpus == "0-1,4-7")


async def test_a_resize_by_the_kubelet_does_not_unpin(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_2) as it:
        devices = await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        pinned = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        await it.runtime.update(pinned.id, Resources(cpus="0-7", shares=512))
        assert pinned.cpus == "2-3"
        assert pinned.resources.shares == 512


async def test_a_restarted_runtime_is_synchronized_and_nothing_moves(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_4) as it:
        devices = await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        pinned = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        shared = await it.runtime.run(pod.id, "shared")
        for _ in range(5):
            await it.runtime.restart()
            await it.runtime.plugin_ready()
            assert (pinned.cpus, shared.cpus) == ("2-3", "0-1,4-7")
            assert it.host.problem is None
        await it.runtime.down()
        await until(lambda: it.host.problem is not None)
        assert "down or starting" in str(it.host.problem) or "lost" in str(it.host.problem)


async def test_one_bad_container_does_not_keep_the_others_from_being_served(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_4) as it:
        devices = await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        await it.runtime.run(pod.id, "main", cdi_devices=devices)
        async with it.checkpoint.transaction() as books:
            books.remove("a")  # behind the container's back: now it is in conflict
        shared = await it.runtime.run((await it.runtime.run_pod("web")).id, "app")
        await it.runtime.restart()
        await it.runtime.plugin_ready()
        assert len(it.host.enforcer.conflicts()) == 1
        assert shared.cpus == "0-1,4-7", "what the container runs on is held for it"
        assert it.host.problem is None


class Contrary(Handler):
    """Another plugin that also sets cpus of containers of one name, and so fails their creation."""

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        cpus = "0" if container.name == "contested" else ""
        return Adjustment(resources=Resources(cpus=cpus))


async def test_the_updates_of_a_creation_that_failed_elsewhere_do_not_count_as_sent(directory: Path) -> None:
    """The runtime drops the updates of an answer when the creation fails: they must be said again."""
    async with world(directory, CONTAINERD_2_2) as it:
        shared = await it.runtime.run((await it.runtime.run_pod("web")).id, "app")
        options = PluginOptions(name="contrary", index="99", socket_path=it.runtime.socket_path)
        other = asyncio.create_task(NriPlugin(options).run(Contrary()))
        await it.runtime.plugin_ready("contrary")
        devices = await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        with pytest.raises(FakeRuntimeError, match="both tried to set cpus"):
            await it.runtime.create(pod.id, "contested", cdi_devices=devices)
        assert shared.cpus == "0-1,4-7", "the answer to the stop carries them"
        pinned = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        assert (pinned.cpus, shared.cpus) == ("2-3", "0-1,4-7")
        other.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await other


async def test_a_push_that_was_overtaken_by_an_answer_is_corrected(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A growing update waits in the runtime while a creation takes the CPUs: order must not matter."""
    async with world(directory, CONTAINERD_2_4) as it:
        await it.prepare("a", "2-3")
        shared = await it.runtime.run((await it.runtime.run_pod("web")).id, "app")
        assert shared.cpus == "0-1,4-7"
        reached, go = asyncio.Event(), asyncio.Event()
        push = it.host.plugin.push

        async def slow(updates: Sequence[ContainerUpdate]) -> None:
            reached.set()
            await go.wait()  # as if the runtime held its lock
            await push(updates)

        monkeypatch.setattr(it.host.plugin, "push", slow)
        await it.unprepare("a")
        growing = asyncio.create_task(it.host.checkpoint_changed())
        await reached.wait()
        devices = await it.prepare("b", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        pinned = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        go.set()
        await growing
        assert pinned.cpus == "2-3"
        assert shared.cpus == "0-1,4-7"
        assert it.exclusive_is_exclusive()


async def test_no_other_container_is_left_on_the_cpus_of_a_starting_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime said yes to an update and has not made it: the kernel is asked before the start."""
    async with world(directory, CONTAINERD_2_4) as it:
        shared = await it.runtime.run((await it.runtime.run_pod("web")).id, "app")
        other = await it.runtime.run((await it.runtime.run_pod("other")).id, "app")
        files = {each: it.cpuset_file(each) for each in (shared, other)}

        async def yes(updates: Sequence[ContainerUpdate]) -> None:
            """The runtime is in no hurry."""

        monkeypatch.setattr(it.host.plugin, "push", yes)
        devices = await it.prepare("a", "2-3")
        await it.host.checkpoint_changed()
        assert [files[each].read_text().strip() for each in files] == ["0-7", "0-7"]
        pod = await it.runtime.run_pod("db", uid=POD)
        pinned = await it.runtime.create(pod.id, "main", cdi_devices=devices)
        assert pinned.cpus == "2-3"
        await it.runtime.start(pinned.id)
        assert [files[each].read_text().strip() for each in files] == ["0-1,4-7", "0-1,4-7"]


async def test_a_container_that_was_being_created_leaves_cpus_that_were_claimed_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(directory, CONTAINERD_2_2) as it:  # takes no pushed updates
        monkeypatch.setattr(it.host, "_correct_later", lambda _container: None)  # before it runs
        pod = await it.runtime.run_pod("web")
        shared = await it.runtime.create(pod.id, "app")
        assert shared.cpus == "0-7"
        await it.prepare("a", "2-3")
        await it.runtime.start(shared.id)
        assert it.cpuset_file(shared).read_text().strip() == "0-1,4-7"


async def test_a_failed_push_is_tried_again(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_4) as it:
        shared = await it.runtime.run((await it.runtime.run_pod("web")).id, "app")
        await it.prepare("a", "2-3")
        it.runtime.online_cpus = CpuSet.parse("2-3")  # the kernel rejects everything else
        await it.host.checkpoint_changed()
        assert shared.cpus == "0-7"
        it.runtime.online_cpus = ALL
        await it.host.checkpoint_changed()
        assert shared.cpus == "0-1,4-7"


async def test_a_second_instance_stands_by_and_takes_over(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_2) as it:
        second = RuntimeHost(Pinner, it.checkpoint, it.options, HostMetrics("dra.toy"))
        task = asyncio.create_task(second.run(str(directory / "nri.lock")))
        await second.ready.wait()
        assert second.status.state == "standby"
        assert second.problem is None
        assert len(it.runtime.plugins) == 1
        await it.stop()
        await until(lambda: second.status.state == "synchronized")
        assert await it.runtime.plugin_ready() == "00-dra.toy"
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        it.start()  # for the clean-up


async def test_without_nri_required_means_not_ready_and_optional_means_ready(directory: Path) -> None:
    for mode, fine in (("required", False), ("optional", True), ("off", True)):
        it = World(directory, CONTAINERD_2_4, nri=mode)
        it.start()
        if fine:
            await it.host.ready.wait()
            assert it.host.problem is None
        else:
            await until(lambda it=it: "NRI is off" in str(it.host.problem))
            assert not it.host.ready.is_set()
        await it.stop()


async def test_a_defect_in_background_work_is_reported(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(directory, CONTAINERD_2_4) as it:

        async def broken() -> None:
            raise KeyError("on purpose")

        monkeypatch.setattr(it.host, "checkpoint_changed", broken)
        pod = await it.runtime.run_pod("web")
        await it.runtime.run(pod.id, "app")
        await until(lambda: "background task failed task=containers" in caplog.text)
        failures = it.metrics.task_failures.labels("containers")
        assert failures.value >= 1
        assert it.host.problem is None


async def test_the_lock_is_free_after_the_end(directory: Path) -> None:
    async with world(directory, CONTAINERD_2_4):
        lock = FileLock(str(directory / "nri.lock"))
        assert not lock.try_acquire()
    assert lock.try_acquire()
    lock.release()


async def test_500_containers_are_taken_over_and_kept_light(directory: Path) -> None:
    it = World(directory, CONTAINERD_2_2)
    async with it.runtime:
        made: list[FakeContainer] = []
        for n in range(50):
            pod = await it.runtime.run_pod(f"pod{n}")
            for m in range(10):
                env = [f"V{v}=x" for v in range(40)]
                container = await it.runtime.create(pod.id, f"c{m}", env=env)
                made.append(container)
        await it.prepare("a", "2-3")
        it.start()
        await it.runtime.plugin_ready()
        assert {each.cpus for each in made} == {"0-1,4-7"}
        assert all(not known.reported.env for known in it.host.enforcer.containers.values())
        await it.stop()


class Story:
    """Random life on a node; after every step all containers must look as the checkpoint says."""

    def __init__(self, it: World, seed: int) -> None:
        self.it = it
        self.chance = random.Random(seed)
        self.claims: dict[str, tuple[str, PodSandbox, list[str]]] = {}
        self.shared: list[str] = []
        self.count = 0

    async def step(self) -> None:
        work = self.chance.choice(
            [
                self.share, self.share, self.claim, self.claim, self.run_again, self.end_claim,
                self.end_shared, self.resize, self.restart, self.disconnect, self.away, self.missed,
            ]
        )  # fmt: skip
        await work()

    def number(self) -> int:
        self.count += 1
        return self.count

    async def share(self) -> None:
        pod = await self.it.runtime.run_pod(f"shared-{self.number()}")
        self.shared.append((await self.it.runtime.run(pod.id, "app")).id)

    async def claim(self) -> None:
        free = ALL - self.it.checkpoint.prepared_claims.exclusive("cpu")
        if len(free) < 4:
            return
        cpus = CpuSet(self.chance.sample(list(free), self.chance.randint(1, 2)))
        uid = f"claim{self.number()}"
        devices = await self.it.prepare(uid, str(cpus), [f"pod-{uid}"])
        pod = await self.it.runtime.run_pod(uid, uid=f"pod-{uid}")
        self.claims[uid] = (str(cpus), pod, devices)
        await self.it.runtime.run(pod.id, "main", cdi_devices=devices)

    async def run_again(self) -> None:
        if self.claims:
            _, pod, devices = self.claims[self.chance.choice(sorted(self.claims))]
            for container in self.it.runtime.containers_of(pod.id):
                await self.it.runtime.remove(container.id)
            await self.it.runtime.run(pod.id, "main", cdi_devices=devices)

    async def end_claim(self) -> None:
        if self.claims:
            uid = self.chance.choice(sorted(self.claims))
            _, pod, _ = self.claims.pop(uid)
            await self.it.runtime.remove_pod(pod.id)
            await self.it.unprepare(uid)

    async def end_shared(self) -> None:
        if self.shared:
            await self.it.runtime.remove(self.shared.pop(self.chance.randrange(len(self.shared))))

    async def resize(self) -> None:
        if self.it.runtime.containers:
            id_ = self.chance.choice(sorted(self.it.runtime.containers))
            await self.it.runtime.update(id_, Resources(cpus="0-7", shares=self.number()))

    async def restart(self) -> None:
        await self.it.runtime.restart()
        await self.it.runtime.plugin_ready()

    async def disconnect(self) -> None:
        self.it.runtime.disconnect_plugins()
        await self.it.runtime.plugin_gone()
        await self.it.runtime.plugin_ready()

    async def away(self) -> None:
        """The driver is replaced; meanwhile life goes on."""
        await self.it.stop()
        await self.it.runtime.plugin_gone()
        for work in (self.share, self.claim, self.end_claim, self.resize):
            if self.chance.random() < 0.6:
                await work()
        self.it.host = RuntimeHost(Pinner, self.it.checkpoint, self.it.options, HostMetrics("dra.toy"))
        self.it.start()
        await self.it.runtime.plugin_ready()

    async def missed(self) -> None:
        pod = await self.it.runtime.run_pod(f"missed-{self.number()}")
        container = await self.it.runtime.create_unnoticed(pod.id, "missed")
        self.shared.append(container.id)
        await self.it.runtime.start(container.id)

    async def settle(self) -> None:
        """What the host does by itself within seconds, and one event to carry what cannot be pushed."""
        await self.it.host.checkpoint_changed()
        if self.it.runtime.release.nri < (0, 12, 1):
            pod = await self.it.runtime.run_pod("carrier")
            await self.it.runtime.run(pod.id, "carrier")
            await self.it.runtime.remove_pod(pod.id)

    def check(self) -> None:
        rest = str(ALL - self.it.checkpoint.prepared_claims.exclusive("cpu"))
        for id_ in self.shared:
            assert self.it.runtime.container(id_).cpus == rest
        for cpus, pod, _ in self.claims.values():
            for container in self.it.runtime.containers_of(pod.id):
                assert container.cpus == cpus
        assert self.it.exclusive_is_exclusive()
        assert not self.it.runtime.failed_updates
        assert not self.it.runtime.wedged
        assert not self.it.host.enforcer.conflicts()


@pytest.mark.parametrize("release", EVERY_RELEASE, ids=str)
async def test_after_any_events_containers_have_the_resources_of_the_checkpoint(
    directory: Path, release: FakeRuntimeRelease, scale: int
) -> None:
    for seed in range(scale):
        where = directory / str(seed)
        where.mkdir()
        async with world(where, release) as it:
            story = Story(it, seed)
            for _ in range(20):
                await story.step()
                await story.settle()
                story.check()
            assert not [drop for drop in it.runtime.drops if "deadline" in drop]
