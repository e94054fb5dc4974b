"""The plugins of the fake runtime: how they come, what they are asked, how they go."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

import msgspec
from google.protobuf.message import DecodeError

from drakit.testing.runtime_releases import RuntimeRelease
from drakit.wire.nri import nri_pb2
from drakit.wire.nri.events import (
    PLUGIN_SERVICE_NAME,
    RUNTIME_SERVICE_NAME,
    Call,
    Configure,
    ContainerChange,
    PodChange,
    Synchronize,
    encode_call,
    encode_state_change,
)
from drakit.wire.nri.frames import LONGEST_READ, LONGEST_SENT
from drakit.wire.nri.mux import PLUGIN_SERVICE, RUNTIME_SERVICE
from drakit.wire.nri.session import Code, RpcRequest, Session, StatusError
from drakit.wire.nri.transport import Transport
from drakit.wire.nri.values import ContainerUpdate, NriContainer, PodSandbox, update_from
from drakit.wire.nri.versions import Event

_PLUGIN_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+")
_PLUGIN_INDEX: Final = re.compile(r"[0-9]{2}", re.ASCII)
_FEWEST_OBJECTS: Final = 8
"""How many pods and containers a part of a split Synchronize has at least."""


class RuntimeFailure(Exception):  # noqa: N818 - what the kubelet would be told
    """The runtime rejects an operation; the text is what the kubelet would see."""


class PluginCall(msgspec.Struct, frozen=True):
    """One call to a plugin: how long it took, and the error it answered, if any."""

    plugin: str
    method: str
    seconds: float
    error: str = ""


class ConnectedPlugin:
    """A connected plugin, as the runtime sees it."""

    def __init__(
        self, serve: Callable[[ConnectedPlugin, RpcRequest], Awaitable[bytes]], limit: int
    ) -> None:
        self.name = ""
        self.index = ""
        self.mask = 0
        self.old_style = False
        self.registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport = Transport(
            Session(serve=RUNTIME_SERVICE, call=PLUGIN_SERVICE, longest_sent=limit),
            answer=lambda request: serve(self, request),
            patience=lambda request: 60.0,
        )

    def __str__(self) -> str:
        return f"{self.index}-{self.name}"

    def wants(self, event: Event) -> bool:
        """Whether it subscribed to *event*."""
        return bool(self.mask & event.bit)


class Model(Protocol):
    """What the plugins are told about and may change: the pods and containers."""

    def snapshot(self) -> Synchronize:
        """Everything there is, as this release shows it."""

    def apply(self, update: ContainerUpdate) -> str:
        """Apply one update; returns why it failed, if it did."""


class ConnectedPlugins:
    """All plugins that are connected to one life of a runtime, in the order they are asked."""

    def __init__(
        self,
        release: RuntimeRelease,
        model: Model,
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
        """Held for the whole of an event: events of all containers follow one another."""
        self.changed = asyncio.Condition()
        self._model = model
        self._open: set[ConnectedPlugin] = set()
        self._background: set[asyncio.Task[None]] = set()

    async def close(self, reason: str) -> None:
        """Close every connection and end what is going on."""
        for peer in tuple(self._open):
            await peer.transport.close(reason)
        self._open.clear()
        self.peers.clear()
        for task in tuple(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.sleep(0)  # transports close one turn of the loop after they are told to

    def disconnect(self, reason: str) -> None:
        """Cut every connection; whoever is listening may connect again."""
        for peer in tuple(self._open):
            peer.transport.abort(reason)

    # -- coming ---------------------------------------------------------------------------

    async def accept(self, listener: socket.socket) -> None:
        """One plugin after the other: a slow one keeps all others waiting, as in real ones."""
        while True:
            await _readable(listener)
            # Not sock_accept: cancelled in the wrong moment it loses what it has accepted.
            with contextlib.suppress(BlockingIOError):
                connection, _ = listener.accept()
                await self.greet(connection)

    def welcome(self, connection: socket.socket) -> None:
        """Greet a connected plugin in the background; :meth:`close` ends it."""
        task = asyncio.get_running_loop().create_task(self.greet(connection))
        # It may be cancelled before its first step; closing twice does no harm.
        task.add_done_callback(lambda task: connection.close() if task.cancelled() else None)
        self._keep(task)

    async def greet(self, connection: socket.socket) -> None:
        """Take a connected plugin through registration, configuration and synchronization."""
        self.connections += 1
        limit = LONGEST_SENT if self.release.splits_synchronize else LONGEST_READ
        peer = ConnectedPlugin(self._serve, limit)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: peer.transport, connection)
        self._open.add(peer)
        peer.transport.closed.add_done_callback(partial(self._forget, peer))
        problem = await self._welcome(peer)
        if problem:
            self.drops.append(f"{peer}: {problem}")
        async with self.changed:
            self.changed.notify_all()

    async def _welcome(self, peer: ConnectedPlugin) -> str:
        """Registration, configuration, synchronization; returns why it failed, if it did."""
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
            nri_version=f"v{release.nri}" if release.says_its_nri_version else "",
            registration_timeout=self.registration_timeout if release.says_its_timeouts else None,
            request_timeout=self.request_timeout if release.says_its_timeouts else None,
        )
        payload = await self._call(peer, call, self.request_timeout)
        mask = nri_pb2.ConfigureResponse.FromString(payload).events
        if mask & ~self.release.knows_events:
            raise StatusError(Code.INVALID_ARGUMENT, f"invalid plugin events 0x{mask:x}")
        peer.mask = mask or self.release.knows_events

    async def _synchronize(self, peer: ConnectedPlugin) -> None:
        deadline = time.monotonic() + self.request_timeout
        parts = self._parts(self._model.snapshot())
        for part in parts:
            payload = await self._call(peer, part, deadline - time.monotonic())
            answer = nri_pb2.SynchronizeResponse.FromString(payload)
            if part.more and (answer.update or not answer.more):
                raise StatusError(Code.UNKNOWN, "plugin does not handle split sync requests")
            for update in answer.update:
                self._model.apply(update_from(update))

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
            peer.registered.exception()  # it may be that nobody waits for it
        if peer in self.peers:
            self.peers.remove(peer)
            self._wake()

    def _wake(self) -> None:
        async def wake() -> None:
            async with self.changed:
                self.changed.notify_all()

        self._keep(asyncio.get_running_loop().create_task(wake()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to a task until it ends; :meth:`close` cancels it."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- calls of plugins -----------------------------------------------------------------

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
        updates = [
            update_from(each) for each in nri_pb2.UpdateContainersRequest.FromString(payload).update
        ]
        if not self.release.bears_unsolicited_updates and self.lock.locked():
            self.wedged = True
        if self.wedged:
            await asyncio.get_running_loop().create_future()  # for ever, as the real one
        async with self.lock:
            reasons = [self._model.apply(update) for update in updates]
        if any(reasons):
            raise StatusError(Code.UNKNOWN, "NRI update of some containers failed")
        return b""

    # -- calls to plugins -----------------------------------------------------------------

    async def _call(self, peer: ConnectedPlugin, call: Call, timeout: float) -> bytes:
        """Call a plugin in the way of this release, falling back as the new ones do."""
        plain = isinstance(call, PodChange | ContainerChange)
        if plain and (peer.old_style or not self.release.has_dedicated_methods):
            assert isinstance(call, PodChange | ContainerChange)
            method, payload = encode_state_change(call)
        else:
            method, payload = encode_call(call)
        begin, error = time.perf_counter(), ""
        try:
            return await peer.transport.call(PLUGIN_SERVICE_NAME, method, payload, timeout)
        except StatusError as problem:
            error = problem.message
            if problem.code == Code.UNIMPLEMENTED and plain and not peer.old_style:
                peer.old_style = True
                return await self._call(peer, call, timeout)
            raise
        except (TimeoutError, ConnectionError) as problem:
            error = repr(problem)
            raise
        finally:
            seconds = time.perf_counter() - begin
            self.calls.append(PluginCall(str(peer), method, seconds, error))

    async def ask(self, peer: ConnectedPlugin, call: Call) -> bytes | None:
        """Ask a plugin about an event; None when it had to be dropped, and all goes on without."""
        try:
            return await self._call(peer, call, self.request_timeout)
        except (TimeoutError, ConnectionError) as error:
            self.drops.append(f"{peer}: {type(call).__name__}: {error!r}")
            if peer in self.peers:
                self.peers.remove(peer)
            await peer.transport.close("the plugin did not answer in time")
            return None

    def asked(self, event: Event) -> list[ConnectedPlugin]:
        """Who is to be asked about *event*. Raises :class:`RuntimeFailure` when wedged."""
        if self.wedged:
            raise RuntimeFailure("the runtime is wedged: context deadline exceeded")
        return [peer for peer in self.peers if peer.wants(event)]

    async def tell(self, call: PodChange | ContainerChange) -> None:
        """Tell everybody; the first error fails the operation."""
        for peer in self.asked(call.event):
            try:
                await self.ask(peer, call)
            except StatusError as error:
                raise RuntimeFailure(error.message) from error

    async def mention(self, call: PodChange | ContainerChange) -> None:
        """Tell everybody; errors are only logged."""
        for peer in self.asked(call.event):
            with contextlib.suppress(StatusError):
                await self.ask(peer, call)


async def _readable(sock: socket.socket) -> None:
    """Wait until there is something to take from *sock*."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
