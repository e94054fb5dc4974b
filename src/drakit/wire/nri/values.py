"""Pods, containers and what a plugin wants changed, as immutable values.

The wire's own messages never leave this package. Conversions go both ways because the fake
runtime speaks the other side. Decoding copies only what a driver looks at: a runtime that
reconnects sends every container of the node at once, and two seconds later gives up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from sys import intern
from typing import Final

import msgspec

from drakit.wire.nri import nri_pb2

CONTAINER_NAME_LABEL: Final = "io.kubernetes.container.name"
"""Set by the kubelet. Some CRI-O versions leave the name field empty in CreateContainer."""


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all values here."""


class State(IntEnum):
    """How far a container has come."""

    UNKNOWN = 0
    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4


class Resources(Value, frozen=True):
    """Limits of one container. None, an empty string or an empty mapping means "not set".

    NRI cannot clear ``cpus`` or ``mems``: to un-pin, name the whole set.
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
        """*other* with everything that is set here set so."""
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
"""No limit set at all."""


class PodSandbox(Value, frozen=True):
    """A pod sandbox. ``id`` is the runtime's, ``uid`` Kubernetes'."""

    id: str
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    runtime_handler: str = ""
    cgroup_parent: str = ""
    cgroups_path: str = ""
    pid: int = 0

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name} ({self.uid})"


class NriContainer(Value, frozen=True):
    """A container as the runtime describes it. ``pod_id`` is the sandbox's runtime id.

    ``env`` is what the workload will see, so it proves nothing; a plugin may ask for some variables
    only (:attr:`PluginOptions.variables`). ``cdi_devices`` comes from the
    kubelet through the runtime and does; runtimes before NRI 0.12 leave it empty.
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
    pid: int = 0
    resources: Resources = NOTHING

    def variable(self, name: str) -> str | None:
        """The value of the environment variable *name*; of several the last, as libc has it."""
        start = f"{name}="
        return next((e[len(start) :] for e in reversed(self.env) if e.startswith(start)), None)

    def __str__(self) -> str:
        return f"container {self.name} ({self.id})"


class ContainerUpdate(Value, frozen=True):
    """Change a container that exists: everything set in ``resources``, and nothing else."""

    container_id: str
    resources: Resources
    ignore_failure: bool = False


class MemoryPolicyMode(IntEnum):
    """``set_mempolicy(2)`` modes by their number in NRI."""

    DEFAULT = 0
    PREFERRED = 1
    BIND = 2
    INTERLEAVE = 3
    LOCAL = 4
    PREFERRED_MANY = 5
    WEIGHTED_INTERLEAVE = 6


class MemoryPolicy(Value, frozen=True):
    """The memory policy the container's process starts with. Needs NRI 0.12 and runc 1.4."""

    mode: MemoryPolicyMode
    nodes: str = ""


class Adjustment(Value, frozen=True):
    """The answer to a create: changes to the new container, and to others beside it.

    An update for the container being created, or two for one container, would make the runtime
    reject the creation; such an answer is never sent.
    """

    resources: Resources = NOTHING
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    memory_policy: MemoryPolicy | None = None
    updates: tuple[ContainerUpdate, ...] = ()


# -- from the wire ----------------------------------------------------------------------------


EVERY_VARIABLE: Final = ("",)
"""Prefixes that all environment variables have."""


def _texts(mapping: Mapping[str, str]) -> dict[str, str]:
    """A map of the wire as a dict. The containers of a node share their keys: each is kept once."""
    return {intern(key): value for key, value in mapping.items()}


def resources_from(message: nri_pb2.LinuxResources) -> Resources:
    """Read limits. Every field may be missing."""
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
    """Read a pod sandbox."""
    linux = message.linux
    return PodSandbox(
        id=message.id,
        name=message.name,
        namespace=message.namespace,
        uid=message.uid,
        labels=_texts(message.labels),
        annotations=_texts(message.annotations),
        runtime_handler=message.runtime_handler,
        cgroup_parent=linux.cgroup_parent,
        cgroups_path=linux.cgroups_path,
        pid=message.pid,
    )


def container_from(
    message: nri_pb2.Container, prefixes: tuple[str, ...] = EVERY_VARIABLE
) -> NriContainer:
    """Read a container, of its environment only variables that begin with one of *prefixes*.

    A state this code does not know is unknown, not an error.
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
        pid=message.pid,
        resources=resources_from(linux.resources) if linux.HasField("resources") else NOTHING,
    )


def update_from(message: nri_pb2.ContainerUpdate) -> ContainerUpdate:
    """Read a requested change."""
    return ContainerUpdate(
        container_id=message.container_id,
        resources=resources_from(message.linux.resources),
        ignore_failure=message.ignore_failure,
    )


def adjustment_from(message: nri_pb2.CreateContainerResponse) -> Adjustment:
    """Read the answer to a create."""
    adjust = message.adjust
    linux, policy = adjust.linux, None
    if linux.HasField("memory_policy"):
        wire = linux.memory_policy
        policy = MemoryPolicy(mode=MemoryPolicyMode(wire.mode), nodes=wire.nodes)
    return Adjustment(
        resources=resources_from(linux.resources),
        env={each.key: each.value for each in adjust.env},
        annotations=dict(adjust.annotations),
        cdi_devices=tuple([each.name for each in adjust.cdi_devices]),
        memory_policy=policy,
        updates=tuple([update_from(each) for each in message.update]),
    )


_STATES: Final = {int(state): state for state in State}


# -- to the wire ------------------------------------------------------------------------------


def resources_to(value: Resources) -> nri_pb2.LinuxResources:
    """Write limits; what is not set is absent."""
    message = nri_pb2.LinuxResources(
        hugepage_limits=[
            nri_pb2.HugepageLimit(page_size=size, limit=limit)
            for size, limit in sorted(value.hugepage_limits.items())
        ],
        unified=value.unified,
    )
    if value.cpus:
        message.cpu.cpus = value.cpus
    if value.mems:
        message.cpu.mems = value.mems
    if value.shares is not None:
        message.cpu.shares.value = value.shares
        message.cpu.shares.SetInParent()  # presence is what counts, also for zero
    if value.quota is not None:
        message.cpu.quota.value = value.quota
        message.cpu.quota.SetInParent()
    if value.period is not None:
        message.cpu.period.value = value.period
        message.cpu.period.SetInParent()
    if value.memory_limit is not None:
        message.memory.limit.value = value.memory_limit
        message.memory.limit.SetInParent()
    return message


def pod_to(value: PodSandbox) -> nri_pb2.PodSandbox:
    """Write a pod sandbox."""
    return nri_pb2.PodSandbox(
        id=value.id,
        name=value.name,
        uid=value.uid,
        namespace=value.namespace,
        labels=value.labels,
        annotations=value.annotations,
        runtime_handler=value.runtime_handler,
        linux=nri_pb2.LinuxPodSandbox(
            cgroup_parent=value.cgroup_parent, cgroups_path=value.cgroups_path
        ),
        pid=value.pid,
    )


def container_to(value: NriContainer) -> nri_pb2.Container:
    """Write a container."""
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
        pid=value.pid,
        cdi_devices=[nri_pb2.CDIDevice(name=name) for name in value.cdi_devices],
    )


def update_to(value: ContainerUpdate) -> nri_pb2.ContainerUpdate:
    """Write a requested change."""
    return nri_pb2.ContainerUpdate(
        container_id=value.container_id,
        linux=nri_pb2.LinuxContainerUpdate(resources=resources_to(value.resources)),
        ignore_failure=value.ignore_failure,
    )


def updates_to(values: Iterable[ContainerUpdate]) -> list[nri_pb2.ContainerUpdate]:
    """Write requested changes."""
    return [update_to(each) for each in values]


def adjustment_to(value: Adjustment) -> nri_pb2.CreateContainerResponse:
    """Write the answer to a create."""
    linux = nri_pb2.LinuxContainerAdjustment()
    if value.resources != NOTHING:
        linux.resources.CopyFrom(resources_to(value.resources))
    if value.memory_policy is not None:
        policy = value.memory_policy
        linux.memory_policy.CopyFrom(
            nri_pb2.LinuxMemoryPolicy(mode=int(policy.mode), nodes=policy.nodes)
        )
    adjust = nri_pb2.ContainerAdjustment(
        annotations=value.annotations,
        env=[nri_pb2.KeyValue(key=key, value=text) for key, text in value.env.items()],
        cdi_devices=[nri_pb2.CDIDevice(name=name) for name in value.cdi_devices],
    )
    if linux.ByteSize():
        adjust.linux.CopyFrom(linux)
    return nri_pb2.CreateContainerResponse(adjust=adjust, update=updates_to(value.updates))
