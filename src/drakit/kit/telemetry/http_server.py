"""HTTP server for ``/metrics``, ``/livez`` and ``/readyz``, safe to expose to untrusted clients.

*Live* means that the event loop runs. No probe should restart the driver because of it: anyone who
can open connections to the port could make it fail. A hanging process ends itself
(:mod:`drakit.kit.telemetry.watchdog`). *Ready* means that claims can be prepared and enforced; the body
lists each condition. ``/healthz`` is the older name of ``/readyz``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import h11

from drakit.core.log import get_logger

log = get_logger(__name__)
_LARGEST_REQUEST: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Number of connections, and seconds since a client connected."""

    connections: int = 64
    first_byte: float = 2.0
    request: float = 5.0
    """Until the request is complete."""
    answer: float = 10.0
    """Until the client has read the response."""


@dataclass(frozen=True, slots=True)
class Page:
    """A response."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[], Page]


def conditions_page(conditions: Mapping[str, str | None]) -> Page:
    """A page with each condition, ``ok`` or its problem; status 503 if there is any problem."""
    rows = [
        f"[{'+' if problem is None else '-'}] {name}: {problem or 'ok'}"
        for name, problem in conditions.items()
    ]
    good = all(problem is None for problem in conditions.values())
    return Page(200 if good else 503, ("\n".join(rows) + "\n").encode())


@dataclass(eq=False, slots=True)
class _Client:
    """One client connection, until its socket is closed."""

    writer: asyncio.StreamWriter
    requested: bool = False
    """Whether its request is complete."""


class WebServer:
    """Serves *routes* (path to function) over HTTP/1.1; GET and HEAD only.

    *dropped* is called with the reason (``too-many`` or ``too-slow``) for every connection that is
    closed because of *limits*.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - immutable
        dropped: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._routes = dict(routes)
        self._limits = limits
        self._dropped = dropped
        self._server: asyncio.Server | None = None
        self._open: dict[_Client, None] = {}  # in the order of arrival
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str | None, port: int) -> int:
        """Listen; returns the port (useful when *port* is 0). Raises ``OSError`` if it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is None:
            return
        self._server.close()
        for connection in self._open:
            connection.writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # From Python 3.12 on, a connection accepted just now may delay this.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = _Client(writer)
        self._make_room()
        self._open[connection] = None
        try:
            async with asyncio.timeout(self._limits.answer):
                await self._answer(reader, connection)
                # The connection counts until the client has read everything.
                writer.close()
                await writer.wait_closed()
        except TimeoutError:
            self._dropped("too-slow")
        except (OSError, h11.RemoteProtocolError):
            pass  # the client disconnected, or did not send HTTP
        finally:
            self._tasks.discard(task)
            self._open.pop(connection, None)
            writer.transport.abort()

    def _make_room(self) -> None:
        """Close the oldest connections with incomplete requests until one more fits.

        If all requests are complete, the oldest client does not read its response.
        """
        while len(self._open) >= self._limits.connections:
            waiting = (each for each in self._open if not each.requested)
            oldest = next(waiting, None) or next(iter(self._open))
            del self._open[oldest]
            oldest.writer.transport.abort()
            self._dropped("too-many")

    async def _answer(self, reader: asyncio.StreamReader, client: _Client) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST_REQUEST)
        async with asyncio.timeout(self._limits.request):
            request = await self._request(reader, connection)
        client.requested = True
        if request is None:
            return
        page = self._page(request)
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(page.body))),
            ("Connection", "close"),
        ]
        response = h11.Response(status_code=page.status, headers=headers)
        client.writer.write(connection.send(response) or b"")
        if request.method != b"HEAD":
            client.writer.write(connection.send(h11.Data(data=page.body)) or b"")

    async def _request(self, reader: asyncio.StreamReader, connection: h11.Connection) -> h11.Request | None:
        """The complete request; ``None`` if the client disconnected before."""
        async with asyncio.timeout(self._limits.first_byte):
            connection.receive_data(await reader.read(4096))
        request: h11.Request | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(4096))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                return request
            elif isinstance(event, h11.ConnectionClosed):
                return None

    def _page(self, request: h11.Request) -> Page:
        path = request.target.split(b"?", 1)[0].decode("ascii", "replace")
        route = self._routes.get(path)
        if route is None:
            known = ", ".join(sorted(self._routes))
            return Page(404, f"not found; paths: {known}\n".encode())
        if request.method not in (b"GET", b"HEAD"):
            return Page(405, b"only GET and HEAD\n")
        try:
            return route()
        except Exception:
            log.exception("cannot serve request", path=path)
            return Page(500, b"internal error; see the log\n")
