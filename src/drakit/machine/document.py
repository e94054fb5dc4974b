"""JSON document of a machine, as ``drakit topology`` prints it (see docs/topology.md).

Field names and meanings are stable: fields may be added, but not renamed or redefined.
"""

from __future__ import annotations

from typing import Any

from drakit.machine.model import Cache, Cgroups, Cpu, Machine, NumaNode

Document = dict[str, Any]


def topology_document(machine: Machine) -> Document:
    """Return everything known about *machine* as plain dictionaries, lists, strings and numbers."""
    return {
        "architecture": machine.architecture or None,
        "kernelRelease": machine.kernel_release or None,
        "smtActive": machine.smt_active,
        "possible": str(machine.possible),
        "present": str(machine.present),
        "online": str(machine.online),
        "isolated": str(machine.isolated),
        "nohzFull": str(machine.nohz_full),
        "cpus": [_cpu(cpu) for cpu in machine.cpus],
        "numaNodes": [_node(machine, node) for node in machine.numa_nodes],
        "caches": [_cache(cache) for cache in machine.caches],
        "lastLevelCaches": [_cache(cache) for cache in machine.llcs],
        "pciRoots": [
            {"name": root.name, "numaNode": root.numa_node, "localCpus": str(root.local_cpus)}
            for root in machine.pci_roots
        ],
        "cgroups": _cgroups(machine.cgroups),
        "warnings": [{"file": each.file, "reason": each.reason} for each in machine.warnings],
    }


def _cpu(cpu: Cpu) -> Document:
    return {
        "id": cpu.id,
        "online": cpu.online,
        "socket": cpu.socket,
        "die": cpu.die,
        "cluster": cpu.cluster,
        "core": cpu.core,
        "l3": cpu.llc,
        "numaNode": cpu.numa_node,
        "coreType": cpu.core_type.value,
        "siblings": str(cpu.siblings) or None,
        "isolated": cpu.isolated,
        "nohzFull": cpu.nohz_full,
        "capacity": cpu.capacity,
        "maxFrequencyKHz": cpu.max_frequency_khz,
        "raw": {
            "socket": cpu.raw_socket,
            "die": cpu.raw_die,
            "cluster": cpu.raw_cluster,
            "core": cpu.raw_core,
            "l3": cpu.raw_llc,
        },
    }


def _node(machine: Machine, node: NumaNode) -> Document:
    return {
        "id": node.id,
        "cpus": str(node.cpus),
        "memoryBytes": node.memory_bytes,
        "memoryFreeBytes": node.memory_free_bytes,
        "memoryUsableBytes": node.usable_bytes,
        "distances": [node.distances.get(other.id) for other in machine.numa_nodes],
        "hugepages": [
            {"sizeBytes": pool.size_bytes, "total": pool.total, "free": pool.free, "surplus": pool.surplus}
            for pool in node.hugepages
        ],
    }


def _cache(cache: Cache) -> Document:
    return {
        "level": cache.level,
        "kind": cache.kind,
        "sizeBytes": cache.size_bytes,
        "cpus": str(cache.cpus),
        "rawId": cache.raw_id,
    }


def _cgroups(cgroups: Cgroups) -> Document:
    return {
        "mode": cgroups.mode.value,
        "v2Mount": cgroups.v2_mount,
        "v1Mounts": dict(cgroups.v1_mounts),
        "controllers": sorted(cgroups.controllers),
        "memoryHugetlbAccounting": cgroups.memory_hugetlb_accounting,
    }
