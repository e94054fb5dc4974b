"""Protocol of the drivers of a node's own resources: CPUs, and for some also memory and hugepages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from drakit.core.log import get_logger
from drakit.core.quantity import Quantity
from drakit.drivers.models.cpus import NodeCpus
from drakit.drivers.models.memory_policy import MemoryQosPolicy
from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims
from drakit.kit.telemetry.metrics import Gauge

log = get_logger(__name__)


class NodeAmount(NamedTuple):
    """Amount of one resource that a NUMA node offers to claims."""

    numa_node: int
    resource: str
    """Name among the node's resources: ``memory``, ``hugepages-2Mi``."""
    key: str
    """Key in :attr:`~drakit.kit.driver.PreparedDevice.amounts`: ``numa0/memory``."""
    offered: int
    """Amount that all claims together can get; bytes for memory and hugepages."""

    @property
    def kind(self) -> str:
        """The kind of the resource: ``memory``, ``hugepages2Mi``."""
        return self.key.partition("/")[2]


class NodeDriver(Driver, Protocol):
    """A driver of this node's own resources; for those that it does not have, values are empty or off."""

    @property
    def cpus(self) -> NodeCpus:
        """The node's CPUs: machine, reservation, shared pool."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that do not fit this machine, one sentence each."""

    @property
    def memory_policy(self) -> MemoryQosPolicy:
        """Memory protection and hugepage limits that the driver enforces."""

    @property
    def node_amounts(self) -> tuple[NodeAmount, ...]:
        """Memory and hugepages offered, by NUMA node; empty for a driver of CPUs alone."""

    def consumption(self, claim: PreparedClaim) -> Mapping[str, Mapping[str, Quantity]]:
        """Capacity that *claim* uses, by device and key; empty where devices have no consumable capacity."""

    def gauges(self, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
        """Metrics of the driver's resources."""


class WarningLog:
    """Logs settings that do not fit the machine and inconsistencies in the kernel's files."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def log(self, driver: NodeDriver, more: Iterable[str] = ()) -> None:
        """Log the warnings of *driver* and its machine, and *more* about the configuration."""
        for reason in (*driver.warnings, *more):
            self._once("configuration does not fit this machine", "", reason)
        for warning in driver.cpus.machine.warnings:
            self._once("inconsistent kernel file", warning.file, warning.reason)

    def _once(self, message: str, path: str, reason: str) -> None:
        if (path, reason) not in self._logged:
            self._logged.add((path, reason))
            log.warning(message, **({"path": path} if path else {}), reason=reason)
