"""What prepared devices mean for the containers that use them, as prepare wrote it into the checkpoint.

Nothing is decided when a container is created: what it may use is looked up here and added up.
Amounts stand in :attr:`PreparedDevice.amounts`; :attr:`PreparedDevice.data` has what does not follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.drivers.cpumem.kinds import node_of
from drakit.drivers.cpumem.qos.shares import MemoryShare, distinct, pages_of, shares_of
from drakit.kit.driver import ClaimUse, PreparedDevice

_NEAR: Final = "near"


def notes(near: CpuSet) -> dict[str, Any]:
    """What prepare writes down beside the amounts: nodes whose memory is near the prepared device's CPUs."""
    return {_NEAR: str(near)} if near else {}


@dataclass(frozen=True, slots=True)
class Desired:
    """What a container may use of all its claims."""

    shares: tuple[MemoryShare, ...] = ()
    nodes: CpuSet = EMPTY
    """NUMA nodes to take memory from; empty: anywhere.

    Where ordinary memory was claimed, exactly the nodes that it and the hugepages come from.
    Otherwise also those near the CPUs, as for claims of CPUs alone.
    """
    pages: Mapping[str, int] = field(default_factory=dict)
    """Bytes of hugepages by size as the kernel spells it (``2MB``)."""

    @property
    def memory(self) -> int:
        """Bytes of ordinary memory."""
        return sum(share.memory for share in self.shares)


def desired(uses: Iterable[ClaimUse]) -> Desired:
    """The sum of what these uses prepared device, each prepared device once."""
    used = tuple(uses)
    shares = distinct(share for use in used for share in shares_of(use.claim, use.devices))
    prepared_devices = [prepared for use in used for prepared in use.devices]
    drawn = CpuSet(node_of(key) for prepared in prepared_devices for key in prepared.amounts)
    memory = any(share.memory for share in shares)
    near = EMPTY if memory else CpuSet.union(map(_near, prepared_devices))
    return Desired(shares, drawn | near, pages_of(shares))


def _near(prepared: PreparedDevice) -> CpuSet:
    return CpuSet.parse(str(prepared.data.get(_NEAR, "")))
