"""Connections served by a function each, and nothing left of any when the server is closed.

asyncio's own server lets go of a connection between its acceptance and the first step of its
handler, and of the handlers altogether: a test that ends in such a moment leaves a socket open,
and another test is blamed for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Converse = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class StreamServer:
    """Serves every connection to *listener* with *converse*, in a task of its own.

    The connection is cut when *converse* ends, however it does; what the network does to it ends
    it without a word. *listener* belongs to the server from now on.
    """

    def __init__(
        self, listener: socket.socket, converse: Converse, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listener = listener
        self._converse = converse
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self.connections = 0
        """How many were made so far."""
        self._serving: dict[asyncio.Task[None], socket.socket] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def disconnect(self) -> None:
        """Cut every connection; new ones are taken."""
        for writer in self._writers:
            writer.transport.abort()

    def stop_listening(self) -> None:
        """Take no new connections; those there are go on."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def close(self) -> None:
        """Stop listening, cut every connection, and wait until all handlers have ended."""
        self.stop_listening()
        self.disconnect()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0)  # transports close one turn of the loop after they are told to

    # Without await: whoever is cancelled while accepting would lose what was accepted just then.
    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = self._listener.accept()
            self.connections += 1
            task = self._loop.create_task(self._serve(connection))
            self._serving[task] = connection
            task.add_done_callback(self._ended)

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            if connection.family != socket.AF_UNIX:
                # As real servers do. asyncio does it only where a socket names its protocol, and
                # those of `socket.create_server` name none. Without it a second write waits for
                # the first one's ACK, which a client with nothing to send delays by 40 ms.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            self._writers.add(writer)
            try:
                await self._converse(reader, writer)
            finally:
                self._writers.discard(writer)
                transport.abort()

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._serving.pop(task)
        if task.cancelled():
            connection.close()  # also when it was cancelled before its first step
        elif problem := task.exception():
            self._loop.call_exception_handler(
                {"message": "a connection's handler failed", "exception": problem, "task": task}
            )


@contextlib.asynccontextmanager
async def serving_unix(path: str, converse: Converse) -> AsyncIterator[StreamServer]:
    """Serve the unix socket *path*, which is made and removed, with *converse*."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    server = StreamServer(listener, converse)
    try:
        yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def serving_local(converse: Converse) -> AsyncIterator[tuple[StreamServer, int]]:
    """Serve a free port of this machine with *converse*; yields the server and the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = StreamServer(listener, converse)
    try:
        yield server, listener.getsockname()[1]
    finally:
        await server.close()
