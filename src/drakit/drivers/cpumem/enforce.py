"""What a container must look like: its claims' CPUs, memory nodes and hugepages, and no others'.

Everything is looked up in what prepare wrote down. Hugepages are limited for the claimed sizes only: a
size that no claim names is the kubelet's business, and setting it to 0 would break the container's
classic ``hugepages-<size>`` requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from drakit.cgroups.paths import QosClass, pod_cgroup
from drakit.core.cpuset import CpuSet
from drakit.drivers.cpumem.desired import Desired, desired
from drakit.drivers.cpumem.inventory import Inventory
from drakit.drivers.cpumem.qos.planner import (
    ContainerFacts,
    container_memory_limit,
    container_values,
)
from drakit.drivers.models.cpu_enforcement import check_owner
from drakit.drivers.models.cpu_enforcement import desired as cpu_shape
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy
from drakit.kit.driver import ContainerView, DesiredResources, PreparedClaims, RejectedError
from drakit.machine.model import CgroupMode, Machine

_RESERVATION_LIMITS: Final = (5, 7)
"""The first kernel whose hugetlb controller limits reservations too (``rsvd.max``)."""


def container_resources(
    inventory: Inventory,
    policy: MemoryQosPolicy,
    container: ContainerView,
    prepared_claims: PreparedClaims,
) -> DesiredResources:
    """The container's limits. Raises :class:`RejectedError` if it must not run."""
    for use in container.uses:
        check_owner(container, use, "what it holds is that pod's alone")
    managed = inventory.config.manage_cpus
    base = cpu_shape(inventory.cpus, container, prepared_claims) if managed else DesiredResources()
    wanted = desired(container.uses)
    facts = ContainerFacts(
        shares=wanted.shares,
        limit=container.memory_limit,
        classic_pages=container.hugepage_limits,
    )
    return replace(
        base,
        mems=_memory_nodes(inventory, container, wanted),
        memory_limit=container_memory_limit(policy, facts),
        hugepage_limits=_hugepage_limits(policy, container, wanted),
        unified=_files(inventory.machine, policy, container, facts),
        env={**base.env, **_variables(wanted)},
    )


def _memory_nodes(inventory: Inventory, container: ContainerView, wanted: Desired) -> CpuSet | None:
    if not inventory.config.bind_memory or not wanted.nodes:
        return None
    nodes = wanted.nodes & inventory.memory_nodes
    if not nodes:
        raise RejectedError(
            f"the memory of NUMA nodes {wanted.nodes}, which {container}'s claims are of, is gone; "
            f"bring it online, or delete the pod so that it gets other memory",
            reason="offline",
        )
    return nodes


# -- limits and protection -----------------------------------------------------------------------


def _hugepage_limits(
    policy: MemoryQosPolicy, container: ContainerView, wanted: Desired
) -> Mapping[str, int]:
    """By claimed size: what was claimed, and on top what the pod asks for in the classic way."""
    if not policy.owns(Knob.HUGEPAGES):
        return {}
    return {
        size: claimed + container.hugepage_limits.get(size, 0)
        for size, claimed in sorted(wanted.pages.items())
    }


def _files(
    machine: Machine, policy: MemoryQosPolicy, container: ContainerView, facts: ContainerFacts
) -> Mapping[str, str]:
    """Files of cgroup v2: memory protection, and the hugepage limits once more.

    Once more, because containerd drops hugepage limits unless its ``disable_hugetlb_controller`` is
    false, and by default it is true; it passes files on as they are. ``rsvd.max`` makes mmap fail
    with ENOMEM, where ``max`` alone would kill by SIGBUS at the first touch.
    """
    if machine.cgroups.mode is not CgroupMode.V2:
        return {}
    place = pod_cgroup(container.cgroup_parent, container.pod_uid)
    if place is None:  # no cgroup of its pod above it: protection would end there
        policy = replace(policy, mode="off")
    qos_class = place.qos_class if place is not None else QosClass.BEST_EFFORT
    values = container_values(policy, qos_class, facts)
    return {file: value for file, value in values.items() if _exists(machine, file)}


def _exists(machine: Machine, file: str) -> bool:
    """Whether this kernel has the file: writing one that it has not would fail the container."""
    controller = file.partition(".")[0]
    if controller not in machine.cgroups.controllers:
        return False
    return ".rsvd." not in file or _kernel(machine.kernel_release) >= _RESERVATION_LIMITS


def _kernel(release: str) -> tuple[int, int]:
    """The first two numbers of a release; unknown ones are taken as recent."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else _RESERVATION_LIMITS


# -- for the workload's information --------------------------------------------------------------


def _variables(wanted: Desired) -> dict[str, str]:
    told = {f"DRA_HUGEPAGES_{size}": str(n) for size, n in sorted(wanted.pages.items())}
    if wanted.memory:
        told["DRA_MEMORY"] = str(wanted.memory)
    if wanted.nodes:
        told["DRA_MEMS"] = str(wanted.nodes)
    return told
