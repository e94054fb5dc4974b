"""Core types, capacity and frequency.

Reliable sources, in this order: Intel's PMU devices of hybrid processors, ``cpu_capacity`` (arm64,
riscv), and, where neither exists, differing first-level caches together with differing maximum
frequencies: cores of different design. ``acpi_cppc/highest_perf`` is not used, because preferred cores
(AMD, Intel Turbo Boost Max) give equal cores different values; nor are frequencies alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.machine.cpu_states import CPU
from drakit.machine.model import Cache, CoreType
from drakit.machine.sysfs import Reader
from drakit.machine.topology import MachineTopology

_SAME_TYPE = 0.9
"""Capacities within a tenth of the strongest core's are one type: equal cores differ that much by
their frequency limit (997 to 1024 among the ten Cortex-X925 of an NVIDIA GB10)."""


@dataclass(frozen=True, slots=True)
class CoreTypes:
    """Values by CPU; a CPU that is missing has the default."""

    core_type: Mapping[int, CoreType]
    capacity: Mapping[int, int]
    max_frequency_khz: Mapping[int, int]


def read_core_types(
    reader: Reader, online: CpuSet, topology: MachineTopology, caches: Iterable[Cache]
) -> CoreTypes:
    """Read the lowest CPU of each core: the threads of a core are equal."""
    capacity: dict[int, int] = {}
    frequency: dict[int, int] = {}
    for leader, core in topology.leaders.items():
        place = f"{CPU}/cpu{leader}/"
        value = reader.optional_number(place, "cpu_capacity")
        if value is not None and 0 < value < 1 << 31:
            capacity.update(dict.fromkeys(core, value))
        value = reader.optional_number(place, "cpufreq/cpuinfo_max_freq")
        if value is not None and 0 < value < 1 << 40:
            frequency.update(dict.fromkeys(core, value))
    types = (
        _by_pmu(reader, online)
        or _by_capacity(reader, online, capacity)
        or _by_design(reader, online, caches, frequency)
    )
    return CoreTypes(types, capacity, frequency)


def _by_pmu(reader: Reader, online: CpuSet) -> dict[int, CoreType]:
    """Intel hybrid: ``cpu_core`` and ``cpu_atom`` (and ``cpu_lowpower``) list their CPUs."""
    fast = _pmu_cpus(reader, "cpu_core") & online
    slow = (_pmu_cpus(reader, "cpu_atom") | _pmu_cpus(reader, "cpu_lowpower")) & online
    if not fast and not slow:
        return {}
    both, neither = fast & slow, online - fast - slow
    if both:
        reader.warn("/sys/devices/cpu_atom/cpus", f"CPUs {both} are in cpu_core too: p-core")
    if neither:
        reader.warn("/sys/devices/cpu_core/cpus", f"CPUs {neither} are of neither type: taken as standard")
    types = dict.fromkeys(slow, CoreType.EFFICIENCY)
    return types | dict.fromkeys(fast, CoreType.PERFORMANCE)


def _pmu_cpus(reader: Reader, device: str) -> CpuSet:
    for place in ("/sys/devices", "/sys/bus/event_source/devices"):
        cpus = reader.cpu_list(f"{place}/{device}/cpus")
        if cpus is not None:
            return cpus
    return EMPTY


def _by_capacity(reader: Reader, online: CpuSet, capacity: Mapping[int, int]) -> dict[int, CoreType]:
    """The strongest cores are ``p-core``, clearly weaker ones ``e-core``."""
    strongest = max(capacity.values(), default=0)
    weak = {cpu for cpu, value in capacity.items() if value < strongest * _SAME_TYPE}
    if not weak:
        return {}
    for cpu in online:
        if cpu not in capacity:
            reader.warn_cpu(cpu, "/cpu_capacity", "missing on a machine of two core types: standard")
    return {cpu: CoreType.EFFICIENCY if cpu in weak else CoreType.PERFORMANCE for cpu in capacity}


def _by_design(
    reader: Reader, online: CpuSet, caches: Iterable[Cache], frequency: Mapping[int, int]
) -> dict[int, CoreType]:
    """Cores with different first-level caches *and* a lower maximum frequency are ``e-core``."""
    first_level = [cache for cache in caches if cache.level == 1]
    if len({(cache.kind, cache.size_bytes) for cache in first_level}) <= 2:
        return {}  # one size of data and of instruction cache
    design: dict[int, dict[str, int | None]] = {}
    for cache in first_level:
        for cpu in cache.cpus:
            design.setdefault(cpu, {})[cache.kind] = cache.size_bytes
    fastest: dict[tuple[tuple[str, int | None], ...], int] = {}
    shape_of = {cpu: tuple(sorted(sizes.items())) for cpu, sizes in design.items()}
    for cpu, shape in shape_of.items():
        fastest[shape] = max(fastest.get(shape, 0), frequency.get(cpu, 0))
    complete = all(len(shape) == 2 and None not in dict(shape).values() for shape in fastest)
    speeds = sorted(fastest.values(), reverse=True)
    if len(fastest) < 2 or not complete or not all(speeds) or speeds[0] == speeds[1]:
        return {}
    if not online <= CpuSet(shape_of):
        return {}
    reader.warn(
        "/sys/devices/cpu_core/cpus",
        "missing; core types derived from first-level caches and maximum frequencies",
    )
    return {
        cpu: CoreType.PERFORMANCE if fastest[shape] == speeds[0] else CoreType.EFFICIENCY
        for cpu, shape in shape_of.items()
    }
