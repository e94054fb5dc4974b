"""gRPC server on a unix socket that closes its connections.

grpclib's server leaves connections open when closed; the kubelet keeps one forever, and from Python
3.12 on ``wait_closed`` would wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpclib.const import Handler
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream
from h2.connection import H2Connection

from drakit.wire.kubelet.sockets import BoundSocket

H2Connection.MAX_CLOSED_STREAMS = 1024
"""h2 remembers 65,536 ended calls per connection (9 MB) to validate late frames.

The kubelet keeps its connection for months; on a unix socket frames are never that late."""


class Service(Protocol):
    """gRPC methods by path."""

    def __mapping__(self) -> dict[str, Handler]: ...


class UnixServer:
    """Serves *services* on a bound socket, whose file it removes at the end."""

    def __init__(self, bound: BoundSocket, services: Sequence[Service]) -> None:
        self.bound = bound
        self._running = _Running(set(), set())
        self._server = _TrackingServer([_Counted(service, self._running) for service in services])

    async def start(self) -> None:
        """Start serving."""
        await self._server.start(sock=self.bound.listening)

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._server.open_connections())

    def remove_file(self) -> None:
        """Remove the socket file, if it is still ours; connected clients stay."""
        self.bound.remove_file()

    async def close(self, grace: float) -> None:
        """Stop listening, wait *grace* seconds for running calls, then cancel them and all streams."""
        self.remove_file()
        if grace > 0 and self._running.calls:
            await asyncio.wait(self._running.calls, timeout=grace)
        self._server.close()
        if ending := self._running.calls | self._running.streams:
            await asyncio.wait(ending, timeout=1.0)
        for connection in self._server.open_connections():
            connection.processor.close("server closed")
        # A client that no longer reads (a stopped kubelet) must not delay this.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._server.wait_closed()
        await asyncio.sleep(0)  # transports close in the next iteration of the loop


class _TrackingServer(Server):
    """grpclib's server, with its open connections."""

    def __init__(self, handlers: Collection[Service]) -> None:
        super().__init__(handlers)
        self._protocols: weakref.WeakSet[H2Protocol] = weakref.WeakSet()

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self._protocols.add(protocol)
        return protocol

    def open_connections(self) -> list[H2Protocol]:
        return [
            protocol
            for protocol in self._protocols
            if hasattr(protocol, "connection") and not protocol.connection.is_closing()
        ]


@dataclass(frozen=True, slots=True)
class _Running:
    """Running calls and streams."""

    calls: set[asyncio.Task[Any]]
    streams: set[asyncio.Task[Any]]


class _Counted:
    """A service whose running calls are tracked, so that closing can wait for them."""

    def __init__(self, service: Service, running: _Running) -> None:
        self._service = service
        self._running = running

    def __mapping__(self) -> dict[str, Handler]:
        return {
            path: Handler(self._counted(handler), *handler[1:])
            for path, handler in self._service.__mapping__().items()
        }

    def _counted(self, handler: Handler) -> Any:
        streaming = handler.cardinality.server_streaming
        group = self._running.streams if streaming else self._running.calls

        async def call(stream: Stream[Any, Any]) -> None:
            task = asyncio.current_task()
            assert task is not None
            group.add(task)
            task.add_done_callback(group.discard)
            await handler.func(stream)

        return call
