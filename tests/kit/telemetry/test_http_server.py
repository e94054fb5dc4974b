"""The health pages tell the truth, and garbage from clients does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import AsyncIterator, Iterator
from typing import Self

import pytest

from drakit.kit.telemetry.http_server import ConnectionLimits, Page, WebServer, conditions_page
from drakit.kit.telemetry.metrics import Gauge, HostMetrics

READY = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
PATIENT = ConnectionLimits(first_byte=600, request=600, answer=600)
"""No test waits that long: whatever ends a connection under these limits was not a deadline."""


async def fetch(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        await hang_up(writer)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def broken() -> Page:
    raise RuntimeError("boom")


@pytest.fixture
async def port():
    server = WebServer({"/readyz": lambda: conditions_page({"a": None}), "/broken": broken})
    yield await server.start("127.0.0.1", 0)
    await server.close()


async def test_pages(port: int) -> None:
    assert b"200" in await fetch(port, b"GET /readyz?verbose HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await fetch(port, b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"404" in answer
    assert b"/readyz" in answer
    assert b"405" in await fetch(port, b"POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    assert b"500" in await fetch(port, b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await fetch(port, b"HEAD /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in head
    assert head.endswith(b"\r\n\r\n")


async def test_garbage_is_survived(port: int) -> None:
    for _ in range(50):
        await fetch(port, os.urandom(200) + b"\r\n\r\n")
    assert b"200" in await fetch(port, b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")


async def test_close_drops_an_idle_client() -> None:
    server = WebServer({})
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while not server.connections:
            await asyncio.sleep(0.001)
        async with asyncio.timeout(60):
            await server.close()
            assert await reader.read() == b""
    finally:
        await hang_up(writer)


@contextlib.asynccontextmanager
async def serving(
    limits: ConnectionLimits, body: bytes = b"ok"
) -> AsyncIterator[tuple[WebServer, int, list[str]]]:
    reasons: list[str] = []
    server = WebServer({"/readyz": lambda: Page(200, body)}, limits, reasons.append)
    port = await server.start("127.0.0.1", 0)
    try:
        async with asyncio.timeout(60):
            yield server, port, reasons
    finally:
        await server.close()


class Crowd:
    """Clients that connect and then do nothing; leaves with all of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.clients: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for _reader, writer in self.clients:
            await hang_up(writer)

    async def grow(self, count: int) -> None:
        for _ in range(count):
            self.clients.append(await asyncio.open_connection("127.0.0.1", self._port))

    async def ended(self, number: int) -> bool:
        """Waits until the server ended this client's connection."""
        with contextlib.suppress(ConnectionError):
            return await self.clients[number][0].read() == b""
        return True


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of the connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 0 else min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_a_thousand_idle_connections_do_not_block_others() -> None:
    async with serving(PATIENT) as (server, port, reasons), Crowd(port) as crowd:
        await crowd.grow(1000)
        assert b"200" in await fetch(port, READY)
        assert server.connections <= PATIENT.connections
        assert reasons == ["too-many"] * (1001 - PATIENT.connections)
        assert await crowd.ended(0), "the oldest went first"
        assert not crowd.clients[-1][0].at_eof(), "the newest is still there"


async def test_a_thousand_idle_connections_take_no_more_files_than_allowed() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    limits = ConnectionLimits(connections=10, first_byte=600, request=600, answer=600)
    async with serving(limits) as (server, port, reasons):
        before = open_files()
        async with Crowd(port) as crowd:
            await crowd.grow(200)
            while len(reasons) < 190:
                await asyncio.sleep(0.001)
            while open_files() > before + 200 + 10:  # closing happens in the loop's next turn
                await asyncio.sleep(0.001)
            assert server.connections == 10


async def test_a_client_with_a_complete_request_is_not_dropped_first() -> None:
    limits = ConnectionLimits(connections=2, first_byte=600, request=600, answer=600)
    async with serving(limits, body=b"x" * (32 << 20)) as (_server, port, _reasons):
        asked, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(READY)
        assert b"200" in await asked.readline()
        async with Crowd(port) as crowd:
            await crowd.grow(5)
            assert await crowd.ended(0)
            rest = await asked.read()
            assert rest.count(b"x") >= 32 << 20, "its answer was not cut off"
        await hang_up(writer)


async def test_clients_that_do_not_read_the_response_are_dropped_too() -> None:
    limits = ConnectionLimits(connections=2, first_byte=600, request=600, answer=600)
    body = b"x" * (32 << 20)
    async with serving(limits, body) as (server, port, reasons), Crowd(port) as crowd:
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            crowd.clients.append((reader, writer))
            writer.write(READY)
            assert b"200" in await reader.readline()
        assert server.connections <= 2
        assert reasons.count("too-many") >= 6


async def test_a_client_that_sends_nothing_is_dropped() -> None:
    limits = ConnectionLimits(first_byte=0.05, request=600, answer=600)
    async with serving(limits) as (_server, port, reasons), Crowd(port) as crowd:
        await crowd.grow(1)
        assert await crowd.ended(0)
        assert reasons == ["too-slow"]


async def test_a_client_that_sends_a_byte_at_a_time_is_dropped() -> None:
    limits = ConnectionLimits(first_byte=600, request=0.2, answer=600)
    async with serving(limits) as (_server, port, reasons):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.1\r\nx: ")
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"y")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await reader.read()
        assert reasons == ["too-slow"]
        await hang_up(writer)


async def test_a_client_that_reads_nothing_is_dropped() -> None:
    limits = ConnectionLimits(first_byte=600, request=600, answer=0.2)
    async with serving(limits, body=b"x" * (32 << 20)) as (server, port, reasons):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(READY)
        assert b"200" in await reader.readline()
        while server.connections:
            await asyncio.sleep(0.01)
        assert reasons == ["too-slow"]
        await hang_up(writer)


def test_the_limits_are_shorter_than_a_probe_waits() -> None:
    usual = ConnectionLimits()
    assert usual.connections <= 64
    assert usual.first_byte <= usual.request <= 5
    assert usual.answer <= 10


def test_a_missing_condition_is_named() -> None:
    page = conditions_page({"runtime": None, "slices": "not published yet"})
    assert page.status == 503
    assert page.body == b"[+] runtime: ok\n[-] slices: not published yet\n"
    assert conditions_page({"runtime": None}).status == 200


def test_metrics_are_named_after_the_driver_and_gauges_are_read_when_scraped() -> None:
    metrics = HostMetrics("dra.cpu")
    level = [1.0]
    metrics.add_source(
        lambda: [Gauge("cpus", "CPUs.", level[0], (("state", s), ("numa", "0"))) for s in ("a", "b")]
    )
    metrics.contact("kubelet")
    metrics.prepares.labels("success").inc()
    first = metrics.exposition().decode()
    assert 'dra_cpu_prepare_claims_total{result="success"} 1.0' in first
    assert 'dra_cpu_cpus{numa="0",state="a"} 1.0' in first.replace('state="a",numa="0"', 'numa="0",state="a"')
    assert 'dra_cpu_last_contact_age_seconds{peer="kubelet"}' in first
    level[0] = 7.0
    assert "7.0" in metrics.exposition().decode()
