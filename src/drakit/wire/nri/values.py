"""Pods, containers and changes of containers, as immutable values.

The protobuf messages never leave this package. Conversions go both ways for the fake runtime. Decoding
copies only what a driver uses: on reconnect a runtime sends every container of the node at once and waits
two seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from sys import intern
from typing import Final

import msgspec

from drakit.wire.nri import nri_pb2

CONTAINER_NAME_LABEL: Final = "io.kubernetes.container.name"
"""Set by the kubelet. Some CRI-O versions leave the name field empty in CreateContainer."""


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of the values in this module."""


class State(IntEnum):
    """State of a container."""

    UNKNOWN = 0
    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4


class Resources(Value, frozen=True):
    """Limits of one container. None, an empty string or an empty mapping means "not set".

    NRI cannot clear ``cpus`` or ``mems``: to unpin, list all of them.
    ``hugepage_limits`` are bytes by page size (``2MB``); ``unified`` is written as is to cgroup v2.
    """

    cpus: str = ""
    mems: str = ""
    shares: int | None = None
    quota: int | None = None
    period: int | None = None
    memory_limit: int | None = None
    hugepage_limits: Mapping[str, int] = msgspec.field(default_factory=dict)
    unified: Mapping[str, str] = msgspec.field(default_factory=dict)

    def over(self, other: Resources) -> Resources:
        """*other*, with the fields that are set here replaced."""
        return Resources(
            cpus=self.cpus or other.cpus,
            mems=self.mems or other.mems,
            shares=other.shares if self.shares is None else self.shares,
            quota=other.quota if self.quota is None else self.quota,
            period=other.period if self.period is None else self.period,
            memory_limit=other.memory_limit if self.memory_limit is None else self.memory_limit,
            hugepage_limits={**other.hugepage_limits, **self.hugepage_limits},
            unified={**other.unified, **self.unified},
        )


NOTHING: Final = Resources()
"""No limit set."""


class PodSandbox(Value, frozen=True):
    """A pod sandbox. ``id`` is the runtime's, ``uid`` Kubernetes'."""

    id: str
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    cgroup_parent: str = ""

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name} ({self.uid})"


class NriContainer(Value, frozen=True):
    """A container as the runtime describes it. ``pod_id`` is the sandbox's runtime id.

    ``env`` can be set by the workload, so it proves nothing; a plugin may select variables
    (:attr:`PluginOptions.variables`). ``cdi_devices`` comes from the kubelet through the runtime and can be
    trusted; runtimes before NRI 0.12 leave it empty.
    """

    id: str
    pod_id: str = ""
    name: str = ""
    state: State = State.UNKNOWN
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    env: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    cgroups_path: str = ""
    resources: Resources = NOTHING

    def variable(self, name: str) -> str | None:
        """The value of the environment variable *name*; the last one if there are several, as in libc."""
        start = f"{name}="
        return next((e[len(start) :] for e in reversed(self.env) if e.startswith(start)), None)

    def __str__(self) -> str:
        return f"container {self.name} ({self.id})"


class ContainerUpdate(Value, frozen=True):
    """Change of an existing container: only the fields set in ``resources``."""

    container_id: str
    resources: Resources
    ignore_failure: bool = False


class Adjustment(Value, frozen=True):
    """Answer to CreateContainer: changes of the new container and of others.

    An update of the container being created, or two for one container, would make the runtime reject the
    creation; such an answer is never sent.
    """

    resources: Resources = NOTHING
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    updates: tuple[ContainerUpdate, ...] = ()


EVERY_VARIABLE: Final = ("",)
"""Prefixes that match every environment variable."""


def _texts(mapping: Mapping[str, str]) -> dict[str, str]:
    """A protobuf map as a dict with interned keys, which the containers of a node share."""
    return {intern(key): value for key, value in mapping.items()}


def resources_from(message: nri_pb2.LinuxResources) -> Resources:
    """Decode limits. Every field may be missing."""
    cpu, memory = message.cpu, message.memory
    return Resources(
        cpus=cpu.cpus,
        mems=cpu.mems,
        shares=cpu.shares.value if cpu.HasField("shares") else None,
        quota=cpu.quota.value if cpu.HasField("quota") else None,
        period=cpu.period.value if cpu.HasField("period") else None,
        memory_limit=memory.limit.value if memory.HasField("limit") else None,
        hugepage_limits={each.page_size: each.limit for each in message.hugepage_limits},
        unified=dict(message.unified),
    )


def pod_from(message: nri_pb2.PodSandbox) -> PodSandbox:
    """Decode a pod sandbox."""
    return PodSandbox(
        id=message.id,
        name=message.name,
        namespace=message.namespace,
        uid=message.uid,
        labels=_texts(message.labels),
        annotations=_texts(message.annotations),
        cgroup_parent=message.linux.cgroup_parent,
    )


def container_from(message: nri_pb2.Container, prefixes: tuple[str, ...] = EVERY_VARIABLE) -> NriContainer:
    """Decode a container, with only the variables that begin with one of *prefixes*.

    A state that is not in :class:`State` becomes unknown, not an error.
    """
    labels, linux = _texts(message.labels), message.linux
    return NriContainer(
        id=message.id,
        pod_id=message.pod_sandbox_id,
        name=message.name or labels.get(CONTAINER_NAME_LABEL, ""),
        state=_STATES.get(message.state, State.UNKNOWN),
        labels=labels,
        annotations=_texts(message.annotations),
        env=tuple([each for each in message.env if each.startswith(prefixes)]),
        cdi_devices=tuple([each.name for each in message.cdi_devices]),
        cgroups_path=linux.cgroups_path,
        resources=resources_from(linux.resources) if linux.HasField("resources") else NOTHING,
    )


def update_from(message: nri_pb2.ContainerUpdate) -> ContainerUpdate:
    """Decode a requested change."""
    return ContainerUpdate(
        container_id=message.container_id,
        resources=resources_from(message.linux.resources),
        ignore_failure=message.ignore_failure,
    )


def adjustment_from(message: nri_pb2.CreateContainerResponse) -> Adjustment:
    """Decode the answer to a create."""
    adjust = message.adjust
    return Adjustment(
        resources=resources_from(adjust.linux.resources),
        env={each.key: each.value for each in adjust.env},
        annotations=dict(adjust.annotations),
        cdi_devices=tuple([each.name for each in adjust.cdi_devices]),
        updates=tuple([update_from(each) for each in message.update]),
    )


_STATES: Final = {int(state): state for state in State}


def resources_to(value: Resources) -> nri_pb2.LinuxResources:
    """Encode limits; fields that are not set are absent."""
    pages = [
        nri_pb2.HugepageLimit(page_size=size, limit=limit)
        for size, limit in sorted(value.hugepage_limits.items())
    ]
    message = nri_pb2.LinuxResources(hugepage_limits=pages, unified=value.unified)
    if value.cpus or value.mems:
        message.cpu.cpus, message.cpu.mems = value.cpus, value.mems
    for number, field in (
        (value.shares, message.cpu.shares),
        (value.quota, message.cpu.quota),
        (value.period, message.cpu.period),
        (value.memory_limit, message.memory.limit),
    ):
        if number is not None:
            field.value = number
            field.SetInParent()  # presence counts, also for zero
    return message


def pod_to(value: PodSandbox) -> nri_pb2.PodSandbox:
    """Encode a pod sandbox."""
    return nri_pb2.PodSandbox(
        id=value.id,
        name=value.name,
        uid=value.uid,
        namespace=value.namespace,
        labels=value.labels,
        annotations=value.annotations,
        linux=nri_pb2.LinuxPodSandbox(cgroup_parent=value.cgroup_parent),
    )


def container_to(value: NriContainer) -> nri_pb2.Container:
    """Encode a container."""
    return nri_pb2.Container(
        id=value.id,
        pod_sandbox_id=value.pod_id,
        name=value.name,
        state=int(value.state),
        labels=value.labels,
        annotations=value.annotations,
        env=value.env,
        linux=nri_pb2.LinuxContainer(
            resources=resources_to(value.resources), cgroups_path=value.cgroups_path
        ),
        cdi_devices=[nri_pb2.CDIDevice(name=name) for name in value.cdi_devices],
    )


def update_to(value: ContainerUpdate) -> nri_pb2.ContainerUpdate:
    """Encode a requested change."""
    return nri_pb2.ContainerUpdate(
        container_id=value.container_id,
        linux=nri_pb2.LinuxContainerUpdate(resources=resources_to(value.resources)),
        ignore_failure=value.ignore_failure,
    )


def adjustment_to(value: Adjustment) -> nri_pb2.CreateContainerResponse:
    """Encode the answer to a create."""
    adjust = nri_pb2.ContainerAdjustment(
        annotations=value.annotations,
        env=[nri_pb2.KeyValue(key=key, value=text) for key, text in value.env.items()],
        cdi_devices=[nri_pb2.CDIDevice(name=name) for name in value.cdi_devices],
    )
    if value.resources != NOTHING:
        adjust.linux.resources.CopyFrom(resources_to(value.resources))
    return nri_pb2.CreateContainerResponse(adjust=adjust, update=map(update_to, value.updates))
