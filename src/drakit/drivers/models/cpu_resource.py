"""CPUs as a grouped resource: claims get an amount, the driver chooses the CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.core.objects import Attribute, bool_attribute, int_attribute, string_attribute
from drakit.drivers.models.amounts import cpus_by_request
from drakit.drivers.models.cpu_choice import choose
from drakit.drivers.models.cpu_enforcement import container_cpus, environment
from drakit.drivers.models.cpu_policy import CpuPolicy, cpu_policy
from drakit.drivers.models.cpus import CPU_NUMBERS, NodeCpus
from drakit.drivers.models.groups import ResourceGroup
from drakit.drivers.models.resource import (
    AllocatedAmounts,
    CapacityKind,
    GroupDevice,
    GroupedResource,
    Requests,
    ResourceShare,
    Shares,
)
from drakit.kit.driver import ContainerView, DesiredResources, PreparedClaims, RejectedError
from drakit.kit.telemetry.metrics import Gauge


class _CpuRequest(NamedTuple):
    request: AllocatedAmounts
    offered: CpuSet
    number: int
    policy: CpuPolicy

    @property
    def admin_access(self) -> bool:
        return self.request.allocated.admin_access


@dataclass(frozen=True)
class CpuResource(GroupedResource):
    """The CPUs of a node, exclusive by number."""

    cpus: NodeCpus
    kind: CapacityKind
    managed: bool = True
    """Whether this driver confines containers to CPUs; false where another driver does."""
    binds_memory: bool = True
    """Whether it implements ``bindMemory``; false where a resource of memory does, by what was claimed."""

    @property
    def kinds(self) -> tuple[CapacityKind, ...]:
        """CPUs."""
        return (self.kind,)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings about CPUs that do not fit this machine."""
        return self.cpus.warnings if self.managed else ()

    def amounts(self, group: ResourceGroup) -> Mapping[CapacityKind, int]:
        """The number of CPUs offered."""
        return {self.kind: len(group.cpus)} if group.cpus else {}

    def attributes(self, device: GroupDevice) -> Mapping[str, Attribute]:
        """Number of CPUs and whether cores run several threads."""
        driver, cpus, machine = self.kind.driver, device.group.cpus, self.cpus.machine
        return {
            f"{driver}/numCPUs": int_attribute(len(cpus)),
            f"{driver}/numIsolatedCPUs": int_attribute(len(cpus & machine.isolated)),
            f"{driver}/smtEnabled": bool_attribute(machine.smt_active),
        }

    def gauges(self, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
        """CPUs by state."""
        return self.cpus.gauges(prepared_claims) if self.managed else ()

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        """Claimed CPUs for containers with claims, the shared pool for all others."""
        if not self.managed:
            return DesiredResources()
        return container_cpus(self.cpus, container, prepared_claims, self.binds_memory)

    def assign(self, requests: Requests, shares: Shares, prepared_claims: PreparedClaims) -> Shares:
        """Choose the best CPUs of each device, or take those that the claim names."""
        wanted = [self._wanted(request) for request in requests]
        free = self.cpus.shared(prepared_claims)
        chosen = [EMPTY] * len(wanted)
        # Named CPUs first: they must not be taken by a request that leaves the choice open.
        for index in sorted(range(len(wanted)), key=lambda i: wanted[i].policy.cpuset is None):
            chosen[index] = self._chosen(wanted[index], free, prepared_claims)
            if not wanted[index].admin_access:
                free -= chosen[index]
        own = CpuSet.union(c for w, c in zip(wanted, chosen, strict=True) if not w.admin_access)
        if requests:
            self.cpus.check_pool(requests[0].claim, own, prepared_claims)
        allocated = [request.allocated for request in requests]
        together = cpus_by_request(zip(allocated, chosen, strict=True))
        return [
            self._share(request, cpus, together[request.allocated.base_request])
            for request, cpus in zip(requests, chosen, strict=True)
        ]

    def _wanted(self, request: AllocatedAmounts) -> _CpuRequest:
        offered = request.device.group.cpus if self.kind in request.device.amounts else EMPTY
        policy = cpu_policy(request.allocated.config, driver=self.kind.driver)
        return _CpuRequest(request, offered, request.amounts.get(self.kind, 0), policy)

    def _chosen(self, wanted: _CpuRequest, free: CpuSet, claims: PreparedClaims) -> CpuSet:
        if wanted.admin_access:
            return wanted.offered  # adminAccess: all CPUs are visible, none is exclusive
        if wanted.policy.cpuset is not None:
            return self._named(wanted, wanted.policy.cpuset, free, claims)
        if not wanted.number:
            return EMPTY
        try:
            return choose(self.cpus.topology, wanted.offered, free, wanted.number, wanted.policy)
        except RejectedError as error:
            raise RejectedError(f"{wanted.request}: {error}", reason=error.reason) from error

    def _named(self, wanted: _CpuRequest, cpus: CpuSet, free: CpuSet, claims: PreparedClaims) -> CpuSet:
        """The named CPUs, if the device has them, they are free, and as many as allocated."""
        online, reserved = self.cpus.machine.online, self.cpus.reserved
        if len(cpus) != wanted.number:
            reason = f"has {len(cpus)} CPUs, but {wanted.number} were allocated ({self.kind.key})"
        elif not cpus <= online:
            reason = f"names CPUs that are offline or do not exist: {cpus - online}"
        elif not cpus.isdisjoint(reserved):
            reason = f"names CPUs reserved for the system: {cpus & reserved}"
        elif not cpus <= wanted.offered:
            reason = f"names CPUs that the device does not have: {cpus - wanted.offered}"
        else:
            self.cpus.check_free(wanted.request.claim, cpus, claims)
            if cpus <= free:
                return cpus
            reason = f"names CPUs that another request of the claim has: {cpus - free}"
        raise RejectedError(f"{wanted.request}: cpuset {cpus} {reason}", reason="policy")

    def _share(self, request: AllocatedAmounts, cpus: CpuSet, request_cpus: CpuSet) -> ResourceShare:
        env = environment(request.claim.uid, request_cpus) if request_cpus else {}
        if not cpus:
            return ResourceShare(env=env)
        attributes = {
            f"{self.kind.driver}/allocatedNumCPUs": int_attribute(len(cpus)),
            f"{self.kind.driver}/cpuset": string_attribute(str(cpus)),
        }
        if self.binds_memory:
            nodes = self.cpus.machine.nodes_of(cpus)
            attributes[f"{self.kind.driver}/numaNodes"] = string_attribute(str(nodes))
        return ResourceShare({CPU_NUMBERS: cpus}, env=env, attributes=attributes)
