"""The kubelet's connection to a driver: one, kept up for as long as the driver is registered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.protocol import H2Protocol

CALL_FAILURES: Final = (GRPCError, StreamTerminatedError, OSError, asyncio.TimeoutError)
"""What a call to a plugin can raise."""


class Signal:
    """Wakes whoever waits for something to become true."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Something changed."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait until *true* says so; raises ``TimeoutError`` that says *what* did not happen."""
        try:
            async with asyncio.timeout(seconds):
                while not true():
                    await self._event.wait()
        except TimeoutError:
            raise TimeoutError(f"{what} did not happen within {seconds} s") from None


class Connection:
    """One long-lived connection to a plugin's service socket, kept up as gRPC does."""

    def __init__(self, path: str, reconnect: float, changed: Callable[[], None]) -> None:
        self.path = path
        self.connects = 0
        """How often it was established: 1 as long as the plugin never went away."""
        self.closed = False
        self._reconnect = reconnect
        self._changed = changed
        self._lost = asyncio.Event()
        self._lost.set()
        self._channel = _WatchedChannel(path, self._on_lost)
        self._keeper = asyncio.create_task(self._keep_up())

    @property
    def connected(self) -> bool:
        """Whether it is up now."""
        return not self._lost.is_set()

    async def call(self, path: str, request: Any, response: type[Any], seconds: float) -> Any:
        """Call a method; raises one of :data:`CALL_FAILURES`."""
        method = UnaryUnaryMethod(self._channel, path, type(request), response)
        return await method(request, timeout=seconds)

    def stream(self, path: str, request: Any, response: type[Any]) -> Any:
        """A method with a stream of responses, to be opened."""
        return UnaryStreamMethod(self._channel, path, type(request), response)

    def close(self) -> asyncio.Task[None]:
        """Hang up for good, at once; returns what is left to be waited for."""
        self.closed = True
        self._keeper.cancel()
        self._channel.close()
        return self._keeper

    async def _keep_up(self) -> None:
        while not self.closed:
            try:
                await self._channel.__connect__()
            except OSError:
                await asyncio.sleep(self._reconnect)
                continue
            self.connects += 1
            self._lost.clear()
            self._changed()
            await self._lost.wait()
            self._changed()

    def _on_lost(self) -> None:
        self._lost.set()


class _WatchedChannel(Channel):
    """A channel that tells when its connection is lost."""

    def __init__(self, path: str, lost: Callable[[], None]) -> None:
        super().__init__(path=path)
        self._tell_lost = lost
        self._closed = False

    def close(self) -> None:
        self._closed = True
        super().close()

    async def __connect__(self) -> H2Protocol:
        protocol = await super().__connect__()
        if self._closed:  # hung up meanwhile, or before: a channel would dial again by itself
            super().close()
            raise ConnectionAbortedError(f"hung up on {self._path}")
        return protocol

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        told = protocol.connection_lost

        def connection_lost(problem: BaseException | None) -> None:
            told(problem)
            self._tell_lost()

        vars(protocol)["connection_lost"] = connection_lost
        return protocol
