"""Hugepage pools from the driver's configuration, for the program and for commands that inspect a node."""

from __future__ import annotations

import os

from drakit.core.bootrecord import boot_id
from drakit.drivers.cpumem.hugepages.files import SysfsPools
from drakit.drivers.cpumem.hugepages.pools import HugepagePools, Withheld
from drakit.drivers.cpumem.hugepages.record import PoolRecord, machine_and_grown_pages
from drakit.drivers.cpumem.hugepages.settings import budget
from drakit.drivers.cpumem.hugepages.usage import used_from_cgroups
from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.machine.discover import discover
from drakit.machine.model import Machine


def record_of(config: CpuMemConfig) -> PoolRecord:
    """The record of the pages that this driver added, in the plugin's directory."""
    return PoolRecord(os.path.join(config.plugin_dir(DRIVER), "hugepages"), boot_id())


def machine_and_growth(config: CpuMemConfig) -> tuple[Machine, dict[int, dict[int, int]]]:
    """The machine, and the pages that may still be added to its pools, by node and size.

    Only reads. Both are read together because pages already grown are part of the machine's pools.
    Raises ``OSError`` if the record of grown pages cannot be read.
    """
    machine, grown = machine_and_grown_pages(lambda: discover(config.sysfs_root), record_of(config))
    return machine, budget(config.hugepages, machine, grown)


def configured_pools(config: CpuMemConfig, withheld: Withheld) -> HugepagePools:
    """The reconciler of the configured pools, if any; ``establish`` them before the first offer."""
    machine = discover(config.sysfs_root)
    sizes = {pool.size_bytes for node in machine.numa_nodes for pool in node.hugepages}
    return HugepagePools(
        config.hugepages,
        machine,
        SysfsPools(config.sysfs_root),
        record_of(config),
        withheld=withheld,
        used_pages=used_from_cgroups(config.cgroup_root, sorted(sizes)),
    )
