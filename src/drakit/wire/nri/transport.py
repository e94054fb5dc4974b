"""NRI session on a socket: the asyncio protocol around the state machine.

The transport serves the peer's calls, each in its own task, and makes calls to it. Every call has a time
limit: if its answer is late, an error is sent in its place before the peer's deadline. A runtime that gets
no answer in time disconnects the plugin and *creates the container without it*; an error in time makes it
reject the container.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from drakit.core.log import get_logger
from drakit.wire.nri.mux import MuxError
from drakit.wire.nri.session import Code, RpcRequest, RpcResponse, Session, StatusError

log = get_logger(__name__)


class Transport(asyncio.Protocol):
    """One connected NRI socket.

    *answer* returns the payload of the answer to a request or raises :class:`StatusError`; any other
    exception becomes an internal error. *time_limit* is the number of seconds it may take; *on_late* is
    called with requests that were answered with an error because it took longer.
    """

    def __init__(
        self,
        session: Session,
        *,
        answer: Callable[[RpcRequest], Awaitable[bytes]],
        time_limit: Callable[[RpcRequest], float],
        on_late: Callable[[RpcRequest], None] = lambda request: None,
    ) -> None:
        self._session = session
        self._answer = answer
        self._time_limit = time_limit
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = ""
        self.closed: asyncio.Future[str] = self._loop.create_future()
        """Done when the socket is closed; the result is the reason."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use the connected socket."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Start serving the requests that *data* completes. Never waits for a handler."""
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
        """Close the socket: the peer has closed its end."""
        place = " in the middle of a message" if self._session.midway else ""
        self._ending = self._ending or f"the peer closed the connection{place}"
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Fail waiting calls, cancel handlers, and resolve :attr:`closed`."""
        reason = self._ending or (str(error) if error else "the connection was closed")
        for future in self._calls.values():
            if not future.done():
                future.set_exception(ConnectionResetError(reason))
        for task in self._tasks:
            task.cancel()
        if not self.closed.done():
            self.closed.set_result(reason)

    def _start(self, request: RpcRequest) -> None:
        limit = self._time_limit(request)
        if limit <= 0:
            self._fail_late(request, None)
            return
        task = self._loop.create_task(self._serve(request))
        self._tasks.add(task)
        timer = self._loop.call_later(limit, self._fail_late, request, task)

        def done(task: asyncio.Task[None]) -> None:
            timer.cancel()
            self._tasks.discard(task)

        task.add_done_callback(done)

    def _fail_late(self, request: RpcRequest, task: asyncio.Task[None] | None) -> None:
        """Answer with an error, whether or not the handler ever ends."""
        log.error("NRI call not handled in time, answered with an error", method=request.method)
        self._session.fail(
            request.stream,
            Code.DEADLINE_EXCEEDED,
            f"{request.method} was not decided before the runtime's deadline; it is rejected "
            "rather than accepted unchecked",
        )
        self._flush()
        if task is not None:
            self._on_late(request)
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
        except Exception as error:
            log.exception("NRI call failed", method=request.method)
            text = f"{request.method}: {type(error).__name__}: {error}"
            self._session.fail(request.stream, Code.INTERNAL, text)
        else:
            if not self._session.respond(request.stream, payload):
                log.warning("late answer to NRI call dropped", method=request.method)
        self._flush()

    async def drain(self, seconds: float) -> None:
        """Wait until every call of the peer is answered, for at most *seconds*."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    async def call(self, service: str, method: str, payload: bytes, timeout: float) -> bytes:
        """Call the peer and return the payload of its answer.

        Raises :class:`StatusError` when the answer is an error status, ``TimeoutError`` after *timeout*
        seconds, ``ConnectionError`` when the connection ends first, and
        :class:`~drakit.wire.nri.frames.MessageTooLongError` if the message is too long to send.
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
        if future is None or future.done():  # the caller has given up
            return
        if response.error is not None:
            future.set_exception(response.error)
        else:
            future.set_result(response.payload)

    def abort(self, reason: str) -> None:
        """Close the socket immediately."""
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
