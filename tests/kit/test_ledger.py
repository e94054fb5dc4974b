"""The ledger: what is written stays, what is damaged is set aside, nothing is held twice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Attribute, Capacity, Device
from drakit.core.quantity import Quantity
from drakit.kit.driver import Entry, Grant, Holdings, Mount, Offer, PoolOffer
from drakit.kit.ledger import Conflict, Ledger, Unreadable, check_conflicts, decode, encode

NOTHING = Offer(pools=())
CPUS = st.sets(st.integers(0, 40), max_size=6).map(CpuSet)
NAMES = st.text("abcdef-0123456789", min_size=1, max_size=8).filter(str.isalnum)


def entry(uid: str, cpus: str, **changes: object) -> Entry:
    grant = Grant(
        request="r", pool="node", device=f"dev-{uid}", exclusive={"cpu": CpuSet.parse(cpus)}
    )
    return Entry(uid=uid, namespace="ns", name=f"name-{uid}", grants=(grant,), **changes)  # type: ignore[arg-type]


grants = st.builds(
    Grant,
    request=NAMES,
    pool=NAMES,
    device=NAMES,
    share_id=st.none() | NAMES,
    admin_access=st.booleans(),
    consumed_capacity=st.dictionaries(NAMES, st.integers(0, 10**6).map(Quantity), max_size=2),
    exclusive=st.dictionaries(st.sampled_from(["cpu", "gpu"]), CPUS, max_size=2),
    amounts=st.dictionaries(NAMES, st.integers(0, 2**50), max_size=2),
    env=st.dictionaries(NAMES, st.text(max_size=10), max_size=2),
    mounts=st.lists(st.builds(Mount, host_path=NAMES, container_path=NAMES), max_size=1).map(tuple),
    attributes=st.dictionaries(NAMES, st.builds(Attribute, int_=st.integers(0, 9)), max_size=1),
    data=st.dictionaries(NAMES, st.integers(-5, 5) | st.text(max_size=3) | st.none(), max_size=2),
)
entries = st.builds(
    Entry,
    uid=NAMES,
    namespace=NAMES,
    name=NAMES,
    grants=st.lists(grants, max_size=3).map(tuple),
    consumers=st.lists(NAMES, max_size=2).map(tuple),
    pod_claim_name=st.none() | NAMES,
    boot_id=NAMES,
    prepared_at=NAMES,
)


@given(entries)
def test_an_entry_survives_the_file_format(one: Entry) -> None:
    assert decode(encode(one)) == one
    assert encode(decode(encode(one))) == encode(one)


@given(entries, st.data())
def test_any_flipped_byte_is_noticed_or_harmless(one: Entry, data: st.DataObject) -> None:
    raw = bytearray(encode(one))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        again = decode(bytes(raw))
    except ValueError:
        return
    assert again == one


def test_a_newer_format_is_refused_with_its_number() -> None:
    raw = encode(entry("a", "1")).replace(b'"format":1', b'"format":9')
    with pytest.raises(ValueError, match="format 9 is not known"):
        decode(raw)


async def put(ledger: Ledger, one: Entry, offer: Offer = NOTHING) -> None:
    async with ledger.transaction() as change:
        change.put(one, offer)


async def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "claims"), boot="b1")
    ledger.load()
    await put(ledger, entry("a", "0-3", boot_id="b1"))
    await put(ledger, entry("b", "8"))
    again = Ledger(str(tmp_path / "claims"), boot="b2")
    assert again.load().exclusive("cpu") == CpuSet.parse("0-3,8")
    async with again.transaction() as change:
        assert change.remove("a")
        assert not change.remove("a"), "unknown is fine"
    assert Ledger(str(tmp_path / "claims")).load().exclusive("cpu") == CpuSet.parse("8")


async def test_another_instance_sees_changes_at_once(tmp_path: Path) -> None:
    first, second = Ledger(str(tmp_path)), Ledger(str(tmp_path))
    first.load()
    second.load()
    for step in range(20):
        await put(first, entry(f"u{step}", str(step)))
        assert second.refresh()
        assert second.holdings.get(f"u{step}") is not None
        async with second.transaction() as change:
            change.remove(f"u{step}")
        assert first.refresh()
        assert first.holdings.get(f"u{step}") is None


async def test_overlap_is_refused_and_names_the_other_claim(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.load()
    await put(ledger, entry("a", "0-3"))
    with pytest.raises(
        Conflict, match=r"cpu 3 for claim ns/name-b \(b\) is held by claim ns/name-a"
    ):
        await put(ledger, entry("b", "3-4"))
    assert ledger.holdings.get("b") is None
    assert sorted(p.name for p in tmp_path.glob("*.json")) == ["a.json"]


async def test_the_same_claim_may_be_put_again(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.load()
    await put(ledger, entry("a", "0-3"))
    await put(ledger, entry("a", "2-5"))
    assert ledger.holdings.exclusive("cpu") == CpuSet.parse("2-5")


def test_admin_access_is_exempt() -> None:
    holdings = Holdings([entry("a", "0-3")])
    peek = Grant(
        request="r",
        pool="node",
        device="dev-a",
        admin_access=True,
        exclusive={"cpu": CpuSet.parse("0-3")},
        amounts={"k": 9},
    )
    check_conflicts(
        Entry(uid="b", namespace="n", name="b", grants=(peek,)),
        holdings,
        Offer((), limits={"k": 1}),
    )


def test_a_whole_device_is_held_once_and_a_shared_one_up_to_its_capacity() -> None:
    device = Device(
        name="d", allow_multiple_allocations=True, capacity={"c": Capacity(value=Quantity(4))}
    )
    offer = Offer((PoolOffer((device,), name="p"),))

    def share(uid: str, amount: int, share_id: str | None = "s") -> Entry:
        grant = Grant(
            request="r",
            pool="p",
            device="d",
            share_id=share_id,
            consumed_capacity={"c": Quantity(amount)},
        )
        return Entry(uid=uid, namespace="n", name=uid, grants=(grant,))

    holdings = Holdings([share("a", 3)])
    check_conflicts(share("b", 1), holdings, offer)
    with pytest.raises(
        Conflict, match="needs 2 of c on device d, but other claims on this node hold 3 of 4"
    ):
        check_conflicts(share("b", 2), holdings, offer)
    with pytest.raises(Conflict, match="device d of pool p"):
        check_conflicts(share("b", 1, None), holdings, offer)


def test_amounts_never_exceed_their_limit() -> None:
    def draw(uid: str, amount: int) -> Entry:
        return Entry(
            uid=uid,
            namespace="n",
            name=uid,
            grants=(Grant(request="r", pool="p", device=uid, amounts={"numa0/memory": amount}),),
        )

    offer = Offer((), limits={"numa0/memory": 100})
    check_conflicts(draw("b", 40), Holdings([draw("a", 60)]), offer)
    with pytest.raises(Conflict, match="needs 41 of numa0/memory, but of 100 in all 60"):
        check_conflicts(draw("b", 41), Holdings([draw("a", 60)]), offer)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\0" * 50, b'{"format":1,"checksum":0,"entry":{}}', b"[" * 5000]
)
async def test_a_damaged_file_fails_its_claim_alone(tmp_path: Path, damage: bytes) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.load()
    await put(ledger, entry("a", "0-3"))
    await put(ledger, entry("b", "8"))
    (tmp_path / "a.json").write_bytes(damage)
    again = Ledger(str(tmp_path))
    assert again.load().exclusive("cpu") >= CpuSet.parse("8")
    async with again.transaction() as change:
        with pytest.raises(Unreadable, match=r"a\.json\.unreadable"):
            change.get("a")
        assert change.get("b") is not None
    third = Ledger(str(tmp_path))
    third.load()
    assert "a" in third.unreadable, "quarantine is remembered across restarts"
    async with third.transaction() as change:
        change.remove("a")
        assert change.get("a") is None
    assert not list(tmp_path.glob("*unreadable"))


async def test_a_damaged_record_keeps_what_it_is_known_to_hold(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.load()
    await put(ledger, entry("a", "0-3"))
    raw = (tmp_path / "a.json").read_bytes().replace(b"name-a", b"name-X")
    (tmp_path / "a.json").write_bytes(raw)
    again = Ledger(str(tmp_path))
    again.load()
    with pytest.raises(Conflict, match="record in the ledger is unreadable"):
        await put(again, entry("b", "3"))
    again.hold_for_ghost("a", "cpu", CpuSet([9]))
    with pytest.raises(Conflict, match="unreadable"):
        await put(again, entry("b", "9"))


async def test_a_file_that_names_another_claim_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(encode(entry("b", "1")))
    ledger = Ledger(str(tmp_path))
    assert len(ledger.load()) == 0
    assert "a" in ledger.unreadable


@pytest.mark.parametrize("uid", ["", "../x", "a/b", ".hidden", "x" * 200, "a\0b"])
def test_a_uid_is_never_a_path(tmp_path: Path, uid: str) -> None:
    with pytest.raises(ValueError, match="no claim UID"):
        Ledger(str(tmp_path)).path(uid)


async def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("hello")
    (tmp_path / "sub.json").mkdir()
    ledger = Ledger(str(tmp_path))
    ledger.load()
    assert (tmp_path / "README").exists()


async def test_tasks_of_one_process_take_turns(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.load()

    async def take(uid: str) -> bool:
        async with ledger.transaction() as change:
            free = CpuSet.range(0, 8) - change.holdings.exclusive("cpu")
            await asyncio.sleep(0)
            if not free:
                return False
            change.put(entry(uid, str(free.lowest(1))), NOTHING)
            return True

    results = await asyncio.gather(*(take(f"u{i}") for i in range(12)))
    assert sum(results) == 8
    assert ledger.holdings.exclusive("cpu") == CpuSet.range(0, 8)


WORKER = """
import asyncio, sys
sys.path.insert(0, sys.argv[3])
from tests.kit.test_ledger import entry, NOTHING
from drakit.kit.ledger import Ledger
from drakit.core.cpuset import CpuSet

async def main():
    ledger = Ledger(sys.argv[1])
    ledger.load()
    for step in range(25):
        async with ledger.transaction() as change:
            free = CpuSet.range(0, 64) - change.holdings.exclusive("cpu")
            change.put(entry(f"{sys.argv[2]}-{step}", str(free.lowest(1))), NOTHING)
asyncio.run(main())
"""


def test_two_processes_never_hold_one_cpu(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), name, root], env={**os.environ}
        )
        for name in ("one", "two")
    ]
    assert [w.wait(60) for w in workers] == [0, 0]
    holdings = Ledger(str(tmp_path)).load()
    assert len(holdings) == 50
    assert len(holdings.exclusive("cpu")) == 50
