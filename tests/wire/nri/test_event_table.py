"""Every event has a complete row, and every part of the package reads the same table."""

from __future__ import annotations

import inspect

import pytest

from drakit.wire.nri import nri_pb2
from drakit.wire.nri.event_table import EVENTS, EVENTS_BY_METHOD, HANDLED_EVENTS, Event, event_mask
from drakit.wire.nri.events import PLUGIN_SERVICE_NAME, Ignored, RuntimeEvent, decode_call
from drakit.wire.nri.handler import Handler
from drakit.wire.nri.versions import OLDEST, NriVersion

RESPONSES = {
    "create": nri_pb2.CreateContainerResponse,
    "update": nri_pb2.UpdateContainerResponse,
    "stop": nri_pb2.StopContainerResponse,
}


def test_every_event_has_a_row_and_every_method_is_unique() -> None:
    assert set(EVENTS) == set(Event)
    assert len(EVENTS_BY_METHOD) == len(EVENTS)
    for event, row in EVENTS.items():
        assert row.event is event
        assert row.method == event.name.title().replace("_", "")
        assert row.request is None or "pod" in row.request.DESCRIPTOR.fields_by_name
        assert row.since >= OLDEST


def test_every_handler_method_has_exactly_one_row() -> None:
    coroutines = {name for name, member in vars(Handler).items() if inspect.iscoroutinefunction(member)}
    named = [row.handler for row in EVENTS.values() if row.handler]
    assert sorted(named) == sorted(coroutines - {"synchronize"})
    assert {row.event for row in EVENTS.values() if row.handler} == HANDLED_EVENTS


@pytest.mark.parametrize("row", EVENTS.values(), ids=lambda row: row.method)
def test_a_row_decodes_to_the_arguments_of_its_handler_method(row: object) -> None:
    assert isinstance(row, tuple)
    event = EVENTS[row[0]]
    call = decode_call(PLUGIN_SERVICE_NAME, event.method, b"")
    if event.request is None:
        assert call == Ignored(method=event.method)
        return
    assert isinstance(call, RuntimeEvent)
    assert call.event is event.event
    if event.handler:
        parameters = inspect.signature(getattr(Handler, event.handler)).parameters
        assert len(call.arguments) == len(parameters) - 1
        assert event.response is RESPONSES.get(event.handler)


def test_only_events_without_a_response_arrive_as_state_changes() -> None:
    for event in Event:
        payload = nri_pb2.StateChangeEvent(event=int(event)).SerializeToString()
        call = decode_call(PLUGIN_SERVICE_NAME, "StateChange", payload)
        assert isinstance(call, RuntimeEvent) is EVENTS[event].notifies_only


def test_bits_are_those_of_nri() -> None:
    assert Event.CREATE_CONTAINER.bit == 0x8
    assert Event.VALIDATE_CONTAINER_ADJUSTMENT.bit == 0x2000
    assert event_mask(HANDLED_EVENTS, OLDEST) == 0x6EF
    assert event_mask(frozenset(Event), OLDEST) == 0x7FF
    assert event_mask(frozenset(Event), NriVersion(0, 9, 9)) == 0x7FF
    for version in (NriVersion(0, 10), NriVersion(0, 12, 1), NriVersion(1, 0)):
        assert event_mask(frozenset(Event), version) == 0x3FFF


def test_a_mask_of_zero_would_mean_everything_and_is_never_made() -> None:
    with pytest.raises(ValueError, match="none of the events"):
        event_mask(frozenset(), OLDEST)
    with pytest.raises(ValueError, match="none of the events"):
        event_mask(frozenset({Event.VALIDATE_CONTAINER_ADJUSTMENT}), OLDEST)
