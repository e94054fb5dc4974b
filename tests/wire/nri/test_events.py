"""Every call of every NRI version becomes one value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.nri import nri_pb2
from drakit.wire.nri.event_table import EVENTS, Event, EventRow
from drakit.wire.nri.events import (
    PLUGIN_SERVICE_NAME,
    Call,
    Configure,
    Ignored,
    RuntimeEvent,
    Synchronize,
    decode_call,
    encode_call,
)
from drakit.wire.nri.session import Code, StatusError
from drakit.wire.nri.values import Resources
from tests.wire.nri import wire

NOTIFICATIONS = [row for row in EVENTS.values() if row.notifies_only]


def events(rows: Iterable[EventRow], **more: Any) -> st.SearchStrategy[RuntimeEvent]:
    return st.sampled_from(list(rows)).flatmap(
        lambda row: st.builds(
            RuntimeEvent,
            event=st.just(row.event),
            pod=wire.pods,
            container=st.none() if row.request is nri_pb2.PodEvent else wire.containers,
            **more,
        )
    )


changes = events(NOTIFICATIONS)
unset = st.builds(Resources, cpus=wire.text, shares=st.none() | st.integers(1, 2**63))
calls = st.one_of(
    changes,
    events([EVENTS[Event.CREATE_CONTAINER], EVENTS[Event.STOP_CONTAINER]]),
    events([EVENTS[Event.UPDATE_CONTAINER]], resources=unset),
    st.builds(
        Synchronize,
        pods=st.lists(wire.pods, max_size=2).map(tuple),
        containers=st.lists(wire.containers, max_size=2).map(tuple),
        more=st.booleans(),
    ),
    st.builds(
        Configure,
        runtime_name=wire.text,
        request_timeout=st.none() | st.integers(1, 9999).map(lambda ms: ms / 1000),
    ),
    st.sampled_from([Ignored(method="Shutdown"), Ignored(method="ValidateContainerAdjustment")]),
)


@given(calls)
def test_calls_round_trip(call: Call) -> None:
    assert decode_call(PLUGIN_SERVICE_NAME, *encode_call(call)) == call


@given(changes)
def test_state_changes_and_dedicated_methods_decode_to_the_same_value(call: RuntimeEvent) -> None:
    old = decode_call(PLUGIN_SERVICE_NAME, *encode_call(call, as_state_change=True))
    new = decode_call(PLUGIN_SERVICE_NAME, *encode_call(call))
    assert old == new == call


@pytest.mark.parametrize(
    ("service", "method", "message"),
    [
        ("nri.pkg.api.v1alpha1.Other", "Configure", "service nri.pkg.api.v1alpha1.Other"),
        (PLUGIN_SERVICE_NAME, "Whatever", "method Whatever"),
    ],
)
def test_an_unknown_service_or_method_is_unimplemented(service: str, method: str, message: str) -> None:
    with pytest.raises(StatusError, match=message) as caught:
        decode_call(service, method, b"")
    assert caught.value.code == Code.UNIMPLEMENTED


@pytest.mark.parametrize("event", [0, 4, 14, 15, -1, 2**31 - 1])
def test_events_of_the_future_are_ignored(event: int) -> None:
    payload = nri_pb2.StateChangeEvent(event=event).SerializeToString()
    assert isinstance(decode_call(PLUGIN_SERVICE_NAME, "StateChange", payload), Ignored)


@pytest.mark.parametrize("method", ["Configure", "Synchronize", "CreateContainer", "StateChange"])
def test_a_message_that_does_not_parse_is_an_invalid_argument(method: str) -> None:
    with pytest.raises(StatusError, match="does not parse") as caught:
        decode_call(PLUGIN_SERVICE_NAME, method, b"\x0a\xff\xff")
    assert caught.value.code == Code.INVALID_ARGUMENT


def test_empty_messages_are_valid_everywhere() -> None:
    for method in ("Configure", "Synchronize", "CreateContainer", "UpdateContainer", "StateChange"):
        decode_call(PLUGIN_SERVICE_NAME, method, b"")


def test_zero_in_a_cri_update_means_not_set() -> None:
    message = nri_pb2.UpdateContainerRequest()
    cpu = message.linux_resources.cpu
    for wrapper in (cpu.shares, cpu.quota, cpu.period, message.linux_resources.memory.limit):
        wrapper.SetInParent()
    call = decode_call(PLUGIN_SERVICE_NAME, "UpdateContainer", message.SerializeToString())
    assert isinstance(call, RuntimeEvent)
    assert call.resources == Resources()


def test_timeouts_are_seconds() -> None:
    message = nri_pb2.ConfigureRequest(registration_timeout=5000, request_timeout=2000)
    call = decode_call(PLUGIN_SERVICE_NAME, "Configure", message.SerializeToString())
    assert isinstance(call, Configure)
    assert (call.registration_timeout, call.request_timeout) == (5.0, 2.0)
