"""Bytes that are not the kubelet's: the plugin drops the connection and serves the next one."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from grpclib.client import UnaryUnaryMethod
from grpclib.exceptions import GRPCError

from drakit.wire.kubelet import KubeletPlugin
from drakit.wire.kubelet import dra_v1_pb2 as dra
from tests.wire.kubelet.conftest import Recorder, claim, client_of

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


class Raw:
    """A message of whatever bytes."""

    def __init__(self, data=b""):
        self.data = data

    def SerializeToString(self):
        return self.data


@pytest.fixture
async def plugin(root, caplog):
    caplog.set_level(logging.CRITICAL, logger="grpclib")
    plugin = KubeletPlugin("dra.example.com", Recorder(), kubelet_root=root)
    await plugin.start_service()
    yield plugin
    await plugin.close(grace=0)


async def test_random_bytes_and_cut_connections_do_not_hurt(plugin, scale):
    rng = random.Random(4)
    for number in range(100 * scale):
        reader, writer = await asyncio.open_unix_connection(plugin.service_path)
        data = rng.randbytes(rng.randrange(200))
        writer.write(PREFACE + data if number % 2 else data)
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()
    async with client_of(plugin.service_path) as client:
        assert await client.prepare(claim())


async def test_damaged_messages_fail_the_call_and_nothing_else(plugin, scale):
    rng = random.Random(5)
    whole = dra.NodePrepareResourcesRequest(
        claims=[dra.Claim(namespace="ns", name="name", uid=f"uid-{n}") for n in range(3)]
    ).SerializeToString()
    async with client_of(plugin.service_path) as client:
        method = UnaryUnaryMethod(
            client.channel,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            Raw,
            dra.NodePrepareResourcesResponse,
        )
        outcomes = set()
        for _ in range(200 * scale):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                answer = await method(Raw(bytes(data[: rng.randrange(len(data) + 1)])), timeout=45)
                outcomes.add("answered")
                assert all(uid or entry.error for uid, entry in answer.claims.items())
            except GRPCError:
                outcomes.add("refused")
        assert outcomes == {"answered", "refused"}
        assert set(await client.prepare(claim())) == {"uid-1"}
