from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import drakit.wire.kube as kube
from drakit.testing.apiserver import FakeApiServer, Fault, Trouble
from drakit.testing.stream_server import serving_local
from drakit.wire.kube import (
    CLASSES,
    NODES,
    SLICES,
    TAINT_RULES,
    Backoff,
    Client,
    ClusterAccess,
    ConnectionFailedError,
    DecodeError,
    Endpoint,
    ForbiddenError,
    GoneError,
    HttpLimits,
    ProtocolError,
    ServerBusyError,
    ServerError,
    UnauthorizedError,
    read_all,
)
from drakit.wire.kube.access.credentials import Certificate, Credential, TokenFile
from tests.wire.kube.scenarios import selection_of, slice_of


class Naps:
    """A sleep that only writes down."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


async def test_a_rotated_token_is_noticed_by_the_rejection(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    async with FakeApiServer(tokens={"old"}) as server:
        server.add("nodes", {"metadata": {"name": "n"}})
        cluster = ClusterAccess(Endpoint.parse(server.url), TokenFile(str(token)))
        async with Client(cluster) as client:
            await client.get(NODES, "n")
            assert server.tokens is not None
            server.tokens.clear()
            server.tokens.add("new")
            token.write_text("new")
            assert (await client.get(NODES, "n")).name == "n"
        assert [seen.headers["authorization"] for seen in server.requests] == [
            "Bearer old",
            "Bearer old",
            "Bearer new",
        ]


async def test_a_rejected_token_is_tried_twice_and_no_more() -> None:
    async with FakeApiServer(tokens={"good"}) as server:
        async with Client(server.cluster("bad")) as client:
            with pytest.raises(UnauthorizedError, match="token"):
                await client.get(NODES, "n")
        assert len(server.requests) == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_short_retry_delays_are_waited_for(status: int) -> None:
    naps = Naps()
    async with FakeApiServer() as server, Client(server.cluster(), sleep=naps) as client:
        server.add("nodes", {"metadata": {"name": "n"}})
        server.plan(Fault(Trouble.ANSWER, status=status, retry_after=3), times=2)
        assert (await client.get(NODES, "n")).name == "n"
    assert naps.taken == [3.0, 3.0]


async def test_the_number_of_retries_is_limited() -> None:
    naps = Naps()
    async with FakeApiServer() as server, Client(server.cluster(), sleep=naps) as client:
        server.plan(Fault(Trouble.ANSWER, status=429, retry_after=1), times=100)
        with pytest.raises(ServerBusyError) as caught:
            await client.get(NODES, "n")
        assert caught.value.retry_after == 1
        assert len(server.requests) == 4


@pytest.mark.parametrize(("asked", "told"), [(None, None), (60, 60.0)])
async def test_long_retry_delays_are_raised(asked: int | None, told: float | None) -> None:
    naps = Naps()
    async with FakeApiServer() as server, Client(server.cluster(), sleep=naps) as client:
        server.plan(Fault(Trouble.ANSWER, status=503, retry_after=asked))
        with pytest.raises(ServerBusyError) as caught:
            await client.get(NODES, "n")
    assert caught.value.retry_after == told
    assert naps.taken == []


async def test_server_errors_are_not_retried() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        server.plan(Fault(Trouble.ANSWER, status=500), times=9)
        with pytest.raises(ServerError):
            await client.get(NODES, "n")
        assert len(server.requests) == 1


async def test_forbidden_names_the_missing_rule() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        server.forbidden.add(("list", "resourceslices"))
        with pytest.raises(ForbiddenError, match="verb 'list' on resource 'resourceslices'"):
            await client.list(SLICES)


async def test_a_malformed_object_does_not_fail_a_list() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        server.add("deviceclasses", {"metadata": {"name": "good"}, "spec": {}})
        server.add("deviceclasses", {"metadata": {"name": "odd"}, "spec": {"selectors": 5}})
        items = {item.name: item for item in (await client.list(CLASSES)).items}
        assert items["good"].typed.metadata.name == "good"
        with pytest.raises(DecodeError, match=r"DeviceClass odd.*selectors"):
            _ = items["odd"].typed


def test_a_document_without_end_is_an_error_of_ours() -> None:
    deep: dict[str, object] = {"metadata": {"name": "deep"}}
    spec: dict[str, object] = {}
    deep["spec"] = spec
    for _ in range(5000):
        inner: dict[str, object] = {}
        spec["x"] = inner
        spec = inner
    with pytest.raises(DecodeError, match="DeviceClass deep"):
        _ = kube.Object(CLASSES, deep).typed


async def test_pages_that_expire_are_read_again_in_one_piece() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        for i in range(5):
            await client.create(SLICES, slice_of("w", f"d{i}"))

        def forget(seen: object) -> bool:
            if getattr(seen, "query", {}).get("continue"):
                server.add("nodes", {"metadata": {"generateName": "n-"}})
                server.compact()
            return False

        server.plan(Fault(Trouble.SLOW), times=1, when=forget)
        listing = await client.list(SLICES, selection_of("w"), page=2)
        assert len(listing.items) == 5
        assert "limit" not in server.requests[-1].query


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", ProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", ProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{]}", ProtocolError),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", kube.ApiError),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 9\r\n\r\n<h1>no<h1", ServerError),
        (b"garbage\r\n\r\n", ProtocolError),
        (b"", ConnectionFailedError),
    ],
)
async def test_invalid_responses(data: bytes, error: type[kube.KubeError]) -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        server.plan(Fault(Trouble.GARBAGE, data=data))
        with pytest.raises(error):
            await client.get(NODES, "n")


async def test_a_proxy_message_is_shown() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        data = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 8\r\n\r\nupstream"
        server.plan(Fault(Trouble.GARBAGE, data=data))
        with pytest.raises(ServerError, match="upstream"):
            await client.get(NODES, "n")


async def test_a_late_response_times_out() -> None:
    async with (
        FakeApiServer() as server,
        Client(server.cluster(), limits=HttpLimits(request_seconds=0.05)) as client,
    ):
        server.plan(Fault(Trouble.SLOW, seconds=30))
        with pytest.raises(ConnectionFailedError, match="in time"):
            await client.get(NODES, "n")


async def test_a_watch_that_exceeds_its_timeout_is_ended() -> None:
    """A server that keeps a stream open and silent for ever is not believed for ever."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()
        ended.set()

    ended = asyncio.Event()
    async with serving_local(handle) as (_, port):
        cluster = ClusterAccess.plain(f"http://127.0.0.1:{port}")
        async with Client(cluster, limits=HttpLimits(request_seconds=0.05)) as client:
            with pytest.raises(ConnectionFailedError, match="in time"):
                async for _ in client.watch(SLICES, resource_version="1", seconds=0):
                    pass
        await ended.wait()


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_compacted_version_is_gone(as_event: bool) -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        server.gone_as_event = as_event
        version = (await client.list(SLICES)).resource_version
        server.add("nodes", {"metadata": {"name": "n"}})
        server.compact()
        with pytest.raises(GoneError):
            async for _ in client.watch(SLICES, resource_version=version):
                pass


async def test_an_abandoned_watch_frees_its_connection() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        stream = client.watch(SLICES, resource_version="1")
        server.add("resourceslices", kube.Object(SLICES, {}).raw | _raw("w"))
        async for _ in stream:
            break
        await stream.aclose()
        while server.watching:
            await asyncio.sleep(0.005)


def _raw(word: str) -> dict[str, object]:
    from drakit.core.objects import to_builtins

    raw: dict[str, object] = to_builtins(slice_of(word, "a"))
    return raw


async def test_the_user_agent_is_sent() -> None:
    async with FakeApiServer() as server, Client(server.cluster(), component="dra.cpu") as client:
        await client.get_document("/version")
        assert server.requests[0].headers["user-agent"].startswith("dra.cpu/")


@pytest.mark.parametrize(("certificates", "connections"), [("aaa", 1), ("aab", 2), ("abc", 3)])
async def test_certificates_that_change_drop_kept_connections(certificates: str, connections: int) -> None:
    class Changing:
        def __init__(self) -> None:
            self.certificates = iter(certificates)

        async def current(self) -> Credential:
            return Credential(None, Certificate(next(self.certificates).encode(), b"k"))

        def rejected(self) -> None: ...

    async with FakeApiServer() as server:
        async with Client(ClusterAccess(Endpoint.parse(server.url), Changing())) as client:
            for _ in certificates:
                await client.get_document("/version")
        assert server.connections == connections


def test_reading_several_kinds_without_a_loop() -> None:
    server = FakeApiServer()
    server.add("nodes", {"metadata": {"name": "n"}})
    server.forbidden.add(("list", "devicetaintrules"))
    with server.in_thread():
        found = read_all(server.cluster(), NODES, CLASSES, TAINT_RULES)
        assert [item.name for item in found["nodes"].objects] == ["n"]
        assert found["deviceclasses"].objects == ()
        assert found["deviceclasses"].error is None
        assert isinstance(found["devicetaintrules"].error, ForbiddenError)


def test_backoff_grows_is_spread_and_starts_over() -> None:
    backoff = Backoff(1, 8, randomly=lambda: 0.0)
    assert [backoff.next() for _ in range(5)] == [1, 2, 4, 8, 8]
    backoff.reset()
    assert backoff.next() == 1
    assert backoff.next(at_least=30) == 30
    halved = Backoff(1, 8, randomly=lambda: 1.0)
    assert [halved.next() for _ in range(3)] == [0.5, 1, 2]
    assert halved.next(at_least=30) == 33


def test_exports_are_sorted_and_there() -> None:
    # Constants, then classes, then functions: the order ruff keeps.
    assert len(set(kube.__all__)) == len(kube.__all__)
    for name in kube.__all__:
        assert getattr(kube, name) is not None
