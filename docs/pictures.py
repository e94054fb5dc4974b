# ruff: noqa: INP001 - a script beside the documents, not a package
"""Draw the pictures of the documentation: ``python docs/pictures.py`` rewrites ``docs/images``.

The machines come from the builder of synthetic machines, so that everybody gets the same files.
``tests/cli/test_docs.py`` checks that the committed pictures are current.
"""

from __future__ import annotations

import os

from drakit.draw.svg import draw_svg
from drakit.machine.model import CoreType, HugepagePool, Machine
from drakit.testing.synthetic import GIB, MIB, CoreSpec, NumaSpec, Numbering, Surroundings, assemble, build

IMAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "images")


def server() -> Machine:
    """Two sockets of 32 cores, eight cores to a last-level cache, with hugepages."""
    return build(
        sockets=2,
        llcs=4,
        cores=8,
        threads=2,
        memory_per_node=256 * GIB,
        hugepages=[HugepagePool(2 * MIB, 2048, 2048), HugepagePool(GIB, 16, 12)],
    )


def laptop() -> Machine:
    """Six P-cores of two threads and two clusters of four E-cores."""
    fast = [
        CoreSpec(threads=2, kind=CoreType.PERFORMANCE, cluster=core, max_frequency_khz=5_200_000)
        for core in range(6)
    ]
    small = [
        CoreSpec(kind=CoreType.EFFICIENCY, cluster=6 + core // 4, max_frequency_khz=3_900_000)
        for core in range(8)
    ]
    around = Surroundings(numbering=Numbering.ADJACENT, llc_bytes=24 * MIB)
    return assemble(fast + small, nodes={0: NumaSpec(32 * GIB)}, surroundings=around)


MACHINES = {"server": server, "laptop": laptop}
"""The machines of the examples, by the folder their dump has there."""

PICTURES = {"topology-2s64c.svg": server, "topology-hybrid.svg": laptop}
"""File name to the machine that it shows."""


def main() -> None:
    """Write every picture."""
    for name, machine in PICTURES.items():
        with open(os.path.join(IMAGES, name), "w", encoding="utf-8") as file:
            file.write(draw_svg(machine()))


if __name__ == "__main__":
    main()
