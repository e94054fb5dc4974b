"""From the driver's configuration to its pools: for the program, and for what looks at a node."""

from __future__ import annotations

import os

from drakit.core.bootrecord import boot_id
from drakit.drivers.cpumem.hugepages.files import SysfsPools
from drakit.drivers.cpumem.hugepages.pools import HugepagePools, Withheld
from drakit.drivers.cpumem.hugepages.record import Record, look_at_both
from drakit.drivers.cpumem.hugepages.settings import budget
from drakit.drivers.cpumem.hugepages.usage import used_from_cgroups
from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.machine.discover import discover
from drakit.machine.model import Machine


def record_of(config: CpuMemConfig) -> Record:
    """Where it is written down which pages are ours: in the plugin's directory."""
    return Record(os.path.join(config.plugin_dir(DRIVER), "hugepages"), boot_id())


def machine_and_growth(config: CpuMemConfig) -> tuple[Machine, dict[int, dict[int, int]]]:
    """The machine, and the pages that may still be added to its pools, by node and size.

    Reads only. The two belong together: what is grown already is in the machine's pools. Raises
    ``OSError`` when the record of grown pages cannot be read.
    """
    machine, grown = look_at_both(lambda: discover(config.sysfs_root), record_of(config))
    return machine, budget(config.hugepages, machine, grown)


def configured_pools(config: CpuMemConfig, withheld: Withheld) -> HugepagePools:
    """The reconciler of this configuration's pools; it does nothing where none are configured.

    Call :meth:`~.pools.HugepagePools.establish` before the first offer is made.
    """
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
