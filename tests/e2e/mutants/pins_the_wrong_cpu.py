"""Says the right CPUs and pins to their neighbours."""

from __future__ import annotations

import dataclasses

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.grouped import GroupedCpus
from drakit.kit.driver import Container, Holdings, Shape

_right = GroupedCpus.enforce


def _enforce(self: GroupedCpus, container: Container, holdings: Holdings) -> Shape:
    shape = _right(self, container, holdings)
    if not container.uses or shape.cpus is None:
        return shape
    return dataclasses.replace(shape, cpus=CpuSet((cpu + 1) % 8 for cpu in shape.cpus))


GroupedCpus.enforce = _enforce  # type: ignore[method-assign]
