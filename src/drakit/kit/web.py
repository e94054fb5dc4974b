"""``/metrics``, ``/livez``, ``/readyz``: a small HTTP server that tells the truth.

*Live* means the event loop turns; it is bad only when the process is stuck and should be killed.
*Ready* means claims can be prepared and enforced right now; its body says for each condition whether
it holds. ``/healthz`` is the older name of ``/readyz`` and kept for manifests that probe it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import h11

_LOG = logging.getLogger(__name__)
_PATIENCE = 10.0
_LARGEST_REQUEST = 64 << 10


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: status code, type and body."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[], Page]


def conditions_page(conditions: Mapping[str, str | None]) -> Page:
    """A page that says of each condition ``ok`` or what is missing; 503 if anything is."""
    rows = [
        f"[{'+' if problem is None else '-'}] {name}: {problem or 'ok'}"
        for name, problem in conditions.items()
    ]
    good = all(problem is None for problem in conditions.values())
    return Page(200 if good else 503, ("\n".join(rows) + "\n").encode())


class WebServer:
    """Serves *routes* (path to function) over HTTP/1.1; GET and HEAD only."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = dict(routes)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def start(self, host: str | None, port: int) -> int:
        """Listen; returns the port (useful when *port* is 0). Raises ``OSError`` if it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def connections(self) -> int:
        """How many clients are being served now."""
        return len(self._open)

    async def close(self) -> None:
        """Stop listening and drop open connections, also of clients that read nothing."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._open.values():
            writer.transport.abort()
        await asyncio.gather(*filter(None, self._open), return_exceptions=True)
        # One that was accepted only now may keep the server from ending, from Python 3.12 on.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._open[task] = writer
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._answer(reader, writer)
        except (TimeoutError, OSError, h11.RemoteProtocolError):
            pass  # a slow, gone or garbled client is its own problem
        finally:
            del self._open[task]
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST_REQUEST)
        request: h11.Request | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(4096))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                return
        assert request is not None
        page = self._page(request)
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(page.body))),
            ("Connection", "close"),
        ]
        response = h11.Response(status_code=page.status, headers=headers)
        writer.write(connection.send(response) or b"")
        if request.method != b"HEAD":
            writer.write(connection.send(h11.Data(data=page.body)) or b"")
        await writer.drain()

    def _page(self, request: h11.Request) -> Page:
        path = request.target.split(b"?", 1)[0].decode("ascii", "replace")
        route = self._routes.get(path)
        if route is None:
            known = ", ".join(sorted(self._routes))
            return Page(404, f"no such page; there are {known}\n".encode())
        if request.method not in (b"GET", b"HEAD"):
            return Page(405, b"only GET and HEAD\n")
        try:
            return route()
        except Exception:
            _LOG.exception("cannot answer %s", path)
            return Page(500, b"internal error; see the log\n")
