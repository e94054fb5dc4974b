"""Gives all claimed containers of a size the same CPUs: two pods own them."""

from __future__ import annotations

import dataclasses

from drakit.core.cpuset import CpuSet
from drakit.drivers.models.grouped import GroupedCpus
from drakit.kit.driver import Container, PreparedClaims, Shape

_right = GroupedCpus.enforce


def _enforce(self: GroupedCpus, container: Container, prepared_claims: PreparedClaims) -> Shape:
    shape = _right(self, container, prepared_claims)
    if not container.uses or shape.cpus is None:
        return shape
    return dataclasses.replace(shape, cpus=CpuSet(range(4, 4 + len(shape.cpus))))


GroupedCpus.enforce = _enforce  # type: ignore[method-assign]
