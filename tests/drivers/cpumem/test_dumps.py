"""Real machines, from dumps of their sysfs, where these are present."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from drakit.drivers.cpumem.kinds import CPU, MEMORY
from drakit.kit.slices.limits import check_offer
from drakit.machine.discover import discover
from tests.drivers.cpumem.amounts import NODE, capacities, driver

DUMPS = Path(os.environ.get("DRAKIT_SYSFS_DUMPS") or Path(__file__).parents[4] / "shared" / "sysfs")
ARCHIVES = sorted(DUMPS.glob("*.tar.bz2")) if DUMPS.is_dir() else []
needs_dumps = pytest.mark.skipif(
    not ARCHIVES, reason="no dumps of machines: set DRAKIT_SYSFS_DUMPS to a directory of them"
)


def unpacked(archive: Path, where: Path) -> str:
    # The tar command: tarfile resolves every parent of every member, thousands of times.
    subprocess.run(["tar", "--extract", "--file", str(archive)], cwd=where, check=True)
    (root,) = (path for path in where.iterdir() if path.is_dir())
    return str(root)


@needs_dumps
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.bz2"))
def test_real_machines_are_offered_whole(archive: Path, tmp_path: Path):
    machine = discover(unpacked(archive, tmp_path))
    for layout in ("combined", "split"):
        for group_by in ("numanode", "socket", "machine"):
            one = driver(machine, layout=layout, group_by=group_by)
            check_offer(one.name, one.offer().named(NODE))
            cpus = sum(device.amounts.get(CPU, 0) for device in one.devices)
            assert cpus == len(machine.online)
            memory = sum(device.amounts.get(MEMORY, 0) for device in one.devices)
            there = sum(node.usable_bytes for node in machine.numa_nodes)
            assert there - MEMORY.step * len(machine.numa_nodes) <= memory <= there
    nodes = {f"numa{node.id}" for node in machine.numa_nodes if node.memory_bytes or node.cpus}
    assert set(capacities(driver(machine))) <= nodes
