"""The command ``dra-driver-cpu``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.cpu.gauges import gauges
from drakit.drivers.models.cpus import DRIVER
from drakit.kit.driver import Driver
from drakit.kit.program import Program
from drakit.kit.program import main as run
from drakit.machine.discover import discover as read_machine

_LOG = logging.getLogger(__name__)


class Discovery:
    """Reads the machine and makes the driver for it; says every doubt once, not every time."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, config: CpuConfig, node: str) -> Driver:
        """The driver for the machine as it is now."""
        machine = read_machine(config.sysfs_root)
        driver = cpu_driver(config, machine)
        doubts = [f"{doubt.file}: {doubt.reason}" for doubt in machine.warnings]
        for warning in (*driver.warnings, *doubts):
            if warning not in self._said:
                self._said.add(warning)
                _LOG.warning("%s", warning)
        return driver


PROGRAM = Program(
    name="dra-driver-cpu",
    prefix="DRA_CPU",
    description="Exclusive CPUs through Dynamic Resource Allocation, one by one or in amounts.",
    config=CpuConfig,
    discover=Discovery(),
    gauges=gauges,
    driver=DRIVER,
    conflicts_with=lambda config: ("dra.cpumem",),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the CPU driver; see ``dra-driver-cpu --help``."""
    return run(PROGRAM, argv)
