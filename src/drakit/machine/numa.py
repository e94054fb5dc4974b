"""NUMA nodes: their CPUs, memory, distances and hugepages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.machine.cpu_states import CPU, CpuStates
from drakit.machine.model import HugepagePool, NumaNode
from drakit.machine.sysfs import Reader, parse_number
from drakit.machine.topology import MachineTopology

NODE: Final = "/sys/devices/system/node"
_POOLS: Final = "/sys/kernel/mm/hugepages"
_MAX_NODES: Final = 4096
"""Four times the maximum of a kernel (``NODES_SHIFT`` is at most 10)."""
_LOCAL, _REMOTE = 10, 20


def read_nodes(reader: Reader, states: CpuStates, topology: MachineTopology) -> tuple[NumaNode, ...]:
    """All nodes; together they contain every online CPU, and offline ones whose node is known."""
    ids = reader.numbered(NODE, "node", _MAX_NODES)
    if not ids:
        return (_only_node(reader, states),)
    members = _Members(reader, states, topology)
    for node in ids:
        members.take_list(node)
    members.place_unlisted(ids)
    members.place_others()
    nodes = sorted({*ids, *members.cpus})
    alone = len(nodes) == 1
    return tuple(
        NumaNode(
            id=node,
            cpus=members.cpus.get(node, EMPTY),
            memory_bytes=(memory := _memory(reader, node))["MemTotal"],
            memory_free_bytes=memory["MemFree"],
            distances=_distances(reader, node, ids, nodes),
            hugepages=_hugepages(reader, node, alone=alone),
        )
        for node in nodes
    )


def _only_node(reader: Reader, states: CpuStates) -> NumaNode:
    """The whole machine, if there is no node directory (no ``CONFIG_NUMA``)."""
    if states.known:
        reader.warn(NODE, "missing or empty; the machine is taken as one NUMA node")
    text = reader.text("/proc/meminfo")
    if text is None:
        reader.warn("/proc/meminfo", "missing; the amount of memory is unknown")
    memory = _parse_meminfo(text or "", "")
    return NumaNode(
        id=0,
        cpus=states.known,
        memory_bytes=memory["MemTotal"],
        memory_free_bytes=memory["MemFree"],
        distances={0: _LOCAL},
        hugepages=_read_pools(reader, _POOLS),
    )


class _Members:
    """CPUs by node; no CPU belongs to two."""

    def __init__(self, reader: Reader, states: CpuStates, topology: MachineTopology) -> None:
        self._reader = reader
        self._states = states
        self._topology = topology
        self._placed = EMPTY
        self.cpus: dict[int, CpuSet] = {}

    def take_list(self, node: int) -> None:
        """Place the CPUs that a node lists; those of a lower node stay there."""
        place = f"{NODE}/node{node}"
        listed = self._reader.cpus(f"{place}/cpulist", f"{place}/cpumap")
        if listed is None:
            self._reader.warn(f"{place}/cpulist", "missing or unusable; CPUs are read instead")
            return
        if unknown := listed - self._states.known:
            self._reader.warn(f"{place}/cpulist", f"CPUs {unknown} do not exist; ignored")
        if twice := listed & self._placed:
            self._reader.warn(f"{place}/cpulist", f"CPUs {twice} are in a lower node too; kept there")
        self._place(node, (listed & self._states.known) - self._placed)

    def place_unlisted(self, nodes: Iterable[int]) -> None:
        """Place online CPUs that are in no node's list by the nodes' masks."""
        for node in nodes if self._states.online - self._placed else ():
            place = f"{NODE}/node{node}"
            mask = self._reader.cpu_mask(f"{place}/cpumap")
            if missing := (self._states.online - self._placed) & (mask or EMPTY):
                self._reader.warn(f"{place}/cpulist", f"lacks CPUs {missing} of cpumap; added")
                self._place(node, missing)

    def place_others(self) -> None:
        """Place CPUs that no node lists: offline ones, and those of damaged files."""
        for cpu in self._states.known - self._placed:
            nodes = self._reader.numbered(f"{CPU}/cpu{cpu}", "node", _MAX_NODES)
            if nodes:
                if cpu in self._states.online:
                    reason = "exists, but the node does not list the CPU"
                    self._reader.warn_cpu(cpu, f"/node{nodes[0]}", reason)
                self._place(nodes[0], CpuSet([cpu]))
        for cpu in self._states.online - self._placed:
            node = self._neighbors_node(cpu)
            self._reader.warn_cpu(cpu, "", f"is in no NUMA node; placed in node {node} by its neighbors")
            self._place(node, CpuSet([cpu]))

    def _place(self, node: int, cpus: CpuSet) -> None:
        self.cpus[node] = self.cpus.get(node, EMPTY) | cpus
        self._placed |= cpus

    def _neighbors_node(self, cpu: int) -> int:
        """The node of most CPUs of the same core, else of the socket, else of the machine."""
        node_of = {member: node for node, cpus in self.cpus.items() for member in cpus}
        for groups in (self._topology.cores, self._topology.sockets, (self._states.online,)):
            for group in groups:
                if cpu in group and (votes := Counter(node_of[c] for c in group if c in node_of)):
                    return min(votes, key=lambda node: (-votes[node], node))
        return min(self.cpus, default=0)


def _memory(reader: Reader, node: int) -> Mapping[str, int]:
    path = f"{NODE}/node{node}/meminfo"
    text = reader.text(path)
    if text is None or "MemTotal:" not in text:
        problem = "missing" if text is None else "has no MemTotal"
        reader.warn(path, f"{problem}; the node is taken as having no memory")
    return _parse_meminfo(text or "", f"Node {node} ")


def _parse_meminfo(text: str, prefix: str) -> Mapping[str, int]:
    found = {"MemTotal": 0, "MemFree": 0}
    for line in text.splitlines():
        key, _, value = line.strip().removeprefix(prefix).partition(":")
        if key in found:
            amount = parse_number(value.replace("kB", ""))
            if amount is not None and 0 <= amount < 1 << 50:
                found[key] = amount * 1024
    return found


def _distances(reader: Reader, node: int, listed: list[int], nodes: Iterable[int]) -> dict[int, int]:
    """Distances to all nodes. The file has one number per node directory, in ascending order."""
    assumed = {other: _LOCAL if other == node else _REMOTE for other in nodes}
    if len(assumed) == 1:
        return assumed
    path = f"{NODE}/node{node}/distance"
    text = reader.text(path)
    if text is None:
        reader.warn(path, f"missing; assumed {_LOCAL} for itself, {_REMOTE} for others")
        return assumed
    numbers = [parse_number(word) for word in text.replace("\0", " ").split()]
    if len(numbers) != len(listed) or any(n is None or not 0 < n < 1 << 31 for n in numbers):
        reader.warn(path, f"not one distance per node; assumed {_LOCAL} and {_REMOTE}")
        return assumed
    return assumed | {o: n for o, n in zip(listed, numbers, strict=True) if n is not None}


def _hugepages(reader: Reader, node: int, *, alone: bool) -> tuple[HugepagePool, ...]:
    """Pools of a node; those of the machine if it has one node and the kernel has no pools per node."""
    pools = _read_pools(reader, f"{NODE}/node{node}/hugepages")
    return _read_pools(reader, _POOLS) if alone and not pools else pools


def _read_pools(reader: Reader, place: str) -> tuple[HugepagePool, ...]:
    pools: dict[int, HugepagePool] = {}
    for name in reader.names(place):
        size = parse_number(name.removeprefix("hugepages-").removesuffix("kB"))
        if not name.startswith("hugepages-") or size is None or not 0 < size < 1 << 40:
            continue
        counts = _counts(reader, f"{place}/{name}")
        pools[size] = HugepagePool(
            size * 1024, counts["nr"], min(counts["free"], counts["nr"]), counts["surplus"]
        )
    return tuple(pools[size] for size in sorted(pools))


def _counts(reader: Reader, place: str) -> Mapping[str, int]:
    counts = {"nr": 0, "free": 0, "surplus": 0}
    for key in counts:
        value = reader.number(f"{place}/{key}_hugepages")
        if value is None or not 0 <= value < 1 << 50:
            reader.warn(f"{place}/{key}_hugepages", "missing or unusable; taken as 0")
        else:
            counts[key] = value
    return counts
