"""What a container must look like: its claims' CPUs, or the pool of all who have none."""

from __future__ import annotations

from drakit.core.cpuset import CpuSet
from drakit.drivers.models.cpus import KIND, NodeCpus
from drakit.kit.driver import (
    ClaimUse,
    ContainerView,
    DesiredResources,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
)

VARIABLE = "DRA_CPUSET"
"""The container's CPUs, for its information; with ``_<claimUID>`` those of one claim."""


def environment(uid: str, cpus: CpuSet) -> dict[str, str]:
    """The variables that tell a container which CPUs a claim gave it."""
    return {VARIABLE: str(cpus), f"{VARIABLE}_{uid}": str(cpus)}


def granted(prepared_devices: tuple[PreparedDevice, ...]) -> CpuSet:
    """All CPUs that these prepared devices name."""
    return CpuSet.union(
        prepared.exclusive[KIND] for prepared in prepared_devices if KIND in prepared.exclusive
    )


def desired(
    node: NodeCpus, container: ContainerView, prepared_claims: PreparedClaims
) -> DesiredResources:
    """The container's CPUs, memory nodes and quota. Raises :class:`RejectedError` if it would have no CPU.

    Claimed CPUs are the container's alone even if the configuration now reserves them: a claim
    keeps what it was given. A CPU that went offline is left out, as the kernel would reject it.
    """
    for use in container.uses:
        check_owner(container, use, "its CPUs are exclusive to that pod")
    by_claim = {use.claim.uid: granted(use.devices) for use in container.uses}
    claimed = CpuSet.union(by_claim.values())
    if not claimed:
        return DesiredResources(cpus=_pool(node, container, prepared_claims))
    cpus = claimed & node.machine.online
    if not cpus:
        raise RejectedError(
            f"all CPUs of {container}'s claims ({claimed}) are offline; bring one online, or "
            f"delete the pod so that it gets others",
            reason="offline",
        )
    mems = node.memory_nodes(cpus) if node.config.bind_memory else None
    own = any(not prepared.admin_access for use in container.uses for prepared in use.devices)
    variables = {f"{VARIABLE}_{uid}": str(cpus) for uid, cpus in by_claim.items() if cpus}
    return DesiredResources(
        cpus=cpus,
        mems=mems or None,
        lift_quota=node.config.lift_quota and own,
        env={VARIABLE: str(claimed)} | variables,
    )


def check_owner(container: ContainerView, use: ClaimUse, why: str) -> None:
    """Reject a second pod that names the same claim, since (*why*) what it holds is one pod's."""
    exclusive = any(not prepared.admin_access for prepared in use.devices)
    if exclusive and use.owner_uid and use.owner_uid != container.pod_uid:
        raise RejectedError(
            f"{use.claim} belongs to pod {use.owner}: {why} and cannot be shared with pod "
            f"{container.namespace}/{container.pod_name}; give each pod a claim of its own, for "
            f"example by a ResourceClaimTemplate",
            reason="foreign-claim",
        )


def _pool(node: NodeCpus, container: ContainerView, prepared_claims: PreparedClaims) -> CpuSet:
    pool = node.shared(prepared_claims)
    if not pool:
        # An empty list would let the container run anywhere, also on CPUs that are others' own.
        raise RejectedError(
            f"no CPU is left for {container}: all allocatable CPUs ({node.allocatable or 'none'}) "
            f"are held by claims; set minSharedCPUs to 1 or more, reserve fewer CPUs, or wait for "
            f"a claim to end",
            reason="shared-pool",
        )
    return pool
