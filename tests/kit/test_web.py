"""The health pages tell the truth, and garbage from clients does no harm."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from drakit.kit.metrics import Gauge, Metrics
from drakit.kit.web import Page, WebServer, conditions_page


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
    assert b"405" in await fetch(
        port, b"POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    )
    assert b"500" in await fetch(port, b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await fetch(port, b"HEAD /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in head
    assert head.endswith(b"\r\n\r\n")


async def test_garbage_is_survived(port: int) -> None:
    for _ in range(50):
        await fetch(port, os.urandom(200) + b"\r\n\r\n")
    assert b"200" in await fetch(port, b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")


async def test_close_drops_a_client_that_says_nothing() -> None:
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


def test_a_missing_condition_is_named() -> None:
    page = conditions_page({"runtime": None, "slices": "not published yet"})
    assert page.status == 503
    assert page.body == b"[+] runtime: ok\n[-] slices: not published yet\n"
    assert conditions_page({"runtime": None}).status == 200


def test_metrics_are_named_after_the_driver_and_gauges_are_read_when_scraped() -> None:
    metrics = Metrics("dra.cpu")
    level = [1.0]
    metrics.add_source(
        lambda: [
            Gauge("cpus", "CPUs.", level[0], (("state", s), ("numa", "0"))) for s in ("a", "b")
        ]
    )
    metrics.contact("kubelet")
    metrics.prepares.labels("success").inc()
    first = metrics.exposition().decode()
    assert 'dra_cpu_prepare_claims_total{result="success"} 1.0' in first
    assert 'dra_cpu_cpus{numa="0",state="a"} 1.0' in first.replace(
        'state="a",numa="0"', 'numa="0",state="a"'
    )
    assert 'dra_cpu_seconds_since_contact{peer="kubelet"}' in first
    level[0] = 7.0
    assert "7.0" in metrics.exposition().decode()
