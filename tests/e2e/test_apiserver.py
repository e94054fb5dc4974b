"""Client and publisher with a real kube-apiserver: validation, dropped fields, watches.

No node and no kubelet are needed, so these are the fastest end-to-end tests."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from drakit.core.objects import Attribute, Capacity, Device, RequestPolicy, Taint
from drakit.core.quantity import Quantity
from drakit.kit.driver import Offer, PoolOffer
from drakit.kit.slices.publisher import Publisher
from drakit.testing.apiserver import FakeApiServer
from drakit.wire.kube import (
    SLICES,
    Client,
    ClusterAccess,
    Endpoint,
    ForbiddenError,
    GoneError,
    InvalidError,
    Object,
    Selection,
    UnauthorizedError,
)
from drakit.wire.kube.access.credentials import Certificate, Credential, Fixed
from drakit.wire.kube.access.tls import Trust
from tests.e2e.bed.host import Ability
from tests.e2e.bed.kubernetes import ApiError
from tests.e2e.bed.oracle import Oracle
from tests.kit.slices.limit_cases import CASES
from tests.kit.slices.test_limits import server_takes
from tests.kit.slices.test_publisher import Logged
from tests.wire.kube.scenarios import SCENARIOS, slice_of

# Limits and gates are those of one release.
pytestmark = pytest.mark.newest


@pytest.fixture(scope="module")
def oracle(ability: Ability) -> Iterator[Oracle]:
    if not ability.go:
        pytest.skip(f"no control plane on this machine: {ability.why_not()}")
    with Oracle() as made:
        yield made


@pytest.fixture
def real(oracle: Oracle) -> ClusterAccess:
    """Administrator access: a client certificate and the certificate authority of the cluster."""
    certificate = Certificate(oracle.client_certificate.read_bytes(), oracle.client_key.read_bytes())
    return ClusterAccess(
        Endpoint.parse(oracle.url), Fixed(Credential(certificate=certificate)), Trust(file=str(oracle.ca))
    )


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario(real: ClusterAccess, scenario: Callable[[Client, str], Awaitable[None]]) -> None:
    async with Client(real) as client:
        await scenario(client, scenario.__name__.replace("_", "-"))


_GATED: dict[str, dict[str, Any]] = {
    "plain": {"devices": [{"name": "d"}]},
    "DRADeviceTaints": {
        "devices": [{"name": "d", "taints": [{"key": "example.com/t", "effect": "NoSchedule"}]}]
    },
    "DRADeviceBindingConditions": {
        "devices": [
            {
                "name": "d",
                "bindsToNode": True,
                "bindingConditions": ["example.com/a"],
                "bindingFailureConditions": ["example.com/b"],
            }
        ]
    },
    "DRAConsumableCapacity": {
        "devices": [
            {
                "name": "d",
                "allowMultipleAllocations": True,
                "capacity": {"c": {"value": "8", "requestPolicy": {"default": "1"}}},
            }
        ]
    },
    "DRAPartitionableDevices": {"sharedCounters": [{"name": "s", "counters": {"c": {"value": "4"}}}]},
    "DRANodeAllocatableResources": {
        "devices": [
            {"name": "d", "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}}}
        ]
    },
    "DRAListTypeAttributes": {"devices": [{"name": "d", "attributes": {"a": {"ints": [1]}}}]},
    "DRAOptionalNodeOperations": {"skipNodeOperations": ["NodePrepareResources"], "devices": [{"name": "d"}]},
}
"""Slices, each with the fields of one feature gate."""


@pytest.mark.parametrize("gate", _GATED)
async def test_the_fake_stores_and_rejects_gated_fields_like_the_server(
    real: ClusterAccess, oracle: Oracle, gate: str
) -> None:
    """With the default gates of this release: the same fields are kept, dropped or missed."""
    release = ".".join(oracle.plane.pins.kubernetes.split(".")[:2])
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    driver = f"{gate.lower()}.example.com"
    spec = {"driver": driver, "nodeName": "gated", "pool": pool, **_GATED[gate]}

    async def stored(cluster: ClusterAccess) -> Any:
        async with Client(cluster) as client:
            try:
                body = {"metadata": {"generateName": "gated-"}, "spec": spec}
                made = await client.create(SLICES, body)
            except InvalidError:
                return "rejected"
            await client.delete(SLICES, made.name)
        for device in made.raw["spec"].get("devices", []):
            for taint in device.get("taints", []):
                del taint["timeAdded"]
        return made.raw["spec"]

    async with FakeApiServer(version=release) as fake:
        assert await stored(fake.cluster()) == await stored(real)


async def test_bookmarks_have_a_version_and_are_sent_only_if_allowed(
    oracle: Oracle, real: ClusterAccess
) -> None:
    """The server sends one about two seconds before the end of a watch that saw a change."""
    start = json.loads(oracle.api.raw("GET", SLICES.path()))["metadata"]["resourceVersion"]
    parameters = f"watch=1&timeoutSeconds=8&resourceVersion={start}"
    path = f"{SLICES.path()}?{parameters}&fieldSelector=spec.nodeName%3Dnobody"

    def watch(more: str) -> list[Any]:
        return [json.loads(line) for line in oracle.api.raw("GET", path + more).splitlines()]

    both = asyncio.gather(asyncio.to_thread(watch, ""), asyncio.to_thread(watch, "&allowWatchBookmarks=true"))
    async with Client(real) as client:
        made = await client.create(SLICES, slice_of("marked", "a"))
        await client.delete(SLICES, made.name)
    without, allowed = await both
    assert without == []
    assert {event["type"] for event in allowed} == {"BOOKMARK"}
    last = allowed[-1]["object"]
    assert last["kind"] == "ResourceSlice"
    assert int(last["metadata"]["resourceVersion"]) > int(made.resource_version), "also of others"


async def test_unknown_and_unauthorized_clients(oracle: Oracle, real: ClusterAccess) -> None:
    """401 for a wrong token; 403 names the verb; a SelfSubjectAccessReview agrees."""
    wrong = dataclasses.replace(real, credentials=Fixed(Credential("wrong")))
    async with Client(wrong) as client:
        with pytest.raises(UnauthorizedError):
            await client.list(SLICES)
    name = {"name": "nobody", "namespace": "default"}
    oracle.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name}, "default")
    token = oracle.api.token("default", "nobody")
    known = dataclasses.replace(real, credentials=Fixed(Credential(token)))
    async with Client(known) as client:
        with pytest.raises(ForbiddenError, match='cannot list resource "resourceslices"'):
            await client.list(SLICES)
    for api, allowed in ((oracle.api.as_bearer(token), False), (oracle.api, True)):
        asked = {"verb": "list", "resource": "resourceslices", "group": "resource.k8s.io"}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert api.call("POST", path, review)["status"]["allowed"] is allowed


def test_a_collection_is_deleted_by_its_selector(oracle: Oracle) -> None:
    """Deletion by selector, as a kubelet deletes the slices of its node or of one driver."""
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    for node in ("collected", "kept"):
        spec = {"driver": "collect.example.com", "nodeName": node, "pool": pool, "devices": []}
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        oracle.api.create({**head, "metadata": {"name": f"collect-{node}"}, "spec": spec})
    fields = "spec.nodeName%3Dcollected,spec.driver%3Dcollect.example.com"
    oracle.api.raw("DELETE", f"{SLICES.path()}?fieldSelector={fields}")
    left = json.loads(oracle.api.raw("GET", SLICES.path()))["items"]
    names = {item["metadata"]["name"] for item in left}
    assert names & {"collect-collected", "collect-kept"} == {"collect-kept"}


@pytest.mark.parametrize(
    ("method", "path", "content_type", "status"),
    [
        ("POST", "/apis/resource.k8s.io/v1/resourceclaims", "application/json", 405),
        ("PATCH", "/apis/resource.k8s.io/v1/resourceslices/x", "text/plain", 415),
        ("PATCH", "/api/v1/nodes/x", "application/apply-patch+yaml", 422),
    ],
    ids=["no namespace", "no patch", "no field manager"],
)
def test_invalid_requests(oracle: Oracle, method: str, path: str, content_type: str, status: int) -> None:
    """The same statuses as the fake's."""
    body = {"metadata": {"name": "x"}}
    with pytest.raises(ApiError) as caught:
        oracle.api.raw(method, path, body, content_type=content_type)
    assert caught.value.status == status
    with FakeApiServer().in_thread() as fake:
        request = urllib.request.Request(
            fake.url + path, json.dumps(body).encode(), {"Content-Type": content_type}, method=method
        )
        with pytest.raises(urllib.error.HTTPError) as answered:
            urllib.request.urlopen(request)
        answered.value.close()
    assert answered.value.code == status


async def test_the_api_has_the_limits_we_check(real: ClusterAccess) -> None:
    """For offers at or beyond a limit, the server accepts exactly those that pass our check."""
    async with Client(real) as client:
        wrong = [case.name for case in CASES if await server_takes(client, case) != case.good]
        for item in (await client.list(SLICES, Selection(fields="spec.driver=example.com"))).items:
            await client.delete(SLICES, item.name)
    assert wrong == []


class Bench:
    """A running publisher and its notifications."""

    def __init__(self, client: Client, driver: str, node: str) -> None:
        self.logged = Logged()
        self.client = client
        self.selection = Selection(fields=f"spec.driver={driver},spec.nodeName={node}")
        self.publisher = Publisher(client, driver=driver, node=node)

    async def slices(self) -> list[Object[object]]:
        listing = await self.client.list(SLICES, self.selection)
        return sorted(listing.items, key=lambda item: item.name)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def publishing(oracle: Oracle, real: ClusterAccess, word: str) -> AsyncIterator[Bench]:
    node = f"{word}-node"
    if not any(n["metadata"]["name"] == node for n in oracle.api.list("v1", "Node")):
        oracle.add_node(node)
    async with Client(real) as client, contextlib.AsyncExitStack() as stack:
        bench = Bench(client, f"{word}.example.com", node)
        stack.enter_context(bench.logged.installed())
        task = asyncio.create_task(bench.publisher.run())
        try:
            async with asyncio.timeout(60):
                yield bench
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def plain(count: int) -> tuple[Device, ...]:
    return tuple(Device(name=f"cpu{i}", attributes={"cpuID": Attribute(int_=i)}) for i in range(count))


async def test_devices_are_published_in_order_and_changed_in_place(
    oracle: Oracle, real: ClusterAccess
) -> None:
    async with publishing(oracle, real, "order") as bench:
        bench.publisher.publish(Offer((PoolOffer(plain(300)),)))
        await bench.publisher.published.wait()
        slices = await bench.slices()
        names = [d.name for s in slices for d in s.typed.spec.devices]  # type: ignore[attr-defined]
        assert names == [f"cpu{i}" for i in range(300)]
        assert bench.publisher.writer.writes["create"] == 3
        assert bench.publisher.status.generations == {"order-node": 1}
        assert bench.logged.dropped == []
        changed = (*plain(200)[:-1], Device(name="cpu199"), *plain(300)[200:])
        bench.publisher.publish(Offer((PoolOffer(changed),)))
        await bench.publisher.published.wait()
        assert bench.publisher.writer.writes["update"] == 1
        assert bench.publisher.status.generations == {"order-node": 1}
        assert [s.uid for s in await bench.slices()] == [s.uid for s in slices]


async def test_a_successor_writes_nothing(oracle: Oracle, real: ClusterAccess) -> None:
    """A slice with every field that this server's gates allow is read back unchanged."""
    capacity = Capacity(value=Quantity("1.5Gi"), request_policy=RequestPolicy(default=Quantity("0.5Gi")))
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
        assert bench.logged.dropped == []
        before = [(s.uid, s.resource_version) for s in await bench.slices()]
        assert len(before) == 2
    async with publishing(oracle, real, "same") as bench:
        bench.publisher.publish(offer)
        await bench.publisher.published.wait()
        assert [(s.uid, s.resource_version) for s in await bench.slices()] == before
        assert not bench.publisher.writer.writes


async def test_wiped_slices_come_back(oracle: Oracle, real: ClusterAccess) -> None:
    async with publishing(oracle, real, "wipe") as bench:
        bench.publisher.publish(Offer((PoolOffer(plain(300)),)))
        await bench.publisher.published.wait()
        old = await bench.slices()
        for item in old:
            await bench.client.delete(SLICES, item.name)
        while len(found := await bench.slices()) < 3 or {s.uid for s in found} & {s.uid for s in old}:
            await asyncio.sleep(0.05)
        await bench.publisher.published.wait()
        assert len(await bench.slices()) == 3


async def test_dropped_fields_are_reported_and_accepted(oracle: Oracle, real: ClusterAccess) -> None:
    """The gate of node-allocatable resources is off by default in every release up to 1.37."""
    mapping = {"cpu": {"mapping": {"deviceMultiplier": "1"}}}
    device = Device(name="d", node_allocatable_resources=mapping)
    async with publishing(oracle, real, "gate") as bench:
        bench.publisher.publish(Offer((PoolOffer((device,)),)))
        await bench.publisher.published.wait()
        assert [(d["field"], d["gate"], d["devices"]) for d in bench.logged.dropped] == [
            ("nodeAllocatableResources", "DRANodeAllocatableResources", "d")
        ]
        assert bench.publisher.writer.writes["create"] == 1
        assert bench.publisher.writer.writes["update"] == 0


async def test_a_rejection_is_reported_and_fixed_by_another_offer(
    oracle: Oracle, real: ClusterAccess
) -> None:
    """List attributes without their gate: the server clears them and then rejects the missing value."""
    listed = Device(name="d", attributes={"nodes": Attribute(ints=(0, 1))})
    async with publishing(oracle, real, "list") as bench:
        bench.publisher.publish(Offer((PoolOffer((listed,)),)))
        while bench.publisher.status.last_error is None:
            await asyncio.sleep(0.02)
        assert isinstance(bench.publisher.status.last_error, InvalidError)
        assert bench.logged.rejected == ["list-node"]
        assert await bench.slices() == []
        bench.publisher.publish(Offer((PoolOffer((Device(name="d"),)),)))
        await bench.publisher.published.wait()
        assert bench.logged.rejected == ["list-node"]
        assert bench.publisher.problem is None


async def test_a_restarted_server_is_followed_again(oracle: Oracle, real: ClusterAccess) -> None:
    """After a restart, changes made meanwhile are published, and forgotten versions are 410."""
    async with publishing(oracle, real, "away") as bench:
        bench.publisher.publish(Offer((PoolOffer(plain(10)),)))
        await bench.publisher.published.wait()
        (before,) = await bench.slices()
        # The test cluster starts programs only from the main thread, which is this one.
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
        with pytest.raises(GoneError):
            async for _ in bench.client.watch(SLICES, resource_version="1", seconds=5):
                pass


async def test_a_compacted_version_is_410(oracle: Oracle, real: ClusterAccess) -> None:
    """For a watch as an event in its stream, for the next page of a list as the answer's status."""
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "old.example.com", "nodeName": "old", "pool": pool, "devices": []}
    async with Client(real) as client:
        for _ in range(3):
            made = await client.create(SLICES, {"metadata": {"generateName": "o-"}, "spec": spec})
        page = await client.get_document(f"{SLICES.path()}?limit=1")
        await client.delete(SLICES, made.name)
    etcd = oracle.plane.children["etcd"].process.args
    assert isinstance(etcd, list)
    (url,) = [a.partition("=")[2] for a in etcd if a.startswith("--listen-client-urls=")]
    newest = json.loads(_post(f"{url}/v3/kv/range", {"key": "AA=="}))["header"]["revision"]
    _post(f"{url}/v3/kv/compaction", {"revision": newest, "physical": True})
    oracle.plane.restart("kube-apiserver")  # its cache would still know
    first = oracle.api.raw("GET", f"{SLICES.path()}?watch=1&resourceVersion=1&timeoutSeconds=5")
    event = json.loads(first.splitlines()[0])
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert event["object"]["reason"] == "Expired"
    with pytest.raises(ApiError) as caught:
        token = page["metadata"]["continue"]
        oracle.api.raw("GET", f"{SLICES.path()}?limit=1&continue={token}")
    assert caught.value.status == 410


def _post(url: str, body: object) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        content: bytes = answer.read()
        return content
