"""Connection of the fake kubelet to a driver, kept while the driver is registered."""

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
    """Wakes tasks that wait for a condition."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Let waiting tasks check their conditions."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait until *true* returns true; raises ``TimeoutError`` that names *what* did not happen."""
        try:
            async with asyncio.timeout(seconds):
                while not true():
                    await self._event.wait()
        except TimeoutError:
            raise TimeoutError(f"{what} did not happen within {seconds} s") from None


class Connection:
    """A long-lived connection to a plugin's service socket, re-established as gRPC does."""

    def __init__(self, path: str, reconnect: float, changed: Callable[[], None]) -> None:
        self.path = path
        self.connects = 0
        """How often it was established."""
        self.closed = False
        self._reconnect = reconnect
        self._changed = changed
        self._lost = asyncio.Event()
        self._lost.set()
        self._channel = _WatchedChannel(path, self._lost.set)
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
        """Close permanently; returns the task to wait for."""
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


class _WatchedChannel(Channel):
    """A channel that reports the loss of its connection."""

    def __init__(self, path: str, lost: Callable[[], None]) -> None:
        super().__init__(path=path)
        self._notify_lost = lost
        self._closed = False

    def close(self) -> None:
        self._closed = True
        super().close()

    async def __connect__(self) -> H2Protocol:
        protocol = await super().__connect__()
        if self._closed:  # closed meanwhile: a channel would reconnect by itself
            super().close()
            raise ConnectionAbortedError(f"{self._path} is closed")
        return protocol

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        original = protocol.connection_lost

        def connection_lost(error: BaseException | None) -> None:
            original(error)
            self._notify_lost()

        vars(protocol)["connection_lost"] = connection_lost
        return protocol
