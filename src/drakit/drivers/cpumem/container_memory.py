"""Memory, hugepages and NUMA nodes of a container, from the prepared devices of its claims.

Hugepages are limited for the claimed sizes only. Other sizes are left to the kubelet: a limit of 0 would
break the container's ``hugepages-<size>`` requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from drakit.cgroups.paths import QosClass, pod_cgroup
from drakit.core.cpuset import EMPTY, CpuSet
from drakit.drivers.cpumem.qos.planner import ContainerFacts, container_memory_limit, container_values
from drakit.drivers.cpumem.qos.shares import MemoryShare, distinct, pages_of, shares_of
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy
from drakit.drivers.models.resource import node_of
from drakit.kit.driver import ClaimUse, ContainerView, DesiredResources
from drakit.machine.model import CgroupMode, Machine

_NEAR: Final = "near"
_MEMORY_KEY: Final = re.compile("/(memory$|hugepages)")
_RESERVATION_LIMITS: Final = (5, 7)
"""The first kernel whose hugetlb controller limits reservations too (``rsvd.max``)."""


def near_data(nodes: CpuSet) -> dict[str, Any]:
    """Driver data of a prepared device: NUMA nodes near its CPUs, whose memory it may use."""
    return {_NEAR: str(nodes)} if nodes else {}


@dataclass(frozen=True, slots=True)
class ContainerMemory:
    """What a container may use of all its claims."""

    shares: tuple[MemoryShare, ...] = ()
    nodes: CpuSet = EMPTY
    """NUMA nodes for its memory; empty: all of them.

    With claimed memory exactly the nodes of that memory and of the hugepages, otherwise also those
    near the CPUs, as for claims of CPUs alone.
    """
    pages: Mapping[str, int] = field(default_factory=dict)
    """Bytes of hugepages by size as the kernel spells it (``2MB``)."""

    @property
    def memory(self) -> int:
        """Bytes of ordinary memory."""
        return sum(share.memory for share in self.shares)


def container_memory(uses: Iterable[ClaimUse]) -> ContainerMemory:
    """The sum of what these uses may take, each prepared device counted once."""
    used = tuple(uses)
    shares = distinct(share for use in used for share in shares_of(use.claim, use.devices))
    devices = [device for use in used for device in use.devices]
    nodes = CpuSet(node_of(key) for device in devices for key in device.amounts if _MEMORY_KEY.search(key))
    if not any(share.memory for share in shares):
        nodes |= CpuSet.union(CpuSet.parse(str(device.data.get(_NEAR, ""))) for device in devices)
    return ContainerMemory(shares, nodes, pages_of(shares))


def desired_memory(
    machine: Machine, policy: MemoryQosPolicy, container: ContainerView, wanted: ContainerMemory
) -> DesiredResources:
    """Limits, protection and variables of a container, without its NUMA nodes."""
    classic, pages = container.hugepage_limits, dict(sorted(wanted.pages.items()))
    facts = ContainerFacts(shares=wanted.shares, limit=container.memory_limit, classic_pages=classic)
    variables = {f"DRA_HUGEPAGES_{size}": str(claimed) for size, claimed in pages.items()}
    if wanted.memory:
        variables["DRA_MEMORY"] = str(wanted.memory)
    if wanted.nodes:
        variables["DRA_MEMS"] = str(wanted.nodes)
    owned = pages if policy.owns(Knob.HUGEPAGES) else {}
    return DesiredResources(
        memory_limit=container_memory_limit(policy, facts),
        hugepage_limits={size: claimed + classic.get(size, 0) for size, claimed in owned.items()},
        unified=_unified(machine, policy, container, facts),
        env=variables,
    )


def _unified(
    machine: Machine, policy: MemoryQosPolicy, container: ContainerView, facts: ContainerFacts
) -> Mapping[str, str]:
    """Files of cgroup v2: memory protection, and the hugepage limits once more.

    containerd drops hugepage limits unless ``disable_hugetlb_controller`` is false (default: true)
    but passes files on. ``rsvd.max`` makes mmap fail with ENOMEM; with ``max`` alone the process is
    killed by SIGBUS at the first access.
    """
    if machine.cgroups.mode is not CgroupMode.V2:
        return {}
    place = pod_cgroup(container.cgroup_parent, container.pod_uid)
    if place is None:  # the pod has no cgroup above the container: protection would end there
        policy = replace(policy, mode="off")
    qos_class = place.qos_class if place is not None else QosClass.BEST_EFFORT
    values = container_values(policy, qos_class, facts)
    return {file: value for file, value in values.items() if _exists(machine, file)}


def _exists(machine: Machine, file: str) -> bool:
    """Whether this kernel has the file: a write to a missing one would fail the container."""
    controller = file.partition(".")[0]
    if controller not in machine.cgroups.controllers:
        return False
    return ".rsvd." not in file or _kernel(machine.kernel_release) >= _RESERVATION_LIMITS


def _kernel(release: str) -> tuple[int, int]:
    """Major and minor version of a kernel release; an unknown release counts as recent."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else _RESERVATION_LIMITS
