"""Symmetry reduction: the same result as an exhaustive search that tries every combination."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from drakit.scheduler.allocator.search import AllocationFound, allocate
from drakit.scheduler.allocator.search_state import SearchState
from drakit.scheduler.allocator.symmetry import Symmetry
from tests.scheduler.factories import claim, device, exactly, node_devices, plans, resource_slice
from tests.scheduler.problems import Json


def exhaustive(groups: list[int], wanted: list[tuple[int, int]]) -> list[tuple[int, ...]] | None:
    """The first solution in depth-first order: per request *count* devices of at least *group*."""
    if not wanted:
        return []
    (count, group), rest = wanted[0], wanted[1:]
    free = [i for i, g in enumerate(groups) if g >= group]
    for chosen in combinations(free, count):
        left = [-1 if i in chosen else g for i, g in enumerate(groups)]
        found = exhaustive(left, rest)
        if found is not None:
            return [chosen, *found]
    return None


@given(
    groups=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    wanted=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=3),
)
def test_the_first_solution_is_that_of_an_exhaustive_search(
    groups: list[int], wanted: list[tuple[int, int]]
) -> None:
    devices = [device(f"d{i}", attributes={"g": {"int": g}}) for i, g in enumerate(groups)]
    requests = [
        exactly(f"r{i}", f'device.attributes["d.io"].g >= {group}', count=count)
        for i, (count, group) in enumerate(wanted)
    ]
    outcome = allocate(node_devices(resource_slice(*devices)), plans(claim(*requests)))
    expected = exhaustive(groups, wanted)
    if expected is None:
        assert not isinstance(outcome, AllocationFound)
    else:
        assert isinstance(outcome, AllocationFound)
        taken = [int(p.device.device[1:]) for p in outcome.claims[0].picks]
        assert taken == [at for chosen in expected for at in chosen]


def kinds(*devices: Json, requests: tuple[Json, ...] = (exactly(),), **more: object) -> list[int]:
    planned = plans(claim(*requests, **more))  # type: ignore[arg-type]
    return Symmetry(SearchState(node_devices(resource_slice(*devices)), planned)).kinds


def test_devices_are_distinguished_only_by_what_requests_and_constraints_compare() -> None:
    a, b = (device(n, attributes={"n": {"int": i}}) for i, n in enumerate("ab"))
    assert kinds(a, b) == [0, 0]
    assert kinds(a, b, constraints=[{"matchAttribute": "d.io/n"}]) == [0, 1]
    assert kinds(a, b, requests=(exactly("r", 'device.attributes["d.io"].n == 0'),)) == [0, 1]
    assert kinds(a, b, requests=(exactly(allocationMode="All"),)) == [0, 1]


def test_shareable_devices_are_distinguished_by_capacity() -> None:
    a, b, c = (
        device(n, allowMultipleAllocations=True, capacity={"k": {"value": v}})
        for n, v in (("a", "4"), ("b", "4"), ("c", "8"))
    )
    assert kinds(a, b, c) == [0, 0, 1]


def test_states_with_the_same_number_of_free_devices_have_the_same_key() -> None:
    found = SearchState(
        node_devices(resource_slice(device("a"), device("b"), device("c"))), plans(claim(exactly(count=2)))
    )  # fmt: skip
    symmetry, variant = Symmetry(found), next(found.variants())
    keys = []
    for at in (0, 1):
        assert found.take(0, variant, at, insist=False)
        keys.append(symmetry.key(0, 0, None, 1, 2))
        found.undo_take(0, at)
    assert keys[0] == keys[1]
    assert found.take(0, variant, 2, insist=False)
    assert symmetry.key(0, 0, None, 1, 2) != keys[0]  # no device is left after candidate 2
