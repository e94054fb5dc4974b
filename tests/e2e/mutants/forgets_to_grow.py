"""Takes CPUs out of the shared pool and never puts one back."""

from __future__ import annotations

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.node import NodeCpus
from drakit.kit.driver import Holdings

_right = NodeCpus.shared
_smallest: list[CpuSet] = []


def _shared(self: NodeCpus, holdings: Holdings) -> CpuSet:
    pool = _right(self, holdings)
    _smallest[:] = [pool & _smallest[0] if _smallest else pool]
    return _smallest[0]


NodeCpus.shared = _shared  # type: ignore[method-assign]
