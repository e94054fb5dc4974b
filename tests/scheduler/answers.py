"""Our answer to a generated problem, in the compact form of the golden file."""

from __future__ import annotations

from typing import Any

from drakit.core.kubernetes_releases import KubernetesRelease
from drakit.core.objects import DeviceClass, ResourceClaim, ResourceSlice, from_builtins
from drakit.core.pods import Node
from drakit.scheduler.allocator.node_devices import InUse, NodeDevices
from drakit.scheduler.allocator.search import AllocationFound, AllocationImpossible, allocate
from drakit.scheduler.errors import FatalError
from drakit.scheduler.pools import SliceIndex
from drakit.scheduler.requests import plan_claims
from tests.scheduler.problems import Json


def answers(posed: Json, release: KubernetesRelease) -> list[Any]:
    """Per node: "fatal", a reason why not, or the devices per claim; and the steps, if counted."""
    slices = [from_builtins(s, ResourceSlice) for s in posed["slices"]]
    classes = {c["metadata"]["name"]: from_builtins(c, DeviceClass) for c in posed["classes"]}
    claims = [from_builtins(c, ResourceClaim) for c in posed["claims"]]
    held = [from_builtins(c, ResourceClaim) for c in posed["allocated"]]
    index, in_use = SliceIndex(slices, release), InUse.of(held, release)
    found: list[Any] = []
    for node in posed["nodes"]:
        try:
            problem = NodeDevices(from_builtins(node, Node), index, in_use)
            found.append(shown(allocate(problem, plan_claims(claims, classes))))
        except FatalError:
            found.append("fatal")
    return found


def shown(outcome: AllocationFound | AllocationImpossible) -> list[Any]:
    if isinstance(outcome, AllocationImpossible):
        return [outcome.reason, None if outcome.at_least else outcome.steps]
    claims = [
        [
            [str(p.request), "/".join(p.device), {k: str(v) for k, v in sorted(p.consumed.items())}, p.admin]
            for p in claim.picks
        ]
        for claim in outcome.claims
    ]
    return [claims, outcome.steps]
