"""Options and event handler of an NRI plugin, as its author provides them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from drakit.wire.nri.event_table import HANDLED_EVENTS, Event
from drakit.wire.nri.values import (
    EVERY_VARIABLE,
    Adjustment,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    Resources,
)
from drakit.wire.nri.versions import Features, NriVersion

_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+")
_INDEX: Final = re.compile(r"[0-9]{2}", re.ASCII)


class ContainerRejectedError(Exception):
    """Raised by a handler to reject an operation; the text appears in the pod's events."""


class RuntimeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The connected runtime and its features. Times are seconds."""

    name: str
    version: str
    nri: NriVersion
    features: Features
    request_timeout: float


class Cause(StrEnum):
    """Why the plugin is not connected."""

    NO_SOCKET = "no socket"
    REFUSED = "connection refused"
    DENIED = "permission denied"
    UNREACHABLE = "unreachable"
    REGISTRATION_REFUSED = "registration refused"
    NOT_SYNCHRONIZED = "not synchronized"
    LOST = "connection lost"


class Disconnect(msgspec.Struct, frozen=True, kw_only=True):
    """Why a connection ended or could not be made, and what to do about it."""

    cause: Cause
    detail: str

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}"


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Name of the plugin and how to reach the runtime.

    *index* orders plugins: two digits, the lowest is called first. *descriptor* is an already connected
    socket, inherited from a runtime that launched the plugin. *variables* are prefixes: of containers'
    environments only variables that begin with one are kept, which saves megabytes on a node with
    hundreds of containers. Raises ``ValueError``.
    """

    name: str
    index: str = "90"
    socket_path: str = "/var/run/nri/nri.sock"
    descriptor: int | None = None
    events: frozenset[Event] = HANDLED_EVENTS
    variables: tuple[str, ...] = EVERY_VARIABLE
    registration_timeout: float = 30.0
    synchronization_timeout: float = 30.0
    first_delay: float = 0.05
    longest_delay: float = 1.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"NRI plugin name {self.name!r}: only letters, digits, '_', '.', '+' and '-' are allowed"
            )
        if not _INDEX.fullmatch(self.index):
            raise ValueError(f"NRI plugin index {self.index!r} is not two digits, like '90'")

    def with_environment(self, environment: Mapping[str, str]) -> PluginOptions:
        """These options with those of a runtime that launched the plugin itself.

        Such a runtime sets ``NRI_PLUGIN_NAME``, ``NRI_PLUGIN_IDX`` and the descriptor in
        ``NRI_PLUGIN_SOCKET``. Without the last one nothing changes.
        """
        text = environment.get("NRI_PLUGIN_SOCKET", "")
        if not text:
            return self
        if not text.isdecimal():
            raise ValueError(f"NRI_PLUGIN_SOCKET={text!r} is not a file descriptor")
        return msgspec.structs.replace(
            self,
            descriptor=int(text),
            name=environment.get("NRI_PLUGIN_NAME") or self.name,
            index=environment.get("NRI_PLUGIN_IDX") or self.index,
        )


class Handler:
    """Handler of a plugin's events. Override the methods you need; the others do nothing.

    The runtime serializes events: at most one of the coroutines runs at a time, except that one which
    missed the deadline may still be ending. It is cancelled then, and the runtime has received an error.
    Every event may arrive twice or for a container never seen before; after a reconnect
    :meth:`synchronize` replaces everything known before.

    Raise :class:`ContainerRejectedError` in ``create``, ``starting`` or ``update`` to make the operation
    fail with that text; other exceptions do so too, as internal errors. The runtime ignores errors of the
    other methods. Never push updates from within one of these and wait for the result.
    """

    def connected(self, runtime: RuntimeInfo) -> None:
        """The runtime has sent its name and version. Must not block."""

    def disconnected(self, end: Disconnect) -> None:
        """The connection ended, or could not be made for a new reason. Must not block."""

    def undelivered(self, answer: Adjustment | Sequence[ContainerUpdate]) -> None:
        """An answer was too late: the runtime got an error instead and applied none of it.

        Called in the handler loop, after the coroutine that returned the answer.
        """

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[NriContainer]
    ) -> Sequence[ContainerUpdate]:
        """All pods and containers that exist now. Returns the changes they need."""
        return ()

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        """The container is about to be created; its CDI edits are applied already."""
        return Adjustment()

    async def update(
        self, pod: PodSandbox, container: NriContainer, resources: Resources
    ) -> Sequence[ContainerUpdate]:
        """Another client, usually the kubelet, sets *resources*; returns the changes to make instead.

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

        Its claims may still be used: containerd creates containers in stopped sandboxes. Never sent for
        pods from before a containerd restart.
        """

    async def pod_removed(self, pod: PodSandbox) -> None:
        """The pod's sandbox is gone. Never sent for pods from before a containerd restart."""
