"""Amounts per NUMA node, such as memory: chosen near a claim's CPUs, accounted in the checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.core.objects import int_attribute
from drakit.drivers.models.cpus import CPU_NUMBERS, NodeCpus
from drakit.drivers.models.groups import ResourceGroup, nearest_first
from drakit.drivers.models.node_driver import NodeAmount
from drakit.drivers.models.resource import (
    AllocatedAmounts,
    CapacityKind,
    GroupedResource,
    Requests,
    ResourceShare,
    Shares,
)
from drakit.kit.driver import AllocatedDevice, PreparedClaims, RejectedError

NodeAmounts = Mapping[tuple[int, CapacityKind], int]
"""Amounts by NUMA node and kind."""


def cpus_by_request(pairs: Iterable[tuple[AllocatedDevice, CpuSet]]) -> dict[str, CpuSet]:
    """All CPUs of each base request, which a container that uses the request may use."""
    found: dict[str, CpuSet] = {}
    for allocated, cpus in pairs:
        found[allocated.base_request] = found.get(allocated.base_request, EMPTY) | cpus
    return found


class AmountResource(GroupedResource):
    """A resource of which each NUMA node has an amount, without identity of its parts."""

    cpus: NodeCpus

    @property
    @abstractmethod
    def offered(self) -> Mapping[int, Mapping[CapacityKind, int]]:
        """What claims can get of each NUMA node, in whole steps; kinds without any are left out."""

    def amounts(self, group: ResourceGroup) -> Mapping[CapacityKind, int]:
        """The sum of the group's NUMA nodes."""
        offered = [self.offered.get(node, {}) for node in group.nodes]
        sums = {kind: sum(node.get(kind, 0) for node in offered) for kind in self.kinds}
        return {kind: amount for kind, amount in sums.items() if amount}

    @property
    def node_amounts(self) -> tuple[NodeAmount, ...]:
        """What each NUMA node offers, by node and kind."""
        return tuple(
            NodeAmount(node, kind.resource_name, kind.amount_key(node), amount)
            for node, kinds in self.offered.items()
            for kind, amount in kinds.items()
        )

    def assign(self, requests: Requests, shares: Shares, prepared_claims: PreparedClaims) -> Shares:
        """Choose NUMA nodes for each request, nearest to its CPUs first."""
        free = {
            (node, kind): amount - prepared_claims.amount(kind.amount_key(node))
            for node, kinds in self.offered.items()
            for kind, amount in kinds.items()
        }
        cpus = [share.exclusive.get(CPU_NUMBERS, EMPTY) for share in shares]
        allocated = [request.allocated for request in requests]
        together = cpus_by_request(zip(allocated, cpus, strict=True))
        found = []
        for request, own in zip(requests, cpus, strict=True):
            # A request of a device without CPUs: the claim's other CPUs decide where memory is near.
            near = own or together[request.allocated.base_request] or CpuSet.union(cpus)
            chosen = self._choose(request, near, free)
            for node_and_kind, amount in chosen.items():
                free[node_and_kind] -= amount
            found.append(self.share(request, own, chosen))
        return found

    def _choose(self, request: AllocatedAmounts, near: CpuSet, free: NodeAmounts) -> NodeAmounts:
        """Everything from the nearest node that has it all, else each kind from the nearest on."""
        nodes = nearest_first(self.cpus, request.device.group.nodes, near)
        wanted = {kind: n for kind, n in request.amounts.items() if n and kind in self.kinds}
        for node in nodes:
            if all(free.get((node, kind), 0) >= amount for kind, amount in wanted.items()):
                return {(node, kind): amount for kind, amount in wanted.items()}
        chosen = {}
        for kind, amount in wanted.items():
            left = amount
            for node in nodes:
                part = min(left, kind.rounded_down(free.get((node, kind), 0)))
                if part > 0:
                    chosen[node, kind] = part
                    left -= part
            if left:
                raise RejectedError(
                    f"{request} needs {kind.quantity(amount)} of {kind.key}, but only "
                    f"{kind.quantity(amount - left)} are free; it can be prepared when another "
                    f"claim ends",
                    reason="capacity",
                )
        return chosen

    def share(self, request: AllocatedAmounts, cpus: CpuSet, chosen: NodeAmounts) -> ResourceShare:
        """What a request with these *cpus* gets of *chosen* NUMA nodes."""
        by_node = sorted(chosen.items(), key=lambda item: item[0][0])
        return ResourceShare(
            amounts={kind.amount_key(node): amount for (node, kind), amount in by_node},
            attributes={
                f"{kind.driver}/allocated_{kind.name}": int_attribute(amount)
                for kind, amount in request.amounts.items()
                if amount and kind in self.kinds
            },
        )
