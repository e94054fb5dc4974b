"""Removes CPUs from the shared pool and never adds them back."""

from __future__ import annotations

from drakit.core.cpuset import CpuSet
from drakit.drivers.models.cpus import NodeCpus
from drakit.kit.driver import PreparedClaims

_right = NodeCpus.shared
_smallest: list[CpuSet] = []


def _shared(self: NodeCpus, prepared_claims: PreparedClaims) -> CpuSet:
    pool = _right(self, prepared_claims)
    _smallest[:] = [pool & _smallest[0] if _smallest else pool]
    return _smallest[0]


NodeCpus.shared = _shared  # type: ignore[method-assign]
