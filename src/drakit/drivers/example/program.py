"""The command ``dra-driver-example``."""

from __future__ import annotations

from collections.abc import Sequence

from drakit.drivers.example.driver import ExampleConfig, ExampleDriver
from drakit.kit import Driver, Program
from drakit.kit import main as run


def discover(config: ExampleConfig, node: str) -> Driver:
    """The simulated hardware is whatever the configuration says."""
    return ExampleDriver(config, node)


PROGRAM = Program(
    name="dra-driver-example",
    prefix="DRA_EXAMPLE",
    description="Simulated GPUs through Dynamic Resource Allocation: the template for a driver.",
    config=ExampleConfig,
    discover=discover,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example driver; see ``dra-driver-example --help``."""
    return run(PROGRAM, argv)
