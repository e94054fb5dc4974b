"""The arithmetic of pools, for all numbers."""

from __future__ import annotations

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from drakit.drivers.cpumem.hugepages.plan import (
    Demand,
    OwnPages,
    growth_target,
    in_use,
    needed_growth,
    persistent,
    reconciled,
    shrink_target,
    static_target,
)
from drakit.machine.model import HugepagePool

SIZE = 2 << 20
few = st.integers(0, 40)


@st.composite
def pools(draw: st.DrawFn) -> HugepagePool:
    size, used = draw(few), draw(few)
    surplus = max(0, used - size)
    return HugepagePool(SIZE, size + surplus, size + surplus - used, surplus)


@st.composite
def situations(draw: st.DrawFn) -> tuple[HugepagePool, OwnPages, Demand]:
    pool = draw(pools())
    size = persistent(pool)
    grown = draw(st.integers(0, size))
    raised = draw(st.integers(0, size - grown))
    claimed = draw(few)
    used = draw(st.integers(0, min(claimed, in_use(pool))))
    share = OwnPages(raised=raised, grown=grown, seen=size, aim=size)
    return pool, share, Demand(claimed, used, draw(few))


def least(pool: HugepagePool, demand: Demand) -> int:
    """Below this no pool may be made: what is in use and what is promised beside it."""
    return min(persistent(pool), in_use(pool) + demand.promised)


@given(situations())
def test_giving_back_keeps_what_is_used_promised_and_not_ours(
    situation: tuple[HugepagePool, OwnPages, Demand],
) -> None:
    pool, share, demand = situation
    target = shrink_target(pool, share, demand)
    assert least(pool, demand) <= target <= persistent(pool)
    assert persistent(pool) - target <= share.grown
    after = reconciled(msgspec.structs.replace(share, aim=target, purpose="grow"), target)
    assert after.grown >= min(share.grown, needed_growth(pool, share, demand))


@given(situations(), few)
def test_a_configured_size_takes_away_only_what_was_added_for_an_older_one(
    situation: tuple[HugepagePool, OwnPages, Demand], wanted: int
) -> None:
    pool, share, demand = situation
    target = static_target(wanted, pool, share, demand)
    standing = persistent(pool) - share.grown
    if standing <= wanted:
        assert target == wanted + share.grown
    else:
        assert target >= least(pool, demand)
        assert target >= wanted + share.grown
        assert 0 <= persistent(pool) - target <= share.raised


@given(situations(), few, few)
def test_growing_serves_the_claim_or_says_no(
    situation: tuple[HugepagePool, OwnPages, Demand], fresh: int, allowance: int
) -> None:
    pool, share, demand = situation
    demand = Demand(demand.claimed + fresh, 0, demand.withheld)
    target = growth_target(pool, share, demand, fresh, allowance)
    if target is None:
        enough = max(needed_growth(pool, share, demand), share.grown + fresh - pool.free)
        assert enough > allowance
        return
    added = target - persistent(pool)
    assert added >= 0
    assert added == 0 or share.grown + added <= allowance
    if added:
        assert pool.free + added >= fresh
        standing = persistent(pool) - share.grown
        assert target - min(demand.withheld, standing) >= demand.claimed


@given(situations(), few, few, st.sampled_from(["raise", "grow"]))
def test_an_interrupted_change_is_ours_only_as_far_as_it_was_asked_for(
    situation: tuple[HugepagePool, OwnPages, Demand], aim: int, now: int, purpose: str
) -> None:
    _, share, _ = situation
    after = reconciled(msgspec.structs.replace(share, aim=aim, purpose=purpose), now)
    ours_before, ours = share.raised + share.grown, after.raised + after.grown
    assert after.seen == after.aim == now
    assert 0 <= ours <= now
    gained = ours - ours_before
    assert gained <= max(0, aim - share.seen)
    if now <= share.seen:
        assert gained <= 0
    foreign_before, foreign = share.seen - ours_before, now - ours
    if share.seen <= now <= aim or aim <= now <= share.seen:
        taken = share.seen - now
        own = share.grown if purpose == "grow" else share.raised
        if taken <= own:
            assert foreign == foreign_before


@given(situations())
def test_reconciling_twice_is_reconciling_once(situation: tuple[HugepagePool, OwnPages, Demand]) -> None:
    pool, share, _ = situation
    once = reconciled(share, persistent(pool))
    assert reconciled(once, persistent(pool)) == once


@given(pools(), few)
def test_pages_that_others_add_stay_theirs(pool: HugepagePool, more: int) -> None:
    assume(more)
    size = persistent(pool)
    after = reconciled(OwnPages(grown=size, seen=size, aim=size), size + more)
    assert after.grown == size
    assert shrink_target(HugepagePool(SIZE, size + more, size + more), after, Demand()) == more
