"""The command ``dra-driver-cpu``."""

from __future__ import annotations

from collections.abc import Sequence

from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.models.cpus import DRIVER
from drakit.drivers.models.node_driver import NodeDriver, WarningLog
from drakit.kit.program import Program
from drakit.kit.program import main as run
from drakit.machine.discover import discover as read_machine


class CpuDiscovery:
    """Reads the machine and makes the driver for it."""

    def __init__(self) -> None:
        self._warnings = WarningLog()

    def __call__(self, config: CpuConfig, node: str) -> NodeDriver:
        """The driver for the machine as it is now. Reads only."""
        driver = cpu_driver(config, read_machine(config.sysfs_root))
        self._warnings.log(driver)
        return driver


def program() -> Program[CpuConfig]:
    """The program; its discovery belongs to one process."""
    return Program(
        name="dra-driver-cpu",
        prefix="DRA_CPU",
        description="Exclusive CPUs through Dynamic Resource Allocation, one by one or in amounts.",
        config=CpuConfig,
        discover=CpuDiscovery(),
        gauges=lambda driver, prepared_claims: driver.gauges(prepared_claims),
        driver=DRIVER,
        conflicts_with=lambda config: ("dra.cpumem",),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the CPU driver; see ``dra-driver-cpu --help``."""
    return run(program(), argv)
