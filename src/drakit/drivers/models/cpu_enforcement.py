"""CPUs of a container: those of its claims, or the shared pool of all containers without claims."""

from __future__ import annotations

from typing import Final

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.drivers.models.cpus import CPU_NUMBERS, NodeCpus
from drakit.kit.driver import ClaimUse, ContainerView, DesiredResources, PreparedClaims, RejectedError

VARIABLE: Final = "DRA_CPUSET"
"""The container's CPUs, for its information; with ``_<claimUID>`` those of one claim."""


def environment(uid: str, cpus: CpuSet) -> dict[str, str]:
    """The variables that name the CPUs of a claim."""
    return {VARIABLE: str(cpus), f"{VARIABLE}_{uid}": str(cpus)}


def container_cpus(
    node: NodeCpus, container: ContainerView, prepared_claims: PreparedClaims, bind_memory: bool = True
) -> DesiredResources:
    """CPUs, memory nodes and quota of a container. Raises :class:`RejectedError` if no CPU is left.

    A claim keeps the CPUs it was assigned even if the configuration reserves them now. CPUs that went
    offline are left out: the kernel rejects them.
    """
    by_claim = {
        use.claim.uid: CpuSet.union(each.exclusive.get(CPU_NUMBERS, EMPTY) for each in use.devices)
        for use in container.uses
    }
    claimed = CpuSet.union(by_claim.values())
    if not claimed:
        return DesiredResources(cpus=_shared_pool(node, container, prepared_claims))
    cpus = claimed & node.machine.online
    if not cpus:
        raise RejectedError(
            f"all CPUs of {container}'s claims ({claimed}) are offline; bring one online, or "
            f"delete the pod so that it gets others",
            reason="offline",
        )
    mems = node.memory_nodes(cpus) if bind_memory and node.config.bind_memory else None
    exclusive = any(not prepared.admin_access for use in container.uses for prepared in use.devices)
    variables = {f"{VARIABLE}_{uid}": str(cpus) for uid, cpus in by_claim.items() if cpus}
    return DesiredResources(
        cpus=cpus,
        mems=mems or None,
        lift_quota=node.config.lift_quota and exclusive,
        env={VARIABLE: str(claimed)} | variables,
    )


def check_owner(container: ContainerView, use: ClaimUse) -> None:
    """Reject a second pod that uses a claim of exclusive resources."""
    exclusive = any(not prepared.admin_access for prepared in use.devices)
    if exclusive and use.owner_uid and use.owner_uid != container.pod_uid:
        raise RejectedError(
            f"{use.claim} belongs to pod {use.owner}: its resources are exclusive to that pod and "
            f"cannot be shared with pod {container.namespace}/{container.pod_name}; give each pod "
            f"a claim of its own, for example by a ResourceClaimTemplate",
            reason="foreign-claim",
        )


def _shared_pool(node: NodeCpus, container: ContainerView, prepared_claims: PreparedClaims) -> CpuSet:
    pool = node.shared(prepared_claims)
    if not pool:
        # An empty list means no restriction: the container could run on exclusive CPUs.
        raise RejectedError(
            f"no CPU is left for {container}: all allocatable CPUs ({node.allocatable or 'none'}) "
            f"are held by claims; set minSharedCPUs to 1 or more, reserve fewer CPUs, or wait for "
            f"a claim to end",
            reason="shared-pool",
        )
    return pool
