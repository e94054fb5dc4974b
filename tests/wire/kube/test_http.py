"""The HTTP layer against servers that speak badly, late, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from drakit.testing.stream_server import serving_local
from drakit.wire.kube import (
    Client,
    ClusterAccess,
    ConnectionFailedError,
    HttpLimits,
    KubeError,
    ProtocolError,
)
from drakit.wire.kube.access.endpoint import Endpoint
from drakit.wire.kube.http import ConnectionPool, HttpRequest

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections = 0
        self.url = ""
        self.pools: list[ConnectionPool] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self.handler(reader, writer)


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    server = Server(handler)
    async with serving_local(server.accept) as (_, port):
        server.url = f"http://127.0.0.1:{port}"
        try:
            yield server
        finally:
            for pool in server.pools:
                pool.close()


async def head(reader: asyncio.StreamReader) -> bytes:
    data = await reader.readuntil(b"\r\n\r\n")
    for line in data.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            await reader.readexactly(int(value))
    return data


def saying(*answers: bytes) -> Handler:
    """Answer each request on a connection with the next of *answers*, then hang up."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await head(reader)
            writer.write(answer)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    return handle


def pool_to(server: Server, **limits: float) -> ConnectionPool:
    """A pool that is closed with the server."""

    async def no_tls() -> None:
        return None

    pool = ConnectionPool(Endpoint.parse(server.url), no_tls, limits=HttpLimits(**limits))  # type: ignore[arg-type]
    server.pools.append(pool)
    return pool


async def fetch(pool: ConnectionPool, method: str = "GET") -> tuple[int, bytes]:
    async with pool.exchange(HttpRequest(method, "/")) as response:
        return response.status, await response.body()


async def test_a_connection_is_used_again() -> None:
    async with serving(saying(OK, OK, OK)) as server:
        pool = pool_to(server)
        for _ in range(3):
            assert await fetch(pool) == (200, b"{}")
        assert server.connections == 1


async def test_chunked_and_informational_responses() -> None:
    chunked = (
        b"HTTP/1.1 103 Early Hints\r\n\r\n"
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{"\r\n5\r\na":1}\r\n0\r\n\r\n'
    )
    async with serving(saying(chunked, OK)) as server:
        pool = pool_to(server)
        assert await fetch(pool) == (200, b'{"a":1}')
        assert await fetch(pool) == (200, b"{}")
        assert server.connections == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_idempotent_requests_are_retried_on_a_dead_connection(method: str) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(OK)
        await head(reader)  # takes the second request and dies without a word

    async with serving(handle) as server:
        pool = pool_to(server)
        assert await fetch(pool) == (200, b"{}")
        assert await fetch(pool, method) == (200, b"{}")
        assert server.connections == 2


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_requests_that_are_not_idempotent_are_not_retried(method: str) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(OK)
        await head(reader)

    async with serving(handle) as server:
        pool = pool_to(server)
        assert await fetch(pool) == (200, b"{}")
        with pytest.raises(ConnectionFailedError):
            await fetch(pool, method)
        assert server.connections == 1


async def test_a_half_read_response_closes_the_connection() -> None:
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    async with serving(saying(long, OK)) as server:
        pool = pool_to(server)
        async with pool.exchange(HttpRequest("GET", "/")) as response:
            assert await response.chunk()
        assert await fetch(pool) == (200, b"x" * 100_000)
        assert server.connections == 2


async def test_connection_close_is_obeyed() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with serving(saying(closing)) as server:
        pool = pool_to(server)
        await fetch(pool)
        await fetch(pool)
        assert server.connections == 2


async def test_bodies_are_bounded() -> None:
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001
    async with serving(saying(body)) as server:
        pool = pool_to(server, body_bytes=1000)
        with pytest.raises(ProtocolError, match="more than 1000 bytes"):
            await fetch(pool)


async def test_heads_are_bounded() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-Y: z\r\n" * 100_000
    async with serving(saying(endless)) as server:
        pool = pool_to(server)
        with pytest.raises(KubeError):
            await fetch(pool)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
async def test_truncated_responses(answer: bytes) -> None:
    async with serving(saying(answer)) as server:
        pool = pool_to(server)
        with pytest.raises(ConnectionFailedError):
            await fetch(pool)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\r\n\r\n",
    ],
)
async def test_responses_that_are_not_http(answer: bytes) -> None:
    async with serving(saying(answer)) as server:
        pool = pool_to(server)
        with pytest.raises(ProtocolError):
            await fetch(pool)


async def test_a_silent_server_times_out() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(mute) as server:
        pool = pool_to(server, request_seconds=0.05)
        with pytest.raises(ConnectionFailedError, match="no response in time"):
            await fetch(pool)


async def test_an_unreachable_server() -> None:
    async with serving(saying()) as server:
        pass
    with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1"):
        await fetch(pool_to(server))


async def test_closing_ends_requests_in_flight() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        await reader.read()

    async with serving(mute) as server:
        pool = pool_to(server)
        async with pool.exchange(HttpRequest("GET", "/")) as response:
            pool.close()
            with pytest.raises((ConnectionFailedError, OSError)):
                await response.body()
        with pytest.raises(ConnectionFailedError, match="closed"):
            await fetch(pool)


async def test_a_request_cannot_be_split_by_its_target() -> None:
    async with serving(saying(OK)) as server:
        pool = pool_to(server)
        with pytest.raises(ProtocolError):
            async with pool.exchange(HttpRequest("GET", "/ HTTP/1.1\r\nX: y")):
                pass


async def test_fuzz_of_responses(scale: int) -> None:
    """Damaged answers over a real socket: a result or an error of ours, never anything else."""
    rng = random.Random(7)
    good = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'1d\r\n{"metadata":{"name":"x"},"a":\r\n3\r\n1}\n\r\n0\r\n\r\n'
    )
    outcomes: dict[str, int] = {}

    async def damaged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        data = bytearray(good)
        for _ in range(rng.randrange(4)):
            place = rng.randrange(len(data))
            data[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        writer.write(bytes(data))
        await writer.drain()
        writer.close()

    async with (
        serving(damaged) as server,
        Client(ClusterAccess.plain(server.url), limits=HttpLimits(request_seconds=60)) as client,
    ):
        for _ in range(400 * scale):
            try:
                await client.get_document("/version")
                outcome = "document"
            except KubeError as error:
                outcome = type(error).__name__
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes["document"] > 10
    assert outcomes["ProtocolError"] > 10
