"""The command ``dra-driver-cpumem``."""

from __future__ import annotations

from collections.abc import Sequence

from drakit.drivers.cpumem import preflight
from drakit.drivers.cpumem.discovery import Discovery
from drakit.drivers.cpumem.gauges import gauges
from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.program import Program
from drakit.kit.program import main as run

_DISCOVERY = Discovery()
PROGRAM = Program(
    name="dra-driver-cpumem",
    prefix="DRA_CPUMEM",
    description="CPUs, memory and hugepages of a NUMA node in one claim, through Dynamic Resource "
    "Allocation.",
    config=CpuMemConfig,
    discover=_DISCOVERY,
    reconciler=_DISCOVERY.reconciler,
    gauges=gauges,
    driver=DRIVER,
    conflicts_with=lambda config: ("dra.cpu",) if config.manage_cpus else (),
    checks=preflight.findings,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the CPU and memory driver; see ``dra-driver-cpumem --help``."""
    return run(PROGRAM, argv)
