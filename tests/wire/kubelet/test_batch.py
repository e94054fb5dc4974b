"""Exactly one outcome per claim, whatever the driver does with each."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.kubelet.batch import LONGEST_ERROR, serve_claims
from drakit.wire.kubelet.values import ClaimError, ClaimRef, KubeletDevice

DEVICE = KubeletDevice(("r",), "p", "d")


async def succeed(claim):
    return [DEVICE]


async def reject(claim):
    raise ClaimError("no")


async def reject_silently(claim):
    raise ClaimError


async def fail(claim):
    raise RuntimeError("bug " * 1000)


async def cancel_itself(claim):
    raise asyncio.CancelledError


async def later(claim):
    await asyncio.sleep(0)
    return [DEVICE]


async def hang(claim):
    await asyncio.Event().wait()


async def answer_nothing(claim):
    return None


GOOD = {succeed, later, answer_nothing}
BEHAVIORS = [*GOOD, reject, reject_silently, fail, cancel_itself, hang]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 7)), max_size=12))
def test_one_outcome_per_uid(wanted):
    behavior = {}
    for uid, number in wanted:
        behavior.setdefault(uid, sorted(BEHAVIORS, key=lambda b: b.__name__)[number])
    claims = [ClaimRef("ns", f"claim-{uid}", uid) for uid, _ in wanted]

    async def work(claim):
        return await behavior[claim.uid](claim)

    outcomes = asyncio.run(serve_claims(claims, work, 0.02))
    assert set(outcomes) == set(behavior)
    for uid, outcome in outcomes.items():
        assert bool(outcome.error) == (behavior[uid] not in GOOD)
        assert not (outcome.error and outcome.devices)
        assert len(outcome.error) <= LONGEST_ERROR


async def test_a_uid_asked_for_twice_is_served_once():
    served = []

    async def work(claim):
        served.append(claim)
        return []

    claim = ClaimRef("ns", "name", "uid")
    assert set(await serve_claims([claim, claim], work, 1)) == {"uid"}
    assert served == [claim]


async def test_one_uid_for_two_claims_is_an_error_for_that_uid():
    claims = [ClaimRef("ns", "a", "uid"), ClaimRef("ns", "b", "uid"), ClaimRef("ns", "c", "good")]
    outcomes = await serve_claims(claims, succeed, 1)
    assert "ns/a" in outcomes["uid"].error
    assert "ns/b" in outcomes["uid"].error
    assert outcomes["good"].devices == (DEVICE,)


@pytest.mark.parametrize("uid", ["", "..", "../../etc", "a/b", "a\0b", ".hidden", "x" * 129])
async def test_a_uid_that_cannot_be_a_file_name_never_reaches_the_driver(uid):
    async def work(claim):
        raise AssertionError("reached the driver")

    outcomes = await serve_claims([ClaimRef("ns", "name", uid)], work, 1)
    assert set(outcomes) == {uid}
    assert "is not a valid claim UID" in outcomes[uid].error


async def test_no_claims_no_outcomes():
    assert await serve_claims([], succeed, 1) == {}


async def test_cancellation_waits_for_the_work():
    begun, undone = asyncio.Event(), []

    async def work(claim):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            undone.append(claim.uid)

    call = asyncio.create_task(serve_claims([ClaimRef("ns", "name", "uid")], work, 30))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert undone == ["uid"]


async def test_work_that_ignores_cancellation_does_not_delay_the_response(caplog):
    release = asyncio.Event()

    async def work(claim):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return []

    outcomes = await serve_claims([ClaimRef("ns", "name", "uid")], work, 0.05)
    assert "not finished" in outcomes["uid"].error
    assert "ignores its cancellation" in caplog.text
    release.set()
    await asyncio.sleep(0)
