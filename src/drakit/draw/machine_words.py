"""Summary of a machine in words: the heading of its drawings and the NUMA distances."""

from __future__ import annotations

from drakit.core.text import count, human_bytes
from drakit.draw.machine_tree import KIND_NAMES
from drakit.machine.model import CoreType, Machine


def summary(machine: Machine) -> tuple[str, ...]:
    """Return the counts of parts, largest first: ``2 sockets``, ``64 cores``, ``128 CPUs``."""
    sockets = len({cpu.socket for cpu in machine.cpus if cpu.socket is not None})
    memory = sum(node.memory_bytes for node in machine.numa_nodes)
    parts = [
        count(sockets, "socket") if sockets else "",
        count(len(machine.numa_nodes), "NUMA node") if machine.numa_nodes else "",
        _cores(machine),
        _cpus(machine),
        f"{human_bytes(memory)} memory" if memory else "",
        _hugepages(machine),
    ]
    return tuple(part for part in parts if part)


def system(machine: Machine) -> tuple[str, ...]:
    """Return the architecture, kernel release and cgroup version."""
    release = f"Linux {machine.kernel_release}" if machine.kernel_release else ""
    mode = machine.cgroups.mode.value
    cgroups = "" if mode == "none" else f"cgroup {mode}"
    return tuple(part for part in (machine.architecture, release, cgroups) if part)


def distances(machine: Machine) -> tuple[tuple[str, ...], ...]:
    """Return the NUMA distances as a table with a heading; empty for a single node."""
    nodes = machine.numa_nodes
    known = [node for node in nodes if node.distances]
    if len(nodes) < 2 or not known:
        return ()
    rows = [(str(node.id), *(str(node.distances.get(other.id, "?")) for other in nodes)) for node in nodes]
    return (("node", *(str(node.id) for node in nodes)), *rows)


def _cores(machine: Machine) -> str:
    cores = {cpu.core: cpu.core_type for cpu in machine.cpus if cpu.core is not None}
    kinds = list(cores.values())
    if len(set(kinds)) < 2:
        return count(len(cores), "core") if cores else ""
    return " + ".join(f"{kinds.count(kind)} {KIND_NAMES[kind]}" for kind in CoreType if kind in kinds)


def _cpus(machine: Machine) -> str:
    offline = sum(not cpu.online for cpu in machine.cpus)
    return count(len(machine.cpus), "CPU") + (f" ({offline} offline)" if offline else "")


def _hugepages(machine: Machine) -> str:
    held = sum(node.hugetlb_bytes for node in machine.numa_nodes)
    return f"{human_bytes(held)} in hugepages" if held else "no hugepages"
