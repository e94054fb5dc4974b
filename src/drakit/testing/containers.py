"""Containers of the fake runtime, and the merging of the changes that plugins make to them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from drakit.wire.nri.values import NOTHING, Adjustment, ContainerUpdate, NriContainer, Resources, State


class FakeContainer:
    """A container of the fake runtime. Its properties are the values its cgroup would have."""

    def __init__(self, value: NriContainer, directory: str | None) -> None:
        self.value = value
        self._created_with = value.resources
        self._directory = directory

    @property
    def id(self) -> str:
        """The runtime's id."""
        return self.value.id

    @property
    def state(self) -> State:
        """The state of the container."""
        return self.value.state

    @property
    def resources(self) -> Resources:
        """All limits that the runtime has set."""
        return self.value.resources

    @property
    def cpus(self) -> str:
        """``cpuset.cpus``, from the cgroup directory if there is one: others may write to it."""
        return self._cgroup_value("cpuset.cpus", self.value.resources.cpus)

    @property
    def mems(self) -> str:
        """``cpuset.mems``, from the cgroup directory if there is one."""
        return self._cgroup_value("cpuset.mems", self.value.resources.mems)

    @property
    def env(self) -> dict[str, str]:
        """The environment its process has or would have."""
        return dict(entry.partition("=")[::2] for entry in self.value.env)

    def _cgroup_value(self, name: str, otherwise: str) -> str:
        if self._directory is None:
            return otherwise
        try:
            with open(os.path.join(self._directory, name), encoding="ascii") as file:
                return file.read().strip()
        except FileNotFoundError:
            return otherwise

    def change(self, resources: Resources) -> None:
        """Set limits, as the runtime would in the kernel."""
        self.value = msgspec.structs.replace(self.value, resources=resources.over(self.value.resources))
        self.write_cgroup()

    def forget_updates(self) -> None:
        """Report the limits of the creation from now on; the cgroup directory does not change."""
        self.value = msgspec.structs.replace(self.value, resources=self._created_with)

    def set_state(self, state: State) -> None:
        """Change the state."""
        self.value = msgspec.structs.replace(self.value, state=state)

    def write_cgroup(self) -> None:
        """Write the limits to the cgroup directory, if there is one."""
        if self._directory is None:
            return
        os.makedirs(self._directory, exist_ok=True)
        limits = self.value.resources
        files = {"cpuset.cpus": limits.cpus, "cpuset.mems": limits.mems}
        files["cgroup.events"] = "populated 1\nfrozen 0"
        if limits.memory_limit is not None:
            files["memory.max"] = str(limits.memory_limit)
        for name, text in (*files.items(), *limits.unified.items()):
            with open(os.path.join(self._directory, name), "w", encoding="ascii") as file:
                file.write(f"{text}\n")

    def remove_cgroup(self) -> None:
        """Remove the cgroup directory."""
        if self._directory is not None:
            with contextlib.suppress(FileNotFoundError):
                for name in os.listdir(self._directory):
                    os.unlink(os.path.join(self._directory, name))
                os.rmdir(self._directory)


class PluginConflictError(Exception):
    """Conflicting plugins: the request fails with this text."""


class Merger:
    """Collects the responses of plugins to one request about *target*, by the rules of NRI's runtime side.

    Each field of a container has at most one writer per request, an update of the container being created
    is an error, and later plugins see the changes of earlier ones. ``target`` is the container for the
    next plugin, ``updates`` are for other containers.
    """

    def __init__(self, target: NriContainer) -> None:
        self.target = target
        self.updates: dict[str, Resources] = {}
        self._owners: dict[tuple[str, str], str] = {}

    def adjust(self, plugin: str, wanted: Adjustment) -> None:
        """Merge a plugin's adjustment of the new container. Raises :class:`PluginConflictError`."""
        own = self.target.id
        if any(each.container_id == own for each in wanted.updates):
            raise PluginConflictError(
                f"plugin {plugin} asked to update container {own} while it is being created"
            )
        for field in _fields(wanted.resources):
            self._own(plugin, own, field)
        for name in wanted.env:
            self._own(plugin, own, f"env {name}")
        for key in wanted.annotations:
            self._own(plugin, own, f"annotation {key}")
        for device in wanted.cdi_devices:
            self._own(plugin, own, f"CDI device {device}")
        self.target = msgspec.structs.replace(
            self.target,
            resources=wanted.resources.over(self.target.resources),
            env=replace_env(self.target.env, wanted.env),
            annotations={**self.target.annotations, **wanted.annotations},
            cdi_devices=(*self.target.cdi_devices, *wanted.cdi_devices),
        )
        self.update(plugin, wanted.updates)

    def update(self, plugin: str, wanted: Sequence[ContainerUpdate]) -> None:
        """Merge a plugin's updates. Raises :class:`PluginConflictError`."""
        for each in wanted:
            try:
                for field in _fields(each.resources):
                    self._own(plugin, each.container_id, field)
            except PluginConflictError:
                if each.ignore_failure:
                    continue
                raise
            if each.container_id == self.target.id:
                self.target = msgspec.structs.replace(
                    self.target, resources=each.resources.over(self.target.resources)
                )
            else:
                before = self.updates.get(each.container_id, NOTHING)
                self.updates[each.container_id] = each.resources.over(before)

    def _own(self, plugin: str, container: str, field: str) -> None:
        owner = self._owners.get((container, field))
        if owner is not None:
            raise PluginConflictError(
                f"plugins {owner} and {plugin} both tried to set {field} of container {container}"
            )
        self._owners[container, field] = plugin


def _fields(resources: Resources) -> Iterator[str]:
    for name in ("cpus", "mems"):
        if getattr(resources, name):
            yield name
    for name in ("shares", "quota", "period", "memory_limit"):
        if getattr(resources, name) is not None:
            yield name
    yield from (f"hugepage limit {size}" for size in resources.hugepage_limits)
    yield from (f"unified {key}" for key in resources.unified)


def replace_env(env: tuple[str, ...], settings: Mapping[str, str]) -> tuple[str, ...]:
    """*env* with the variables *settings* set: in place where one exists, else at the end."""
    places = {entry.partition("=")[0]: place for place, entry in enumerate(env)}
    changed = list(env)
    for name, value in settings.items():
        if name in places:
            changed[places[name]] = f"{name}={value}"
        else:
            places[name] = len(changed)
            changed.append(f"{name}={value}")
    return tuple(changed)
