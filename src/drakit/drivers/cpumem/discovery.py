"""Discovery of the CPU and memory driver, and its reconcilers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, cast

from drakit.drivers.cpumem.driver import CpuMemDriver, configured_policy, cpumem_driver
from drakit.drivers.cpumem.hugepages.configured import configured_pools, machine_and_growth
from drakit.drivers.cpumem.hugepages.pools import HugepagePools
from drakit.drivers.cpumem.hugepages.settings import PoolKey, configuration_warnings
from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.memory import PagesByNode
from drakit.drivers.cpumem.others import held_by_others
from drakit.drivers.cpumem.qos.events import OwnershipEvents
from drakit.drivers.cpumem.qos.kubeletconfig import KubeletFiles
from drakit.drivers.cpumem.qos.ownership import Ownership, OwnershipReader
from drakit.drivers.cpumem.qos.podspec import ApiPodSpecs
from drakit.drivers.cpumem.qos.reconciler import qos_reconciler
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.memory_policy import MemoryQosPolicy
from drakit.drivers.models.node_driver import NodeDriver, WarningLog
from drakit.kit.claims.checkpoint import read_claims
from drakit.kit.driver import Driver, PreparedClaim
from drakit.kit.reconciler import Reconciler, ReconcilerGroup
from drakit.machine.model import Machine
from drakit.wire.kube import Client, find_cluster

PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
"""The kernel's page size, to which it rounds values of memory files (64 KiB on some arm64)."""


class CpuMemDiscovery:
    """Reads the machine and makes the driver for it; keeps what is read only at the start."""

    def __init__(self) -> None:
        self._warnings = WarningLog()
        self._others: PagesByNode | None = None
        self._kubelet: OwnershipReader | None = None
        self._pools: HugepagePools | None = None

    def __call__(self, config: CpuMemConfig, node: str) -> CpuMemDriver:
        """The driver for the machine as it is now. Reads only. Raises ``OSError``."""
        machine, growth = machine_and_growth(config)
        if self._others is None:  # as of the start; see :mod:`.others`
            claims = read_claims(config.checkpoint_dir(DRIVER))
            self._others = held_by_others(machine, claims, config.cgroup_root)
        if self._kubelet is None:
            self._kubelet = ownership_reader(config)
        driver = cpumem_driver(
            config,
            machine,
            held_by_others=self._others,
            growth=growth,
            possible_growth=None if self._pools is None else self._pools.believed(machine, growth),
            policy=policy_here(config, machine, self._kubelet),
        )
        self._warnings.log(
            driver, [*configuration_warnings(config.hugepages, machine), *self._kubelet.remarks()]
        )
        return driver

    def reconciler(self, config: CpuMemConfig, node: str) -> Reconciler:
        """The reconciler of hugepage pools and of the cgroups of pods."""

        def connect() -> Client:
            return Client(find_cluster(kubeconfig=config.kubeconfig or None))

        self._pools = configured_pools(config, _withheld_pages)
        record = os.path.join(config.plugin_dir(DRIVER), "qos.json")
        specs = ApiPodSpecs(connect, node)
        qos = qos_reconciler(config.cgroup_root, record, _policy_of, specs)
        return ReconcilerGroup(self._pools, qos, OwnershipEvents(connect, node, self._ownership))

    def _ownership(self) -> Ownership:
        """As of the last discovery."""
        return Ownership() if self._kubelet is None else self._kubelet.ownership


def read_driver(
    config: CpuMemConfig, claims: Iterable[PreparedClaim] = (), kubelet_config: str | None = None
) -> CpuMemDriver:
    """The driver as a command reads it, once, for the *claims* in the checkpoint. Raises ``OSError``."""
    machine, growth = machine_and_growth(config)
    return cpumem_driver(
        config,
        machine,
        held_by_others=held_by_others(machine, claims, config.cgroup_root),
        growth=growth,
        policy=policy_here(config, machine, ownership_reader(config, kubelet_config)),
    )


def ownership_reader(config: CpuMemConfig, kubelet_config: str | None = None) -> OwnershipReader:
    """Reader of what the kubelet manages itself, from *kubelet_config* or its usual file."""
    return OwnershipReader(
        KubeletFiles.of(config, kubelet_config), mapped=config.publish_node_allocatable_resource_mapping
    )


def policy_here(config: CpuMemConfig, machine: Machine, kubelet: OwnershipReader) -> MemoryQosPolicy:
    """The configured policy without what this node's kubelet manages itself."""
    total = sum(node.memory_bytes for node in machine.numa_nodes)
    hugetlb = sum(node.hugetlb_bytes for node in machine.numa_nodes)
    configured = replace(configured_policy(config, machine), page_size=PAGE_SIZE)
    return kubelet.on_this_node(configured, total, hugetlb)


# The host passes its reconcilers the driver of their own program, typed as any driver.


def _policy_of(driver: Driver) -> MemoryQosPolicy:
    return cast("NodeDriver", driver).memory_policy


def _withheld_pages(driver: Driver) -> dict[PoolKey, int]:
    return cast("CpuMemDriver", driver).memory.withheld_pages
