"""Machines of well-known shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from drakit.machine.model import CoreType, Machine
from drakit.testing.synthetic import (
    GIB,
    CoreSpec,
    NumaSpec,
    Numbering,
    Surroundings,
    assemble,
    build,
    grid,
    two_socket_server,
)


def hybrid_laptop() -> Machine:
    """Intel hybrid: 6 P-cores with SMT, 8 E-cores in two clusters, 2 low-power E-cores without L3."""
    fast = [
        CoreSpec(cluster=i, threads=2, kind=CoreType.PERFORMANCE, max_frequency_khz=5_000_000)
        for i in range(6)
    ]
    slow = [
        CoreSpec(cluster=6 + i // 4, kind=CoreType.EFFICIENCY, max_frequency_khz=3_800_000) for i in range(8)
    ]
    frugal = [
        CoreSpec(llc=1, llc_level=2, cluster=8, kind=CoreType.EFFICIENCY, max_frequency_khz=2_500_000)
        for _ in range(2)
    ]
    return assemble([*fast, *slow, *frugal], surroundings=Surroundings(numbering=Numbering.ADJACENT))


def arm_big_little() -> Machine:
    """Arm: 4 strong and 4 frugal cores that differ in ``cpu_capacity``."""
    big = [CoreSpec(die=None, cluster=0, kind=CoreType.PERFORMANCE, capacity=1024) for _ in range(4)]
    little = [CoreSpec(die=None, cluster=1, kind=CoreType.EFFICIENCY, capacity=446) for _ in range(4)]
    return assemble([*little, *big], surroundings=Surroundings(architecture="aarch64"))


def chiplet_server() -> Machine:
    """One socket of 16 chiplets with 8 SMT cores each, as large AMD servers: 256 CPUs, 16 L3s."""
    return build(llcs=16, cores=8, threads=2, memory_per_node=512 * GIB)


def power_server() -> Machine:
    """POWER: two sockets, SMT8, sparse node ids, a memory-only node (a GPU's)."""
    specs = grid(sockets=2, cores=6, threads=8)
    return assemble(
        [replace(core, node=core.node * 8) for core in specs],
        nodes={255: NumaSpec(memory_bytes=16 * GIB)},
        surroundings=Surroundings(numbering=Numbering.ADJACENT, architecture="ppc64le"),
    )


SHAPES: Final[Mapping[str, Callable[[], Machine]]] = {
    "hybrid-laptop": hybrid_laptop,
    "arm-big-little": arm_big_little,
    "two-socket-server": two_socket_server,
    "chiplet-server": chiplet_server,
    "power-server": power_server,
}
"""Well-known shapes by name."""
