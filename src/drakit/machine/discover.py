"""Discovery of a :class:`Machine` from ``/sys`` and ``/proc`` below any root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drakit.core.cpuset import CpuSet
from drakit.machine.caches import Caches, read_caches
from drakit.machine.cgroup_mounts import read_cgroups
from drakit.machine.core_types import CoreTypes, read_core_types
from drakit.machine.cpu_states import CpuStates, read_states
from drakit.machine.kernel import read_architecture, read_cpuinfo, read_release
from drakit.machine.model import CoreType, Cpu, Machine, NumaNode
from drakit.machine.numa import read_nodes
from drakit.machine.pci import read_pci_roots
from drakit.machine.sysfs import Reader, WarningCollector
from drakit.machine.topology import MachineTopology, RawIds, index_by_cpu, read_topology


def discover(root: str = "/") -> Machine:
    """Read the machine whose ``/sys`` and ``/proc`` are below *root*.

    Never raises for file contents: missing facts are derived, with a warning in ``Machine.warnings``.
    Every CPU in any source is in ``Machine.cpus``; each online one has a core, a socket, a last-level
    cache and a NUMA node. The result is a snapshot: call again after hotplug.
    """
    collector = WarningCollector()
    reader = Reader(root, collector)
    states = read_states(reader)
    cpuinfo = read_cpuinfo(reader)
    topology = read_topology(reader, states.online, cpuinfo)
    caches = read_caches(reader, topology, states.online)
    nodes = read_nodes(reader, states, topology)
    types = read_core_types(reader, states.online, topology, caches.all)
    return Machine(
        cpus=tuple(_cpus(states, topology, caches, nodes, types)),
        numa_nodes=nodes,
        caches=caches.all,
        llcs=caches.last,
        pci_roots=read_pci_roots(reader, states.online, nodes),
        possible=states.possible,
        present=states.present,
        online=states.online,
        isolated=states.isolated,
        nohz_full=states.nohz_full,
        smt_active=any(len(core) > 1 for core in topology.cores),
        architecture=read_architecture(reader, cpuinfo),
        kernel_release=read_release(reader),
        cgroups=read_cgroups(reader),
        warnings=collector.warnings(),
    )


def _cpus(
    states: CpuStates, topology: MachineTopology, caches: Caches, nodes: Iterable[NumaNode], types: CoreTypes
) -> Iterator[Cpu]:
    core_of, socket_of = index_by_cpu(topology.cores), index_by_cpu(topology.sockets)
    die_of, cluster_of = index_by_cpu(topology.dies), index_by_cpu(topology.clusters)
    llc_of = index_by_cpu([cache.cpus for cache in caches.last])
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    nothing = RawIds()
    online = set(states.online)
    raw_of = {cpu: topology.raw[leader] for leader, core in topology.leaders.items() for cpu in core}
    for cpu in states.known:
        core = core_of.get(cpu)
        siblings = CpuSet([cpu]) if core is None else topology.cores[core]
        raw = raw_of.get(cpu, nothing)
        llc = llc_of.get(cpu)
        yield Cpu(
            id=cpu,
            online=cpu in online,
            socket=socket_of.get(cpu),
            die=die_of.get(cpu),
            cluster=cluster_of.get(cpu),
            core=core,
            llc=llc,
            numa_node=node_of.get(cpu),
            siblings=siblings,
            core_type=types.core_type.get(cpu, CoreType.STANDARD),
            isolated=cpu in states.isolated,
            nohz_full=cpu in states.nohz_full,
            capacity=types.capacity.get(cpu),
            max_frequency_khz=types.max_frequency_khz.get(cpu),
            raw_socket=raw.socket,
            raw_die=raw.die,
            raw_cluster=raw.cluster,
            raw_core=raw.core,
            raw_llc=None if llc is None else caches.last[llc].raw_id,
        )
