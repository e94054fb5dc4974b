"""Groups of NUMA nodes and CPUs that become devices: by NUMA node, by socket, or one per machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.drivers.models.cpu_settings import GroupBy
from drakit.drivers.models.cpus import NodeCpus, TopologyIds, node_id

Scope = Literal["numa", "socket", "machine"]


@dataclass(frozen=True, slots=True)
class Locality:
    """The part of a machine at one NUMA node and socket; groups are made of these."""

    numa_node: int
    socket: int | None
    cpus: CpuSet
    """CPUs offered to claims."""
    memory_only: bool = False
    """Whether no CPU is online here: memory remote to every CPU (CXL, HBM, a GPU's)."""


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Localities from which amounts are allocated together."""

    scope: Scope
    number: int
    nodes: tuple[int, ...]
    """NUMA nodes, ascending."""
    cpus: CpuSet
    socket: int | None
    """The only socket. A NUMA node on several has its lowest: selectors rely on the attribute."""
    memory_only: bool = False

    @property
    def name(self) -> str:
        """``numa0``, ``socket0``, ``machine``: never changes."""
        return self.scope if self.scope == "machine" else f"{self.scope}{self.number}"

    @property
    def numa_node(self) -> int | None:
        """The only NUMA node; None with several, which cannot be aligned by node."""
        return self.nodes[0] if len(self.nodes) == 1 else None


def _group(scope: Scope, number: int, parts: Sequence[Locality]) -> ResourceGroup:
    sockets = sorted({each.socket for each in parts if each.socket is not None})
    return ResourceGroup(
        scope,
        number,
        tuple(sorted({each.numa_node for each in parts})),
        CpuSet.union(each.cpus for each in parts),
        sockets[0] if len(sockets) == 1 or (sockets and scope == "numa") else None,
        all(each.memory_only for each in parts),
    )


_GROUPINGS: Final[Mapping[GroupBy, tuple[Scope, Callable[[Locality], int]]]] = {
    "numanode": ("numa", lambda each: each.numa_node),
    "socket": ("socket", lambda each: each.socket or 0),
    "machine": ("machine", lambda each: 0),
}


def groups_of(localities: Iterable[Locality], group_by: GroupBy) -> tuple[ResourceGroup, ...]:
    """The groups of a machine; remote memory last and by node: the scheduler takes the first that fits."""
    scope, number_of = _GROUPINGS[group_by]
    members: dict[int, list[Locality]] = {}
    remote = []
    for each in localities:
        if each.memory_only:
            remote.append(_group("numa", each.numa_node, [each]))
        else:
            members.setdefault(number_of(each), []).append(each)
    return (*(_group(scope, number, parts) for number, parts in sorted(members.items())), *remote)


def cpu_localities(cpus: NodeCpus) -> tuple[Locality, ...]:
    """Localities of the offered CPUs, for devices of CPUs alone."""
    ids = TopologyIds(cpus.machine)
    members: dict[tuple[int, int], list[int]] = {}
    for number in cpus.offered:
        cpu = cpus.machine.by_id[number]
        members.setdefault((node_id(cpu), ids.socket(cpu)), []).append(number)
    return tuple(
        Locality(node, socket, CpuSet(numbers)) for (node, socket), numbers in sorted(members.items())
    )


def node_localities(cpus: NodeCpus, offered: CpuSet) -> tuple[Locality, ...]:
    """One locality per NUMA node; its socket is the lowest of its online CPUs' sockets."""
    machine, ids = cpus.machine, TopologyIds(cpus.machine)
    found = []
    for node in machine.numa_nodes:
        online = machine.node_cpus.get(node.id, EMPTY)
        socket = min((ids.socket(machine.by_id[cpu]) for cpu in online), default=None)
        found.append(Locality(node.id, socket, offered & online, memory_only=not online))
    return tuple(found)


def nearest_first(cpus: NodeCpus, nodes: Sequence[int], near: CpuSet) -> list[int]:
    """*nodes* by how many of the CPUs *near* they have, then by distance to them, then by number."""
    machine = cpus.machine
    distances = {node.id: node.distances for node in machine.numa_nodes}
    homes = machine.nodes_of(near)

    def rank(node: int) -> tuple[int, int, int]:
        here = len(near & machine.node_cpus.get(node, EMPTY))
        distance = min((distances[node].get(home, 255) for home in homes), default=0)
        return (-here, distance, node)

    return sorted(nodes, key=rank)
