"""A session on a socket: the thin asyncio shell around the state machine.

The trunk serves calls of the peer, each in a task of its own, and makes calls to it. Every call
is watched: if its answer is late, an error is sent in its place before the peer's patience ends.
That is no courtesy. A runtime that hears nothing in time drops the plugin and *creates the
container all the same*; an error in time makes it reject the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from drakit.wire.nri.mux import MuxError
from drakit.wire.nri.session import Code, RpcRequest, RpcResponse, Session, StatusError

log = logging.getLogger(__name__)


class Transport(asyncio.Protocol):
    """One connected NRI socket.

    *answer* makes the payload of the answer to a request, or raises :class:`StatusError`; any
    other exception becomes an internal error. *patience* says how many seconds it may take; *late* hears
    of requests that were answered with an error because it took longer.
    """

    def __init__(
        self,
        session: Session,
        *,
        answer: Callable[[RpcRequest], Awaitable[bytes]],
        patience: Callable[[RpcRequest], float],
        late: Callable[[RpcRequest], None] = lambda request: None,
    ) -> None:
        self._late = late
        self._session = session
        self._answer = answer
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = ""
        self.closed: asyncio.Future[str] = self._loop.create_future()
        """Done when the socket is closed; the result says why."""

    # -- the protocol asyncio drives ------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take bytes; start serving what they complete. Never waits for a handler."""
        try:
            events = self._session.receive(data)
        except MuxError as error:
            self.abort(str(error))
            return
        for event in events:
            if isinstance(event, RpcRequest):
                self._start(event)
            else:
                self._finish_call(event)
        self._flush()

    def eof_received(self) -> bool:
        """The peer is gone; the socket is closed."""
        place = " in the middle of a message" if self._session.midway else ""
        self._ending = self._ending or f"the peer closed the connection{place}"
        return False

    def connection_lost(self, problem: Exception | None) -> None:
        """Fail every call that waits, stop every handler, tell whoever waits for the end."""
        reason = self._ending or (str(problem) if problem else "the connection was closed")
        for future in self._calls.values():
            if not future.done():
                future.set_exception(ConnectionResetError(reason))
        for task in self._tasks:
            task.cancel()
        if not self.closed.done():
            self.closed.set_result(reason)

    # -- serving --------------------------------------------------------------------------

    def _start(self, request: RpcRequest) -> None:
        patience = self._patience(request)
        if patience <= 0:
            self._overdue(request, None)
            return
        task = self._loop.create_task(self._serve(request))
        self._tasks.add(task)
        timer = self._loop.call_later(patience, self._overdue, request, task)

        def done(task: asyncio.Task[None]) -> None:
            timer.cancel()
            self._tasks.discard(task)

        task.add_done_callback(done)

    def _overdue(self, request: RpcRequest, task: asyncio.Task[None] | None) -> None:
        """Answer in the handler's place. Does not depend on the handler letting go."""
        log.error("%s was not handled in time and is answered with an error", request.method)
        self._session.fail(
            request.stream,
            Code.DEADLINE_EXCEEDED,
            f"{request.method} was not decided before the runtime's deadline; it is refused "
            "rather than let through unchecked",
        )
        self._flush()
        if task is not None:
            self._late(request)
            task.cancel()

    async def _serve(self, request: RpcRequest) -> None:
        try:
            payload = await self._answer(request)
        except StatusError as error:
            self._session.fail(request.stream, error.code, error.message)
        except asyncio.CancelledError:
            self._session.fail(request.stream, Code.CANCELLED, f"{request.method} was cancelled")
            self._flush()
            raise
        except Exception as problem:
            log.exception("%s failed", request.method)
            self._session.fail(
                request.stream,
                Code.INTERNAL,
                f"{request.method}: {type(problem).__name__}: {problem}",
            )
        else:
            if not self._session.respond(request.stream, payload):
                log.warning("the answer to %s came too late and is dropped", request.method)
        self._flush()

    async def drain(self, seconds: float) -> None:
        """Wait until every call of the peer is answered, but no longer than *seconds*."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    # -- calling --------------------------------------------------------------------------

    async def call(self, service: str, method: str, payload: bytes, timeout: float) -> bytes:
        """Call the peer and return the payload of its answer.

        Raises :class:`StatusError` when it answers with one, ``TimeoutError`` after *timeout*
        seconds, ``ConnectionError`` when the connection ends first, and
        :class:`~drakit.wire.nri.frames.MessageTooLongError` when nothing could be sent.
        """
        if self._transport is None or self.closed.done() or self._transport.is_closing():
            raise ConnectionResetError(self._ending or "the connection is closed")
        stream = self._session.call(service, method, payload, timeout)
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._calls[stream] = future
        self._flush()
        try:
            async with asyncio.timeout(timeout):
                return await future
        finally:
            del self._calls[stream]

    def _finish_call(self, response: RpcResponse) -> None:
        future = self._calls.get(response.stream)
        if future is None or future.done():  # given up meanwhile
            return
        if response.error is not None:
            future.set_exception(response.error)
        else:
            future.set_result(response.payload)

    # -- ending ---------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Close the socket at once."""
        self._ending = self._ending or reason
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.closed.set_result(self._ending)

    async def close(self, reason: str) -> None:
        """Close the socket and wait until it is closed and every handler has ended."""
        self.abort(reason)
        await asyncio.shield(self.closed)
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(tasks, timeout=1)

    def _flush(self) -> None:
        data = self._session.output()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
