"""The command ``dra-driver-cpumem``."""

from __future__ import annotations

from collections.abc import Sequence

from drakit.drivers.cpumem import preflight
from drakit.drivers.cpumem.discovery import CpuMemDiscovery
from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.program import Program
from drakit.kit.program import main as run


def program() -> Program[CpuMemConfig]:
    """The program; its discovery and reconciler belong to one process."""
    discovery = CpuMemDiscovery()
    return Program(
        name="dra-driver-cpumem",
        prefix="DRA_CPUMEM",
        description="CPUs, memory and hugepages of a NUMA node in one claim, through Dynamic "
        "Resource Allocation.",
        config=CpuMemConfig,
        discover=discovery,
        reconciler=discovery.reconciler,
        gauges=lambda driver, prepared_claims: driver.gauges(prepared_claims),
        driver=DRIVER,
        conflicts_with=lambda config: ("dra.cpu",) if config.manage_cpus else (),
        checks=preflight.findings,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the CPU and memory driver; see ``dra-driver-cpumem --help``."""
    return run(program(), argv)
