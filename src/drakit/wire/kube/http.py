"""HTTP/1.1 client over asyncio streams with connection reuse, time limits and size limits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import h11

from drakit.wire.kube.access.endpoint import Endpoint
from drakit.wire.kube.errors import ConnectionFailedError, ProtocolError

_READ_SIZE: Final = 64 * 1024
_LARGEST_HEAD: Final = 64 * 1024
_IDLE_CONNECTIONS: Final = 2
_IDLE_SECONDS: Final = 60.0  # kube-apiserver keeps idle connections longer than this
_IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})

Headers = tuple[tuple[str, str], ...]
MakeTls = Callable[[], Awaitable[ssl.SSLContext | None]]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Time and size limits."""

    connect_seconds: float = 10.0
    request_seconds: float = 30.0
    """From sending a request to the end of the response; for a stream, to its head."""
    body_bytes: int = 64 * 1024 * 1024
    """Largest response body."""
    line_bytes: int = 16 * 1024 * 1024
    """Largest watch event. etcd limits objects to 1.5 MiB; JSON may be a few times larger."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request."""

    method: str
    target: str
    headers: Headers = ()
    body: bytes = b""


class _Connection:
    """A socket and its HTTP state."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
        self._ended = False
        self.heard = False
        """Whether any byte of the current response has arrived."""
        self.idle_since = 0.0

    async def send(self, request: HttpRequest, host: str) -> None:
        self.heard = False
        headers = [("Host", host), *request.headers]
        if request.body or request.method not in ("GET", "DELETE"):
            headers.append(("Content-Length", str(len(request.body))))
        try:
            head = h11.Request(method=request.method, target=request.target, headers=headers)
            data = self._http.send(head) or b""
            if request.body:
                data += self._http.send(h11.Data(data=request.body)) or b""
            data += self._http.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise ProtocolError(f"{request.method} {request.target}: {error}") from error
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> Any:
        """The next h11 event of the response."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if self._ended:
                    raise ConnectionFailedError("the connection broke in the middle of a response") from error
                raise ProtocolError(f"the response is not valid HTTP/1.1: {error}") from error
            if event is not h11.NEED_DATA:
                return event
            data = await self._reader.read(_READ_SIZE)
            self._ended = not data
            if data:
                self.heard = True
            elif not self.heard:
                raise ConnectionFailedError("the server closed the connection without a response")
            self._http.receive_data(data)

    def next_cycle(self) -> bool:
        """Prepare for another request; returns whether the connection can be reused."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return not self._reader.at_eof()
        return False

    def alive(self, now: float) -> bool:
        """Whether an idle connection can be reused."""
        closing = self._reader.at_eof() or self._writer.is_closing()
        return not closing and now - self.idle_since < _IDLE_SECONDS

    def abort(self) -> None:
        self._writer.transport.abort()


class HttpResponse:
    """A response; the body can be read during the exchange."""

    def __init__(self, connection: _Connection, head: h11.Response, limits: HttpLimits) -> None:
        self._connection = connection
        self._limits = limits
        self.status: int = head.status_code
        self.headers: dict[str, str] = {
            name.decode("ascii", "replace"): value.decode("latin-1") for name, value in head.headers
        }
        self.complete = False

    async def chunk(self) -> bytes | None:
        """The next part of the body; ``None`` at its end."""
        if self.complete:
            return None
        event = await self._connection.receive()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            self.complete = True
            return None
        raise ProtocolError("the connection closed in the middle of a response")

    async def body(self) -> bytes:
        """The whole body; raises :class:`ProtocolError` when it is larger than the limit."""
        parts: list[bytes] = []
        size = 0
        while (part := await self.chunk()) is not None:
            size += len(part)
            if size > self._limits.body_bytes:
                raise ProtocolError(
                    f"the response has more than {self._limits.body_bytes} bytes: use smaller pages"
                )
            parts.append(part)
        return b"".join(parts)


class ConnectionPool:
    """Connections to one server."""

    def __init__(
        self,
        endpoint: Endpoint,
        make_tls: MakeTls,
        *,
        server_name: str | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._make_tls = make_tls
        self._server_name = server_name
        self.limits = limits or HttpLimits()
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    @contextlib.asynccontextmanager
    async def exchange(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        """Send *request* and yield the response when its head has arrived.

        An idempotent request is retried once if a reused connection turns out to be dead; a POST or
        PATCH is not, since the server may have executed it. Raises :class:`ConnectionFailedError` or
        :class:`ProtocolError`.
        """
        connection, response = await self._begin(request)
        self._busy.add(connection)
        reusable = False
        try:
            with _network_errors(self._endpoint):
                yield response
            reusable = response.complete and connection.next_cycle()
        finally:
            self._busy.discard(connection)
            if reusable and not self._closed and len(self._idle) < _IDLE_CONNECTIONS:
                connection.idle_since = asyncio.get_running_loop().time()
                self._idle.append(connection)
            else:
                connection.abort()

    async def _begin(self, request: HttpRequest) -> tuple[_Connection, HttpResponse]:
        kept = self._take_idle()
        if kept is not None:
            try:
                return kept, await self._head(kept, request)
            except ConnectionFailedError:
                if kept.heard or request.method not in _IDEMPOTENT:
                    raise
        connection = await self._connect()
        return connection, await self._head(connection, request)

    async def _head(self, connection: _Connection, request: HttpRequest) -> HttpResponse:
        """Send and wait for the head of the response; aborts the connection on failure."""
        try:
            with _network_errors(self._endpoint):
                async with asyncio.timeout(self.limits.request_seconds):
                    await connection.send(request, self._endpoint.authority)
                    while not isinstance(event := await connection.receive(), h11.Response):
                        if not isinstance(event, h11.InformationalResponse):
                            raise ProtocolError("the response has no head")
                    return HttpResponse(connection, event, self.limits)
        except BaseException:
            connection.abort()
            raise

    def _take_idle(self) -> _Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.alive(now):
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        self._check_open()
        endpoint = self._endpoint
        tls = await self._make_tls() if endpoint.secure else None
        with _network_errors(endpoint):
            async with asyncio.timeout(self.limits.connect_seconds):
                reader, writer = await asyncio.open_connection(
                    endpoint.host,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=(self._server_name or endpoint.host) if tls else None,
                )
        try:
            self._check_open()  # it may have been closed meanwhile
        except ConnectionFailedError:
            writer.transport.abort()
            raise
        _keep_alive(writer.get_extra_info("socket"))
        return _Connection(reader, writer)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionFailedError("this client is closed")

    def drop_idle(self) -> None:
        """Close idle connections, for example after a change of the client certificate."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def close(self) -> None:
        """Close all connections; exchanges in flight fail with :class:`ConnectionFailedError`."""
        self._closed = True
        self.drop_idle()
        for connection in self._busy:
            connection.abort()


def _keep_alive(sock: socket.socket) -> None:
    """Detect a dead peer within a minute, also while a watch has no events."""
    with contextlib.suppress(OSError):  # not a TCP socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


@contextlib.contextmanager
def _network_errors(endpoint: Endpoint) -> Any:
    """Convert socket and TLS errors, and add the address."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise ConnectionFailedError(
            f"{endpoint}: the server's certificate is not trusted: {error.verify_message}. "
            "Check certificate-authority and tls-server-name of the cluster"
        ) from error
    except TimeoutError as error:
        raise ConnectionFailedError(f"{endpoint}: no response in time") from error
    except (OSError, EOFError) as error:
        raise ConnectionFailedError(f"{endpoint}: {str(error) or type(error).__name__}") from error
