"""A plugin that stays connected to the runtime for ever and answers every call in time.

The socket is served in a thread with an event loop of its own, the handler in the loop that
called :meth:`NriPlugin.run`. So the runtime gets its answer – an error, if need be – also while
the rest of the program is busy, waits for a slow disk, or hangs: silence would make the runtime
create containers unpinned (fail-open), and that is the one thing this must never cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
import socket
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from drakit.wire.nri import nri_pb2
from drakit.wire.nri.connection import RuntimeConnection, check_updates, handling_an_event
from drakit.wire.nri.events import RUNTIME_SERVICE_NAME
from drakit.wire.nri.handler import Cause, Disconnect, Handler, RuntimeInfo
from drakit.wire.nri.options import PluginOptions
from drakit.wire.nri.session import StatusError
from drakit.wire.nri.transport import Transport
from drakit.wire.nri.values import NOTHING, ContainerUpdate, updates_to

log = logging.getLogger(__name__)

_STEADY_AFTER: Final = 1.0
_GRACE_AT_THE_END: Final = 1.0
_PUSH_TIMEOUT: Final = 10.0


class UpdateRejectedError(Exception):
    """Updates were not pushed, and it would be wrong to try: see the message."""


class PushFailedError(Exception):
    """The runtime could not apply some pushed updates; ``failed`` is the reason by container."""

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
        self._line: asyncio.AbstractEventLoop | None = None

    @property
    def runtime(self) -> RuntimeInfo | None:
        """The runtime we are synchronized with now, if any."""
        current = self._current
        return current.runtime if current is not None else None

    async def run(self, handler: Handler) -> None:
        """Connect, serve, and connect again for ever; ends when cancelled.

        Cancelling lets events in progress be answered first, for about a second. With an
        inherited descriptor it returns when that connection ends, as there is no other.
        """
        home = asyncio.get_running_loop()
        ended: asyncio.Future[None] = home.create_future()
        line = asyncio.new_event_loop()
        task = line.create_task(self._stay_connected(handler, home))
        worker = threading.Thread(
            target=_serve_line, args=(line, task, home, ended), name="nri", daemon=True
        )
        self._line = line
        worker.start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):  # the line may have ended by itself just now
                line.call_soon_threadsafe(task.cancel)
            await _patiently(ended)
            raise
        finally:
            self._line = None
            worker.join()

    async def _stay_connected(self, handler: Handler, home: asyncio.AbstractEventLoop) -> None:
        delay, told = self._options.first_delay, None
        clock = asyncio.get_running_loop().time
        while True:
            begin = clock()
            conversation = RuntimeConnection(self._options, handler, home)
            end = await self._visit(conversation)
            spoke = conversation.runtime is not None
            if spoke or told != end.cause:
                log.warning("no connection to the runtime: %s", end)
                home.call_soon_threadsafe(handler.disconnected, end)
                told = end.cause
            if self._options.descriptor is not None:
                return
            if conversation.synchronized.done() and clock() - begin >= _STEADY_AFTER:
                delay = self._options.first_delay
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
            delay = min(delay * 1.7, self._options.longest_delay)

    async def _visit(self, conversation: RuntimeConnection) -> Disconnect:
        """One connection; it is closed when this returns.

        Two at once would be two plugins of one name, which conflict in every container.
        """
        transport = conversation.transport
        try:
            await self._connect(transport)
        except OSError as error:
            return _why_not(error, self._options.socket_path)
        self._current = conversation
        try:
            return await conversation.converse()
        except asyncio.CancelledError:
            self._current = None
            await transport.drain(_GRACE_AT_THE_END)
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
        """Change containers although the runtime did not ask, one call for each.

        Raises :class:`UpdateRejectedError` when this must not be tried – no synchronized runtime,
        one whose NRI is older than 0.12.1 (it could wedge), or a handler still in progress (the
        runtime would wait for it and it for the runtime) – and :class:`PushFailedError` after
        trying all. Updating a container that is gone is no error.
        """
        if handling_an_event():
            raise UpdateRejectedError(
                "updates cannot be pushed while an event is handled; return them instead"
            )
        current, line = self._current, self._line
        if current is None or line is None or not current.synchronized.done():
            raise UpdateRejectedError("updates cannot be pushed: no runtime is synchronized")
        runtime = current.runtime
        if runtime is None or not runtime.features.unsolicited_updates:
            version = runtime.nri if runtime else "unknown"
            raise UpdateRejectedError(
                f"updates cannot be pushed to NRI {version}: before 0.12.1 they can block the "
                "runtime for good; they go with the next answer"
            )
        check_updates(updates)
        failed = await _on_line(line, _push(current.transport, updates))
        if failed:
            raise PushFailedError(failed)


def _serve_line(
    line: asyncio.AbstractEventLoop,
    task: asyncio.Task[None],
    home: asyncio.AbstractEventLoop,
    ended: asyncio.Future[None],
) -> None:
    """The socket's thread: run *task* in the loop *line*, and tell *home* how it ended."""
    problem: BaseException | None = None
    try:
        line.run_until_complete(task)
    except asyncio.CancelledError:
        pass
    except BaseException as caught:
        problem = caught
    finally:
        line.run_until_complete(_wind_up())
        line.close()

    def settle() -> None:
        if ended.done():
            return
        if problem is None:
            ended.set_result(None)
        else:
            ended.set_exception(problem)

    with contextlib.suppress(RuntimeError):  # home was closed under us: nobody is waiting
        home.call_soon_threadsafe(settle)


async def _on_line(
    line: asyncio.AbstractEventLoop, push: Coroutine[None, None, dict[str, str]]
) -> dict[str, str]:
    """Run *push* in the loop *line*. Raises :class:`UpdateRejectedError` when that ends meanwhile."""
    try:
        pushing = asyncio.run_coroutine_threadsafe(push, line)
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


async def _wind_up() -> None:
    """End pushes under way, whose callers wait for them, and let closing sockets close."""
    while pushes := asyncio.all_tasks() - {asyncio.current_task()}:
        for push in pushes:
            push.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)
    await asyncio.sleep(0)  # transports close one turn of the loop after they are told to


async def _push(transport: Transport, updates: Sequence[ContainerUpdate]) -> dict[str, str]:
    failed: dict[str, str] = {}
    for update in updates:
        if update.resources == NOTHING:
            continue
        # One container a call: of several the runtime does not say which one failed.
        request = nri_pb2.UpdateContainersRequest(update=updates_to([update]))
        payload = request.SerializeToString()
        try:
            answer = await transport.call(
                RUNTIME_SERVICE_NAME, "UpdateContainers", payload, _PUSH_TIMEOUT
            )
            if nri_pb2.UpdateContainersResponse.FromString(answer).failed:
                failed[update.container_id] = "the runtime could not apply it"
        except StatusError as error:
            failed[update.container_id] = error.message
        except (TimeoutError, ConnectionError) as problem:
            failed[update.container_id] = str(problem) or f"no answer in {_PUSH_TIMEOUT} s"
        except DecodeError as problem:
            failed[update.container_id] = f"the answer does not parse: {problem}"
    return failed


async def _patiently(ended: asyncio.Future[None]) -> None:
    """Wait for the end whatever further cancellations come: it takes little more than a second."""
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            continue


def _why_not(problem: OSError, path: str) -> Disconnect:
    """What a failed connect means and what to do about it."""
    match problem.errno:
        case errno.ENOENT:
            cause, advice = (
                Cause.NO_SOCKET,
                "NRI is off in the runtime, or its socket is elsewhere",
            )
        case errno.ECONNREFUSED:
            cause, advice = Cause.REFUSED, "the runtime is down or starting"
        case errno.EACCES | errno.EPERM:
            cause, advice = Cause.DENIED, "the plugin needs root, or access to the directory"
        case _:
            cause, advice = Cause.UNREACHABLE, os.strerror(problem.errno or 0)
    return Disconnect(cause=cause, detail=f"{path}: {advice}")
