"""Benchmark of machine discovery, and of its linear cost.

The machines: 2 sockets, 2 NUMA nodes each, 4 last-level caches per node, SMT-2, written as the files of a
current kernel. Times are the best of several runs; the ratio compares both sizes in one process,
so other load has little influence. A plain read of one small file is measured for comparison with
the cost of the file system: discovery reads about nine files per CPU.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass

from drakit.machine import discover
from drakit.machine.model import Machine
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree

SIZES = (256, 1024)
ROUNDS = 9
TARGET_MS = 150.0
"""For 1024 CPUs."""


@dataclass(frozen=True, slots=True)
class Result:
    """One size, measured."""

    cpus: int
    wall_milliseconds: float
    cpu_milliseconds: float
    read_microseconds: float
    """One open, read and close of a file of that tree."""


def machine_of(cpus: int) -> Machine:
    """A regular machine of *cpus* CPUs, a multiple of 32."""
    return build(sockets=2, nodes=2, llcs=4, cores=cpus // 32, threads=2)


def measure(root: str, cpus: int, *, rounds: int = ROUNDS) -> Result:
    """Discover the tree at *root*; the best of *rounds*."""
    wall, spent, read = [], [], []
    for _ in range(rounds):
        began, used = time.perf_counter(), time.process_time()
        machine = discover(root)
        wall.append(time.perf_counter() - began)
        spent.append(time.process_time() - used)
        read.append(_one_read(root, cpus))
        if len(machine.cpus) != cpus or machine.warnings:
            raise RuntimeError(f"expected {cpus} CPUs and no doubt, got {machine.warnings}")
    return Result(cpus, min(wall) * 1e3, min(spent) * 1e3, min(read) * 1e6)


def _one_read(root: str, cpus: int) -> float:
    began = time.process_time()
    for cpu in range(cpus):
        handle = os.open(f"{root}/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", os.O_RDONLY)
        os.read(handle, 4096)
        os.close(handle)
    return (time.process_time() - began) / cpus


def run(sizes: tuple[int, ...] = SIZES, *, rounds: int = ROUNDS) -> list[Result]:
    """Write and measure all *sizes*."""
    results = []
    for cpus in sizes:
        with tempfile.TemporaryDirectory() as root:
            write_tree(machine_of(cpus), root)
            results.append(measure(root, cpus, rounds=rounds))
    return results


def main() -> None:
    """Print the times, the growth, and how the target was met."""
    print("discovery of a written tree, best of", ROUNDS)
    results = run()
    for result in results:
        print(
            f"  {result.cpus:5} CPUs: {result.wall_milliseconds:7.1f} ms wall,"
            f" {result.cpu_milliseconds:7.1f} ms processor time"
            f" ({result.read_microseconds:.1f} us for one plain read)"
        )
    small, large = results[0], results[-1]
    growth = large.cpu_milliseconds / small.cpu_milliseconds
    met = "met" if large.wall_milliseconds < TARGET_MS else "missed (is the machine busy?)"
    print(f"  ratio {small.cpus} -> {large.cpus} CPUs: {growth:.2f} (linear is 4.00)")
    print(f"  target {TARGET_MS:.0f} ms for {large.cpus} CPUs: {met}")


if __name__ == "__main__":
    main()
