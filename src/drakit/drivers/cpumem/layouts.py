"""Layouts of the CPU and memory driver's devices, and the DeviceClasses for each.

Combined: one device per group with all kinds as capacities, so that a claim is aligned by itself. Split: one
device per kind and group with a DeviceClass per kind, so that quota and access can be granted by kind;
claims align them by ``matchAttribute``. ``dra.cpumem-memory-only`` is memory on NUMA nodes without CPUs,
which a claim must ask for explicitly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from drakit.core.objects import CelSelector, DeviceClass, DeviceClassSpec, DeviceSelector, ObjectMeta
from drakit.drivers.cpumem.kinds import CPU, DRIVER, MEMORY, hugepages
from drakit.drivers.cpumem.settings import LayoutName
from drakit.drivers.models.grouped import Layout, one_device
from drakit.drivers.models.groups import ResourceGroup
from drakit.drivers.models.resource import CapacityKind, GroupDevice

_ATTRIBUTES: Final = f'device.attributes["{DRIVER}"]'
PAGE_SIZES: Final = tuple(
    size << 10
    for size in (
        64,  # arm64, by contiguous entries of 4 Ki pages
        1 << 10,  # s390x
        2 << 10,  # x86, arm64
        16 << 10,  # POWER
        32 << 10,  # arm64, by contiguous entries of 2 Mi
        512 << 10,  # arm64 with base pages of 64 Ki
        1 << 20,  # x86, arm64, POWER
        2 << 20,  # s390x
        16 << 20,  # arm64 with base pages of 64 Ki, by contiguous entries
    )
)
"""Hugepage sizes of Linux on 64-bit machines."""


def split(group: ResourceGroup, amounts: Mapping[CapacityKind, int]) -> Iterable[GroupDevice]:
    """One device per kind: ``cpu-numa0``, ``memory-numa0``, ``hugepages-2mi-numa0``."""
    for kind, amount in amounts.items():
        yield GroupDevice(f"{kind.label}-{group.name}", group, {kind: amount}, kind.name)


LAYOUTS: Final[Mapping[LayoutName, Layout]] = {"combined": one_device, "split": split}


def combined_classes() -> tuple[DeviceClass, ...]:
    """DeviceClasses of the combined layout."""
    return (_class(DRIVER, f"!{_ATTRIBUTES}.memoryOnly"), _memory_only())


def split_classes(page_sizes: Iterable[int] = PAGE_SIZES) -> tuple[DeviceClass, ...]:
    """DeviceClasses of the split layout: one per kind, and memory without CPUs."""
    kinds = [CPU, MEMORY, *map(hugepages, sorted(page_sizes))]
    condition = f'{_ATTRIBUTES}.kind == "%s" && !{_ATTRIBUTES}.memoryOnly'
    return (*(_class(f"{DRIVER}-{kind.label}", condition % kind.name) for kind in kinds), _memory_only())


def _memory_only() -> DeviceClass:
    return _class(f"{DRIVER}-memory-only", f"{_ATTRIBUTES}.memoryOnly")


def _class(name: str, condition: str) -> DeviceClass:
    return device_class(name, f'device.driver == "{DRIVER}" && {condition}')


def device_class(name: str, expression: str) -> DeviceClass:
    """A DeviceClass that selects devices by a CEL *expression*."""
    selectors = (DeviceSelector(cel=CelSelector(expression=expression)),)
    return DeviceClass(metadata=ObjectMeta(name=name), spec=DeviceClassSpec(selectors=selectors))
