"""One connection to the runtime, from registration to its end.

It runs in the event loop of the socket (I/O loop). The handler's coroutines run in another loop (handler
loop), so that a busy or blocked handler loop cannot delay an answer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from drakit.core.log import get_logger
from drakit.wire.nri import nri_pb2
from drakit.wire.nri.event_table import EVENTS, event_mask
from drakit.wire.nri.events import (
    RUNTIME_SERVICE_NAME,
    Configure,
    Ignored,
    RuntimeEvent,
    Synchronize,
    decode_call,
)
from drakit.wire.nri.handler import (
    Cause,
    ContainerRejectedError,
    Disconnect,
    Handler,
    PluginOptions,
    RuntimeInfo,
)
from drakit.wire.nri.mux import PLUGIN_SERVICE, RUNTIME_SERVICE
from drakit.wire.nri.session import Code, RpcRequest, Session, StatusError
from drakit.wire.nri.transport import Transport
from drakit.wire.nri.values import (
    Adjustment,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    adjustment_to,
    update_to,
)
from drakit.wire.nri.versions import capabilities_of

log = get_logger(__name__)

_NRI_VERSION: Final = "v0.12.2"
"""The newest NRI this package supports; reported to the runtime, which logs it."""

_DEFAULT_REQUEST_TIMEOUT: Final = 2.0
_SHARE_OF_DEADLINE: Final = 0.75
"""The rest of the runtime's deadline is for delivering the answer."""

T = TypeVar("T")


class _EventScope:
    """One event being handled. Lives in the handler loop."""

    __slots__ = ("_late", "_result", "_undelivered", "active")

    def __init__(self, undelivered: Callable[[Any], None]) -> None:
        self.active = True
        self._undelivered = undelivered
        self._late = False
        self._result: tuple[Any] | None = None

    def finish(self, result: Any) -> None:
        """Note the handler's answer; it is undelivered if the runtime got an error instead."""
        self._result = (result,)
        if self._late:
            self._undelivered(result)

    def expire(self) -> None:
        """Note that the runtime got an error in place of the answer."""
        self._late = True
        if self._result is not None:
            self._undelivered(self._result[0])


_serving: contextvars.ContextVar[_EventScope] = contextvars.ContextVar("nri_request")
_current: contextvars.ContextVar[_EventScope | None] = contextvars.ContextVar("nri_event", default=None)


def handling_an_event() -> bool:
    """Whether the calling task is, or was started by, a handler that has not answered yet."""
    scope = _current.get()
    return scope is not None and scope.active


class RuntimeConnection:
    """One connection, from connect to close, in the I/O loop."""

    def __init__(
        self, options: PluginOptions, handler: Handler, handler_loop: asyncio.AbstractEventLoop
    ) -> None:
        self._options = options
        self._handler = handler
        self._handler_loop = handler_loop
        self._pods: list[PodSandbox] = []
        self._containers: list[NriContainer] = []
        loop = asyncio.get_running_loop()
        self.runtime: RuntimeInfo | None = None
        self.synchronized: asyncio.Future[None] = loop.create_future()
        self.failed: asyncio.Future[str] = loop.create_future()
        self.transport = Transport(
            Session(serve=PLUGIN_SERVICE, call=RUNTIME_SERVICE),
            answer=self._answer,
            time_limit=self._time_limit,
            on_late=self._on_late,
        )
        self._scopes: dict[int, _EventScope] = {}

    def _time_limit(self, request: RpcRequest) -> float:
        limit = self.runtime.request_timeout if self.runtime else _DEFAULT_REQUEST_TIMEOUT
        if request.timeout is not None:
            limit = min(limit, request.timeout)
        return limit * _SHARE_OF_DEADLINE

    def _on_late(self, request: RpcRequest) -> None:
        if scope := self._scopes.get(request.stream):
            self._handler_loop.call_soon_threadsafe(scope.expire)

    async def _answer(self, request: RpcRequest) -> bytes:
        scope = self._scopes[request.stream] = _EventScope(self._undelivered)
        _serving.set(scope)
        try:
            call = decode_call(request.service, request.method, request.payload, self._options.variables)
            match call:
                case Configure():
                    return self._configure(call)
                case Synchronize():
                    return await self._synchronize(call)
                case RuntimeEvent():
                    return await self._dispatch(call)
                case Ignored():
                    log.debug("NRI call ignored", method=call.method)
                    return b""
        finally:
            del self._scopes[request.stream]

    def _undelivered(self, result: Any) -> None:
        if isinstance(result, Adjustment | Sequence):
            self._handler.undelivered(result)

    def _configure(self, call: Configure) -> bytes:
        nri, features = capabilities_of(call.runtime_name, call.runtime_version, call.nri_version)
        runtime = RuntimeInfo(
            name=call.runtime_name,
            version=call.runtime_version,
            nri=nri,
            features=features,
            request_timeout=call.request_timeout or _DEFAULT_REQUEST_TIMEOUT,
        )
        mask = event_mask(self._options.events, nri)
        self.runtime = runtime
        log.info("NRI configured", runtime=runtime.name, version=runtime.version, nri=nri)
        self._handler_loop.call_soon_threadsafe(self._handler.connected, runtime)
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
            updates = await self._handle("Synchronize", lambda: self._handler.synchronize(pods, containers))
            check_updates(updates)
            answer = nri_pb2.SynchronizeResponse(update=map(update_to, updates)).SerializeToString()
        except BaseException as error:
            # NRI up to 0.6.1 keeps the connection but never sends an event again: disconnect.
            if not self.failed.done() and not self.transport.closed.done():
                self.failed.set_result(f"Synchronize failed: {error!r}")
            raise
        if not self.synchronized.done():
            self.synchronized.set_result(None)
        return answer

    async def _dispatch(self, call: RuntimeEvent) -> bytes:
        """Call the handler method that the event table names, and encode its answer."""
        row = EVENTS[call.event]
        if not row.handler:
            return b""
        method = getattr(self._handler, row.handler)
        answer = await self._handle(row.method, lambda: method(*call.arguments))
        if row.response is None:
            return b""
        if isinstance(answer, Adjustment):
            check_updates(answer.updates, call.container.id if call.container else "")
            return adjustment_to(answer).SerializeToString()
        check_updates(answer)
        return row.response(update=map(update_to, answer)).SerializeToString()

    async def _handle(self, method: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the handler's coroutine in the handler loop and return its result here."""
        future = asyncio.run_coroutine_threadsafe(_run(_serving.get(), work), self._handler_loop)
        try:
            return await asyncio.wrap_future(future)
        except ContainerRejectedError as error:
            log.warning("NRI call rejected", method=method, error=error)
            raise StatusError(Code.FAILED_PRECONDITION, str(error)) from error

    async def run(self) -> Disconnect:
        """Register, wait for synchronization, then for the end. The transport is connected."""
        options = self._options
        request = nri_pb2.RegisterPluginRequest(
            plugin_name=options.name, plugin_idx=options.index, nri_version=_NRI_VERSION
        ).SerializeToString()
        try:
            await self.transport.call(
                RUNTIME_SERVICE_NAME, "RegisterPlugin", request, options.registration_timeout
            )
        except StatusError as error:
            return Disconnect(cause=Cause.REGISTRATION_REFUSED, detail=error.message)
        except TimeoutError:
            detail = f"RegisterPlugin was not answered within {options.registration_timeout} s"
            return Disconnect(cause=Cause.REGISTRATION_REFUSED, detail=detail)
        except ConnectionError as error:
            return Disconnect(cause=Cause.LOST, detail=str(error))
        ends: set[asyncio.Future[Any]] = {self.transport.closed, self.failed}
        await asyncio.wait(
            {*ends, self.synchronized},
            timeout=options.synchronization_timeout,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self.synchronized.done():
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            return Disconnect(cause=Cause.NOT_SYNCHRONIZED, detail=self.failed.result())
        if self.transport.closed.done():
            return Disconnect(cause=Cause.LOST, detail=self.transport.closed.result())
        limit = options.synchronization_timeout
        detail = f"the runtime did not synchronize within {limit} s of the registration"
        return Disconnect(cause=Cause.NOT_SYNCHRONIZED, detail=detail)


async def _run(scope: _EventScope, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    _current.set(scope)
    try:
        result = await work()
        scope.finish(result)
        return result
    finally:
        scope.active = False


def check_updates(updates: Iterable[ContainerUpdate], created: str = "") -> None:
    """Reject an answer that the runtime would reject, with a clearer message."""
    seen = {created} if created else set()
    for update in updates:
        if update.container_id in seen:
            what = "the container being created" if update.container_id == created else "twice"
            raise ValueError(f"update for container {update.container_id}: {what}")
        seen.add(update.container_id)
