"""Searches that take kube-scheduler 2ⁿ steps are decided by counting, and feasible ones stay the same.

Each family is one way to make the real search explode. Small members are also put to a plain ordered
search, written here as simply as possible: the answer must be the same, device by device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.objects import DeviceClass, ResourceClaim, ResourceSlice, from_builtins
from drakit.core.pods import Node, Pod
from drakit.scheduler.placement import ClusterSnapshot, NodeResult, place

Json = dict[str, Any]


def answer(devices: list[Json], *claims: Json) -> NodeResult:
    """What the one node says to a pod with these claims."""
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.io", "nodeName": "n", "pool": pool, "devices": devices}
    if any("consumesCounters" in d for d in devices):
        pool["resourceSliceCount"] = 2
    counters = {**spec, "devices": [], "sharedCounters": [
        {"name": "set", "counters": {"c": {"value": "8"}}}]}  # fmt: skip
    slices = [{"metadata": {"name": "s"}, "spec": spec}]
    if pool["resourceSliceCount"] == 2:
        slices.append({"metadata": {"name": "t"}, "spec": counters})
    uses = [{"name": f"c{i}", "resourceClaimName": f"c{i}"} for i in range(len(claims))]
    pod = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"resourceClaims": uses}}
    cluster = ClusterSnapshot(
        nodes=(from_builtins({"metadata": {"name": "n"}}, Node),),
        slices=tuple(from_builtins(s, ResourceSlice) for s in slices),
        classes=(from_builtins({"metadata": {"name": "c"}}, DeviceClass),),
        claims=tuple(
            from_builtins(
                {"metadata": {"name": f"c{i}", "namespace": "d"}, "spec": {"devices": c}}, ResourceClaim
            )
            for i, c in enumerate(claims)
        ),
    )
    return place(cluster, from_builtins(pod, Pod)).nodes[0]


def wants(name: str, count: int, *selectors: str, **more: Any) -> Json:
    cel = [{"cel": {"expression": s}} for s in selectors]
    exactly = {"deviceClassName": "c", "count": count, "selectors": cel, **more}
    return {"name": name, "exactly": exactly}


def plain(count: int) -> list[Json]:
    return [{"name": f"d{i:02}"} for i in range(count)]


def grouped(count: int, groups: int) -> list[Json]:
    return [
        {"name": f"d{i:02}", "attributes": {"group": {"int": i % groups}, "id": {"int": i}}}
        for i in range(count)
    ]


def same(*requests: str) -> Json:
    found: Json = {"matchAttribute": "d.io/group"}
    return {**found, "requests": list(requests)} if requests else found


IN_0 = 'device.attributes["d.io"].group == 0'
NOT_0 = 'device.attributes["d.io"].group != 0'


def one_too_few(n: int) -> NodeResult:
    return answer(plain(n), {"requests": [wants("r", n + 1)]})


def impossible_last(n: int) -> NodeResult:
    requests = [wants("many", n // 4), wants("none", 1, 'device.driver == "x.io"')]
    return answer(plain(n), {"requests": requests})


def impossible_in_the_last_claim(n: int) -> NodeResult:
    claims = [{"requests": [wants("r", 3)]} for _ in range(4)]
    return answer(plain(n), *claims, {"requests": [wants("r", 1, 'device.driver == "x.io"')]})


def no_group_has_enough(n: int) -> NodeResult:
    devices = grouped(n, 2)
    return answer(devices, {"requests": [wants("r", n // 2 + 1)], "constraints": [same()]})


def together_too_many(n: int) -> NodeResult:
    requests = [wants(f"r{i}", n // 3) for i in range(3)] + [wants("last", n % 3 + 1)]
    return answer(plain(n), {"requests": requests})


def each_alone_but_not_together(n: int) -> NodeResult:
    """The second request needs devices that the first, over the same attribute, excludes."""
    requests = [wants("a", n // 4, IN_0), wants("b", n // 4, NOT_0)]
    return answer(grouped(n, 2), {"requests": requests, "constraints": [same()]})


def all_after_many(n: int) -> NodeResult:
    every = {"name": "all", "exactly": {"deviceClassName": "c", "allocationMode": "All"}}
    return answer(plain(n), {"requests": [wants("many", n // 3)]}, {"requests": [every]})


def different_everywhere(n: int) -> NodeResult:
    devices = grouped(n, n // 2)
    constraint = {"distinctAttribute": "d.io/group"}
    return answer(devices, {"requests": [wants("r", n // 2 + 1)], "constraints": [constraint]})


def counters_run_out(n: int) -> NodeResult:
    use = [{"counterSet": "set", "counters": {"c": {"value": "1"}}}]
    devices = [{**d, "consumesCounters": use} for d in plain(n)]
    return answer(devices, {"requests": [wants("r", 9)]})


def alternatives_in_every_request(n: int) -> NodeResult:
    def either(name: str) -> Json:
        subs = [{"name": f"s{k}", "deviceClassName": "c", "count": k} for k in (3, 2, 1)]
        return {"name": name, "firstAvailable": subs}

    requests = [either(f"r{i}") for i in range(6)]
    return answer(plain(n), {"requests": [*requests, wants("none", 1, 'device.driver == "x"')]})


FAMILIES: dict[str, Callable[[int], NodeResult]] = {
    f.__name__: f
    for f in (
        one_too_few,
        impossible_last,
        impossible_in_the_last_claim,
        no_group_has_enough,
        together_too_many,
        each_alone_but_not_together,
        all_after_many,
        different_everywhere,
        counters_run_out,
        alternatives_in_every_request,
    )
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_exponential_case_is_decided(family: str) -> None:
    found = FAMILIES[family](30)
    assert not found.fits
    assert found.reason == "cannot allocate all claims"
    if found.would_time_out:
        assert "gives up after 10 s" in found.effort


def test_steps_are_said_where_the_real_search_would_not_end() -> None:
    assert "about 2^31 steps" in one_too_few(31).effort
    assert impossible_last(64).would_time_out


# -- feasible ones keep their devices ---------------------------------------------------------------------


def ordered_search(groups: list[int], counts: list[int], together: bool) -> list[int] | None:
    """The first solution in kube-scheduler's order, by plain trial."""

    def extend(taken: list[int], request: int, left: int, start: int) -> list[int] | None:
        if request == len(counts):
            return taken
        if left == 0:
            following = counts[request + 1] if request + 1 < len(counts) else 0
            return extend(taken, request + 1, following, 0)
        for at in range(start, len(groups)):
            if at in taken or (together and taken and groups[at] != groups[taken[0]]):
                continue
            found = extend([*taken, at], request, left - 1, at + 1)
            if found is not None:
                return found
        return None

    return extend([], 0, counts[0], 0)


@given(
    groups=st.lists(st.integers(0, 2), min_size=1, max_size=9),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    together=st.booleans(),
)
def test_the_first_solution_is_found(groups: list[int], counts: list[int], together: bool) -> None:
    devices = [{"name": f"d{i:02}", "attributes": {"group": {"int": g}}} for i, g in enumerate(groups)]
    claim: Json = {"requests": [wants(f"r{i}", n) for i, n in enumerate(counts)]}
    if together:
        claim["constraints"] = [same()]
    found = answer(devices, claim)
    expected = ordered_search(groups, counts, together)
    assert found.fits == (expected is not None)
    if expected is not None:
        assert [p.candidate for p in found.allocations[0].picks] == expected


def test_a_feasible_needle_in_the_haystack_is_the_right_one() -> None:
    """Only the last group has room for both requests; kube-scheduler's order decides within it."""
    devices = grouped(28, 2) + [
        {"name": f"z{i}", "attributes": {"group": {"int": 9}, "gpu": {"bool": i == 5}}} for i in range(6)
    ]
    requests = [wants("many", 5), wants("gpu", 1, 'device.attributes["d.io"].?gpu.orValue(false)')]
    found = answer(devices, {"requests": requests, "constraints": [same()]})
    assert found.fits
    taken = [p.device.device for p in found.allocations[0].picks]
    assert taken == ["z0", "z1", "z2", "z3", "z4", "z5"]
