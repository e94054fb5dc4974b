"""Machine reconstructed from the attributes that dra-driver-cpu publishes for each CPU, to draw it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Device
from drakit.drivers.models.cpus import DRIVER
from drakit.machine.model import Cache, CoreType, Cpu, Machine
from drakit.scheduler.allocator.constraints import lookup_attribute, values_of


def published_machine(devices: Iterable[Device]) -> Machine:
    """Return the machine that the attributes of its single-CPU devices describe."""
    rows = [(number, device) for device in devices if (number := cpu_number(device)) is not None]
    rows.sort(key=lambda row: row[0])

    def group(name: str) -> dict[int, int]:
        """Return the rank of each CPU's group, ordered by lowest CPU."""
        ranks: dict[Hashable, int] = {}
        found: dict[int, int] = {}
        for number, device in rows:
            key = _number(device, name)
            if key is not None and key >= 0:
                found[number] = ranks.setdefault(key, len(ranks))
        return found

    sockets, cores, llcs = group("socketID"), group("coreID"), group("cacheL3ID")
    nodes = {number: _number(device, "numaNodeID") for number, device in rows}

    def members(groups: dict[int, int], rank: int) -> CpuSet:
        return CpuSet(number for number, found in groups.items() if found == rank)

    cpus = tuple(
        Cpu(
            id=number,
            online=not any(t.key == "dra.cpu/offline" for t in device.taints),
            socket=sockets.get(number),
            die=None,
            cluster=None,
            core=cores.get(number),
            llc=llcs.get(number),
            numa_node=nodes[number],
            siblings=members(cores, cores[number]) if number in cores else CpuSet([number]),
            core_type=_core_type(device),
        )
        for number, device in rows
    )
    present = CpuSet(number for number, _ in rows)
    caches = tuple(Cache(3, "Unified", None, members(llcs, rank)) for rank in sorted(set(llcs.values())))
    return Machine(
        cpus=cpus,
        numa_nodes=(),
        caches=caches,
        llcs=caches,
        possible=present,
        present=present,
        online=CpuSet(cpu.id for cpu in cpus if cpu.online),
        smt_active=any(len(cpu.siblings) > 1 for cpu in cpus),
    )


def cpu_number(device: Device) -> int | None:
    """Return the number of the CPU of a single-CPU device."""
    return _number(device, "cpuID")


def _value(device: Device, name: str) -> object:
    attribute = lookup_attribute(device, DRIVER, f"{DRIVER}/{name}")
    values = values_of(attribute) if attribute is not None else frozenset()
    return next((value for _, value in values), None)


def _number(device: Device, name: str) -> int | None:
    value = _value(device, name)
    return value if isinstance(value, int) else None


def _core_type(device: Device) -> CoreType:
    value = _value(device, "coreType")
    known = {kind.value for kind in CoreType}
    return CoreType(value) if value in known else CoreType.STANDARD
