"""The calls a runtime makes to a plugin, decoded to one value each.

Up to 0.11 most events arrive through the method ``StateChange``, from 0.12 each has its own; both
come out as the same value here. The way back (encoding a call) serves the fake runtime.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message

from drakit.wire.nri import field_scan, nri_pb2
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
from drakit.wire.nri.versions import Event

PLUGIN_SERVICE_NAME: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE_NAME: Final = "nri.pkg.api.v1alpha1.Runtime"


class Configure(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime introduces itself. Times are seconds, None where it is too old to say."""

    config: str = ""
    runtime_name: str = ""
    runtime_version: str = ""
    nri_version: str = ""
    registration_timeout: float | None = None
    request_timeout: float | None = None


class Synchronize(msgspec.Struct, frozen=True, kw_only=True):
    """All pods and containers there are, or one part of them when *more* follow."""

    pods: tuple[PodSandbox, ...] = ()
    containers: tuple[NriContainer, ...] = ()
    more: bool = False


class CreateContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container is about to be made."""

    pod: PodSandbox
    container: NriContainer


class UpdateContainer(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asked the runtime to change a container to *resources*."""

    pod: PodSandbox
    container: NriContainer
    resources: Resources


class StopContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container's process has ended."""

    pod: PodSandbox
    container: NriContainer


class PodChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened to a pod that needs no answer."""

    event: Event
    pod: PodSandbox


class ContainerChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened to a container that needs no answer."""

    event: Event
    pod: PodSandbox
    container: NriContainer


class Ignored(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is answered with an empty message and means nothing to us."""

    method: str


Call: TypeAlias = (
    Configure
    | Synchronize
    | CreateContainer
    | UpdateContainer
    | StopContainer
    | PodChange
    | ContainerChange
    | Ignored
)

POD_METHODS: Final[Mapping[str, Event]] = {
    "RunPodSandbox": Event.RUN_POD_SANDBOX,
    "StopPodSandbox": Event.STOP_POD_SANDBOX,
    "RemovePodSandbox": Event.REMOVE_POD_SANDBOX,
    "UpdatePodSandbox": Event.UPDATE_POD_SANDBOX,
    "PostUpdatePodSandbox": Event.POST_UPDATE_POD_SANDBOX,
}
CONTAINER_METHODS: Final[Mapping[str, Event]] = {
    "PostCreateContainer": Event.POST_CREATE_CONTAINER,
    "StartContainer": Event.START_CONTAINER,
    "PostStartContainer": Event.POST_START_CONTAINER,
    "PostUpdateContainer": Event.POST_UPDATE_CONTAINER,
    "RemoveContainer": Event.REMOVE_CONTAINER,
}
_POD_EVENTS: Final = frozenset(POD_METHODS.values())
_CONTAINER_EVENTS: Final = frozenset(CONTAINER_METHODS.values())

# Validation is never subscribed to. Should a runtime ask all the same, an empty answer accepts;
# "unimplemented" would make it reject every container of the node.
_IGNORED: Final = frozenset({"Shutdown", "ValidateContainerAdjustment"})

M = TypeVar("M", bound=Message)
Payload: TypeAlias = bytes | memoryview


def _parse(message: type[M], payload: Payload) -> M:
    parsed = message()
    try:
        parsed.ParseFromString(payload)  # type: ignore[arg-type]
    except DecodeError as error:
        raise StatusError(
            Code.INVALID_ARGUMENT, f"{message.DESCRIPTOR.name} does not parse: {error}"
        ) from error
    return parsed


def _configure(payload: Payload, _: tuple[str, ...]) -> Call:
    message = _parse(nri_pb2.ConfigureRequest, payload)
    return Configure(
        config=message.config,
        runtime_name=message.runtime_name,
        runtime_version=message.runtime_version,
        nri_version=message.nri_version,
        registration_timeout=message.registration_timeout / 1000 or None,
        request_timeout=message.request_timeout / 1000 or None,
    )


def _synchronize(payload: Payload, prefixes: tuple[str, ...]) -> Call:
    with contextlib.suppress(field_scan.UnusualError, DecodeError):
        return _walked_synchronize(memoryview(payload), prefixes)
    message = _parse(nri_pb2.SynchronizeRequest, payload)
    return Synchronize(
        pods=tuple([pod_from(each) for each in message.pods]),
        containers=tuple([container_from(each, prefixes) for each in message.containers]),
        more=message.more,
    )


def _walked_synchronize(payload: memoryview, prefixes: tuple[str, ...]) -> Synchronize:
    """Each pod and container parsed and dropped in turn: variables are most of the message."""
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


def _create(payload: Payload, prefixes: tuple[str, ...]) -> Call:
    message = _parse(nri_pb2.CreateContainerRequest, payload)
    return CreateContainer(
        pod=pod_from(message.pod), container=container_from(message.container, prefixes)
    )


def _update(payload: Payload, prefixes: tuple[str, ...]) -> Call:
    message = _parse(nri_pb2.UpdateContainerRequest, payload)
    asked = resources_from(message.linux_resources)
    return UpdateContainer(
        pod=pod_from(message.pod),
        container=container_from(message.container, prefixes),
        # containerd always sends these four; zero means that the CRI request does not name it.
        resources=msgspec.structs.replace(
            asked,
            shares=asked.shares or None,
            quota=asked.quota or None,
            period=asked.period or None,
            memory_limit=asked.memory_limit or None,
        ),
    )


def _stop(payload: Payload, prefixes: tuple[str, ...]) -> Call:
    message = _parse(nri_pb2.StopContainerRequest, payload)
    return StopContainer(
        pod=pod_from(message.pod), container=container_from(message.container, prefixes)
    )


def _state_change(payload: Payload, prefixes: tuple[str, ...]) -> Call:
    message = _parse(nri_pb2.StateChangeEvent, payload)
    if message.event in _CONTAINER_EVENTS:
        return ContainerChange(
            event=Event(message.event),
            pod=pod_from(message.pod),
            container=container_from(message.container, prefixes),
        )
    if message.event in _POD_EVENTS:
        return PodChange(event=Event(message.event), pod=pod_from(message.pod))
    return Ignored(method=f"StateChange {message.event}")


_DECODERS: Final[Mapping[str, Callable[[Payload, tuple[str, ...]], Call]]] = {
    "Configure": _configure,
    "Synchronize": _synchronize,
    "CreateContainer": _create,
    "UpdateContainer": _update,
    "StopContainer": _stop,
    "StateChange": _state_change,
}


def decode_call(
    service: str, method: str, payload: Payload, prefixes: tuple[str, ...] = EVERY_VARIABLE
) -> Call:
    """The call as a value; containers have the variables that begin with one of *prefixes*.

    Raises :class:`StatusError` with the status to answer for what is no call to us.

    Runtimes rely on ``UNIMPLEMENTED`` to learn that a plugin does not know a method.
    """
    if service != PLUGIN_SERVICE_NAME:
        raise StatusError(Code.UNIMPLEMENTED, f"service {service}")
    if decoder := _DECODERS.get(method):
        return decoder(payload, prefixes)
    if event := CONTAINER_METHODS.get(method):
        message = _parse(nri_pb2.ContainerEvent, payload)
        return ContainerChange(
            event=event,
            pod=pod_from(message.pod),
            container=container_from(message.container, prefixes),
        )
    if event := POD_METHODS.get(method):
        return PodChange(event=event, pod=pod_from(_parse(nri_pb2.PodEvent, payload).pod))
    if method in _IGNORED:
        return Ignored(method=method)
    raise StatusError(Code.UNIMPLEMENTED, f"method {method}")


def encode_call(call: Call) -> tuple[str, bytes]:
    """(method, payload) as a runtime of NRI 0.12 and later sends them."""
    message: Message
    match call:
        case Configure():
            message = nri_pb2.ConfigureRequest(
                config=call.config,
                runtime_name=call.runtime_name,
                runtime_version=call.runtime_version,
                nri_version=call.nri_version,
                registration_timeout=round((call.registration_timeout or 0) * 1000),
                request_timeout=round((call.request_timeout or 0) * 1000),
            )
            return "Configure", message.SerializeToString()
        case Synchronize():
            message = nri_pb2.SynchronizeRequest(
                pods=[pod_to(each) for each in call.pods],
                containers=[container_to(each) for each in call.containers],
                more=call.more,
            )
            return "Synchronize", message.SerializeToString()
        case PodChange():
            method = next(name for name, event in POD_METHODS.items() if event == call.event)
            return method, nri_pb2.PodEvent(pod=pod_to(call.pod)).SerializeToString()
        case Ignored():
            return call.method, b""
        case _:
            return _encode_container_call(call)


def _encode_container_call(
    call: CreateContainer | UpdateContainer | StopContainer | ContainerChange,
) -> tuple[str, bytes]:
    pod, container = pod_to(call.pod), container_to(call.container)
    if isinstance(call, UpdateContainer):
        update = nri_pb2.UpdateContainerRequest(
            pod=pod, container=container, linux_resources=resources_to(call.resources)
        )
        return "UpdateContainer", update.SerializeToString()
    if isinstance(call, ContainerChange):
        method = next(name for name, event in CONTAINER_METHODS.items() if event == call.event)
    else:
        method = type(call).__name__
    return method, nri_pb2.ContainerEvent(pod=pod, container=container).SerializeToString()


def encode_state_change(call: PodChange | ContainerChange) -> tuple[str, bytes]:
    """(method, payload) as a runtime of NRI 0.11 and earlier sends them."""
    message = nri_pb2.StateChangeEvent(event=int(call.event), pod=pod_to(call.pod))
    if isinstance(call, ContainerChange):
        message.container.CopyFrom(container_to(call.container))
    return "StateChange", message.SerializeToString()
