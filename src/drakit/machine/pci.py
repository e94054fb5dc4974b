"""PCI host bridges and their local CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.machine.model import NumaNode, PciRoot
from drakit.machine.sysfs import Reader

_ROOT: Final = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})")
_DEVICE: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read_pci_roots(reader: Reader, online: CpuSet, nodes: Iterable[NumaNode]) -> tuple[PciRoot, ...]:
    """All host bridges, by name. On a machine without PCI there are none."""
    return tuple(
        _read_root(reader, place, online, list(nodes)) for _, place in sorted(_places(reader).items())
    )


def _places(reader: Reader) -> dict[str, str]:
    """Directories of the host bridges by name.

    They are directly below ``/sys/devices`` with ACPI, below a platform device with a device tree,
    below a PCI device for Intel VMD.
    """
    places = {name: f"/sys/devices/{name}" for name in reader.names("/sys/devices") if _ROOT.fullmatch(name)}
    for bus in reader.names("/sys/class/pci_bus"):
        target = reader.link(f"/sys/class/pci_bus/{bus}") or ""
        parts = target.partition("devices/")[2].split("/")
        for depth in range(len(parts) - 1, -1, -1):
            if _ROOT.fullmatch(parts[depth]):
                places.setdefault(parts[depth], "/".join(["/sys/devices", *parts[: depth + 1]]))
                break
    return places


def _read_root(reader: Reader, place: str, online: CpuSet, nodes: list[NumaNode]) -> PciRoot:
    name = place.rsplit("/", 1)[1]
    bus = f"{place}/pci_bus/{name.removeprefix('pci')}"
    local = reader.cpus(f"{bus}/cpulistaffinity", f"{bus}/cpuaffinity")
    node = _device_node(reader, place, {node.id for node in nodes})
    if local is not None:
        local &= online
    if node is None and local:
        node = next((each.id for each in nodes if local <= each.cpus), None)
    if local is None:
        local = next((each.cpus & online for each in nodes if each.id == node), online)
        reader.warn(f"{bus}/cpulistaffinity", f"missing; assumed CPUs {local}")
    return PciRoot(name, node, local)


def _device_node(reader: Reader, place: str, known: set[int]) -> int | None:
    """The node of the bridge's devices; the bridge itself has no such file."""
    for name in reader.names(place):
        if _DEVICE.fullmatch(name):
            node = reader.number(f"{place}/{name}/numa_node")
            if node is not None and node in known:
                return node
    return None
