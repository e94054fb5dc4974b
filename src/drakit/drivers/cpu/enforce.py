"""What a container must look like: its claims' CPUs, or the pool of all who have none."""

from __future__ import annotations

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.node import KIND, NodeCpus
from drakit.kit.driver import Container, Grant, Holdings, Refused, Shape, Use

VARIABLE = "DRA_CPUSET"
"""The container's CPUs, for its information; with ``_<claimUID>`` those of one claim."""


def environment(uid: str, cpus: CpuSet) -> dict[str, str]:
    """The variables that tell a container which CPUs a claim gave it."""
    return {VARIABLE: str(cpus), f"{VARIABLE}_{uid}": str(cpus)}


def granted(grants: tuple[Grant, ...]) -> CpuSet:
    """All CPUs that these grants name."""
    return CpuSet.union(grant.exclusive[KIND] for grant in grants if KIND in grant.exclusive)


def shape(node: NodeCpus, container: Container, holdings: Holdings) -> Shape:
    """The container's CPUs, memory nodes and quota. Raises :class:`Refused` if it would have no CPU.

    Claimed CPUs are the container's alone even if the configuration now reserves them: a claim
    keeps what it was given. A CPU that went offline is left out, as the kernel would refuse it.
    """
    for use in container.uses:
        check_owner(container, use, "its CPUs are exclusive to that pod")
    by_claim = {use.entry.uid: granted(use.grants) for use in container.uses}
    claimed = CpuSet.union(by_claim.values())
    if not claimed:
        return Shape(cpus=_pool(node, container, holdings))
    cpus = claimed & node.machine.online
    if not cpus:
        raise Refused(
            f"all CPUs of {container}'s claims ({claimed}) are offline; bring one online, or "
            f"delete the pod so that it gets others",
            reason="offline",
        )
    mems = node.memory_nodes(cpus) if node.config.bind_memory else None
    own = any(not grant.admin_access for use in container.uses for grant in use.grants)
    variables = {f"{VARIABLE}_{uid}": str(cpus) for uid, cpus in by_claim.items() if cpus}
    return Shape(
        cpus=cpus,
        mems=mems or None,
        lift_quota=node.config.lift_quota and own,
        env={VARIABLE: str(claimed)} | variables,
    )


def check_owner(container: Container, use: Use, why: str) -> None:
    """Refuse a second pod that names the same claim, since (*why*) what it holds is one pod's."""
    exclusive = any(not grant.admin_access for grant in use.grants)
    if exclusive and use.owner_uid and use.owner_uid != container.pod_uid:
        raise Refused(
            f"{use.entry} belongs to pod {use.owner}: {why} and cannot be shared with pod "
            f"{container.namespace}/{container.pod_name}; give each pod a claim of its own, for "
            f"example by a ResourceClaimTemplate",
            reason="foreign-claim",
        )


def _pool(node: NodeCpus, container: Container, holdings: Holdings) -> CpuSet:
    pool = node.shared(holdings)
    if not pool:
        # An empty list would let the container run anywhere, also on CPUs that are others' own.
        raise Refused(
            f"no CPU is left for {container}: all allocatable CPUs ({node.allocatable or 'none'}) "
            f"are held by claims; set minSharedCPUs to 1 or more, reserve fewer CPUs, or wait for "
            f"a claim to end",
            reason="shared-pool",
        )
    return pool
