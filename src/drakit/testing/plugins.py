"""Plugins of the fake runtime: registration, synchronization, calls and disconnection."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from drakit.testing.runtime_releases import FakeRuntimeRelease
from drakit.wire.nri import nri_pb2
from drakit.wire.nri.event_table import EVENTS, Event
from drakit.wire.nri.events import (
    PLUGIN_SERVICE_NAME,
    RUNTIME_SERVICE_NAME,
    Call,
    Configure,
    RuntimeEvent,
    Synchronize,
    encode_call,
)
from drakit.wire.nri.frames import LONGEST_READ, LONGEST_SENT
from drakit.wire.nri.mux import PLUGIN_SERVICE, RUNTIME_SERVICE
from drakit.wire.nri.session import Code, RpcRequest, Session, StatusError
from drakit.wire.nri.transport import Transport
from drakit.wire.nri.values import ContainerUpdate, NriContainer, PodSandbox, update_from

_PLUGIN_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+")
_PLUGIN_INDEX: Final = re.compile(r"[0-9]{2}", re.ASCII)
_FEWEST_OBJECTS: Final = 8
"""Minimum number of pods and containers in a part of a split Synchronize."""


class FakeRuntimeError(Exception):
    """The runtime rejects an operation; the text is the error that the kubelet would get."""


class PluginCall(msgspec.Struct, frozen=True):
    """One call to a plugin: duration, and the error of the answer, if any."""

    plugin: str
    method: str
    seconds: float
    error: str = ""


class ConnectedPlugin:
    """A connected plugin, as the runtime sees it."""

    def __init__(self, serve: Callable[[ConnectedPlugin, RpcRequest], Awaitable[bytes]], limit: int) -> None:
        self.name = ""
        self.index = ""
        self.mask = 0
        self.old_style = False
        self.registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport = Transport(
            Session(serve=RUNTIME_SERVICE, call=PLUGIN_SERVICE, longest_sent=limit),
            answer=lambda request: serve(self, request),
            time_limit=lambda request: 60.0,
        )

    def __str__(self) -> str:
        return f"{self.index}-{self.name}"


class ConnectedPlugins:
    """The plugins that are connected to a runtime, in the order they are called.

    *snapshot* returns all pods and containers; *apply* applies an update and returns why it failed, or "".
    """

    def __init__(
        self,
        release: FakeRuntimeRelease,
        snapshot: Callable[[], Synchronize],
        apply: Callable[[ContainerUpdate], str],
        *,
        request_timeout: float,
        registration_timeout: float,
        message_limit: int,
    ) -> None:
        self.release = release
        self.request_timeout = request_timeout
        self.registration_timeout = registration_timeout
        self.message_limit = message_limit
        self.calls: deque[PluginCall] = deque(maxlen=100_000)
        self.drops: list[str] = []
        self.connections = 0
        self.wedged = False
        self.peers: list[ConnectedPlugin] = []
        self.lock = asyncio.Lock()
        """Held during an event: events of all containers are serialized."""
        self.changed = asyncio.Condition()
        self._snapshot = snapshot
        self._apply = apply
        self._open: set[ConnectedPlugin] = set()
        self._background: set[asyncio.Task[None]] = set()

    async def close(self, reason: str) -> None:
        """Close every connection and cancel background tasks."""
        for peer in tuple(self._open):
            await peer.transport.close(reason)
        self._open.clear()
        self.peers.clear()
        for task in tuple(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next iteration of the loop

    def disconnect(self, reason: str) -> None:
        """Close every connection; plugins may connect again."""
        for peer in tuple(self._open):
            peer.transport.abort(reason)

    async def accept(self, listener: socket.socket) -> None:
        """Accept one plugin after the other: a slow one delays all others, as in real runtimes."""
        while True:
            await _readable(listener)
            # Not sock_accept: cancelled at the wrong moment it loses the accepted connection.
            with contextlib.suppress(BlockingIOError):
                connection, _ = listener.accept()
                await self.set_up(connection)

    def set_up_later(self, connection: socket.socket) -> None:
        """Set up a connected plugin in the background; :meth:`close` cancels it."""
        task = asyncio.get_running_loop().create_task(self.set_up(connection))
        # It may be cancelled before its first step; closing twice is harmless.
        task.add_done_callback(lambda task: connection.close() if task.cancelled() else None)
        self._keep(task)

    async def set_up(self, connection: socket.socket) -> None:
        """Register, configure and synchronize a connected plugin."""
        self.connections += 1
        limit = LONGEST_SENT if self.release.splits_synchronize else LONGEST_READ
        peer = ConnectedPlugin(self._serve, limit)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: peer.transport, connection)
        self._open.add(peer)
        peer.transport.closed.add_done_callback(partial(self._forget, peer))
        error = await self._set_up(peer)
        if error:
            self.drops.append(f"{peer}: {error}")
        async with self.changed:
            self.changed.notify_all()

    async def _set_up(self, peer: ConnectedPlugin) -> str:
        """Register, configure and synchronize; returns the reason if it failed."""
        try:
            async with asyncio.timeout(self.registration_timeout):
                await peer.registered
            await self._configure(peer)
        except TimeoutError:
            await peer.transport.close("registration timed out")
            return "registration timed out"
        except (StatusError, ConnectionError, DecodeError) as error:
            if peer.registered.done() and not peer.registered.cancelled():
                await peer.transport.close(str(error))
            return str(error)
        async with self.lock:
            try:
                await self._synchronize(peer)
            except (StatusError, ConnectionError, TimeoutError, DecodeError) as error:
                if self.release.closes_after_failed_sync:
                    await peer.transport.close("synchronization failed")
                return f"synchronization failed: {error!r}"
            if peer.transport.closed.done():
                return "closed while synchronizing"
            self.peers.append(peer)
            self.peers.sort(key=lambda each: each.index)
        return ""

    async def _configure(self, peer: ConnectedPlugin) -> None:
        release = self.release
        call = Configure(
            runtime_name=release.name,
            runtime_version=release.version,
            nri_version=f"v{release.nri}" if release.reports_nri_version else "",
            registration_timeout=self.registration_timeout if release.reports_timeouts else None,
            request_timeout=self.request_timeout if release.reports_timeouts else None,
        )
        payload = await self._call(peer, call, self.request_timeout)
        mask = nri_pb2.ConfigureResponse.FromString(payload).events
        if mask & ~self.release.knows_events:
            raise StatusError(Code.INVALID_ARGUMENT, f"invalid plugin events 0x{mask:x}")
        peer.mask = mask or self.release.knows_events

    async def _synchronize(self, peer: ConnectedPlugin) -> None:
        deadline = time.monotonic() + self.request_timeout
        parts = self._parts(self._snapshot())
        for part in parts:
            payload = await self._call(peer, part, deadline - time.monotonic())
            answer = nri_pb2.SynchronizeResponse.FromString(payload)
            if part.more and (answer.update or not answer.more):
                raise StatusError(Code.UNKNOWN, "plugin does not handle split sync requests")
            for update in answer.update:
                self._apply(update_from(update))

    def _parts(self, whole: Synchronize) -> list[Synchronize]:
        size = len(encode_call(whole)[1])
        if size <= self.message_limit or not self.release.splits_synchronize:
            return [whole]
        objects: list[PodSandbox | NriContainer] = [*whole.pods, *whole.containers]
        count = len(objects)
        step = max(_FEWEST_OBJECTS, int(count * self.message_limit / size * 0.8))
        parts = []
        for start in range(0, count, step):
            some = objects[start : start + step]
            parts.append(
                Synchronize(
                    pods=tuple(each for each in some if isinstance(each, PodSandbox)),
                    containers=tuple(each for each in some if isinstance(each, NriContainer)),
                    more=start + step < count,
                )
            )
        return parts

    def _forget(self, peer: ConnectedPlugin, _: object) -> None:
        self._open.discard(peer)
        if not peer.registered.done():
            peer.registered.set_exception(ConnectionResetError("closed before registration"))
            peer.registered.exception()  # marked as retrieved: nothing may wait for it
        if peer in self.peers:
            self.peers.remove(peer)
            self._wake()

    def _wake(self) -> None:
        async def wake() -> None:
            async with self.changed:
                self.changed.notify_all()

        self._keep(asyncio.get_running_loop().create_task(wake()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task until it ends; :meth:`close` cancels it."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _serve(self, peer: ConnectedPlugin, request: RpcRequest) -> bytes:
        if request.service != RUNTIME_SERVICE_NAME:
            raise StatusError(Code.UNIMPLEMENTED, f"service {request.service}")
        match request.method:
            case "RegisterPlugin":
                return self._register(peer, bytes(request.payload))
            case "UpdateContainers":
                return await self._unsolicited(bytes(request.payload))
            case _:
                raise StatusError(Code.UNIMPLEMENTED, f"method {request.method}")

    def _register(self, peer: ConnectedPlugin, payload: bytes) -> bytes:
        wanted = nri_pb2.RegisterPluginRequest.FromString(payload)
        if not _PLUGIN_INDEX.fullmatch(wanted.plugin_idx):
            raise StatusError(Code.UNKNOWN, f"invalid plugin index {wanted.plugin_idx!r}")
        name = wanted.plugin_name
        if not name or (self.release.checks_names and not _PLUGIN_NAME.fullmatch(name)):
            raise StatusError(Code.UNKNOWN, f"invalid plugin name {name!r}")
        peer.name, peer.index = name, wanted.plugin_idx
        if not peer.registered.done():
            peer.registered.set_result(None)
        return b""

    async def _unsolicited(self, payload: bytes) -> bytes:
        updates = [update_from(each) for each in nri_pb2.UpdateContainersRequest.FromString(payload).update]
        if not self.release.tolerates_unsolicited_updates and self.lock.locked():
            self.wedged = True
        if self.wedged:
            await asyncio.get_running_loop().create_future()  # forever, as the real one
        async with self.lock:
            reasons = [self._apply(update) for update in updates]
        if any(reasons):
            raise StatusError(Code.UNKNOWN, "NRI update of some containers failed")
        return b""

    async def _call(self, peer: ConnectedPlugin, call: Call, timeout: float) -> bytes:
        """Call a plugin as this release does, with the fallback of newer releases."""
        can_fall_back = isinstance(call, RuntimeEvent) and EVENTS[call.event].notifies_only
        old = can_fall_back and (peer.old_style or not self.release.has_dedicated_methods)
        method, payload = encode_call(call, as_state_change=old)
        begin, error = time.perf_counter(), ""
        try:
            return await peer.transport.call(PLUGIN_SERVICE_NAME, method, payload, timeout)
        except StatusError as status:
            error = status.message
            if status.code == Code.UNIMPLEMENTED and can_fall_back and not peer.old_style:
                peer.old_style = True
                return await self._call(peer, call, timeout)
            raise
        except (TimeoutError, ConnectionError) as failure:
            error = repr(failure)
            raise
        finally:
            seconds = time.perf_counter() - begin
            self.calls.append(PluginCall(str(peer), method, seconds, error))

    async def ask(self, peer: ConnectedPlugin, call: RuntimeEvent) -> bytes | None:
        """Call a plugin; None when it was late or disconnected: the event goes on without it."""
        try:
            return await self._call(peer, call, self.request_timeout)
        except (TimeoutError, ConnectionError) as error:
            self.drops.append(f"{peer}: {EVENTS[call.event].method}: {error!r}")
            if peer in self.peers:
                self.peers.remove(peer)
            await peer.transport.close("the plugin did not answer in time")
            return None

    def subscribers(self, event: Event) -> list[ConnectedPlugin]:
        """The plugins to call for *event*. Raises :class:`FakeRuntimeError` when wedged."""
        if self.wedged:
            raise FakeRuntimeError("the runtime is wedged: context deadline exceeded")
        return [peer for peer in self.peers if peer.mask & event.bit]

    async def notify(self, call: RuntimeEvent, *, can_reject: bool = False) -> None:
        """Call all subscribers; with *can_reject* the first error fails the operation."""
        for peer in self.subscribers(call.event):
            try:
                await self.ask(peer, call)
            except StatusError as error:
                if can_reject:
                    raise FakeRuntimeError(error.message) from error


async def _readable(sock: socket.socket) -> None:
    """Wait until *sock* is readable."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
