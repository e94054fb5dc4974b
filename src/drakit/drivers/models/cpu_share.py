"""How a claim's amounts become CPUs: for each device the best of its free ones, or the named ones.

This is the node's half of the grouped model, the same for every driver whose devices hand out CPUs
as an amount.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.drivers.models.cpu_choice import choose
from drakit.drivers.models.cpu_policy import Wish
from drakit.drivers.models.cpus import NodeCpus
from drakit.kit.driver import AllocatedDevice, Claim, PreparedClaims, RejectedError


@dataclass(frozen=True, slots=True)
class Draw:
    """What one allocated device takes of CPUs: so many of those that its device offers."""

    allocated: AllocatedDevice
    device_cpus: CpuSet
    count: int
    wish: Wish
    capacity: str
    """The capacity's key, for messages."""


def share_out(
    node: NodeCpus, claim: Claim, draws: Sequence[Draw], prepared_claims: PreparedClaims
) -> tuple[CpuSet, ...]:
    """The CPUs of each draw, in order; none for a draw of no CPUs.

    Raises :class:`RejectedError` where they are not to be had, and where too few would be left in the
    shared pool.
    """
    free = node.shared(prepared_claims)
    chosen: dict[int, CpuSet] = {}
    # Named CPUs first: what is chosen freely must not take them.
    for index in sorted(range(len(draws)), key=lambda i: draws[i].wish.cpuset is None):
        chosen[index] = _cpus(node, claim, draws[index], free, prepared_claims)
        if not draws[index].allocated.admin_access:
            free -= chosen[index]
    own = CpuSet.union(c for i, c in chosen.items() if not draws[i].allocated.admin_access)
    node.check_pool(claim, own, prepared_claims)
    return tuple(chosen[index] for index in range(len(draws)))


def by_request(pairs: Iterable[tuple[AllocatedDevice, CpuSet]]) -> dict[str, CpuSet]:
    """All CPUs of each base request: what a container that uses the request may know."""
    found: dict[str, CpuSet] = {}
    for allocated, cpus in pairs:
        found[allocated.base_request] = found.get(allocated.base_request, EMPTY) | cpus
    return found


def _cpus(
    node: NodeCpus, claim: Claim, draw: Draw, free: CpuSet, prepared_claims: PreparedClaims
) -> CpuSet:
    if draw.allocated.admin_access:
        return draw.device_cpus  # to look on: everything there is, nothing of its own
    if draw.wish.cpuset is not None:
        return _named_cpus(node, claim, draw, free, prepared_claims)
    if not draw.count:
        return EMPTY
    try:
        return choose(node.topology, draw.device_cpus, free, draw.count, draw.wish.policy)
    except RejectedError as no:
        raise RejectedError(
            f"{claim}, request {draw.allocated.request}, device {draw.allocated.device}: {no}",
            reason=no.reason,
        ) from no


def _named_cpus(
    node: NodeCpus, claim: Claim, draw: Draw, free: CpuSet, prepared_claims: PreparedClaims
) -> CpuSet:
    """The named CPUs, if they are this device's, nobody else's, and as many as allocated."""
    cpus = draw.wish.cpuset or EMPTY
    online = node.machine.online
    if len(cpus) != draw.count:
        problem = f"has {len(cpus)} CPUs, but {draw.count} were allocated ({draw.capacity})"
    elif not cpus <= online:
        problem = f"names CPUs that are offline or not there: {cpus - online}"
    elif not cpus.isdisjoint(node.reserved):
        problem = f"names CPUs reserved for the system: {cpus & node.reserved}"
    elif not cpus <= draw.device_cpus:
        problem = f"names CPUs that are not in {draw.allocated.device}: {cpus - draw.device_cpus}"
    else:
        node.check_free(claim, cpus, prepared_claims)
        if cpus <= free:
            return cpus
        problem = f"names CPUs that another request of the claim has: {cpus - free}"
    raise RejectedError(
        f"cpuset {cpus} of {claim}, request {draw.allocated.request} {problem}", reason="policy"
    )
