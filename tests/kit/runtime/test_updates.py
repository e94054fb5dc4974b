"""No stale update is ever applied, and a claimed pod does not wait for everybody else's updates."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from drakit.cgroups.tree import CgroupTree
from drakit.core.cpuset import CpuSet
from drakit.kit.driver import PreparedClaim, PreparedDevice, RejectedError
from drakit.testing.runtime import FakeContainer
from drakit.testing.runtime_releases import CONTAINERD_2_4, CRIO_1_36
from drakit.wire.nri.plugin import NriPlugin, PushFailedError
from drakit.wire.nri.values import ContainerUpdate
from tests.kit.runtime.test_nri_hooks import POD, World, directory, until, world

__all__ = ["directory"]


class Gate:
    """Stands between the host and the runtime's UpdateContainers: holds updates back, records them."""

    def __init__(self, plugin: NriPlugin, monkeypatch: pytest.MonkeyPatch) -> None:
        self._push = plugin.push
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.most = 0
        self.sent: list[ContainerUpdate] = []
        self.fails: Callable[[ContainerUpdate], bool] = lambda update: False
        monkeypatch.setattr(plugin, "push", self._pass)

    async def _pass(self, updates: Sequence[ContainerUpdate]) -> None:
        self.sent.extend(updates)
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self.open.wait()
            for update in updates:
                if self.fails(update):
                    raise PushFailedError({update.container_id: "on purpose"})
            await self._push(updates)
        finally:
            self.waiting -= 1


@contextlib.asynccontextmanager
async def crowd(
    directory: Path, monkeypatch: pytest.MonkeyPatch, count: int = 30, **options: object
) -> AsyncIterator[tuple[World, Gate, list[FakeContainer]]]:
    async with world(directory, CONTAINERD_2_4, **options) as it:
        shared = []
        for number in range(count):
            pod = await it.runtime.run_pod(f"web{number}")
            shared.append(await it.runtime.run(pod.id, "app"))
        yield it, Gate(it.host.plugin, monkeypatch), shared


def entry(uid: str, cpus: str) -> PreparedClaim:
    prepared = PreparedDevice(request="r", pool="p", device=f"d-{uid}", exclusive={"cpu": CpuSet.parse(cpus)})
    return PreparedClaim(uid=uid, namespace="ns", name=uid, devices=(prepared,), consumers=(POD,))


async def test_updates_wait_for_the_runtime_side_by_side(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crowd(directory, monkeypatch) as (it, gate, shared):
        gate.open.clear()
        await it.prepare("a", "2-3")
        pushing = asyncio.create_task(it.host.checkpoint_changed())
        await until(lambda: gate.waiting == 8)
        gate.open.set()
        await pushing
        assert gate.most == 8
        assert {each.cpus for each in shared} == {"0-1,4-7"}
        assert len(gate.sent) == len(shared), "each container once"


async def test_an_update_that_became_wrong_while_it_waited_is_not_sent(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ended: everybody may grow. B gets the same CPUs before most were told."""
    async with crowd(directory, monkeypatch) as (it, gate, shared):
        await it.prepare("a", "2-3")
        await it.host.checkpoint_changed()
        await it.unprepare("a")
        gate.sent.clear()
        gate.open.clear()
        growing = asyncio.create_task(it.host.checkpoint_changed())
        await until(lambda: gate.waiting == 8)  # eight are on their way, the others are not
        await it.prepare("b", "2-3")
        gate.open.set()
        await growing
        await it.host.checkpoint_changed()
        assert {each.cpus for each in shared} == {"0-1,4-7"}
        wrong = [
            update for update in gate.sent if "2" in update.resources.cpus or update.resources.cpus == "0-7"
        ]
        assert len(wrong) == 8, "nothing stale was sent after the claim was prepared"


async def test_a_prepare_waits_for_stale_updates_on_their_way_and_for_nothing_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crowd(directory, monkeypatch) as (it, gate, shared):
        await it.prepare("a", "2-3")
        await it.host.checkpoint_changed()
        await it.unprepare("a")
        gate.open.clear()
        growing = asyncio.create_task(it.host.checkpoint_changed())
        await until(lambda: gate.waiting == 8)
        await it.prepare("b", "2-3")
        waiting = asyncio.create_task(it.host.evict_others(entry("b", "2-3")))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done(), "eight stale updates may still be applied"
        gate.open.set()
        await waiting
        assert it.exclusive_is_exclusive()
        assert all(it.cpuset_file(each).read_text().strip() == "0-1,4-7" for each in shared)
        await growing


async def test_containers_leave_in_the_kernel_before_the_runtime_has_been_asked(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of updates take the runtime seconds; the claimed pod does not wait for them."""
    async with crowd(directory, monkeypatch) as (it, gate, shared):
        gate.open.clear()
        await it.prepare("a", "2-3")
        await it.host.evict_others(entry("a", "2-3"))
        assert all(it.cpuset_file(each).read_text().strip() == "0-1,4-7" for each in shared)
        gate.open.set()
        await it.host.checkpoint_changed()
        assert {each.resources.cpus for each in shared} == {"0-1,4-7"}, "and the runtime knows too"


async def test_a_prepare_is_rejected_when_the_runtime_does_not_move_containers(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without cgroups to write there is no other way; the kubelet retries."""
    monkeypatch.setattr("drakit.kit.runtime.updates._EVICTION_SECONDS", 0.05)
    async with crowd(directory, monkeypatch, 3) as (it, gate, shared):
        monkeypatch.setattr(it.host._evictor, "_tree", None)
        gate.open.clear()
        await it.prepare("a", "2-3")
        with pytest.raises(RejectedError, match="has not moved other containers") as caught:
            await it.host.evict_others(entry("a", "2-3"))
        assert caught.value.reason == "runtime-busy"
        gate.open.set()
        await it.host.evict_others(entry("a", "2-3"))
        assert {each.resources.cpus for each in shared} == {"0-1,4-7"}


async def test_a_container_that_cannot_be_moved_in_the_kernel_goes_first(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's own on a node with systemd: a cgroup namespace keeps it from its own cgroup."""
    async with crowd(directory, monkeypatch) as (it, gate, shared):
        own, write = shared[-1], CgroupTree.write

        def forbidden(tree: CgroupTree, controller: str, path: str, file: str, value: str) -> None:
            if path.endswith(own.id):
                raise PermissionError(1, "Operation not permitted", path)
            write(tree, controller, path, file, value)

        monkeypatch.setattr(CgroupTree, "write", forbidden)
        await it.prepare("a", "2-3")
        await it.host.evict_others(entry("a", "2-3"))
        assert own.resources.cpus == "0-1,4-7"
        assert own.id in [update.container_id for update in gate.sent[:8]]
        await it.host.checkpoint_changed()
        assert {each.resources.cpus for each in shared} == {"0-1,4-7"}
        assert len(gate.sent) == len(shared), "each container once"


async def test_where_nothing_may_be_pushed_containers_leave_in_the_kernel(directory: Path) -> None:
    """CRI-O deadlocks when an unsolicited update meets an event."""
    async with world(directory, CRIO_1_36) as it:
        shared = await it.runtime.run((await it.runtime.run_pod("web")).id, "app")
        await it.prepare("a", "2-3")
        await it.host.evict_others(entry("a", "2-3"))
        assert it.cpuset_file(shared).read_text().strip() == "0-1,4-7"
        assert not it.runtime.wedged
        assert not any(call.method == "UpdateContainers" for call in it.runtime.calls)


async def test_an_update_that_failed_is_sent_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with crowd(directory, monkeypatch, 12) as (it, gate, shared):
        unlucky = shared[5].id
        gate.fails = lambda update: update.container_id == unlucky
        await it.prepare("a", "2-3")
        await it.host.checkpoint_changed()
        assert shared[5].resources.cpus == "0-7"
        gate.fails = lambda update: False
        await it.host.checkpoint_changed()
        assert {each.resources.cpus for each in shared} == {"0-1,4-7"}
