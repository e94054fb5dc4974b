"""Writer of a machine as the files of ``/sys`` and ``/proc``.

``discover`` of a written tree returns an equal machine (except for warnings), so a tree serves as test
data, as input for other tools that read sysfs, and as a record of a node.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable

from drakit.core.cpuset import CpuSet
from drakit.machine.model import Cache, Cgroups, CoreType, Cpu, Machine, NumaNode

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"


class KernelEra(enum.Enum):
    """The generation of file names."""

    CURRENT = "current"
    """All names of a current kernel, including old spellings."""
    OLD = "old"
    """Before 2.6.27 or so: masks only, ``thread_siblings`` and ``core_siblings``; no dies, clusters,
    cache ids, no ``cpuN/nodeK``."""


class _FileTree:
    """Writes files and creates each directory once."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._made: set[str] = set()

    def file(self, path: str, content: object) -> None:
        target = os.path.join(self.root, path)
        self._parent(target)
        with open(target, "w", encoding="ascii") as out:
            out.write(f"{content}\n")

    def link(self, path: str, target: str) -> None:
        place = os.path.join(self.root, path)
        self._parent(place)
        os.symlink(target, place)

    def both(self, cpus: CpuSet, mask_path: str, list_path: str) -> None:
        """A set of CPUs as mask and as list."""
        self.file(mask_path, cpus.to_mask_text())
        self.file(list_path, cpus)

    def _parent(self, target: str) -> None:
        parent = os.path.dirname(target)
        if parent not in self._made:
            os.makedirs(parent, exist_ok=True)
            self._made.add(parent)


def write_tree(machine: Machine, root: str, era: KernelEra = KernelEra.CURRENT) -> None:
    """Write ``<root>/sys`` and ``<root>/proc`` of *machine*. Raises ``OSError``.

    A tree of :attr:`KernelEra.OLD` lacks the files that such kernels did not have.
    """
    tree = _FileTree(root)
    _write_states(tree, machine, era)
    caches: dict[int, list[Cache]] = {}
    for cache in machine.caches:
        for number in cache.cpus:
            caches.setdefault(number, []).append(cache)
    for cpu in machine.cpus:
        _write_cpu(tree, cpu, era)
        if cpu.core is not None:
            _write_topology(tree, cpu, machine, era)
            _write_caches(tree, cpu.id, caches.get(cpu.id, ()), era)
    _write_core_types(tree, machine)
    for node in machine.numa_nodes:
        _write_node(tree, node, machine)
    _write_node_lists(tree, machine)
    _write_pci(tree, machine)
    _write_proc(tree, machine)
    _write_cgroups(tree, machine.cgroups)


def _write_states(tree: _FileTree, machine: Machine, era: KernelEra) -> None:
    if era is KernelEra.OLD:
        return
    tree.file(f"{_CPU}/possible", machine.possible)
    tree.file(f"{_CPU}/present", machine.present)
    tree.file(f"{_CPU}/online", machine.online)
    tree.file(f"{_CPU}/offline", machine.possible - machine.online)
    tree.file(f"{_CPU}/isolated", machine.isolated)
    tree.file(f"{_CPU}/nohz_full", machine.nohz_full or "(null)")
    tree.file(f"{_CPU}/smt/active", int(machine.smt_active))


def _write_cpu(tree: _FileTree, cpu: Cpu, era: KernelEra) -> None:
    place = f"{_CPU}/cpu{cpu.id}"
    tree.file(f"{place}/online", int(cpu.online))
    if era is KernelEra.CURRENT and cpu.numa_node is not None:
        tree.link(f"{place}/node{cpu.numa_node}", f"../../node/node{cpu.numa_node}")
    if cpu.capacity is not None:
        tree.file(f"{place}/cpu_capacity", cpu.capacity)
    if cpu.max_frequency_khz is not None:
        tree.file(f"{place}/cpufreq/cpuinfo_max_freq", cpu.max_frequency_khz)


def _write_topology(tree: _FileTree, cpu: Cpu, machine: Machine, era: KernelEra) -> None:
    place = f"{_CPU}/cpu{cpu.id}/topology"
    socket = cpu.siblings if cpu.socket is None else machine.sockets[cpu.socket]
    tree.file(f"{place}/core_id", _id(cpu.raw_core))
    tree.file(f"{place}/physical_package_id", _id(cpu.raw_socket))
    if era is KernelEra.OLD:
        tree.file(f"{place}/thread_siblings", cpu.siblings.to_mask_text())
        tree.file(f"{place}/core_siblings", socket.to_mask_text())
        return
    groups = {"thread_siblings": cpu.siblings, "core_siblings": socket}
    groups |= {"core_cpus": cpu.siblings, "package_cpus": socket}
    if cpu.die is not None:
        tree.file(f"{place}/die_id", _id(cpu.raw_die))
        groups["die_cpus"] = machine.dies[cpu.die]
    if cpu.cluster is not None:
        tree.file(f"{place}/cluster_id", _id(cpu.raw_cluster))
        groups["cluster_cpus"] = machine.clusters[cpu.cluster]
    for name, cpus in groups.items():
        tree.both(cpus, f"{place}/{name}", f"{place}/{name}_list")


def _id(raw: int | None) -> int:
    """An id as the kernel reports it; -1 if firmware has none."""
    return -1 if raw is None else raw


def _write_caches(tree: _FileTree, cpu: int, caches: Iterable[Cache], era: KernelEra) -> None:
    for index, cache in enumerate(caches):
        place = f"{_CPU}/cpu{cpu}/cache/index{index}"
        tree.file(f"{place}/level", cache.level)
        tree.file(f"{place}/type", cache.kind)
        if cache.size_bytes is not None:
            tree.file(f"{place}/size", f"{cache.size_bytes // 1024}K")
        tree.file(f"{place}/shared_cpu_map", cache.cpus.to_mask_text())
        if era is KernelEra.CURRENT:
            tree.file(f"{place}/shared_cpu_list", cache.cpus)
            if cache.raw_id is not None:
                tree.file(f"{place}/id", cache.raw_id)


def _write_core_types(tree: _FileTree, machine: Machine) -> None:
    """PMU devices ``cpu_core`` and ``cpu_atom``, if capacities do not distinguish core types.

    On x86 they are always written: with SMT its kernels report the same capacity for all types.
    """
    distinct = any(cpu.capacity is not None for cpu in machine.cpus)
    if distinct and machine.architecture not in ("x86_64", "i686"):
        return
    for kind, device in ((CoreType.PERFORMANCE, "cpu_core"), (CoreType.EFFICIENCY, "cpu_atom")):
        cpus = CpuSet(cpu.id for cpu in machine.cpus if cpu.core_type is kind)
        if cpus:
            tree.file(f"sys/devices/{device}/cpus", cpus)


def _write_node(tree: _FileTree, node: NumaNode, machine: Machine) -> None:
    place = f"{_NODE}/node{node.id}"
    tree.both(node.cpus & machine.online, f"{place}/cpumap", f"{place}/cpulist")
    ordered = sorted(other.id for other in machine.numa_nodes)
    if all(other in node.distances for other in ordered):
        tree.file(f"{place}/distance", " ".join(str(node.distances[other]) for other in ordered))
    facts = {"MemTotal": node.memory_bytes, "MemFree": node.memory_free_bytes}
    lines = [f"Node {node.id} {name}: {size // 1024:>14} kB" for name, size in facts.items()]
    tree.file(f"{place}/meminfo", "\n".join(lines))
    for pool in node.hugepages:
        pages = f"{place}/hugepages/hugepages-{pool.size_bytes // 1024}kB"
        tree.file(f"{pages}/nr_hugepages", pool.total)
        tree.file(f"{pages}/free_hugepages", pool.free)
        tree.file(f"{pages}/surplus_hugepages", pool.surplus)


def _write_node_lists(tree: _FileTree, machine: Machine) -> None:
    nodes = machine.numa_nodes
    ids = CpuSet(node.id for node in nodes)
    tree.file(f"{_NODE}/possible", ids)
    tree.file(f"{_NODE}/online", ids)
    tree.file(f"{_NODE}/has_cpu", CpuSet(node.id for node in nodes if node.cpus & machine.online))
    tree.file(f"{_NODE}/has_memory", CpuSet(node.id for node in nodes if node.memory_bytes))


def _write_pci(tree: _FileTree, machine: Machine) -> None:
    for root in machine.pci_roots:
        bus = root.name.removeprefix("pci")
        place = f"sys/devices/{root.name}"
        affinity = f"{place}/pci_bus/{bus}"
        tree.both(root.local_cpus, f"{affinity}/cpuaffinity", f"{affinity}/cpulistaffinity")
        device = f"{place}/{bus}:00.0"
        tree.file(f"{device}/numa_node", _id(root.numa_node))
        tree.file(f"{device}/local_cpulist", root.local_cpus)


def _write_proc(tree: _FileTree, machine: Machine) -> None:
    tree.file("proc/sys/kernel/osrelease", machine.kernel_release)
    tree.file("proc/sys/kernel/arch", machine.architecture)
    tree.file("proc/version", f"Linux version {machine.kernel_release} (drakit synthetic machine)")
    tree.file("proc/cpuinfo", "\n\n".join(f"processor\t: {cpu}" for cpu in machine.online))
    total = sum(node.memory_bytes for node in machine.numa_nodes)
    free = sum(node.memory_free_bytes for node in machine.numa_nodes)
    tree.file("proc/meminfo", f"MemTotal: {total // 1024} kB\nMemFree: {free // 1024} kB")


def _write_cgroups(tree: _FileTree, cgroups: Cgroups) -> None:
    """``/proc/self/mountinfo`` as mounted, and the controllers of the v2 root."""
    lines = ["22 1 0:20 / /proc rw,relatime shared:1 - proc proc rw"]
    if cgroups.v2_mount is not None:
        options = "rw,nsdelegate" + ",memory_hugetlb_accounting" * cgroups.memory_hugetlb_accounting
        lines.append(f"30 22 0:26 / {cgroups.v2_mount} rw,nosuid shared:2 - cgroup2 cgroup2 {options}")
        listed = " ".join(sorted(cgroups.controllers))
        tree.file(f"{cgroups.v2_mount.lstrip('/')}/cgroup.controllers", listed)
    by_mount: dict[str, list[str]] = {}
    for controller, mount in cgroups.v1_mounts.items():
        by_mount.setdefault(mount, []).append(controller)
    for number, (mount, names) in enumerate(by_mount.items()):
        options = ",".join(["rw", *names])
        lines.append(f"{40 + number} 22 0:{40 + number} / {mount} rw - cgroup cgroup {options}")
    tree.file("proc/self/mountinfo", "\n".join(lines))
