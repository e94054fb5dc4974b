"""Bounds never exclude a branch that has a solution."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from drakit.core.kubernetes_releases import LATEST
from drakit.core.objects import DeviceClass, ResourceClaim, ResourceSlice, from_builtins
from drakit.core.pods import Node
from drakit.scheduler.allocator.bounds import Bounds
from drakit.scheduler.allocator.node_devices import InUse, NodeDevices
from drakit.scheduler.allocator.search import AllocationFound, allocate
from drakit.scheduler.allocator.search_state import SearchState
from drakit.scheduler.errors import FatalError, SearchLimitError
from drakit.scheduler.pools import SliceIndex
from drakit.scheduler.requests import plan_claims
from tests.scheduler.factories import claim, device, exactly, node_devices, plans, resource_slice
from tests.scheduler.problems import Json, problem


def test_a_feasible_problem_is_never_called_infeasible(scale: int) -> None:
    feasible = 0
    for seed in range(60 * scale):
        posed = problem(seed)
        classes = {c["metadata"]["name"]: from_builtins(c, DeviceClass) for c in posed["classes"]}
        index = SliceIndex([from_builtins(s, ResourceSlice) for s in posed["slices"]], LATEST)
        held = InUse.of([from_builtins(c, ResourceClaim) for c in posed["allocated"]], LATEST)
        for plain in posed["nodes"]:
            found = NodeDevices(from_builtins(plain, Node), index, held)
            try:
                planned = plan_claims([from_builtins(c, ResourceClaim) for c in posed["claims"]], classes)
                if isinstance(allocate(found, planned), AllocationFound):
                    assert not Bounds(SearchState(found, planned)).infeasible(), f"seed {seed}"
                    feasible += 1
            except (FatalError, SearchLimitError):
                continue
    assert feasible >= 10


def infeasible(devices: list[Json], *requests: Json, constraints: Any = ()) -> bool:
    planned = plans(claim(*requests, constraints=constraints))
    return Bounds(SearchState(node_devices(resource_slice(*devices)), planned)).infeasible()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_too_few_free_devices_are_infeasible(count: int) -> None:
    devices = [device(f"d{i}") for i in range(3)]
    assert infeasible(devices, exactly(count=count)) == (count > 3)


def test_requests_that_compete_for_the_same_devices_are_counted_together() -> None:
    devices = [device(f"d{i}", attributes={"n": {"int": i}}) for i in range(4)]
    low = 'device.attributes["d.io"].n < 2'
    requests = [exactly("a", low, count=1), exactly("b", low, count=2), exactly("c")]
    assert all(infeasible(devices, *order) for order in permutations(requests))
    assert not infeasible(devices, exactly("a", low), exactly("b", low), exactly("c", count=2))


@pytest.mark.parametrize("kind", ["matchAttribute", "distinctAttribute"])
@pytest.mark.parametrize(("count", "expected"), [(2, False), (3, True)])
def test_a_constraint_limits_the_devices(kind: str, count: int, expected: bool) -> None:
    devices = [device(f"d{i}", attributes={"n": {"int": i % 2}}) for i in range(4)]
    found = infeasible(devices, exactly(count=count), constraints=[{kind: "d.io/n"}])
    assert found == expected
