"""What a plugin's author writes: the handler, and what it is told about the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from drakit.wire.nri.values import Adjustment, ContainerUpdate, NriContainer, PodSandbox, Resources
from drakit.wire.nri.versions import Features, NriVersion


class ContainerRejectedError(Exception):
    """Raised by a handler to reject what the runtime asks; the text reaches the pod's events."""


class RuntimeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who is at the other end, and what it can do. Times are seconds."""

    name: str
    version: str
    nri: NriVersion
    features: Features
    registration_timeout: float | None
    request_timeout: float
    config: str = ""


class Cause(StrEnum):
    """Why there is no connection."""

    NO_SOCKET = "no socket"
    REFUSED = "connection refused"
    DENIED = "permission denied"
    UNREACHABLE = "unreachable"
    REGISTRATION_REFUSED = "registration refused"
    NOT_SYNCHRONIZED = "not synchronized"
    LOST = "connection lost"


class Disconnect(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a connection, or of the attempt to make one, and what to do about it."""

    cause: Cause
    detail: str

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}"


class Handler:
    """What a plugin does. Override what you need; the rest does nothing.

    The runtime serializes events: at most one of the coroutines runs at a time, except that one
    which missed the deadline may still be ending. It is then cancelled, and the runtime has
    been told that it failed. Everything may happen twice, for containers never seen before, and
    after a reconnect :meth:`synchronize` is the truth, whatever was believed before.

    Raise :class:`ContainerRejectedError` in ``create``, ``starting`` or ``update`` to make the operation fail
    with that text; other exceptions do so too, as internal errors. The runtime ignores errors
    of the other methods. Never push updates from within one of these and wait for it.
    """

    def connected(self, runtime: RuntimeInfo) -> None:
        """A runtime introduced itself. Must not block."""

    def disconnected(self, end: Disconnect) -> None:
        """The connection ended, or could not be made for a new reason. Must not block."""

    def undelivered(self, answer: Adjustment | Sequence[ContainerUpdate]) -> None:
        """An answer was decided too late: the runtime got an error instead and applied none of it.

        Called in the handler's loop, after the coroutine that made the answer.
        """

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[NriContainer]
    ) -> Sequence[ContainerUpdate]:
        """Here is everything that exists now. Returns the changes it needs."""
        return ()

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        """The container is about to be created; its CDI edits are applied already."""
        return Adjustment()

    async def update(
        self, pod: PodSandbox, container: NriContainer, resources: Resources
    ) -> Sequence[ContainerUpdate]:
        """Somebody else wants the container to have *resources*; returns what it gets instead.

        An update for the same container overrides the request, none lets it through.
        """
        return ()

    async def stop(self, pod: PodSandbox, container: NriContainer) -> Sequence[ContainerUpdate]:
        """The container's process is gone; returns what that changes for others.

        Also sent for containers that never started and for creations that failed, even those
        this plugin rejected.
        """
        return ()

    async def starting(self, pod: PodSandbox, container: NriContainer) -> None:
        """The container is about to start: the last moment to reject it."""

    async def started(self, pod: PodSandbox, container: NriContainer) -> None:
        """The container runs."""

    async def removed(self, pod: PodSandbox, container: NriContainer) -> None:
        """The container is gone for good."""

    async def pod_started(self, pod: PodSandbox) -> None:
        """The pod's sandbox runs (only with ``RUN_POD_SANDBOX`` among the events)."""

    async def pod_stopped(self, pod: PodSandbox) -> None:
        """The pod's sandbox stopped (only with ``STOP_POD_SANDBOX`` among the events).

        Says nothing about its claims: containerd creates containers in stopped sandboxes. Never
        sent for pods from before a containerd restart.
        """

    async def pod_removed(self, pod: PodSandbox) -> None:
        """The pod's sandbox is gone. Never sent for pods from before a containerd restart."""
