"""Socket server that leaves no connection or handler behind when closed.

asyncio's server loses a connection between its acceptance and the first step of its handler, and does
not wait for handlers: a test that ends at that moment leaves a socket open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Converse = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class StreamServer:
    """Serves every connection to *listener* with *converse*, each in a task.

    The connection is closed when *converse* ends; network errors are ignored. The server owns
    *listener*.
    """

    def __init__(
        self, listener: socket.socket, converse: Converse, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listener = listener
        self._converse = converse
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self.connections = 0
        """Connections accepted so far."""
        self._serving: dict[asyncio.Task[None], socket.socket] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def disconnect(self) -> None:
        """Close all connections; new ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()

    def stop_listening(self) -> None:
        """Accept no new connections; existing ones continue."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def close(self) -> None:
        """Stop listening, close all connections and wait for all handlers."""
        self.stop_listening()
        self.disconnect()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next iteration of the loop

    # Without await: a cancellation would lose the accepted connection.
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
                # As real servers do; asyncio does not for sockets of `socket.create_server`. Without it
                # a second write waits for the first one's ACK, which may be delayed by 40 ms.
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
        elif error := task.exception():
            self._loop.call_exception_handler(
                {"message": "a connection's handler failed", "exception": error, "task": task}
            )


@contextlib.asynccontextmanager
async def serving_unix(path: str, converse: Converse) -> AsyncIterator[StreamServer]:
    """Serve a new unix socket at *path* with *converse*."""
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
    """Serve a free local port with *converse*; yields the server and the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = StreamServer(listener, converse)
    try:
        yield server, listener.getsockname()[1]
    finally:
        await server.close()
