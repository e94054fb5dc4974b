"""Merging of the adjustments and updates of several NRI plugins, and their conflicts.

The rules are those of NRI's runtime side: each field of a container has at most one writer per
request, an update of the container being created is an error, and later plugins see the changes of
earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from drakit.wire.nri.values import NOTHING, Adjustment, ContainerUpdate, NriContainer, Resources


class PluginConflictError(Exception):
    """Conflicting plugins: the request fails with this text."""


class Merger:
    """Collects the responses of plugins to one request about *target*.

    ``target`` is the container for the next plugin, ``updates`` are for other containers.
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
