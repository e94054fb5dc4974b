"""Behavior of the fake API server that neither scenarios nor publisher tests cover."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from typing import Any

import pytest

from drakit.core.objects import to_builtins
from drakit.testing.apiserver import FakeApiServer, Fault, Trouble
from drakit.testing.stream_server import serving_local
from drakit.wire.kube import (
    ACCESS_REVIEWS,
    CLAIMS,
    NODES,
    SLICES,
    TAINT_RULES,
    BadRequestError,
    Client,
    ConnectionFailedError,
    InvalidError,
    NotFoundError,
    Resource,
    ServerError,
)
from tests.wire.kube.scenarios import slice_of


def rich_slice() -> dict[str, Any]:
    raw: dict[str, Any] = to_builtins(slice_of("w", "d"))
    raw["spec"]["devices"] = [
        {
            "name": "d",
            "taints": [{"key": "t", "effect": "NoSchedule"}],
            "allowMultipleAllocations": True,
            "capacity": {"c": {"value": "1", "requestPolicy": {"default": "1"}}},
        }
    ]
    return raw


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        ("1.34", {"name", "capacity"}),
        ("1.35", {"name", "capacity"}),
        ("1.36", {"name", "capacity", "taints", "allowMultipleAllocations"}),
        ("1.37", {"name", "capacity", "taints", "allowMultipleAllocations"}),
    ],
)
def test_gates_are_those_of_the_release(version: str, kept: set[str]) -> None:
    made = FakeApiServer(version=version).add("resourceslices", rich_slice())
    assert set(made["spec"]["devices"][0]) == kept


def test_gates_can_be_set_and_fields_in_use_stay() -> None:
    server = FakeApiServer(version="1.37", gates={"DRADeviceTaints": False})
    made = server.add("resourceslices", rich_slice())
    assert "taints" not in made["spec"]["devices"][0]
    server = FakeApiServer(version="1.37")
    name = server.add("resourceslices", rich_slice())["metadata"]["name"]
    server.table.gates["DRADeviceTaints"] = False
    changed = server.change("resourceslices", name, {"metadata": {"labels": {"a": "b"}}})
    assert "taints" in changed["spec"]["devices"][0]


@pytest.mark.parametrize(("version", "limit"), [("1.34", 128), ("1.35", 64), ("1.37", 64)])
async def test_the_smaller_limit_came_with_a_release(version: str, limit: int) -> None:
    server = FakeApiServer(version=version, gates={"DRADeviceTaints": True})
    async with server, Client(server.cluster()) as client:
        raw = to_builtins(slice_of("w"))
        taint = [{"key": "t", "effect": "NoSchedule"}]
        raw["spec"]["devices"] = [{"name": f"d{i}", "taints": taint} for i in range(limit)]
        await client.create(SLICES, raw)
        raw["spec"]["devices"].append({"name": "more"})
        with pytest.raises(InvalidError, match=f"at most {limit}"):
            await client.create(SLICES, raw)


async def test_pool_selector_came_with_1_37() -> None:
    from drakit.wire.kube import Selection

    for version, known in (("1.36", False), ("1.37", True)):
        async with FakeApiServer(version=version) as server, Client(server.cluster()) as client:
            if known:
                await client.list(SLICES, Selection(fields="spec.pool.name=x"))
            else:
                with pytest.raises(BadRequestError):
                    await client.list(SLICES, Selection(fields="spec.pool.name=x"))


async def test_finalizers_hold_an_object() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        server.add("nodes", {"metadata": {"name": "n", "finalizers": ["x/y"]}})
        await client.delete(NODES, "n")
        held = await client.get(NODES, "n")
        assert held.deleting
        document = {**held.raw, "metadata": {**held.raw["metadata"], "finalizers": []}}
        await client.update(NODES, document, name="n")
        with pytest.raises(NotFoundError):
            await client.get(NODES, "n")


async def test_a_collection_is_deleted_as_a_kubelet_does() -> None:
    async with FakeApiServer() as server:
        for word in ("a", "a", "b"):
            server.add("resourceslices", to_builtins(slice_of(word, "d")))
        path = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Da-node"
        request = urllib.request.Request(server.url + path, method="DELETE")

        def send() -> None:
            with urllib.request.urlopen(request) as answer:
                answer.read()

        await asyncio.to_thread(send)
        assert [s["spec"]["nodeName"] for s in server.objects("resourceslices")] == ["b-node"]


async def test_access_reviews_know_what_is_forbidden() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        server.forbidden.add(("update", "resourceslices"))
        for verb, allowed in (("update", False), ("get", True)):
            asked = {"verb": verb, "resource": "resourceslices", "group": "resource.k8s.io"}
            answer = await client.create(ACCESS_REVIEWS, {"spec": {"resourceAttributes": asked}})
            assert answer.raw["status"]["allowed"] is allowed


async def test_unserved_resources_are_not_found() -> None:
    unknown: Resource[dict[str, Any]] = Resource("x.io", "v1", "things", "Thing", dict)
    old = Resource("resource.k8s.io", "v1beta1", "resourceclaims", "ResourceClaim", CLAIMS.type)
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        for resource in (unknown, old):
            with pytest.raises(NotFoundError, match="could not find the requested resource"):
                await client.list(resource)


@pytest.mark.parametrize(("version", "served"), [("1.36", False), ("1.37", True)])
async def test_taint_rules_came_with_1_37(version: str, served: bool) -> None:
    async with FakeApiServer(version=version) as server, Client(server.cluster()) as client:
        if served:
            assert (await client.list(TAINT_RULES)).items == ()
        else:
            with pytest.raises(NotFoundError, match="does not know this kind"):
                await client.list(TAINT_RULES)


async def test_faults_happen_as_often_as_planned_and_where() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        server.add("nodes", {"metadata": {"name": "n"}})
        server.plan(Fault(Trouble.ANSWER, status=500), times=2, when=lambda seen: seen.name == "n")
        await client.list(NODES)
        for _ in range(2):
            with pytest.raises(ServerError, match="injected"):
                await client.get(NODES, "n")
        assert (await client.get(NODES, "n")).name == "n"


async def test_a_connection_closed_after_execution_and_one_closed_before() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        server.plan(Fault(Trouble.CUT_BEFORE))
        with pytest.raises(ConnectionFailedError):
            await client.create(NODES, {"metadata": {"name": "a"}})
        server.plan(Fault(Trouble.CUT_AFTER))
        with pytest.raises(ConnectionFailedError):
            await client.create(NODES, {"metadata": {"name": "b"}})
        assert [n["metadata"]["name"] for n in server.objects("nodes")] == ["b"]


async def test_it_restarts_on_the_same_port_with_all_objects() -> None:
    server = FakeApiServer()
    async with server:
        server.add("nodes", {"metadata": {"name": "n"}})
        url = server.url
        await server.stop()
        await server.start()
        assert server.url == url
        async with Client(server.cluster()) as client:
            assert (await client.get(NODES, "n")).name == "n"


def test_in_a_thread_for_programs_without_a_loop() -> None:
    with FakeApiServer(tokens={"t"}).in_thread() as server:
        config = json.loads(server.kubeconfig())
        assert config["users"][0]["user"] == {"token": "t"}
        request = urllib.request.Request(f"{server.url}/version", headers={"Authorization": "Bearer t"})
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["minor"] == "37"


async def test_the_same_seed_gives_the_same_names() -> None:
    made = [
        FakeApiServer(seed=3).add("nodes", {"metadata": {"generateName": "n-"}})["metadata"] for _ in range(2)
    ]
    assert made[0] == made[1]


async def test_server_writes_are_not_delayed() -> None:
    told: list[int] = []

    async def converse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        told.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async with serving_local(converse) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read()
        writer.close()
        await writer.wait_closed()
    assert told == [1]
