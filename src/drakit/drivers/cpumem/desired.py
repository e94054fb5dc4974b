"""What grants mean for the containers that use them, as prepare wrote it into the ledger.

Nothing is decided when a container is created: what it may use is looked up here and added up.
Amounts stand in :attr:`Grant.amounts`; :attr:`Grant.data` has what does not follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.drivers.cpumem.kinds import node_of
from drakit.drivers.cpumem.qos.shares import Share, distinct, pages_of, shares_of
from drakit.kit.driver import Grant, Use

_NEAR: Final = "near"


def notes(near: CpuSet) -> dict[str, Any]:
    """What prepare writes down beside the amounts: nodes whose memory is near the grant's CPUs."""
    return {_NEAR: str(near)} if near else {}


@dataclass(frozen=True, slots=True)
class Desired:
    """What a container may use of all its claims."""

    shares: tuple[Share, ...] = ()
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


def desired(uses: Iterable[Use]) -> Desired:
    """The sum of what these uses grant, each grant once."""
    used = tuple(uses)
    shares = distinct(share for use in used for share in shares_of(use.entry, use.grants))
    grants = [grant for use in used for grant in use.grants]
    drawn = CpuSet(node_of(key) for grant in grants for key in grant.amounts)
    memory = any(share.memory for share in shares)
    near = EMPTY if memory else CpuSet.union(map(_near, grants))
    return Desired(shares, drawn | near, pages_of(shares))


def _near(grant: Grant) -> CpuSet:
    return CpuSet.parse(str(grant.data.get(_NEAR, "")))
