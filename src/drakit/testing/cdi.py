"""CDI registry of the fake runtime: the devices that resolve, and why others do not.

Reads every ``.json`` and ``.yaml`` file of the directories. An invalid file affects only its own
devices. Later directories override earlier ones; a device that two files of one directory define does
not resolve.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from drakit.core.yaml import YamlError, load_strictly
from drakit.wire.cdi.spec import (
    NO_EDITS,
    CdiDevice,
    CdiError,
    ContainerEdits,
    Spec,
    decode_spec,
    spec_from_builtins,
)


class ResolvedDevice(msgspec.Struct, frozen=True):
    """A device that resolves, with its file and specification."""

    path: str
    spec: Spec
    device: CdiDevice


class UnresolvableError(CdiError):
    """Requested devices that do not resolve."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"unresolvable CDI devices {', '.join(names)}")
        self.names = tuple(names)


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """Devices by qualified name, and problems by path."""

    devices: Mapping[str, ResolvedDevice]
    problems: Mapping[str, str]

    @classmethod
    def read(cls, directories: Iterable[str]) -> Catalog:
        """Read all files; never raises."""
        devices: dict[str, ResolvedDevice] = {}
        problems: dict[str, str] = {}
        for directory in directories:
            _read_directory(directory, devices, problems)
        return cls(devices=devices, problems=problems)

    def edits_for(self, names: Iterable[str]) -> tuple[ContainerEdits, ...]:
        """The edits of the devices *names*, and of each of their files once.

        Raises :class:`UnresolvableError` if any does not resolve, as runtimes do.
        """
        wanted = tuple(names)
        missing = [name for name in wanted if name not in self.devices]
        if missing:
            raise UnresolvableError(missing)
        edits: list[ContainerEdits] = []
        files: set[str] = set()
        for known in (self.devices[name] for name in wanted):
            if known.path not in files and known.spec.container_edits != NO_EDITS:
                edits.append(known.spec.container_edits)
            files.add(known.path)
            edits.append(known.device.container_edits)
        return tuple(edits)


def load_spec(path: str) -> Spec:
    """Read one file, JSON or YAML by its name. Raises ``OSError`` or :class:`CdiError`."""
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".json"):
        return decode_spec(data)
    try:
        return spec_from_builtins(load_strictly(data.decode("utf-8", "replace")))
    except YamlError as error:
        raise CdiError(f"not valid YAML: {error}") from error


def _read_directory(directory: str, devices: dict[str, ResolvedDevice], problems: dict[str, str]) -> None:
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    except OSError as error:
        problems[directory] = str(error)
        return
    here: dict[str, ResolvedDevice] = {}
    conflicts: set[str] = set()
    for name in names:
        path = os.path.join(directory, name)
        if not name.endswith((".json", ".yaml")) or os.path.isdir(path):
            continue
        try:
            spec = load_spec(path)
        except (OSError, CdiError) as error:
            problems[path] = str(error)
            continue
        for device in spec.devices:
            qualified = f"{spec.kind}={device.name}"
            if qualified in here:
                conflicts.add(qualified)
                problems[path] = f"{qualified} is also in {here[qualified].path}"
            here[qualified] = ResolvedDevice(path, spec, device)
    devices.update(here)
    for qualified in conflicts:
        devices.pop(qualified, None)
