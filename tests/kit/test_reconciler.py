"""A reconciler is called for every change, one call at a time, with what is true then."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Sequence

import pytest

from drakit.kit.config.options import HostOptions
from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims, RejectedError
from drakit.kit.reconciler import PodView, Reconciler, ReconcilerGroup, ReconcilerRunner
from drakit.kit.tasks import PERSISTS, TaskRunner
from drakit.kit.telemetry.metrics import Gauge
from drakit.testing.kubelet import PrepareError
from drakit.testing.node import SimulatedNode
from tests.kit.test_host import Pairs, eventually, pair


class Diary(Reconciler):
    """A reconciler that writes down what it was asked, and can be told to fail."""

    def __init__(self) -> None:
        self.provided: list[tuple[str, int]] = []
        self.reserved: list[tuple[str, int]] = []
        self.settled: list[tuple[dict[str, list[str]], int]] = []
        self.reject = False
        self.broken = False
        self.defect: Exception | None = None
        self.at_work = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def provision(self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        if self.reject:
            raise RejectedError("the pool has no pages left; free some", reason="pages")
        assert entry.uid not in prepared_claims.entries
        self.provided.append((entry.name, len(prepared_claims)))

    async def reserve(self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        if self.reject:
            raise RejectedError("the pool has no pages left; free some", reason="pages")
        assert entry.uid not in prepared_claims.entries
        self.reserved.append((entry.name, len(prepared_claims)))

    async def reconcile(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        self.at_work += 1
        assert self.at_work == 1, "one at a time"
        await self.gate.wait()
        self.at_work -= 1
        if self.broken:
            raise OSError("no such cgroup")
        if self.defect is not None:
            raise self.defect
        seen = {p.name: [u.claim.name for c in p.containers for u in c.uses] for p in pods}
        self.settled.append((seen, len(prepared_claims)))

    async def restore(self) -> None:
        return

    def gauges(self) -> Iterable[Gauge]:
        yield Gauge("diary_entries", "Looks so far.", len(self.settled))


class EmptyNode:
    """A node without pods and claims."""

    driver = Pairs()
    prepared_claims = PreparedClaims()

    def pods(self) -> Sequence[PodView]:
        return []


def reconciler_runner(diary: Diary) -> ReconcilerRunner:
    return ReconcilerRunner(diary, EmptyNode())


async def test_many_changes_share_one_look() -> None:
    diary = Diary()
    diary.gate.clear()
    work = reconciler_runner(diary)
    first = asyncio.create_task(work.reconcile())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(work.reconcile()) for _ in range(50)]
    await asyncio.sleep(0)
    diary.gate.set()
    await asyncio.gather(first, *others)
    assert len(diary.settled) == 2, "the one at work, and one for all that came meanwhile"


async def test_an_event_does_not_wait_for_ever_and_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drakit.kit.reconciler._EVENT_SECONDS", 0.01)
    diary = Diary()
    diary.gate.clear()
    work = reconciler_runner(diary)
    await work.reconcile_in_event()
    assert diary.settled == []
    diary.gate.set()
    await work.reconcile()
    assert diary.settled != []


async def test_a_failing_reconciler_ends_nothing_and_is_asked_again() -> None:
    diary = Diary()
    diary.broken = True
    work = reconciler_runner(diary)
    await work.reconcile()
    assert work.problem == "no such cgroup"
    diary.broken = False
    await work.reconcile()
    assert work.problem is None


DEFECTS = [ValueError("bad value"), RuntimeError("bad state"), KeyError("bad key")]


@pytest.mark.parametrize("defect", DEFECTS, ids=repr)
async def test_a_defect_of_a_reconciler_fails_no_event_and_is_reported(defect: Exception) -> None:
    diary = Diary()
    diary.defect = defect
    work = TaskRunner()
    looks = ReconcilerRunner(diary, EmptyNode(), work)
    for _ in range(PERSISTS):
        await looks.reconcile_in_event()
    assert looks.problem == str(defect)
    assert str(defect) in (work.problem or "")
    diary.defect = None
    await looks.reconcile()
    assert looks.problem is None
    assert work.problem is None


@pytest.mark.parametrize("defect", DEFECTS, ids=repr)
async def test_a_defect_of_a_reconciler_does_not_end_the_host(defect: Exception) -> None:
    diary = Diary()
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        async with SimulatedNode(directory, online_cpus="0-7") as node:
            host = node.host(Pairs, HostOptions(**node.settings()), reconciler=diary)
            task = asyncio.create_task(host.run())
            try:
                await node.kubelet.registered("pairs.example.org")
                diary.defect = defect
                for number in range(1, 1 + PERSISTS):
                    node.allocate(f"c{number}", [pair(number)], consumers=[f"p{number}"])
                    running = await node.run_pod(f"p{number}", {"main": [f"c{number}"]})
                    assert running.containers["main"].cpus == f"{2 * number}-{2 * number + 1}"
                await eventually(lambda: host.conditions()["tasks"] is not None, "not ready")
                assert b'task_failures_total{task="reconciler"}' in host.metrics.exposition()
                assert not task.done()
                diary.defect = None
                await host.reconciler_runner.reconcile()
                assert host.conditions()["tasks"] is None
            finally:
                host.stop()
                await asyncio.wait_for(task, 30)


async def test_the_host_tells_its_reconciler_of_claims_pods_and_their_end() -> None:
    diary = Diary()
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        async with SimulatedNode(directory, online_cpus="0-7") as node:
            host = node.host(Pairs, HostOptions(**node.settings()), reconciler=diary)
            task = asyncio.create_task(host.run())
            try:
                await node.kubelet.registered("pairs.example.org")
                node.allocate("c", [pair(1)], consumers=["p"])
                running = await node.run_pod("p", {"main": ["c"]})
                assert ("c", 0) in diary.provided
                assert ({"p": ["c"]}, 1) in diary.settled, "before the container was created"
                await node.delete_pod(running)
                await eventually(lambda: diary.settled[-1] == ({}, 0), "the end was noticed")
                assert b"diary_entries" in host.metrics.exposition()
                diary.reject = True
                node.allocate("d", [pair(2)], consumers=["q"])
                with pytest.raises(PrepareError, match="no pages left"):
                    await node.run_pod("q", {"main": ["d"]})
                assert len(host.checkpoint.prepared_claims) == 0, "what was refused is not written down"
            finally:
                host.stop()
                await asyncio.wait_for(task, 30)


async def test_one_reconciler_that_fails_does_not_keep_the_next_from_work() -> None:
    first, second, third = Diary(), Diary(), Diary()
    first.broken = third.broken = True
    both = ReconcilerGroup(first, second, third)
    with pytest.raises(OSError, match="no such cgroup; no such cgroup"):
        await both.reconcile(Pairs(), [], PreparedClaims())
    assert second.settled == [({}, 0)]
    assert len(list(both.gauges())) == 3


async def test_a_defect_of_one_reconciler_does_not_keep_the_next_from_work() -> None:
    first, second, third = Diary(), Diary(), Diary()
    first.defect, third.broken = KeyError("pool"), True
    with pytest.raises(ExceptionGroup, match="no such cgroup; 'pool'"):
        await ReconcilerGroup(first, second, third).reconcile(Pairs(), [], PreparedClaims())
    assert second.settled == [({}, 0)]


async def test_the_first_rejection_of_several_reconcilers_counts() -> None:
    first, second = Diary(), Diary()
    first.reject = True
    with pytest.raises(RejectedError, match="no pages left"):
        await ReconcilerGroup(first, second).provision(
            Pairs(), PreparedClaim("u", "ns", "c", ()), PreparedClaims()
        )
    assert second.provided == []
