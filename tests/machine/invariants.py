"""What holds for every machine, however damaged its files were."""

from __future__ import annotations

from drakit.core.cpuset import CpuSet
from drakit.machine.model import Machine


def check(machine: Machine) -> None:
    """Raise ``AssertionError`` where *machine* contradicts itself."""
    ids = [cpu.id for cpu in machine.cpus]
    assert ids == sorted(set(ids))
    assert machine.online == CpuSet(cpu.id for cpu in machine.cpus if cpu.online)
    assert machine.online <= machine.present <= machine.possible
    _check_places(machine)
    _check_identity(machine)
    _check_siblings(machine)
    _check_nodes(machine)
    _check_caches(machine)
    for warning in machine.warnings:
        assert warning.file.startswith("/")
        assert warning.reason


def _check_places(machine: Machine) -> None:
    for cpu in machine.cpus:
        if cpu.online:
            assert None not in (cpu.core, cpu.socket, cpu.llc, cpu.numa_node), cpu
        assert cpu.isolated == (cpu.id in machine.isolated)
        assert cpu.nohz_full == (cpu.id in machine.nohz_full)


def _check_identity(machine: Machine) -> None:
    """Identities are ranks by lowest CPU: 0, 1, 2, … without gaps."""
    for level in ("core", "socket", "die", "cluster", "llc"):
        seen: list[int] = []
        for cpu in machine.cpus:
            rank = getattr(cpu, level)
            if rank is not None and rank not in seen:
                assert rank == len(seen), (level, cpu.id)
                seen.append(rank)


def _check_siblings(machine: Machine) -> None:
    by_id = machine.by_id
    for cpu in machine.cpus:
        assert cpu.id in cpu.siblings
        for other in cpu.siblings:
            sibling = by_id[other]
            assert sibling.siblings == cpu.siblings
            same = ("core", "socket", "die", "cluster", "llc")
            assert all(getattr(sibling, name) == getattr(cpu, name) for name in same)
    for core, cpus in enumerate(machine.cores):
        assert all(by_id[cpu].core == core for cpu in cpus)
    for inner in ("die", "cluster"):  # parts of one socket
        homes: dict[int, int | None] = {}
        for cpu in machine.cpus:
            if getattr(cpu, inner) is not None:
                assert homes.setdefault(getattr(cpu, inner), cpu.socket) == cpu.socket


def _check_nodes(machine: Machine) -> None:
    ids = [node.id for node in machine.numa_nodes]
    assert ids == sorted(set(ids))
    placed = CpuSet()
    for node in machine.numa_nodes:
        assert placed.isdisjoint(node.cpus)
        placed |= node.cpus
        assert set(node.distances) == set(ids)
        assert node.memory_bytes >= 0
        assert node.usable_bytes >= 0
        assert all(0 <= pool.free <= pool.total for pool in node.hugepages)
    for cpu in machine.cpus:
        home = [node.id for node in machine.numa_nodes if cpu.id in node.cpus]
        assert home == ([] if cpu.numa_node is None else [cpu.numa_node])


def _check_caches(machine: Machine) -> None:
    covered = CpuSet()
    for llc in machine.llcs:
        assert llc.cpus
        assert covered.isdisjoint(llc.cpus)
        covered |= llc.cpus
    assert covered == machine.online
    assert machine.llc_cpus == tuple(llc.cpus for llc in machine.llcs)
    for level, kind in {(cache.level, cache.kind) for cache in machine.caches}:
        shared = [c.cpus for c in machine.caches if (c.level, c.kind) == (level, kind)]
        assert sum(map(len, shared)) == len(CpuSet.union(shared))
