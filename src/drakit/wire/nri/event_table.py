"""Table of NRI events, read by decoding, dispatch, subscription and the fake runtime.

To add an event, add a row here and a method to :class:`~drakit.wire.nri.handler.Handler`, and its messages
to ``nri.proto`` unless a generic one fits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from google.protobuf.message import Message

from drakit.wire.nri import nri_pb2
from drakit.wire.nri.versions import NriVersion


class Event(IntEnum):
    """NRI's number of an event."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14

    @property
    def bit(self) -> int:
        """The bit of the event mask."""
        return 1 << (self - 1)


class EventRow(NamedTuple):
    """One event: its RPC, the handler method it calls, and the response that carries changes."""

    event: Event
    request: type[Message] | None
    """None: the call is answered with an empty message and not decoded."""
    handler: str = ""
    """The method of :class:`~drakit.wire.nri.handler.Handler`; empty: not passed to the handler."""
    response: type[Message] | None = None
    """Carries an adjustment or updates; None: the event can be rejected at most."""
    since: NriVersion = NriVersion(0, 2)

    @property
    def method(self) -> str:
        """The RPC from NRI 0.12 on; earlier, events without a response arrive as ``StateChange``."""
        return self.event.name.title().replace("_", "")

    @property
    def notifies_only(self) -> bool:
        """Whether the event has no response of its own, so older runtimes send ``StateChange``."""
        return self.request is not None and self.response is None


_POD, _CONTAINER = nri_pb2.PodEvent, nri_pb2.ContainerEvent
_0_10: Final = NriVersion(0, 10)
EVENTS: Final = {
    row.event: row
    for row in (
        EventRow(Event.RUN_POD_SANDBOX, _POD, "pod_started"),
        EventRow(Event.STOP_POD_SANDBOX, _POD, "pod_stopped"),
        EventRow(Event.REMOVE_POD_SANDBOX, _POD, "pod_removed"),
        EventRow(
            Event.CREATE_CONTAINER, nri_pb2.CreateContainerRequest, "create", nri_pb2.CreateContainerResponse
        ),
        EventRow(Event.POST_CREATE_CONTAINER, _CONTAINER),
        EventRow(Event.START_CONTAINER, _CONTAINER, "starting"),
        EventRow(Event.POST_START_CONTAINER, _CONTAINER, "started"),
        EventRow(
            Event.UPDATE_CONTAINER, nri_pb2.UpdateContainerRequest, "update", nri_pb2.UpdateContainerResponse
        ),
        EventRow(Event.POST_UPDATE_CONTAINER, _CONTAINER),
        EventRow(Event.STOP_CONTAINER, nri_pb2.StopContainerRequest, "stop", nri_pb2.StopContainerResponse),
        EventRow(Event.REMOVE_CONTAINER, _CONTAINER, "removed"),
        EventRow(Event.UPDATE_POD_SANDBOX, _POD, since=_0_10),
        EventRow(Event.POST_UPDATE_POD_SANDBOX, _POD, since=_0_10),
        # Never subscribed to. Should a runtime call it anyway, an empty answer accepts the adjustment;
        # "unimplemented" would make the runtime reject every container of the node.
        EventRow(Event.VALIDATE_CONTAINER_ADJUSTMENT, None, since=_0_10),
    )
}
EVENTS_BY_METHOD: Final = {row.method: row for row in EVENTS.values()}
HANDLED_EVENTS: Final = frozenset(row.event for row in EVENTS.values() if row.handler)


def event_mask(wanted: frozenset[Event], version: NriVersion) -> int:
    """The mask to answer Configure with: the *wanted* events that NRI *version* has.

    An unknown bit makes the runtime reject the plugin. Raises ``ValueError`` instead of returning zero:
    zero means "all events", including the validation of other plugins' adjustments.
    """
    mask = sum(event.bit for event in wanted if EVENTS[event].since <= version)
    if not mask:
        raise ValueError(f"NRI {version} has none of the events that the plugin handles")
    return mask
