"""CPU driver of a configuration: the grouped or the individual model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from drakit.drivers.cpu.config import CpuConfig, DeviceMode
from drakit.drivers.models.cpu_resource import CpuResource
from drakit.drivers.models.cpus import CDI_KIND, DRIVER, NodeCpus
from drakit.drivers.models.grouped import GroupedDriver
from drakit.drivers.models.groups import ResourceGroup, cpu_localities
from drakit.drivers.models.individual import IndividualCpus
from drakit.drivers.models.node_driver import NodeDriver
from drakit.drivers.models.resource import CapacityKind, GroupDevice
from drakit.machine.model import Machine

CPU: Final = CapacityKind(DRIVER, "cpu", least=1)


def _layout(group: ResourceGroup, amounts: Mapping[CapacityKind, int]) -> Iterable[GroupDevice]:
    """Devices named like the Go driver's: ``cpudevnuma000``, ``cpudevsocket000``, ``cpudevmachine``."""
    number = "" if group.scope == "machine" else f"{group.number:03d}"
    yield GroupDevice(f"cpudev{group.scope}{number}", group, amounts)


def _grouped(cpus: NodeCpus) -> NodeDriver:
    resources = (CpuResource(cpus, CPU),)
    return GroupedDriver(
        DRIVER, CDI_KIND, cpus, resources, cpu_localities(cpus), cpus.config.group_by, _layout
    )


_MODELS: Final[Mapping[DeviceMode, Callable[[NodeCpus], NodeDriver]]] = {
    "grouped": _grouped,
    "individual": IndividualCpus,
}


def cpu_driver(config: CpuConfig, machine: Machine) -> NodeDriver:
    """The CPU driver for a machine. Pure and total: problems are in ``driver.warnings``."""
    return _MODELS[config.cpu_device_mode](NodeCpus(machine, config))
