"""One connection to the runtime, from registration to its end.

It lives in the event loop of the socket. The handler's coroutines run in another loop, the
handler's home, so that a home that is busy or stuck cannot keep an answer back.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from drakit.wire.nri import nri_pb2
from drakit.wire.nri.events import (
    RUNTIME_SERVICE_NAME,
    Call,
    Configure,
    ContainerChange,
    CreateContainer,
    Ignored,
    PodChange,
    StopContainer,
    Synchronize,
    UpdateContainer,
    decode_call,
)
from drakit.wire.nri.handler import Cause, ContainerRejectedError, Disconnect, Handler, RuntimeInfo
from drakit.wire.nri.mux import PLUGIN_SERVICE, RUNTIME_SERVICE
from drakit.wire.nri.options import PluginOptions
from drakit.wire.nri.session import Code, RpcRequest, Session, StatusError
from drakit.wire.nri.transport import Transport
from drakit.wire.nri.values import (
    Adjustment,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    adjustment_to,
    updates_to,
)
from drakit.wire.nri.versions import Event, capabilities_of, event_mask

log = logging.getLogger(__name__)

SPOKEN_VERSION: Final = "v0.12.2"
"""The newest NRI this package was written for; told to the runtime, which logs it."""

_DEFAULT_REQUEST_TIMEOUT: Final = 2.0
_SHARE_OF_DEADLINE: Final = 0.75


class _EventScope:
    """An event being handled. Lives in the handler's loop."""

    __slots__ = ("_late", "_result", "_undelivered", "active")

    def __init__(self, undelivered: Callable[[Any], None]) -> None:
        self.active = True
        self._undelivered = undelivered
        self._late = False
        self._result: tuple[Any] | None = None

    def finish(self, result: Any) -> None:
        """The handler has decided; too late, if the runtime got an error instead."""
        self._result = (result,)
        if self._late:
            self._undelivered(result)

    def expire(self) -> None:
        """The runtime got an error in place of the answer."""
        self._late = True
        if self._result is not None:
            self._undelivered(self._result[0])


_serving: contextvars.ContextVar[_EventScope] = contextvars.ContextVar("nri_request")
_current: contextvars.ContextVar[_EventScope | None] = contextvars.ContextVar(
    "nri_event", default=None
)


def handling_an_event() -> bool:
    """Whether the calling task is, or was started by, a handler that has not answered yet."""
    scope = _current.get()
    return scope is not None and scope.active


T = TypeVar("T")


class RuntimeConnection:
    """One connection, from connect to close, in the socket's thread."""

    def __init__(
        self,
        options: PluginOptions,
        handler: Handler,
        home: asyncio.AbstractEventLoop,
    ) -> None:
        self._options = options
        self._handler = handler
        self._home = home
        self._pods: list[PodSandbox] = []
        self._containers: list[NriContainer] = []
        loop = asyncio.get_running_loop()
        self.runtime: RuntimeInfo | None = None
        self.synchronized: asyncio.Future[None] = loop.create_future()
        self.failed: asyncio.Future[str] = loop.create_future()
        self.transport = Transport(
            Session(serve=PLUGIN_SERVICE, call=RUNTIME_SERVICE),
            answer=self._answer,
            patience=self._patience,
            late=self._late,
        )
        self._scopes: dict[int, _EventScope] = {}

    def _patience(self, request: RpcRequest) -> float:
        """Three quarters of what the runtime prepared devices; the rest is for getting the answer there."""
        limit = self.runtime.request_timeout if self.runtime else _DEFAULT_REQUEST_TIMEOUT
        if request.timeout is not None:
            limit = min(limit, request.timeout)
        return limit * _SHARE_OF_DEADLINE

    def _late(self, request: RpcRequest) -> None:
        """The answer to a request is too late: whoever relies on it must know."""
        if scope := self._scopes.get(request.stream):
            self._home.call_soon_threadsafe(scope.expire)

    async def _answer(self, request: RpcRequest) -> bytes:
        scope = self._scopes[request.stream] = _EventScope(self._undelivered)
        _serving.set(scope)
        try:
            return await self._decide(request)
        finally:
            del self._scopes[request.stream]

    def _undelivered(self, result: Any) -> None:
        if isinstance(result, Adjustment | Sequence):
            self._handler.undelivered(result)

    async def _decide(self, request: RpcRequest) -> bytes:
        call = decode_call(
            request.service, request.method, request.payload, self._options.variables
        )
        handler = self._handler
        match call:
            case Configure():
                return self._configure(call)
            case Synchronize():
                return await self._synchronize(call)
            case CreateContainer():
                adjustment = await self._handle(
                    call, lambda: handler.create(call.pod, call.container)
                )
                check_updates(adjustment.updates, call.container.id)
                return adjustment_to(adjustment).SerializeToString()
            case UpdateContainer():
                updates = await self._handle(
                    call, lambda: handler.update(call.pod, call.container, call.resources)
                )
                check_updates(updates)
                answer = nri_pb2.UpdateContainerResponse(update=updates_to(updates))
                return answer.SerializeToString()
            case StopContainer():
                updates = await self._handle(call, lambda: handler.stop(call.pod, call.container))
                check_updates(updates)
                return nri_pb2.StopContainerResponse(update=updates_to(updates)).SerializeToString()
            case _:
                await self._notify(call)
                return b""

    def _configure(self, call: Configure) -> bytes:
        nri, features = capabilities_of(call.runtime_name, call.runtime_version, call.nri_version)
        runtime = RuntimeInfo(
            name=call.runtime_name,
            version=call.runtime_version,
            nri=nri,
            features=features,
            registration_timeout=call.registration_timeout,
            request_timeout=call.request_timeout or _DEFAULT_REQUEST_TIMEOUT,
            config=call.config,
        )
        mask = event_mask(self._options.events, runtime.features)
        self.runtime = runtime
        log.info("%s %s with NRI %s", runtime.name, runtime.version, nri)
        self._home.call_soon_threadsafe(self._handler.connected, runtime)
        return nri_pb2.ConfigureResponse(events=mask).SerializeToString()

    async def _synchronize(self, call: Synchronize) -> bytes:
        self._pods += call.pods
        self._containers += call.containers
        if call.more:
            return nri_pb2.SynchronizeResponse(more=True).SerializeToString()
        pods, containers = tuple(self._pods), tuple(self._containers)
        self._pods.clear()
        self._containers.clear()
        try:
            updates = await self._handle(call, lambda: self._handler.synchronize(pods, containers))
            check_updates(updates)
            answer = nri_pb2.SynchronizeResponse(update=updates_to(updates)).SerializeToString()
        except BaseException as error:
            # NRI up to 0.6.1 would leave us connected and deaf for ever: leave by ourselves.
            if not self.failed.done() and not self.transport.closed.done():
                self.failed.set_result(f"Synchronize failed: {error!r}")
            raise
        if not self.synchronized.done():
            self.synchronized.set_result(None)
        return answer

    async def _notify(self, call: Call) -> None:
        handler = self._handler
        match call:
            case ContainerChange(event=Event.START_CONTAINER):
                await self._handle(call, lambda: handler.starting(call.pod, call.container))
            case ContainerChange(event=Event.POST_START_CONTAINER):
                await self._handle(call, lambda: handler.started(call.pod, call.container))
            case ContainerChange(event=Event.REMOVE_CONTAINER):
                await self._handle(call, lambda: handler.removed(call.pod, call.container))
            case PodChange(event=Event.RUN_POD_SANDBOX):
                await self._handle(call, lambda: handler.pod_started(call.pod))
            case PodChange(event=Event.STOP_POD_SANDBOX):
                await self._handle(call, lambda: handler.pod_stopped(call.pod))
            case PodChange(event=Event.REMOVE_POD_SANDBOX):
                await self._handle(call, lambda: handler.pod_removed(call.pod))
            case Ignored():
                log.debug("ignored %s", call.method)

    async def _handle(self, call: Call, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the handler's coroutine in its own loop and bring the result here."""
        scope = _serving.get()
        crossing = asyncio.run_coroutine_threadsafe(_within(scope, work), self._home)
        try:
            return await asyncio.wrap_future(crossing)
        except ContainerRejectedError as rejection:
            log.warning("refused %s: %s", type(call).__name__, rejection)
            raise StatusError(Code.FAILED_PRECONDITION, str(rejection)) from rejection

    async def converse(self) -> Disconnect:
        """Register, get synchronized, and wait for the end. The trunk is connected."""
        request = nri_pb2.RegisterPluginRequest(
            plugin_name=self._options.name,
            plugin_idx=self._options.index,
            nri_version=SPOKEN_VERSION,
        ).SerializeToString()
        try:
            await self.transport.call(
                RUNTIME_SERVICE_NAME, "RegisterPlugin", request, self._options.registration_timeout
            )
        except StatusError as error:
            return Disconnect(cause=Cause.REGISTRATION_REFUSED, detail=error.message)
        except TimeoutError:
            limit = self._options.registration_timeout
            detail = f"RegisterPlugin was not answered within {limit} s"
            return Disconnect(cause=Cause.REGISTRATION_REFUSED, detail=detail)
        except ConnectionError as problem:
            return Disconnect(cause=Cause.LOST, detail=str(problem))
        ends: set[asyncio.Future[Any]] = {self.transport.closed, self.failed}
        await asyncio.wait(
            {*ends, self.synchronized},
            timeout=self._options.synchronization_timeout,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self.synchronized.done():
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            return Disconnect(cause=Cause.NOT_SYNCHRONIZED, detail=self.failed.result())
        if self.transport.closed.done():
            return Disconnect(cause=Cause.LOST, detail=self.transport.closed.result())
        limit = self._options.synchronization_timeout
        detail = f"the runtime did not synchronize within {limit} s of the registration"
        return Disconnect(cause=Cause.NOT_SYNCHRONIZED, detail=detail)


async def _within(scope: _EventScope, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    _current.set(scope)
    try:
        result = await work()
        scope.finish(result)
        return result
    finally:
        scope.active = False


def check_updates(updates: Iterable[ContainerUpdate], created: str = "") -> None:
    """Reject an answer that the runtime would reject, with a better text."""
    seen = {created} if created else set()
    for update in updates:
        if update.container_id in seen:
            what = "the container being created" if update.container_id == created else "twice"
            raise ValueError(f"update for container {update.container_id}: {what}")
        seen.add(update.container_id)
