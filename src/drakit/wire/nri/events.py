"""Calls of a runtime to a plugin, decoded to values and encoded for the fake runtime.

Up to NRI 0.11 most events arrive through the method ``StateChange``, from 0.12 on each has its own
(:mod:`drakit.wire.nri.event_table`); both decode to the same :class:`RuntimeEvent`.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message

from drakit.wire.nri import field_scan, nri_pb2
from drakit.wire.nri.event_table import EVENTS, EVENTS_BY_METHOD, Event, EventRow
from drakit.wire.nri.session import Code, StatusError
from drakit.wire.nri.values import (
    EVERY_VARIABLE,
    NriContainer,
    PodSandbox,
    Resources,
    container_from,
    container_to,
    pod_from,
    pod_to,
    resources_from,
    resources_to,
)

PLUGIN_SERVICE_NAME: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE_NAME: Final = "nri.pkg.api.v1alpha1.Runtime"


class Configure(msgspec.Struct, frozen=True, kw_only=True):
    """Name, versions and timeouts of the runtime. Timeouts are seconds, None where not reported."""

    runtime_name: str = ""
    runtime_version: str = ""
    nri_version: str = ""
    registration_timeout: float | None = None
    request_timeout: float | None = None


class Synchronize(msgspec.Struct, frozen=True, kw_only=True):
    """All pods and containers of the runtime, or one part of them when *more* follow."""

    pods: tuple[PodSandbox, ...] = ()
    containers: tuple[NriContainer, ...] = ()
    more: bool = False


class RuntimeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the table; *container* and *resources* only where the event has them."""

    event: Event
    pod: PodSandbox
    container: NriContainer | None = None
    resources: Resources | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the handler method."""
        given = (self.pod, self.container, self.resources)
        return tuple(each for each in given if each is not None)


class Ignored(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is answered with an empty message without further effect."""

    method: str


Call: TypeAlias = Configure | Synchronize | RuntimeEvent | Ignored

M = TypeVar("M", bound=Message)
Payload: TypeAlias = bytes | memoryview


def decode_call(
    service: str, method: str, payload: Payload, prefixes: tuple[str, ...] = EVERY_VARIABLE
) -> Call:
    """The call as a value; containers keep only variables that begin with one of *prefixes*.

    Raises :class:`StatusError` with the status to answer. Runtimes rely on ``UNIMPLEMENTED`` to detect
    that a plugin does not know a method.
    """
    if service != PLUGIN_SERVICE_NAME:
        raise StatusError(Code.UNIMPLEMENTED, f"service {service}")
    match method:
        case "Configure":
            return _configure(payload)
        case "Synchronize":
            return _synchronize(payload, prefixes)
        case "StateChange":
            change = _parse(nri_pb2.StateChangeEvent, payload)
            row = EVENTS.get(change.event)  # type: ignore[call-overload]
            if row is None or not row.notifies_only:
                return Ignored(method=f"StateChange {change.event}")
            return _event(row, change, prefixes)
        case "Shutdown":
            return Ignored(method=method)
    row = EVENTS_BY_METHOD.get(method)
    if row is None:
        raise StatusError(Code.UNIMPLEMENTED, f"method {method}")
    if row.request is None:
        return Ignored(method=method)
    return _event(row, _parse(row.request, payload), prefixes)


def _parse(message: type[M], payload: Payload) -> M:
    parsed = message()
    try:
        parsed.ParseFromString(payload)  # type: ignore[arg-type]
    except DecodeError as error:
        raise StatusError(
            Code.INVALID_ARGUMENT, f"{message.DESCRIPTOR.name} does not parse: {error}"
        ) from error
    return parsed


def _event(row: EventRow, message: Any, prefixes: tuple[str, ...]) -> RuntimeEvent:
    has_container = row.request is not nri_pb2.PodEvent
    return RuntimeEvent(
        event=row.event,
        pod=pod_from(message.pod),
        container=container_from(message.container, prefixes) if has_container else None,
        resources=_requested(message.linux_resources)
        if isinstance(message, nri_pb2.UpdateContainerRequest)
        else None,
    )


def _requested(message: nri_pb2.LinuxResources) -> Resources:
    """The resources of an update request.

    containerd always sends these four; zero means that the CRI request does not set it.
    """
    sent = resources_from(message)
    return msgspec.structs.replace(
        sent,
        shares=sent.shares or None,
        quota=sent.quota or None,
        period=sent.period or None,
        memory_limit=sent.memory_limit or None,
    )


def _configure(payload: Payload) -> Configure:
    message = _parse(nri_pb2.ConfigureRequest, payload)
    return Configure(
        runtime_name=message.runtime_name,
        runtime_version=message.runtime_version,
        nri_version=message.nri_version,
        registration_timeout=message.registration_timeout / 1000 or None,
        request_timeout=message.request_timeout / 1000 or None,
    )


def _synchronize(payload: Payload, prefixes: tuple[str, ...]) -> Synchronize:
    with contextlib.suppress(field_scan.UnusualError, DecodeError):
        return _scan_synchronize(memoryview(payload), prefixes)
    message = _parse(nri_pb2.SynchronizeRequest, payload)
    return Synchronize(
        pods=tuple([pod_from(each) for each in message.pods]),
        containers=tuple([container_from(each, prefixes) for each in message.containers]),
        more=message.more,
    )


def _scan_synchronize(payload: memoryview, prefixes: tuple[str, ...]) -> Synchronize:
    """Parse and drop one pod or container after the other: variables are most of the message."""
    pods: list[PodSandbox] = []
    containers: list[NriContainer] = []
    more = False
    for number, wire, value, content in field_scan.fields(payload):
        match number, wire:
            case 1, field_scan.DELIMITED:
                pods.append(pod_from(nri_pb2.PodSandbox.FromString(bytes(content))))
            case 2, field_scan.DELIMITED:
                container = nri_pb2.Container.FromString(bytes(content))
                containers.append(container_from(container, prefixes))
            case 3, field_scan.VARINT:
                more = value != 0
            case _:
                if number <= 3:
                    raise field_scan.UnusualError(f"field {number} has wire type {wire}")
    return Synchronize(pods=tuple(pods), containers=tuple(containers), more=more)


def encode_call(call: Call, *, as_state_change: bool = False) -> tuple[str, bytes]:
    """(method, payload) as a runtime sends them; *as_state_change*: up to NRI 0.11."""
    message: Any
    match call:
        case Configure():
            method = "Configure"
            message = nri_pb2.ConfigureRequest(
                runtime_name=call.runtime_name,
                runtime_version=call.runtime_version,
                nri_version=call.nri_version,
                registration_timeout=round((call.registration_timeout or 0) * 1000),
                request_timeout=round((call.request_timeout or 0) * 1000),
            )
        case Synchronize():
            method = "Synchronize"
            message = nri_pb2.SynchronizeRequest(
                pods=[pod_to(each) for each in call.pods],
                containers=[container_to(each) for each in call.containers],
                more=call.more,
            )
        case RuntimeEvent():
            row = EVENTS[call.event]
            if as_state_change:
                method, message = "StateChange", nri_pb2.StateChangeEvent(event=int(call.event))
            else:
                assert row.request is not None, call.event
                method, message = row.method, row.request()
            message.pod.CopyFrom(pod_to(call.pod))
            if call.container is not None:
                message.container.CopyFrom(container_to(call.container))
            if call.resources is not None:
                message.linux_resources.CopyFrom(resources_to(call.resources))
        case _:
            return call.method, b""
    return method, message.SerializeToString()
