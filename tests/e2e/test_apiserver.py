"""The client and the publisher against a real kube-apiserver: its validation, its field dropping,
its watch. No node and no kubelet is needed, so this is the quickest of the end-to-end tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from drakit.core.objects import Attribute, Capacity, Device, RequestPolicy, Taint
from drakit.core.quantity import Quantity
from drakit.kit.driver import Offer, PoolOffer
from drakit.kit.dropping import Dropped
from drakit.kit.publisher import Publisher
from drakit.wire.kube import SLICES, Client, Cluster, Endpoint, Gone, Invalid, Object, Selection
from drakit.wire.kube.credentials import Certificate, Credential, Fixed
from drakit.wire.kube.tls import AuthorityFile
from tests.e2e.bed.host import Ability
from tests.e2e.bed.oracle import Oracle
from tests.kit.limit_cases import CASES
from tests.kit.test_limits import server_takes
from tests.wire.kube.scenarios import SCENARIOS

# Limits and gates are those of one release.
pytestmark = pytest.mark.newest


@pytest.fixture(scope="module")
def oracle(ability: Ability) -> Iterator[Oracle]:
    if not ability.go:
        pytest.skip(f"no control plane on this machine: {ability.why_not()}")
    with Oracle() as made:
        yield made


@pytest.fixture
def real(oracle: Oracle) -> Cluster:
    """The administrator's way in: a client certificate, and the cluster's own authority."""
    certificate = Certificate(
        oracle.client_certificate.read_bytes(), oracle.client_key.read_bytes()
    )
    return Cluster(
        Endpoint.parse(oracle.url),
        Fixed(Credential(certificate=certificate)),
        AuthorityFile(str(oracle.ca)),
    )


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario(real: Cluster, scenario: Callable[[Client, str], Awaitable[None]]) -> None:
    async with Client(real) as client:
        await scenario(client, scenario.__name__.replace("_", "-"))


async def test_the_api_has_the_limits_we_check(real: Cluster) -> None:
    """Every offer at or beyond a limit: the server takes exactly those that our check lets pass."""
    async with Client(real) as client:
        wrong = [case.name for case in CASES if await server_takes(client, case) != case.good]
        for item in (await client.list(SLICES, Selection(fields="spec.driver=example.com"))).items:
            await client.delete(SLICES, item.name)
    assert wrong == []


class Bench:
    """A publisher at work, and what it was told."""

    def __init__(self, client: Client, driver: str, node: str) -> None:
        self.dropped: list[Dropped] = []
        self.refused: list[str] = []
        self.client = client
        self.selection = Selection(fields=f"spec.driver={driver},spec.nodeName={node}")
        self.publisher = Publisher(
            client,
            driver=driver,
            node=node,
            on_dropped=self.dropped.append,
            on_refused=lambda pool, _: self.refused.append(pool),
        )

    async def slices(self) -> list[Object[object]]:
        listing = await self.client.list(SLICES, self.selection)
        return sorted(listing.items, key=lambda item: item.name)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def publishing(oracle: Oracle, real: Cluster, word: str) -> AsyncIterator[Bench]:
    node = f"{word}-node"
    if not any(n["metadata"]["name"] == node for n in oracle.api.list("v1", "Node")):
        oracle.add_node(node)
    async with Client(real) as client:
        bench = Bench(client, f"{word}.example.com", node)
        task = asyncio.create_task(bench.publisher.run())
        try:
            async with asyncio.timeout(60):
                yield bench
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def plain(count: int) -> tuple[Device, ...]:
    return tuple(
        Device(name=f"cpu{i}", attributes={"cpuID": Attribute(int_=i)}) for i in range(count)
    )


async def test_devices_are_published_in_order_and_changed_in_place(
    oracle: Oracle, real: Cluster
) -> None:
    async with publishing(oracle, real, "order") as bench:
        bench.publisher.publish(Offer((PoolOffer(plain(300)),)))
        await bench.publisher.published.wait()
        slices = await bench.slices()
        names = [d.name for s in slices for d in s.typed.spec.devices]  # type: ignore[attr-defined]
        assert names == [f"cpu{i}" for i in range(300)]
        assert bench.publisher.status.created == 3
        assert bench.publisher.status.generations == {"order-node": 1}
        assert bench.dropped == []
        changed = (*plain(200)[:-1], Device(name="cpu199"), *plain(300)[200:])
        bench.publisher.publish(Offer((PoolOffer(changed),)))
        await bench.publisher.published.wait()
        assert bench.publisher.status.updated == 1
        assert bench.publisher.status.generations == {"order-node": 1}
        assert [s.uid for s in await bench.slices()] == [s.uid for s in slices]


async def test_a_successor_writes_nothing(oracle: Oracle, real: Cluster) -> None:
    """Everything a slice can say with this server's gates, read back equal to what was meant."""
    capacity = Capacity(
        value=Quantity("1.5Gi"),
        request_policy=RequestPolicy(default=Quantity("0.5Gi")),
    )
    device = Device(
        name="numa0",
        attributes={
            "i": Attribute(int_=-1),
            "b": Attribute(bool_=False),
            "s": Attribute(string=""),
            "v": Attribute(version="1.2.3"),
        },
        capacity={"memory": capacity, "example.com/x": Capacity(value=Quantity("1500m"))},
        allow_multiple_allocations=True,
        taints=(Taint(key="example.com/t", effect="NoSchedule"),),
        binds_to_node=True,
        binding_conditions=("example.com/ready",),
        binding_failure_conditions=("example.com/failed",),
    )
    offer = Offer((PoolOffer((device,)), PoolOffer((), name="empty")))
    async with publishing(oracle, real, "same") as bench:
        bench.publisher.publish(offer)
        await bench.publisher.published.wait()
        assert bench.dropped == []
        before = [(s.uid, s.resource_version) for s in await bench.slices()]
        assert len(before) == 2
    async with publishing(oracle, real, "same") as bench:
        bench.publisher.publish(offer)
        await bench.publisher.published.wait()
        assert [(s.uid, s.resource_version) for s in await bench.slices()] == before
        status = bench.publisher.status
        assert (status.created, status.updated, status.deleted) == (0, 0, 0)


async def test_wiped_slices_come_back(oracle: Oracle, real: Cluster) -> None:
    async with publishing(oracle, real, "wipe") as bench:
        bench.publisher.publish(Offer((PoolOffer(plain(300)),)))
        await bench.publisher.published.wait()
        old = await bench.slices()
        for item in old:
            await bench.client.delete(SLICES, item.name)
        while len(found := await bench.slices()) < 3 or {s.uid for s in found} & {
            s.uid for s in old
        }:
            await asyncio.sleep(0.05)
        await bench.publisher.published.wait()
        assert len(await bench.slices()) == 3


async def test_fields_behind_a_gate_are_reported_and_lived_with(
    oracle: Oracle, real: Cluster
) -> None:
    """The gate of node-allocatable resources is off by default in every release up to 1.37."""
    mapping = {"cpu": {"mapping": {"deviceMultiplier": "1"}}}
    device = Device(name="d", node_allocatable_resources=mapping)
    async with publishing(oracle, real, "gate") as bench:
        bench.publisher.publish(Offer((PoolOffer((device,)),)))
        await bench.publisher.published.wait()
        assert [(d.field, d.gate, d.devices) for d in bench.dropped] == [
            ("nodeAllocatableResources", "DRANodeAllocatableResources", ("d",))
        ]
        assert bench.publisher.status.created == 1
        assert bench.publisher.status.updated == 0


async def test_refused_is_told_and_mended_by_another_offer(oracle: Oracle, real: Cluster) -> None:
    """List attributes without their gate: cleared by the server, which then misses their value."""
    listed = Device(name="d", attributes={"nodes": Attribute(ints=(0, 1))})
    async with publishing(oracle, real, "list") as bench:
        bench.publisher.publish(Offer((PoolOffer((listed,)),)))
        while bench.publisher.status.last_error is None:
            await asyncio.sleep(0.02)
        assert isinstance(bench.publisher.status.last_error, Invalid)
        assert bench.refused == ["list-node"]
        assert await bench.slices() == []
        bench.publisher.publish(Offer((PoolOffer((Device(name="d"),)),)))
        await bench.publisher.published.wait()
        assert bench.refused == ["list-node"]
        assert bench.publisher.problem is None


async def test_a_restarted_server_is_followed_again(oracle: Oracle, real: Cluster) -> None:
    """Away and back: what was offered meanwhile gets there, and what it forgot is 410."""
    async with publishing(oracle, real, "away") as bench:
        bench.publisher.publish(Offer((PoolOffer(plain(10)),)))
        await bench.publisher.published.wait()
        (before,) = await bench.slices()
        # The bed starts its programs from the main thread only, which is this one.
        oracle.plane.restart("kube-apiserver")
        bench.publisher.publish(Offer((PoolOffer(plain(11)),)))
        await bench.publisher.published.wait()
        (after,) = await bench.slices()
        assert after.uid == before.uid
        assert len(after.typed.spec.devices) == 11  # type: ignore[attr-defined]
        await bench.client.delete(SLICES, after.name)
        while not (found := await bench.slices()):
            await asyncio.sleep(0.05)
        assert found[0].uid != after.uid
        with pytest.raises(Gone):
            async for _ in bench.client.watch(SLICES, resource_version="1", seconds=5):
                pass
