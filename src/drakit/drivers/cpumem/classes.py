"""DeviceClasses for everything this driver can offer, in either layout.

``dra.cpumem`` is any device with CPUs nearby; ``dra.cpumem-memory-only`` is memory on NUMA nodes without
CPUs, which nobody should get without asking for it. In the split layout each kind has a class of its
own, so that quota and rights can be given by kind.
"""

from __future__ import annotations

from collections.abc import Iterable

from drakit.core.objects import (
    CelSelector,
    DeviceClass,
    DeviceClassSpec,
    DeviceSelector,
    ObjectMeta,
)
from drakit.drivers.cpumem.kinds import CPU, DRIVER, MEMORY, Kind, hugepages

_ATTRIBUTES = f'device.attributes["{DRIVER}"]'
PAGE_SIZES: tuple[int, ...] = tuple(
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
"""Sizes of hugepages that Linux has on 64-bit machines today."""


def combined_classes() -> tuple[DeviceClass, ...]:
    """Classes for devices that hold all kinds of a zone."""
    return (
        _class(DRIVER, f"!{_ATTRIBUTES}.memoryOnly"),
        _class(f"{DRIVER}-memory-only", f"{_ATTRIBUTES}.memoryOnly"),
    )


def split_classes(page_sizes: Iterable[int] = PAGE_SIZES) -> tuple[DeviceClass, ...]:
    """A class per kind, and the one for memory without CPUs."""
    kinds: list[Kind] = [CPU, MEMORY, *(hugepages(size) for size in sorted(page_sizes))]
    return (
        *(
            _class(
                f"{DRIVER}-{kind.label}",
                f'{_ATTRIBUTES}.kind == "{kind.name}" && !{_ATTRIBUTES}.memoryOnly',
            )
            for kind in kinds
        ),
        _class(f"{DRIVER}-memory-only", f"{_ATTRIBUTES}.memoryOnly"),
    )


def _class(name: str, condition: str) -> DeviceClass:
    expression = f'device.driver == "{DRIVER}" && {condition}'
    return DeviceClass(
        metadata=ObjectMeta(name=name),
        spec=DeviceClassSpec(selectors=(DeviceSelector(cel=CelSelector(expression=expression)),)),
    )
