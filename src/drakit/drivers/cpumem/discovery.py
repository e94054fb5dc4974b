"""From configuration and node to the driver, and to the reconcilers that work beside it.

Both are made here because they know of each other: pools that are configured get their size before
the first offer is made from them, and the reconcilers act by what the driver of the moment says.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from drakit.drivers.cpumem.driver import CpuMem, configured_policy, cpumem_driver
from drakit.drivers.cpumem.hugepages.configured import configured_pools, machine_and_growth
from drakit.drivers.cpumem.hugepages.pools import HugepagePools
from drakit.drivers.cpumem.hugepages.settings import PoolKey, configuration_warnings
from drakit.drivers.cpumem.inventory import PagesOfNodes
from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.others import held_by_others
from drakit.drivers.cpumem.qos.events import OwnershipEvents
from drakit.drivers.cpumem.qos.kubeletconfig import KubeletFiles
from drakit.drivers.cpumem.qos.ownership import Ownership, OwnershipReader
from drakit.drivers.cpumem.qos.podspec import ApiPodSpecs
from drakit.drivers.cpumem.qos.reconciler import qos_reconciler
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.memory_policy import MemoryQosPolicy
from drakit.kit.claims.checkpoint import read_claims
from drakit.kit.driver import Driver
from drakit.kit.reconciler import Reconciler, ReconcilerGroup
from drakit.machine.model import Machine
from drakit.wire.kube import Client, find_cluster

_LOG = logging.getLogger(__name__)
PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
"""The kernel's own, to which it rounds what is written to memory files (64 KiB on some arm64)."""


class Discovery:
    """Reads the machine and makes the driver for it; says every doubt once, not every time."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._others: PagesOfNodes | None = None
        self._kubelet: OwnershipReader | None = None
        self._pools: HugepagePools | None = None

    def __call__(self, config: CpuMemConfig, node: str) -> CpuMem:
        """The driver for the machine as it is now; reads only. Raises ``OSError``."""
        machine, growth = machine_and_growth(config)
        if self._others is None:  # what was so at the start; see :mod:`.others`
            self._others = held_by_others(
                machine, read_claims(config.checkpoint_dir(DRIVER)), config.cgroup_root
            )
        driver = cpumem_driver(
            config,
            machine,
            held_by_others=self._others,
            growth=growth,
            possible_growth=None if self._pools is None else self._pools.believed(machine, growth),
            policy=self._policy(config, machine),
        )
        read = [f"{doubt.file}: {doubt.reason}" for doubt in machine.warnings]
        self._say([*driver.warnings, *configuration_warnings(config.hugepages, machine), *read])
        return driver

    def reconciler(self, config: CpuMemConfig, node: str) -> Reconciler:
        """Who keeps page pools and the cgroups of pods; for a process that serves, or uninstalls."""
        pools = configured_pools(config, withheld_pages)
        self._pools = pools
        record = os.path.join(config.plugin_dir(DRIVER), "qos.json")

        def connect() -> Client:
            return Client(find_cluster(kubeconfig=config.kubeconfig or None))

        specs = ApiPodSpecs(connect, node)
        qos = qos_reconciler(config.cgroup_root, record, policy_of, specs)
        return ReconcilerGroup(pools, qos, OwnershipEvents(connect, node, self._ownership))

    def _ownership(self) -> Ownership:
        """As it was last looked at."""
        return Ownership() if self._kubelet is None else self._kubelet.ownership

    def _policy(self, config: CpuMemConfig, machine: Machine) -> MemoryQosPolicy:
        """The settings' policy, less what the kubelet does by its own configuration."""
        if self._kubelet is None:
            self._kubelet = ownership_reader(config)
        policy = policy_here(config, machine, self._kubelet)
        self._say(self._kubelet.remarks())
        return policy

    def _say(self, remarks: Iterable[str]) -> None:
        for remark in remarks:
            if remark not in self._said:
                self._said.add(remark)
                _LOG.warning("%s", remark)


def ownership_reader(config: CpuMemConfig, kubelet_config: str | None = None) -> OwnershipReader:
    """Who tells what the kubelet does itself, from *kubelet_config* or its usual place."""
    return OwnershipReader(
        KubeletFiles.of(config, kubelet_config),
        mapped=config.publish_node_allocatable_resource_mapping,
    )


def policy_here(
    config: CpuMemConfig, machine: Machine, kubelet: OwnershipReader
) -> MemoryQosPolicy:
    """The settings' policy, less what the kubelet of this node does."""
    total = sum(node.memory_bytes for node in machine.numa_nodes)
    hugetlb = sum(node.hugetlb_bytes for node in machine.numa_nodes)
    configured = replace(configured_policy(config, machine), page_size=PAGE_SIZE)
    return kubelet.on_this_node(configured, total, hugetlb)


def policy_of(driver: Driver) -> MemoryQosPolicy | None:
    """What a driver of ours wants of pods' cgroups."""
    return driver.memory_policy if isinstance(driver, CpuMem) else None


def withheld_pages(driver: Driver) -> Mapping[PoolKey, int]:
    """The pages of each pool that the driver never offers."""
    if not isinstance(driver, CpuMem):
        return {}
    inventory = driver.inventory
    return {
        PoolKey(node.id, pool.size_bytes): inventory.withheld(node.id, pool.size_bytes)
        for node in inventory.machine.numa_nodes
        for pool in node.hugepages
    }
