"""A gRPC server on one unix socket, which ends when told to.

grpclib's own server leaves its connections open when closed: the kubelet keeps one for ever, and
from Python 3.12 on waiting for the server would wait for that.
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
"""h2 remembers 65 536 ended calls per connection, 9 MB of them, to judge frames that come late.

The kubelet keeps its connection for months; on a unix socket no frame is that late."""


class Service(Protocol):
    """Something with gRPC methods, by their paths."""

    def __mapping__(self) -> dict[str, Handler]: ...


class UnixServer:
    """Serves *services* on a bound socket; the socket's file goes with it."""

    def __init__(self, bound: BoundSocket, services: Sequence[Service]) -> None:
        self.bound = bound
        self._running = _Running(set(), set())
        self._server = _TrackingServer([_Counted(service, self._running) for service in services])

    async def start(self) -> None:
        """Answer from now on."""
        await self._server.start(sock=self.bound.listening)

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._server.open_connections())

    def remove_file(self) -> None:
        """Let no new client find the server; those connected stay. Removes only its own file."""
        self.bound.remove_file()

    async def close(self, grace: float) -> None:
        """Stop: no new clients, *grace* seconds for running calls, then they are cancelled.

        Streams never end by themselves and are cancelled without grace.
        """
        self.remove_file()
        if grace > 0 and self._running.calls:
            await asyncio.wait(self._running.calls, timeout=grace)
        self._server.close()
        if ending := self._running.calls | self._running.streams:
            await asyncio.wait(ending, timeout=1.0)
        for connection in self._server.open_connections():
            connection.processor.close("server closed")
        # A client that no longer reads (a stopped kubelet) must not keep us from ending.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._server.wait_closed()
        await asyncio.sleep(0)  # transports close one turn of the loop after they are told to


class _TrackingServer(Server):
    """grpclib's server that knows its connections."""

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
    """What is being served."""

    calls: set[asyncio.Task[Any]]
    streams: set[asyncio.Task[Any]]


class _Counted:
    """A service whose running calls are known, so that closing can wait for them."""

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
