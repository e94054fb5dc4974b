"""NRI plugin that stays connected to the runtime and answers every call in time.

The socket is served in a thread with its own event loop (I/O loop), the handler in the loop that called
:meth:`NriPlugin.run` (handler loop). So the runtime gets its answer, if necessary an error, even while the
rest of the program is busy, waits for a slow disk, or hangs. Without an answer the runtime would create
containers unpinned (fail open), which this module must never cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import socket
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from drakit.core.log import get_logger
from drakit.wire.nri import nri_pb2
from drakit.wire.nri.connection import RuntimeConnection, check_updates, handling_an_event
from drakit.wire.nri.events import RUNTIME_SERVICE_NAME
from drakit.wire.nri.handler import Cause, Disconnect, Handler, PluginOptions, RuntimeInfo
from drakit.wire.nri.session import StatusError
from drakit.wire.nri.transport import Transport
from drakit.wire.nri.values import NOTHING, ContainerUpdate, update_to

log = get_logger(__name__)

_STABLE_AFTER: Final = 1.0
"""A connection that was synchronized for this long resets the reconnect delay."""
_DRAIN_SECONDS: Final = 1.0
_PUSH_TIMEOUT: Final = 10.0


class UpdateRejectedError(Exception):
    """Updates were not pushed because pushing is not allowed now; the message has the reason."""


class PushFailedError(Exception):
    """The runtime could not apply some pushed updates; ``failed`` maps container to reason."""

    def __init__(self, failed: Mapping[str, str]) -> None:
        text = "; ".join(f"container {name}: {reason}" for name, reason in failed.items())
        super().__init__(f"the runtime did not update {len(failed)} containers: {text}")
        self.failed = dict(failed)


class NriPlugin:
    """Stays registered with the runtime as long as :meth:`run` runs.

    One instance serves one handler. All public methods belong to the event loop of :meth:`run`.
    """

    def __init__(self, options: PluginOptions) -> None:
        self._options = options
        self._current: RuntimeConnection | None = None
        self._io_loop: asyncio.AbstractEventLoop | None = None

    @property
    def runtime(self) -> RuntimeInfo | None:
        """The runtime that is connected now, if any."""
        current = self._current
        return current.runtime if current is not None else None

    async def run(self, handler: Handler) -> None:
        """Connect, serve, and reconnect forever; ends when cancelled.

        When cancelled, events in progress are answered first, for about a second. With an inherited
        descriptor it returns when that connection ends: there is no way to reconnect.
        """
        handler_loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = handler_loop.create_future()
        io_loop = asyncio.new_event_loop()
        task = io_loop.create_task(self._stay_connected(handler, handler_loop))
        worker = threading.Thread(
            target=_run_io_loop, args=(io_loop, task, handler_loop, ended), name="nri", daemon=True
        )
        self._io_loop = io_loop
        worker.start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):  # the I/O loop may have just ended by itself
                io_loop.call_soon_threadsafe(task.cancel)
            while not ended.done():  # despite further cancellations: it takes about a second
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(ended)
            raise
        finally:
            self._io_loop = None
            worker.join()

    async def _stay_connected(self, handler: Handler, handler_loop: asyncio.AbstractEventLoop) -> None:
        delay, last_cause = self._options.first_delay, None
        clock = asyncio.get_running_loop().time
        while True:
            begin = clock()
            connection = RuntimeConnection(self._options, handler, handler_loop)
            end = await self._run_connection(connection)
            if connection.runtime is not None or last_cause != end.cause:
                log.warning("not connected to the runtime", cause=end.cause, detail=end.detail)
                handler_loop.call_soon_threadsafe(handler.disconnected, end)
                last_cause = end.cause
            if self._options.descriptor is not None:
                return
            if connection.synchronized.done() and clock() - begin >= _STABLE_AFTER:
                delay = self._options.first_delay
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
            delay = min(delay * 1.7, self._options.longest_delay)

    async def _run_connection(self, connection: RuntimeConnection) -> Disconnect:
        """Connect and serve; the connection is closed when this returns.

        Two connections at once would be two plugins of one name, which conflict in every container.
        """
        transport = connection.transport
        try:
            await self._connect(transport)
        except OSError as error:
            return _connect_failure(error, self._options.socket_path)
        self._current = connection
        try:
            return await connection.run()
        except asyncio.CancelledError:
            self._current = None
            await transport.drain(_DRAIN_SECONDS)
            raise
        finally:
            self._current = None
            await transport.close("the plugin closed the connection")

    async def _connect(self, transport: Transport) -> None:
        loop = asyncio.get_running_loop()
        if self._options.descriptor is not None:
            inherited = socket.socket(fileno=self._options.descriptor)
            inherited.setblocking(False)
            await loop.create_unix_connection(lambda: transport, sock=inherited)
        else:
            await loop.create_unix_connection(lambda: transport, self._options.socket_path)

    async def push(self, updates: Sequence[ContainerUpdate]) -> None:
        """Send unsolicited updates, one call for each container.

        Raises :class:`UpdateRejectedError` when this must not be tried – no synchronized runtime, NRI
        older than 0.12.1 (it could deadlock), or a handler still in progress (it and the runtime would
        wait for each other) – and :class:`PushFailedError` after trying all. Updating a container that
        is gone is not an error.
        """
        if handling_an_event():
            raise UpdateRejectedError(
                "updates cannot be pushed while an event is handled; return them instead"
            )
        current, io_loop = self._current, self._io_loop
        if current is None or io_loop is None or not current.synchronized.done():
            raise UpdateRejectedError("updates cannot be pushed: no runtime is synchronized")
        runtime = current.runtime
        if runtime is None or not runtime.features.unsolicited_updates:
            version = runtime.nri if runtime else "unknown"
            raise UpdateRejectedError(
                f"updates cannot be pushed to NRI {version}: before 0.12.1 they can deadlock the "
                "runtime; they are sent with the next answer"
            )
        check_updates(updates)
        failed = await _in_io_loop(io_loop, _push(current.transport, updates))
        if failed:
            raise PushFailedError(failed)


def _run_io_loop(
    io_loop: asyncio.AbstractEventLoop,
    task: asyncio.Task[None],
    handler_loop: asyncio.AbstractEventLoop,
    ended: asyncio.Future[None],
) -> None:
    """Body of the socket's thread: run *task* in *io_loop*, then resolve *ended* in *handler_loop*."""
    error: BaseException | None = None
    try:
        io_loop.run_until_complete(task)
    except asyncio.CancelledError:
        pass
    except BaseException as caught:
        error = caught
    finally:
        io_loop.run_until_complete(_cancel_pushes())
        io_loop.close()

    def resolve() -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the handler loop was closed: nothing waits for *ended*
        handler_loop.call_soon_threadsafe(resolve)


async def _in_io_loop(
    io_loop: asyncio.AbstractEventLoop, push: Coroutine[None, None, dict[str, str]]
) -> dict[str, str]:
    """Run *push* in *io_loop*. Raises :class:`UpdateRejectedError` when that loop ends first."""
    try:
        pushing = asyncio.run_coroutine_threadsafe(push, io_loop)
    except RuntimeError as error:  # the loop is closed
        push.close()
        raise UpdateRejectedError("updates cannot be pushed: the plugin has ended") from error
    try:
        return await asyncio.wrap_future(pushing)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise UpdateRejectedError("updates were not pushed: the plugin is ending") from None


async def _cancel_pushes() -> None:
    """Cancel pushes in progress, whose callers wait for them, and let sockets finish closing."""
    while pushes := asyncio.all_tasks() - {asyncio.current_task()}:
        for push in pushes:
            push.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)
    await asyncio.sleep(0)  # transports close in the next iteration of the loop


async def _push(transport: Transport, updates: Sequence[ContainerUpdate]) -> dict[str, str]:
    failed: dict[str, str] = {}
    for update in updates:
        if update.resources == NOTHING:
            continue
        # One container per call: for several the runtime does not report which one failed.
        request = nri_pb2.UpdateContainersRequest(update=[update_to(update)])
        payload = request.SerializeToString()
        try:
            answer = await transport.call(RUNTIME_SERVICE_NAME, "UpdateContainers", payload, _PUSH_TIMEOUT)
            if nri_pb2.UpdateContainersResponse.FromString(answer).failed:
                failed[update.container_id] = "the runtime could not apply it"
        except StatusError as error:
            failed[update.container_id] = error.message
        except (TimeoutError, ConnectionError) as error:
            failed[update.container_id] = str(error) or f"no answer in {_PUSH_TIMEOUT} s"
        except DecodeError as error:
            failed[update.container_id] = f"the answer does not parse: {error}"
    return failed


def _connect_failure(error: OSError, path: str) -> Disconnect:
    """The cause of a failed connect and what to do about it."""
    match error.errno:
        case errno.ENOENT:
            cause, advice = Cause.NO_SOCKET, "NRI is off in the runtime, or its socket is elsewhere"
        case errno.ECONNREFUSED:
            cause, advice = Cause.REFUSED, "the runtime is down or starting"
        case errno.EACCES | errno.EPERM:
            cause, advice = Cause.DENIED, "the plugin needs root, or access to the directory"
        case _:
            cause, advice = Cause.UNREACHABLE, os.strerror(error.errno or 0)
    return Disconnect(cause=cause, detail=f"{path}: {advice}")
