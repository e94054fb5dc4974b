"""The publisher against the fake API server, with and without faults."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from drakit.core.log import Message
from drakit.core.objects import Attribute, Device, Taint
from drakit.kit.driver import Offer, PoolOffer
from drakit.kit.slices.limits import OfferError
from drakit.kit.slices.publisher import NodeMissingError, Publisher, RepairDelays
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.testing.apiserver import FakeApiServer, Fault, Seen, Trouble
from drakit.wire.kube import Backoff, Client, ForbiddenError, InvalidError

DRIVER, NODE = "dra.example.com", "node-1"
MINE = f"spec.driver={DRIVER},spec.nodeName={NODE}"
WRITES = ("create", "update", "patch", "delete", "deletecollection")


def devices(count: int, **fields: Any) -> tuple[Device, ...]:
    return tuple(Device(name=f"d{i}", attributes={"i": Attribute(int_=i)}, **fields) for i in range(count))


def offer(*counts: int, **fields: Any) -> Offer:
    if len(counts) == 1:
        return Offer((PoolOffer(devices(counts[0], **fields)),))
    return Offer(tuple(PoolOffer(devices(n), name=f"pool-{i}") for i, n in enumerate(counts)))


class Logged(logging.Handler):
    """Collects the fields of structured log records by message."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, list[Mapping[str, Any]]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, Message):
            self.fields.setdefault(record.msg.text, []).append(record.msg.fields)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        logger = logging.getLogger("drakit.kit.slices")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    @property
    def dropped(self) -> list[Mapping[str, Any]]:
        return self.fields.get("API server dropped a ResourceSlice field", [])

    @property
    def rejected(self) -> list[str]:
        return [fields["pool"] for fields in self.fields.get("API server rejected pool", [])]


class Bench:
    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.logged = Logged()
        self.metrics = HostMetrics(DRIVER)
        self.publisher = Publisher(
            client,
            driver=DRIVER,
            node=NODE,
            metrics=self.metrics,
            backoff=lambda: Backoff(0.001, 0.02),
            delays=RepairDelays(deleted=0.001, changed=0.002, longest=0.02),
        )

    @property
    def slices(self) -> list[dict[str, Any]]:
        return self.server.objects("resourceslices", fields=MINE)

    def writes(self) -> list[Seen]:
        return [seen for seen in self.server.requests if seen.verb in WRITES]

    def told(self, pool: str | None = None) -> list[str]:
        """Device names as the scheduler sees them: the newest generation, slices by name."""
        mine = [s["spec"] for s in self.slices if pool in (None, s["spec"]["pool"]["name"])]
        newest = max((spec["pool"]["generation"] for spec in mine), default=0)
        return [
            device["name"]
            for spec in mine
            if spec["pool"]["generation"] == newest
            for device in spec.get("devices", [])
        ]

    async def publish(self, wanted: Offer) -> None:
        self.publisher.publish(wanted)
        await self.published()

    async def published(self) -> None:
        async with asyncio.timeout(60):
            await self.publisher.published.wait()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():
                await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Until everything said has been heard, and nothing is written any more."""
        before = -1
        while before != len(self.writes()):
            before = len(self.writes())
            for _ in range(20):
                await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def bench(server: FakeApiServer | None = None, *, node: bool = True) -> AsyncIterator[Bench]:
    server = server or FakeApiServer()
    if node and not server.objects("nodes"):
        server.add("nodes", {"metadata": {"name": NODE}})
    async with server, Client(server.cluster()) as client, contextlib.AsyncExitStack() as stack:
        made = Bench(server, client)
        stack.enter_context(made.logged.installed())
        task = asyncio.create_task(made.publisher.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_offer_is_published() -> None:
    async with bench() as at:
        await at.publish(offer(300))
        assert at.told() == [f"d{i}" for i in range(300)]
        names = [s["metadata"]["name"] for s in at.slices]
        assert [name[:28] for name in names] == [f"0000{i}-dra.example.com-node-1" for i in range(3)]
        node = at.server.objects("nodes")[0]["metadata"]["uid"]
        for item in at.slices:
            assert item["metadata"]["ownerReferences"] == [
                {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node, "controller": True}
            ]
        status = at.publisher.status
        assert (at.publisher.writer.writes, status.slices) == ({"create": 3}, 3)
        assert status.generations == {NODE: 1}
        assert at.publisher.problem is None
        assert b'slice_writes_total{operation="create",result="success"} 3' in (at.metrics.exposition())


async def test_nothing_is_written_twice() -> None:
    async with bench() as at:
        await at.publish(offer(300))
        await at.publish(offer(300))
        await at.settled()
        assert len(at.writes()) == 3


async def test_a_successor_finds_all_in_order() -> None:
    server = FakeApiServer()
    async with bench(server) as at:
        await at.publish(offer(5, 0, 200))
        count = len(at.writes())
    async with bench(server) as at:
        await at.publish(offer(5, 0, 200))
        await at.settled()
        assert len(at.writes()) == count


async def test_an_empty_pool_has_one_empty_slice() -> None:
    async with bench() as at:
        await at.publish(offer(0))
        (only,) = at.slices
        assert "devices" not in only["spec"]
        assert only["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}


async def test_a_pool_that_is_no_longer_offered_is_deleted() -> None:
    async with bench() as at:
        await at.publish(offer(5, 6))
        await at.publish(Offer((PoolOffer(devices(5), name="pool-0"),)))
        assert {s["spec"]["pool"]["name"] for s in at.slices} == {"pool-0"}
        assert at.publisher.status.generations == {"pool-0": 1}
        await at.publish(Offer(()))
        assert at.slices == []


async def test_a_bad_offer_is_rejected_and_the_last_good_one_stays() -> None:
    async with bench() as at:
        await at.publish(offer(5))
        with pytest.raises(OfferError, match="D1"):
            at.publisher.publish(Offer((PoolOffer((Device(name="D1"),)),)))
        assert at.publisher.problem is None
        at.server.wipe_slices(NODE)
        await at.until(lambda: at.told() == [f"d{i}" for i in range(5)])


async def test_wiped_slices_come_back_at_once_with_a_higher_generation() -> None:
    async with bench() as at:
        await at.publish(offer(300))
        for expected in (2, 3):
            assert at.server.wipe_slices(NODE) == 3
            await at.until(lambda: len(at.slices) == 3)
            await at.published()
            assert at.told() == [f"d{i}" for i in range(300)]
            assert {s["spec"]["pool"]["generation"] for s in at.slices} == {expected}


async def test_changes_by_other_clients_are_repaired() -> None:
    async with bench() as at:
        await at.publish(offer(5))
        (item,) = at.slices
        at.server.change("resourceslices", item["metadata"]["name"], {"spec": {"devices": []}})
        await at.until(lambda: len(at.told()) == 5)
        await at.settled()
        assert len(at.writes()) == 2


async def test_metadata_of_other_clients_is_kept() -> None:
    async with bench() as at:
        await at.publish(offer(5))
        (item,) = at.slices
        name = item["metadata"]["name"]
        at.server.change("resourceslices", name, {"metadata": {"labels": {"team": "x"}}})
        await at.settled()
        assert len(at.writes()) == 1
        await at.publish(offer(6))
        assert at.slices[0]["metadata"]["labels"] == {"team": "x"}


def foreign(server: FakeApiServer) -> list[str]:
    """Slices of the same driver elsewhere, of another driver here, and of everywhere."""
    specs = [
        {"driver": DRIVER, "nodeName": "node-2"},
        {"driver": "other.example.com", "nodeName": NODE},
        {"driver": DRIVER, "allNodes": True},
    ]
    return [
        server.add(
            "resourceslices",
            {
                "metadata": {"name": f"00000-foreign-{i}"},
                "spec": spec | {"pool": {"name": NODE, "generation": 9, "resourceSliceCount": 1}},
            },
        )["metadata"]["resourceVersion"]
        for i, spec in enumerate(specs)
    ]


async def test_publishing_waits_for_a_missing_node() -> None:
    async with bench(node=False) as at:
        at.publisher.publish(offer(5))
        await at.until(lambda: isinstance(at.publisher.status.last_error, NodeMissingError))
        assert "node-1 does not exist" in (at.publisher.problem or "")
        assert at.slices == []
        at.server.add("nodes", {"metadata": {"name": NODE}})
        await at.published()
        assert len(at.slices) == 1


async def test_another_node_of_the_same_name_is_the_new_owner() -> None:
    async with bench() as at:
        await at.publish(offer(5))
        at.server.remove("nodes", NODE)
        new = at.server.add("nodes", {"metadata": {"name": NODE}})["metadata"]["uid"]
        at.server.wipe_slices(NODE)  # the garbage collector
        await at.until(lambda: len(at.slices) == 1)
        assert at.slices[0]["metadata"]["ownerReferences"][0]["uid"] == new


async def test_dropped_fields_are_reported_once_and_not_rewritten() -> None:
    async with bench(FakeApiServer(version="1.35")) as at:
        rich = offer(130, allow_multiple_allocations=True)
        await at.publish(rich)
        assert {(d["field"], d["gate"]) for d in at.logged.dropped} == {
            ("allowMultipleAllocations", "DRAConsumableCapacity")
        }
        assert sum(d["count"] for d in at.logged.dropped) == 130
        await at.settled()
        assert len(at.writes()) == 2
        at.server.wipe_slices(NODE)
        await at.until(lambda: len(at.slices) == 2)
        await at.settled()
        assert len(at.logged.dropped) == 2


async def test_slices_changed_by_a_webhook_are_not_rewritten() -> None:
    server = FakeApiServer()
    original = server.table._admit

    def admit(kind: Any, document: Any, stored: Any) -> None:
        for device in (document.get("spec") or {}).get("devices", []):
            device["attributes"] = {"stamp": {"string": "hook"}}
        original(kind, document, stored)

    server.table._admit = admit  # type: ignore[method-assign]
    async with bench(server) as at:
        await at.publish(offer(5))
        await at.settled()
        assert len(at.writes()) == 1
        assert [d["gate"] for d in at.logged.dropped] == [None]


async def test_taints_keep_their_time() -> None:
    taint = Taint(key="example.com/t", effect="NoSchedule")
    async with bench() as at:
        await at.publish(offer(5, taints=(taint,)))
        before = [d["taints"][0]["timeAdded"] for d in at.slices[0]["spec"]["devices"]]
        changed = devices(5, taints=(taint,))
        first = msgspec.structs.replace(changed[0], attributes={})
        await at.publish(Offer((PoolOffer((first, *changed[1:])),)))
        after = [d["taints"][0]["timeAdded"] for d in at.slices[0]["spec"]["devices"]]
        assert after == before
        assert len(at.writes()) == 2


async def test_a_rejected_pool_is_reported_and_not_retried() -> None:
    listed = Device(name="x", attributes={"l": Attribute(ints=(1, 2))})
    pools = (PoolOffer((listed,), name="bad"), PoolOffer(devices(3), name="good"))
    async with bench() as at:
        at.publisher.publish(Offer(pools))
        await at.until(lambda: isinstance(at.publisher.status.last_error, InvalidError))
        assert at.logged.rejected == ["bad"]
        assert at.told("good") == ["d0", "d1", "d2"]
        await at.settled()
        rejections = [s for s in at.writes() if b'"bad"' in s.body]
        assert len(rejections) == 1
        at.server.table.gates["DRAListTypeAttributes"] = True
        at.server.wipe_slices(NODE)  # something changed: worth another try
        await at.published()
        assert at.told("bad") == ["x"]
        assert at.logged.rejected == ["bad"]


async def test_publishing_waits_for_missing_permissions() -> None:
    server = FakeApiServer()
    server.forbidden.add(("create", "resourceslices"))
    async with bench(server) as at:
        at.publisher.publish(offer(3))
        await at.until(lambda: isinstance(at.publisher.status.last_error, ForbiddenError))
        assert "verb 'create' on resource 'resourceslices'" in (at.publisher.problem or "")
        server.forbidden.clear()
        await at.published()


async def test_a_forbidden_list_is_reported() -> None:
    server = FakeApiServer()
    server.forbidden.add(("list", "resourceslices"))
    async with bench(server) as at:
        at.publisher.publish(offer(3))
        await at.until(lambda: "verb 'list'" in (at.publisher.problem or ""))


async def test_a_pool_that_cannot_be_deleted_does_not_block_others() -> None:
    async with bench() as at:
        await at.publish(offer(3, 3))
        at.server.forbidden.add(("delete", "resourceslices"))
        at.publisher.publish(Offer((PoolOffer(devices(7), name="pool-1"),)))
        await at.until(lambda: len(at.told("pool-1")) == 7)
        await at.until(lambda: "verb 'delete'" in (at.publisher.problem or ""))
        at.server.forbidden.clear()
        await at.published()
        assert {s["spec"]["pool"]["name"] for s in at.slices} == {"pool-1"}


async def test_a_server_that_is_too_old_is_reported() -> None:
    server = FakeApiServer()
    server.unserved.add("resourceslices")
    async with bench(server) as at:
        at.publisher.publish(offer(3))
        await at.until(lambda: "Kubernetes 1.34" in (at.publisher.problem or ""))
        server.unserved.clear()  # upgraded meanwhile
        await at.published()


async def test_publishing_recovers_after_an_outage() -> None:
    async with bench() as at:
        await at.publish(offer(3))
        await at.server.stop()
        at.publisher.publish(offer(4))
        await at.until(lambda: at.publisher.status.last_error is not None)
        at.server.wipe_slices(NODE)
        await at.server.start()
        await at.published()
        await at.until(lambda: at.told() == [f"d{i}" for i in range(4)])


async def test_a_create_whose_response_is_lost_is_not_repeated() -> None:
    async with bench() as at:
        at.server.plan(Fault(Trouble.CUT_AFTER), times=2, when=lambda seen: seen.verb == "create")
        await at.publish(offer(300))
        assert len(at.slices) == 3
        assert at.told() == [f"d{i}" for i in range(300)]


async def test_after_a_conflict_the_slices_are_listed_again() -> None:
    async with bench() as at:
        await at.publish(offer(3))
        name = at.slices[0]["metadata"]["name"]

        def meddle(seen: Seen) -> bool:
            if seen.verb == "update":
                at.server.change("resourceslices", name, {"metadata": {"labels": {"a": "b"}}})
                return True
            return False

        at.server.plan(Fault(Trouble.SLOW), times=1, when=meddle)
        await at.publish(offer(4))
        assert at.told() == [f"d{i}" for i in range(4)]
        assert at.slices[0]["metadata"]["labels"] == {"a": "b"}


async def test_an_offer_made_before_the_loop_runs_is_published() -> None:
    server = FakeApiServer()
    server.add("nodes", {"metadata": {"name": NODE}})
    async with server, Client(server.cluster()) as client:
        publisher = Publisher(client, driver=DRIVER, node=NODE)
        await asyncio.to_thread(publisher.publish, offer(3))
        task = asyncio.create_task(publisher.run())
        await publisher.published.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_two_publishers_that_disagree_slow_down() -> None:
    """A rolling update with two versions of a driver: the fight must not be at full speed."""
    server = FakeApiServer()
    async with bench(server) as at, Client(server.cluster()) as other_client:
        slow = RepairDelays(deleted=0.001, changed=0.001, longest=3600, window=3600)
        other = Publisher(
            other_client, driver=DRIVER, node=NODE, backoff=lambda: Backoff(0.001, 0.02), delays=slow
        )
        await at.publish(offer(3))
        other.publish(offer(4))
        task = asyncio.create_task(other.run())
        # Its delay doubles with every repair, so it gives way, and the other one has its will.
        await at.until(lambda: len(other._repairs) >= 8)
        await at.until(lambda: len(at.told()) == 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await at.until(lambda: len(at.told()) == 3)


TROUBLES = list(Trouble)


@pytest.mark.parametrize("seed", range(4))
async def test_with_random_faults_it_converges_and_touches_no_foreign_slices(seed: int, scale: int) -> None:
    """Requests fail in every way, slices are wiped and meddled with, offers change all the time."""
    for round_ in range(scale):
        rng = random.Random(f"{seed}/{round_}")
        server = FakeApiServer(seed=seed)
        untouched = foreign(server)

        def chance(_: Seen, rng: random.Random = rng) -> Fault | None:
            if rng.random() < 0.6:
                return None
            status = rng.choice([429, 500, 503, 504])
            return Fault(rng.choice(TROUBLES), status=status, seconds=0.002)

        def meddle(rng: random.Random = rng, server: FakeApiServer = server) -> None:
            mine = server.objects("resourceslices", fields=MINE)
            what = rng.random()
            if what < 0.2:
                server.wipe_slices(NODE, DRIVER)
            elif what < 0.4 and mine:
                server.remove("resourceslices", rng.choice(mine)["metadata"]["name"])
            elif what < 0.6 and mine:
                name = rng.choice(mine)["metadata"]["name"]
                server.change("resourceslices", name, {"spec": {"devices": []}})
            elif what < 0.7:
                server.disconnect()
            elif what < 0.8:
                server.compact()
            elif what < 0.85:
                server.remove("nodes", NODE)
                server.add("nodes", {"metadata": {"name": NODE}})

        async with bench(server) as at:
            server.chance = chance
            wanted = offer(3)
            for _ in range(25):
                wanted = offer(rng.choice([0, 3, 64, 129, 200]), rng.choice([0, 1, 130]))
                at.publisher.publish(wanted)
                for _ in range(3):
                    meddle()
                    await asyncio.sleep(rng.choice([0, 0.002, 0.005]))
            server.chance = None

            def converged(at: Bench = at, wanted: Offer = wanted) -> bool:
                return all(
                    at.told(pool.name) == [device.name for device in pool.devices] for pool in wanted.pools
                ) and {s["spec"]["pool"]["name"] for s in at.slices} == {pool.name for pool in wanted.pools}

            await at.until(converged)
            await at.settled()
            assert converged()
            await at.until(lambda at=at: at.publisher.problem is None)
            for pool in wanted.pools:
                mine = [s["spec"]["pool"] for s in at.slices if s["spec"]["pool"]["name"] == pool.name]
                assert {(p["generation"], p["resourceSliceCount"]) for p in mine} == {
                    (mine[0]["generation"], len(mine))
                }
            assert [
                server.table.get(("resourceslices", "", f"00000-foreign-{i}"))["metadata"]["resourceVersion"]
                for i in range(3)
            ] == untouched
