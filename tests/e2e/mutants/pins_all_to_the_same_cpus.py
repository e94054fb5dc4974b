"""Assigns the same CPUs to all claimed containers of a size."""

from __future__ import annotations

import dataclasses

from drakit.core.cpuset import CpuSet
from drakit.drivers.models.grouped import GroupedDriver
from drakit.kit.driver import ContainerView, DesiredResources, PreparedClaims

_right = GroupedDriver.enforce


def _enforce(
    self: GroupedDriver, container: ContainerView, prepared_claims: PreparedClaims
) -> DesiredResources:
    desired = _right(self, container, prepared_claims)
    if not container.uses or desired.cpus is None:
        return desired
    return dataclasses.replace(desired, cpus=CpuSet(range(4, 4 + len(desired.cpus))))


GroupedDriver.enforce = _enforce  # type: ignore[method-assign]
