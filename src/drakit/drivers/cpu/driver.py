"""From configuration to driver: which resource model, decided once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from drakit.drivers.cpu.config import CpuConfig, DeviceMode, GroupBy
from drakit.drivers.models.cpus import NodeCpus
from drakit.drivers.models.grouped import (
    GroupedCpus,
    Grouping,
    by_machine,
    by_numa_node,
    by_socket,
)
from drakit.drivers.models.individual import IndividualCpus
from drakit.machine.model import Machine

CpuDriver = GroupedCpus | IndividualCpus

_GROUPINGS: Final[Mapping[GroupBy, Grouping]] = {
    "numanode": by_numa_node,
    "socket": by_socket,
    "machine": by_machine,
}
_MODELS: Final[Mapping[DeviceMode, Callable[[NodeCpus], CpuDriver]]] = {
    "grouped": lambda node: GroupedCpus(node, _GROUPINGS[node.config.group_by]),
    "individual": IndividualCpus,
}


def cpu_driver(config: CpuConfig, machine: Machine) -> CpuDriver:
    """The CPU driver for a machine. Pure: never fails, ``driver.warnings`` tells doubts."""
    return _MODELS[config.cpu_device_mode](NodeCpus(machine, config))
