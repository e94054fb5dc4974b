"""Groups out of claims: sound claims are taken as they are, damaged ones disturb only their own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.machine.partition import agree, agree_on_cores
from drakit.machine.topology import index_by_cpu, ranked


@st.composite
def partitions(draw: st.DrawFn) -> list[CpuSet]:
    """Disjoint groups of some of the CPUs 0 to 39."""
    homes = draw(st.dictionaries(st.integers(0, 39), st.integers(0, 7), min_size=1))
    groups: dict[int, list[int]] = {}
    for cpu, home in homes.items():
        groups.setdefault(home, []).append(cpu)
    return [CpuSet(cpus) for cpus in groups.values()]


def claims_of(groups: list[CpuSet]) -> dict[int, CpuSet | None]:
    return {cpu: group for group in groups for cpu in group}


def check_partition(groups: tuple[CpuSet, ...], asked: CpuSet) -> None:
    assert sum(map(len, groups)) == len(asked)
    assert CpuSet.union(groups) == asked
    assert all(groups)


@given(partitions())
def test_sound_claims_are_the_groups(groups: list[CpuSet]) -> None:
    result = agree(claims_of(groups), {})
    assert ranked(result.groups) == ranked(groups)
    assert not result.disputed


@given(partitions(), st.data())
def test_silent_cpus_stay_with_those_that_name_them(groups: list[CpuSet], data: st.DataObject) -> None:
    claims = claims_of(groups)
    for group in groups:  # at least one of each group speaks
        for cpu in data.draw(st.sets(st.sampled_from(list(group)), max_size=len(group) - 1)):
            claims[cpu] = None
    result = agree(claims, {})
    assert ranked(result.groups) == ranked(groups)
    assert not result.disputed


@given(partitions(), st.data())
def test_one_wrong_claim_disturbs_no_group_that_it_does_not_reach(
    groups: list[CpuSet], data: st.DataObject
) -> None:
    claims = claims_of(groups)
    liar = data.draw(st.sampled_from(sorted(claims)))
    wild = CpuSet([liar, *data.draw(st.sets(st.sampled_from(sorted(claims))))])
    claims[liar] = wild
    result = agree(claims, {})
    check_partition(result.groups, CpuSet(claims))
    for group in groups:
        if liar not in group:
            assert group in result.groups


@given(
    st.dictionaries(st.integers(0, 30), st.one_of(st.none(), st.sets(st.integers(0, 40))), min_size=1),
    st.dictionaries(st.integers(0, 30), st.integers(0, 3)),
)
def test_whatever_is_claimed_every_cpu_gets_one_group(
    raw: dict[int, set[int] | None], ids: dict[int, int]
) -> None:
    claims = {cpu: None if claim is None else CpuSet({cpu, *claim}) for cpu, claim in raw.items()}
    result = agree(claims, ids)
    check_partition(result.groups, CpuSet(claims))
    assert result.disputed <= CpuSet(claims)
    for cpu, claim in claims.items():
        if claim is not None and claim & CpuSet(claims) not in result.groups:
            others_silent = any(claims[other] is None for other in claims)
            assert cpu in result.disputed or others_silent


def test_a_denied_claim_needs_equal_ids() -> None:
    claims = {0: CpuSet([0, 4]), 4: CpuSet([4])}
    assert len(agree(claims, {}).groups) == 2
    assert len(agree(claims, {0: "a", 4: "b"}).groups) == 2
    assert agree(claims, {0: "a", 4: "a"}).groups == (CpuSet([0, 4]),)


def test_silent_cpus_nobody_names_are_grouped_by_id() -> None:
    silent: dict[int, CpuSet | None] = dict.fromkeys(range(5))
    result = agree(silent, {0: "a", 1: "b", 2: "a", 3: None})
    assert ranked(result.groups) == (CpuSet([0, 2]), CpuSet([1]), CpuSet([3]), CpuSet([4]))


@given(partitions(), st.integers(1, 3))
def test_leaders_speak_for_their_whole_core(groups: list[CpuSet], threads: int) -> None:
    """Core n has the CPUs n, n + 40, n + 80, … and only n is asked."""
    whole = [CpuSet(cpu + 40 * t for cpu in group for t in range(threads)) for group in groups]
    cores = {cpu: CpuSet(cpu + 40 * t for t in range(threads)) for group in groups for cpu in group}
    claims = {cpu: everyone for group, everyone in zip(groups, whole, strict=True) for cpu in group}
    assert ranked(agree_on_cores(claims, cores, {}).groups) == ranked(whole)
    # One leader that says nothing changes nothing, if it is not alone.
    for group in groups:
        if len(group) > 1:
            damaged = {**claims, group.min(): None}
            assert ranked(agree_on_cores(damaged, cores, {}).groups) == ranked(whole)
            break


def test_a_claim_that_cuts_a_core_in_two_is_grown_to_the_core() -> None:
    cores = {0: CpuSet([0, 2]), 1: CpuSet([1, 3])}
    claims = {0: CpuSet([0, 1]), 1: CpuSet([0, 1])}
    assert agree_on_cores(claims, cores, {}).groups == (CpuSet([0, 1, 2, 3]),)


@given(partitions())
def test_ranks_follow_the_lowest_cpu(groups: list[CpuSet]) -> None:
    ranks = index_by_cpu(ranked(groups))
    lowest = sorted(group.min() for group in groups)
    assert [ranks[cpu] for cpu in lowest] == list(range(len(groups)))
    for group in groups:
        assert len({ranks[cpu] for cpu in group}) == 1
