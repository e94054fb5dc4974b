"""The power fails after any call: what was acknowledged is there, and the checker would notice if not.

``python -m tests.kit.claims.test_powerloss`` prints how many states were looked at.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from pathlib import Path

import pytest

from drakit.core import atomicfile
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.unprepared import Tombstones
from drakit.kit.driver import Offer, PreparedClaim
from tests.kit.powerloss import Disk, Killed, live_and_check, total, violations
from tests.kit.syscalls import Interposer

LIVES, CYCLES = 10, 30
"""300 cycles of prepare and unprepare in all."""


@pytest.mark.parametrize("seed", range(LIVES))
async def test_nothing_acknowledged_is_lost_with_the_power(seed, scale):
    outcome = await live_and_check(seed, CYCLES * scale)
    assert outcome.problems == []
    assert outcome.cycles == CYCLES * scale
    assert outcome.states > outcome.cycles


# -- mutants: the checker must fail ------------------------------------------------------------------


@pytest.fixture
def mutate():
    """Replaces a text of the module for durable files, for this test."""
    before = dict(vars(atomicfile))

    def change(old, new):
        source = Path(atomicfile.__file__).read_text()
        assert source.count(old) == 1, "the mutant does not fit the code any more"
        exec(compile(source.replace(old, new), atomicfile.__file__, "exec"), vars(atomicfile))

    yield change
    vars(atomicfile).clear()
    vars(atomicfile).update(before)


async def test_a_write_without_fsync_of_the_file_is_noticed(mutate):
    mutate('        os.fsync(descriptor)\n        step("rename"', '        step("rename"')
    assert any("damaged" in problem for problem in await violations())


async def test_a_write_without_fsync_of_the_directory_is_noticed(mutate):
    mutate(
        "        raise\n    finally:\n        os.close(descriptor)  # and with it the lock\n"
        "    sync_directory(directory)\n",
        "        raise\n    finally:\n        os.close(descriptor)\n",
    )
    assert any("was given" in problem for problem in await violations())


async def test_no_fsync_of_any_directory_is_noticed(mutate):
    mutate("    try:\n        os.fsync(descriptor)\n    finally:", "    try:\n        pass\n    finally:")
    assert any("was given" in problem for problem in await violations())


async def test_a_removal_without_fsync_of_the_directory_is_noticed(mutate):
    mutate(
        "        sync_directory(os.path.dirname(path))\n    return existed",
        "        pass\n    return existed",
    )
    assert any("came back" in problem or "held twice" in problem for problem in await violations())


async def test_a_rename_before_the_fsync_is_noticed(mutate):
    mutate(
        '        os.fsync(descriptor)\n        step("rename", path)\n        os.rename(temporary, path)\n',
        '        step("rename", path)\n        os.rename(temporary, path)\n        os.fsync(descriptor)\n',
    )
    assert any("damaged" in problem for problem in await violations())


async def test_a_directory_made_without_fsync_of_its_parent_is_noticed(mutate):
    mutate("        os.mkdir(path, mode)\n    sync_directory(parent)\n", "        os.mkdir(path, mode)\n")
    vars(atomicfile)["sync_parents"] = lambda path: None  # which makes up for it
    assert await violations()


async def test_acknowledging_a_record_that_another_process_left_unsynced_is_noticed(monkeypatch):
    monkeypatch.setattr(Checkpoint, "_confirm", lambda self, uid: None)
    assert any("was given" in problem for problem in await violations())


async def lost_with_its_directory(root, number):
    """Die at a call of the first start, start again, prepare; whether a power cut loses the claim.

    None when the start makes fewer calls.
    """
    log, calls = [], itertools.count(1)
    directory = os.path.join(root, "state", "claims")

    def dying(call):
        if next(calls) >= number:
            raise Killed

    try:
        with Interposer(root, dying, log.append):
            Checkpoint(directory).load()
        return None
    except Killed:
        pass
    with Interposer(root, after=log.append):
        checkpoint = Checkpoint(directory)
        checkpoint.load()
        async with checkpoint.transaction() as change:
            change.put(PreparedClaim(uid="u", namespace="n", name="c", devices=()), Offer(()))
    disk = Disk(os.path.realpath(root))
    for call in log:
        disk.apply(call)
    left = disk.states(random.Random(1), "state/claims")
    return any("u.json" not in tree.get("state", {}).get("claims", {}) for tree in left)


async def lost_after_any_death(root):
    for number in itertools.count(1):
        place = root / str(number)
        place.mkdir()
        lost = await lost_with_its_directory(str(place), number)
        if lost is None:
            assert number > 5
            return False
        if lost:
            return True
    raise AssertionError


async def test_a_directory_that_a_dead_process_made_is_synced_by_the_next(tmp_path):
    assert not await lost_after_any_death(tmp_path)


async def test_relying_on_a_directory_that_a_dead_process_made_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(atomicfile, "sync_parents", lambda path: None)
    assert await lost_after_any_death(tmp_path)


async def test_marks_of_unprepared_claims_need_no_sync(monkeypatch):
    """They concern calls, and those do not survive the power either."""
    monkeypatch.setattr(Tombstones, "mark", lambda self, uid: None)
    assert await violations(seeds=range(2)) == []


async def main():
    outcomes = [await live_and_check(seed, CYCLES) for seed in range(LIVES)]
    print(total(outcomes), "violations:", sum(len(each.problems) for each in outcomes))


if __name__ == "__main__":
    asyncio.run(main())
