"""Pods are bound to a node only when it has what was chosen for them; else they go elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from drakit.core.objects import Device, DeviceRequestAllocationResult, ResourceClaim, to_builtins
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import Offer, PoolOffer
from drakit.kit.host import Host
from drakit.testing.apiserver import Fault, Trouble
from drakit.testing.node import SimulatedNode
from tests.kit.test_host import Pairs, at_work, eventually, pair, world
from tests.kit.test_reconciler import Diary

READY, LACKING = "pairs.example.org/Ready", "pairs.example.org/Lacking"


@dataclass(frozen=True)
class Waiting(Pairs):
    """Pairs, each to be asked for before a pod is bound; ``offered`` shrinks when told so."""

    offered: list[int] = field(default_factory=lambda: [4])

    def offer(self) -> Offer:
        devices = (
            Device(
                name=f"pair-{number}",
                binds_to_node=True,
                binding_conditions=(READY,),
                binding_failure_conditions=(LACKING,),
            )
            for number in range(self.offered[-1])
        )
        return Offer((PoolOffer(tuple(devices)),))


def waiting(number: int) -> DeviceRequestAllocationResult:
    return msgspec.structs.replace(
        pair(number), binding_conditions=(READY,), binding_failure_conditions=(LACKING,)
    )


class World:
    """A node with a driver whose devices wait for it."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.diary = Diary()
        self.driver = Waiting()

    def make(self) -> Host:
        options = HostOptions(**self.node.settings())
        return self.node.host(lambda: self.driver, options, reconciler=self.diary)

    def conditions(self, name: str) -> dict[str, str]:
        """What the claim's status says: the conditions that are true, and why."""
        found: dict[str, str] = {}
        for claim in self.node.api.objects("resourceclaims"):
            if claim["metadata"]["name"] == name:
                for device in claim["status"].get("devices", []):
                    assert device["driver"] == self.driver.name
                    for each in device["conditions"]:
                        assert each["status"] == "True"
                        found[each["type"]] = each["message"]
        return found

    def deallocate(self, name: str) -> None:
        status: dict[str, Any] = {"status": {"allocation": None, "devices": None}}
        self.node.api.change("resourceclaims", name, status, namespace="default", subresource="status")


@contextlib.asynccontextmanager
async def served(here: World) -> AsyncIterator[Host]:
    """A host serves the node. Registered, too: one that ends in the middle leaves the kubelet dialling."""
    async with at_work(here.make()) as host:
        await here.node.kubelet.registered(here.driver.name)
        yield host


@contextlib.asynccontextmanager
async def ready() -> AsyncIterator[tuple[World, Host]]:
    async with world() as node:
        here = World(node)
        async with served(here) as host:
            yield here, host


def allocate(here: World, name: str, *numbers: int) -> ResourceClaim:
    results = [waiting(number) for number in numbers]
    return here.node.allocate(name, results, consumers=[f"{name}-pod"])


async def test_what_the_node_has_is_reserved_and_the_conditions_are_set() -> None:
    async with ready() as (here, host):
        allocate(here, "c", 1)
        await eventually(lambda: READY in here.conditions("c"), "the condition is true")
        assert here.diary.reserved == [("c", 0)]
        assert len(host.checkpoint.prepared_claims) == 0, "nothing is assigned before a pod is here"
        running = await here.node.run_pod("c-pod", {"main": ["c"]})
        assert running.containers["main"].cpus == "2-3"
        assert here.diary.provided == [("c", 0)], "its own reservation does not stand in its way"


async def test_a_reservation_counts_for_later_claims() -> None:
    async with ready() as (here, host):
        allocate(here, "one", 1)
        await eventually(lambda: READY in here.conditions("one"), "the first is reserved")
        allocate(here, "two", 2)
        await eventually(lambda: READY in here.conditions("two"), "the second is reserved")
        assert here.diary.reserved == [("one", 0), ("two", 1)]
        here.diary.settled.clear()
        assert host.reconciler_runner is not None
        await host.reconciler_runner.reconcile()
        assert here.diary.settled[-1][1] == 2, "what is kept in order is what is owed"


async def test_a_reservation_ends_with_the_allocation() -> None:
    async with ready() as (here, host):
        allocate(here, "c", 1)
        await eventually(lambda: READY in here.conditions("c"), "reserved")
        here.deallocate("c")
        assert host.reconciler_runner is not None
        reconciler_runner = host.reconciler_runner
        await eventually(
            lambda: not reconciler_runner.with_reserved(host.checkpoint.prepared_claims).entries, "forgotten"
        )


async def test_what_the_node_lacks_is_rejected_with_the_reason_and_no_longer_offered() -> None:
    async with ready() as (here, _):
        here.diary.reject = True
        here.driver.offered.append(2)  # as a driver that has learnt from the rejection
        allocate(here, "c", 3)
        await eventually(lambda: here.conditions("c") != {}, "an answer")
        assert here.conditions("c") == {LACKING: "the pool has no pages left; free some"}
        (published,) = here.node.api.objects("resourceslices")
        assert [each["name"] for each in published["spec"]["devices"]] == ["pair-0", "pair-1"]
        here.diary.reject = False
        here.deallocate("c")  # the scheduler looks again, and finds another device
        allocate(here, "d", 1)
        await eventually(lambda: READY in here.conditions("d"), "served")


async def test_a_driver_that_rejects_the_claim_keeps_the_pod_from_coming() -> None:
    async with ready() as (here, _):
        allocate(here, "c", 7)
        await eventually(lambda: here.conditions("c") != {}, "an answer")
        assert here.conditions("c") == {LACKING: "no pair-7 here"}


async def test_reservations_are_repeated_after_a_restart() -> None:
    async with world() as node:
        here = World(node)
        async with served(here):
            allocate(here, "c", 1)
            await eventually(lambda: READY in here.conditions("c"), "reserved")
        (before,) = here.node.api.objects("resourceclaims")
        async with served(here) as host:
            await eventually(lambda: len(here.diary.reserved) == 2, "reserved again")
            assert host.reconciler_runner is not None
            assert len(host.reconciler_runner.with_reserved(host.checkpoint.prepared_claims)) == 1
        (after,) = here.node.api.objects("resourceclaims")
        assert before == after, "what is said already is not said again"


async def test_a_reservation_that_is_no_longer_available_is_reported_by_prepare(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as node:
        here = World(node)
        async with served(here):
            allocate(here, "c", 1)
            await eventually(lambda: READY in here.conditions("c"), "reserved")
        here.diary.reject = True
        async with served(here):
            await eventually(lambda: "no longer available" in caplog.text, "said in the log")
        assert list(here.conditions("c")) == [READY], "the pod may be bound already"


async def test_a_claim_that_is_allocated_anew_is_asked_about_anew() -> None:
    async with ready() as (here, _):
        allocate(here, "c", 1)
        await eventually(lambda: READY in here.conditions("c"), "reserved")
        result = to_builtins(waiting(2))
        status = {"allocation": {"devices": {"results": [result]}}, "devices": None}
        here.node.api.change(
            "resourceclaims", "c", {"status": status}, namespace="default", subresource="status"
        )
        await eventually(lambda: READY in here.conditions("c"), "reserved anew")
        assert here.diary.reserved == [("c", 0), ("c", 0)]


async def test_a_claim_whose_earlier_devices_are_in_use_waits_for_their_end() -> None:
    async with ready() as (here, host):
        binder = host.binder
        assert binder is not None
        allocate(here, "c", 1)
        await eventually(lambda: READY in here.conditions("c"), "reserved")
        running = await here.node.run_pod("c-pod", {"main": ["c"]})
        here.node.kubelet.forget_pod(running.uid)  # deleted by force
        result = to_builtins(waiting(2))
        status = {"allocation": {"devices": {"results": [result]}}, "devices": None}
        here.node.api.change(
            "resourceclaims", "c", {"status": status}, namespace="default", subresource="status"
        )
        await eventually(lambda: "still in use" in (binder.problem or ""), "it waits")
        assert here.conditions("c") == {}
        await here.node.runtime.stop(running.containers["main"].id)
        await here.node.kubelet.reconcile()
        await eventually(lambda: READY in here.conditions("c"), "reserved anew")


async def test_a_claim_that_the_driver_fails_on_does_not_end_the_binder(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ready() as (here, _):
        here.node.allocate("odd", [msgspec.structs.replace(waiting(1), device="pair-x")])
        await eventually(lambda: "cannot decide whether" in caplog.text, "said in the log")
        allocate(here, "c", 1)
        await eventually(lambda: READY in here.conditions("c"), "others are served")


async def test_claims_of_others_are_none_of_our_business() -> None:
    async with ready() as (here, host):
        elsewhere = msgspec.structs.replace(waiting(1), pool="node-2")
        foreign = msgspec.structs.replace(waiting(1), driver="other.example.org")
        here.node.allocate("elsewhere", [elsewhere])
        here.node.allocate("foreign", [foreign])
        here.node.allocate("unconditional", [pair(0)])
        allocate(here, "ours", 2)
        await eventually(lambda: READY in here.conditions("ours"), "ours is served")
        assert here.diary.reserved == [("ours", 0)]
        assert host.binder is not None
        assert host.binder.problem is None
        for name in ("elsewhere", "foreign", "unconditional"):
            assert here.conditions(name) == {}


@pytest.mark.parametrize("trouble", [Trouble.ANSWER, Trouble.CUT_BEFORE, Trouble.CUT_AFTER])
async def test_an_answer_that_could_not_be_written_is_written_later(trouble: Trouble) -> None:
    async with ready() as (here, _):
        here.node.api.plan(Fault(trouble), times=2, when=lambda seen: seen.method == "PATCH")
        allocate(here, "c", 1)
        await eventually(lambda: READY in here.conditions("c"), "written in the end")
        assert here.diary.reserved == [("c", 0)]


async def test_who_has_no_conditions_follows_no_claims() -> None:
    async with world() as node:
        here = World(node)
        options = HostOptions(**node.settings())
        async with at_work(node.host(Pairs, options)) as host:
            await node.kubelet.registered(here.driver.name)
            assert host.binder is None
            assert not any("/resourceclaims" in seen.path for seen in node.api.requests)


async def test_a_claim_that_does_not_decode_keeps_no_other_from_being_bound() -> None:
    async with world() as node:
        here = World(node)
        bad = {"metadata": {"name": "bad", "namespace": "default"}, "spec": {"devices": "none"}}
        node.api.add("resourceclaims", bad)
        async with served(here) as host:
            allocate(here, "c", 1)
            await eventually(lambda: READY in here.conditions("c"), "the condition is true")
            assert host.conditions()["binding"] is None
            counted = b'undecodable_objects_total{resource="resourceclaims"} 1.0'
            assert counted in host.metrics.exposition()


async def test_a_defect_of_the_binder_does_not_end_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as node:
        here = World(node)
        host = here.make()
        assert host.binder is not None
        problems, plain = [KeyError("defect")], host.binder.run

        async def run() -> None:
            if problems:
                raise problems.pop()
            await plain()

        monkeypatch.setattr(host.binder, "run", run)
        async with at_work(host):
            await node.kubelet.registered(here.driver.name)
            allocate(here, "c", 1)
            await eventually(lambda: READY in here.conditions("c"), "it was started again")
