"""The checkpoint: what is written stays, what is damaged is set aside, nothing is held twice."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import drakit.kit.claims.checkpoint as module
from drakit.core.cpuset import CpuSet
from drakit.core.objects import Attribute, Capacity, Device
from drakit.core.quantity import Quantity
from drakit.kit.claims.checkpoint import (
    Checkpoint,
    NewerFormatError,
    NotReadyError,
    UnreadableClaimError,
    decode,
    encode,
)
from drakit.kit.claims.conflicts import ClaimConflictError, check_conflicts
from drakit.kit.driver import Mount, Offer, PoolOffer, PreparedClaim, PreparedClaims, PreparedDevice

NOTHING = Offer(pools=())
CPUS = st.sets(st.integers(0, 40), max_size=6).map(CpuSet)
NAMES = st.text("abcdef-0123456789", min_size=1, max_size=8).filter(str.isalnum)


def entry(uid: str, cpus: str, **changes: object) -> PreparedClaim:
    prepared = PreparedDevice(
        request="r", pool="node", device=f"dev-{uid}", exclusive={"cpu": CpuSet.parse(cpus)}
    )
    return PreparedClaim(uid=uid, namespace="ns", name=f"name-{uid}", devices=(prepared,), **changes)  # type: ignore[arg-type]


prepared_devices = st.builds(
    PreparedDevice,
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
    PreparedClaim,
    uid=NAMES,
    namespace=NAMES,
    name=NAMES,
    devices=st.lists(prepared_devices, max_size=3).map(tuple),
    consumers=st.lists(NAMES, max_size=2).map(tuple),
    pod_claim_name=st.none() | NAMES,
    boot_id=NAMES,
    prepared_at=NAMES,
)


@given(entries)
def test_an_entry_survives_the_file_format(one: PreparedClaim) -> None:
    assert decode(encode(one)) == one
    assert encode(decode(encode(one))) == encode(one)


@given(entries, st.data())
def test_any_flipped_byte_is_noticed_or_harmless(one: PreparedClaim, data: st.DataObject) -> None:
    raw = bytearray(encode(one))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        again = decode(bytes(raw))
    except ValueError:
        return
    assert again == one


def test_a_newer_format_is_rejected_with_its_number() -> None:
    raw = encode(entry("a", "1")).replace(b'"format":1', b'"format":9')
    with pytest.raises(ValueError, match="format 9 is not known"):
        decode(raw)


async def put(checkpoint: Checkpoint, one: PreparedClaim, offer: Offer = NOTHING) -> None:
    async with checkpoint.transaction() as change:
        change.put(one, offer)


async def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "claims"), boot="b1")
    checkpoint.load()
    await put(checkpoint, entry("a", "0-3", boot_id="b1"))
    await put(checkpoint, entry("b", "8"))
    again = Checkpoint(str(tmp_path / "claims"), boot="b2")
    assert again.load().exclusive("cpu") == CpuSet.parse("0-3,8")
    async with again.transaction() as change:
        assert change.remove("a")
        assert not change.remove("a"), "unknown is fine"
    assert Checkpoint(str(tmp_path / "claims")).load().exclusive("cpu") == CpuSet.parse("8")


async def test_another_instance_sees_changes_at_once(tmp_path: Path) -> None:
    first, second = Checkpoint(str(tmp_path)), Checkpoint(str(tmp_path))
    first.load()
    second.load()
    for step in range(20):
        await put(first, entry(f"u{step}", str(step)))
        assert second.refresh()
        assert second.prepared_claims.get(f"u{step}") is not None
        async with second.transaction() as change:
            change.remove(f"u{step}")
        assert first.refresh()
        assert first.prepared_claims.get(f"u{step}") is None


async def test_overlap_is_rejected_and_names_the_other_claim(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.load()
    await put(checkpoint, entry("a", "0-3"))
    with pytest.raises(
        ClaimConflictError, match=r"cpu 3 for claim ns/name-b \(b\) is held by claim ns/name-a"
    ):
        await put(checkpoint, entry("b", "3-4"))
    assert checkpoint.prepared_claims.get("b") is None
    assert sorted(p.name for p in tmp_path.glob("*.json")) == ["a.json"]


async def test_the_same_claim_may_be_put_again(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.load()
    await put(checkpoint, entry("a", "0-3"))
    await put(checkpoint, entry("a", "2-5"))
    assert checkpoint.prepared_claims.exclusive("cpu") == CpuSet.parse("2-5")


def test_admin_access_is_exempt() -> None:
    prepared_claims = PreparedClaims([entry("a", "0-3")])
    peek = PreparedDevice(
        request="r",
        pool="node",
        device="dev-a",
        admin_access=True,
        exclusive={"cpu": CpuSet.parse("0-3")},
        amounts={"k": 9},
    )
    check_conflicts(
        PreparedClaim(uid="b", namespace="n", name="b", devices=(peek,)),
        prepared_claims,
        Offer((), limits={"k": 1}),
    )


def test_a_whole_device_is_held_once_and_a_shared_one_up_to_its_capacity() -> None:
    device = Device(name="d", allow_multiple_allocations=True, capacity={"c": Capacity(value=Quantity(4))})
    offer = Offer((PoolOffer((device,), name="p"),))

    def share(uid: str, amount: int, share_id: str | None = "s") -> PreparedClaim:
        prepared = PreparedDevice(
            request="r", pool="p", device="d", share_id=share_id, consumed_capacity={"c": Quantity(amount)}
        )
        return PreparedClaim(uid=uid, namespace="n", name=uid, devices=(prepared,))

    prepared_claims = PreparedClaims([share("a", 3)])
    check_conflicts(share("b", 1), prepared_claims, offer)
    with pytest.raises(
        ClaimConflictError, match="needs 2 of c on device d, but other claims on this node hold 3 of 4"
    ):
        check_conflicts(share("b", 2), prepared_claims, offer)
    with pytest.raises(ClaimConflictError, match="device d of pool p"):
        check_conflicts(share("b", 1, None), prepared_claims, offer)


def test_amounts_never_exceed_their_limit() -> None:
    def draw(uid: str, amount: int) -> PreparedClaim:
        return PreparedClaim(
            uid=uid,
            namespace="n",
            name=uid,
            devices=(PreparedDevice(request="r", pool="p", device=uid, amounts={"numa0/memory": amount}),),
        )

    offer = Offer((), limits={"numa0/memory": 100})
    check_conflicts(draw("b", 40), PreparedClaims([draw("a", 60)]), offer)
    with pytest.raises(ClaimConflictError, match="needs 41 of numa0/memory, but of 100 in all 60"):
        check_conflicts(draw("b", 41), PreparedClaims([draw("a", 60)]), offer)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\0" * 50, b'{"format":1,"checksum":0,"entry":{}}', b"[" * 5000]
)
async def test_a_damaged_file_fails_its_claim_alone(tmp_path: Path, damage: bytes) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.load()
    await put(checkpoint, entry("a", "0-3"))
    await put(checkpoint, entry("b", "8"))
    (tmp_path / "a.json").write_bytes(damage)
    again = Checkpoint(str(tmp_path))
    assert again.load().exclusive("cpu") >= CpuSet.parse("8")
    async with again.transaction() as change:
        with pytest.raises(UnreadableClaimError, match=r"a\.json\.unreadable"):
            change.get("a")
        assert change.get("b") is not None
    third = Checkpoint(str(tmp_path))
    third.load()
    assert "a" in third.unreadable, "quarantine is remembered across restarts"
    async with third.transaction() as change:
        change.remove("a")
        assert change.get("a") is None
    assert not list(tmp_path.glob("*unreadable"))


async def test_a_damaged_record_keeps_what_it_is_known_to_hold(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.load()
    await put(checkpoint, entry("a", "0-3"))
    raw = (tmp_path / "a.json").read_bytes().replace(b"name-a", b"name-X")
    (tmp_path / "a.json").write_bytes(raw)
    again = Checkpoint(str(tmp_path))
    again.load()
    with pytest.raises(ClaimConflictError, match="record in the checkpoint is unreadable"):
        await put(again, entry("b", "3"))
    again.hold_for_running({"a": {"cpu": CpuSet([9])}})
    with pytest.raises(ClaimConflictError, match="unreadable"):
        await put(again, entry("b", "9"))


async def test_a_file_that_names_another_claim_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(encode(entry("b", "1")))
    checkpoint = Checkpoint(str(tmp_path))
    assert len(checkpoint.load()) == 0
    assert "a" in checkpoint.unreadable


@pytest.mark.parametrize("uid", ["", "../x", "a/b", ".hidden", "x" * 200, "a\0b"])
def test_a_uid_is_never_a_path(tmp_path: Path, uid: str) -> None:
    with pytest.raises(ValueError, match="not a valid claim UID"):
        Checkpoint(str(tmp_path)).path(uid)


async def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("hello")
    (tmp_path / "sub.json").mkdir()
    (tmp_path / "my notes.json").write_text("hello")
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.load()
    await put(checkpoint, entry("a", "1"))
    assert {"README", "sub.json", "my notes.json"} < set(os.listdir(tmp_path))
    assert checkpoint.problem is None


async def test_tasks_of_one_process_take_turns(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.load()

    async def take(uid: str) -> bool:
        async with checkpoint.transaction() as change:
            free = CpuSet.range(0, 8) - change.prepared_claims.exclusive("cpu")
            await asyncio.sleep(0)
            if not free:
                return False
            change.put(entry(uid, str(free.lowest(1))), NOTHING)
            return True

    results = await asyncio.gather(*(take(f"u{i}") for i in range(12)))
    assert sum(results) == 8
    assert checkpoint.prepared_claims.exclusive("cpu") == CpuSet.range(0, 8)


WORKER = """
import asyncio, sys
sys.path.insert(0, sys.argv[3])
from tests.kit.claims.test_checkpoint import entry, NOTHING
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.core.cpuset import CpuSet

async def main():
    checkpoint = Checkpoint(sys.argv[1])
    checkpoint.load()
    for step in range(25):
        async with checkpoint.transaction() as change:
            free = CpuSet.range(0, 64) - change.prepared_claims.exclusive("cpu")
            change.put(entry(f"{sys.argv[2]}-{step}", str(free.lowest(1))), NOTHING)
asyncio.run(main())
"""


def test_two_processes_never_hold_one_cpu(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), name, root], env={**os.environ})
        for name in ("one", "two")
    ]
    assert [w.wait(60) for w in workers] == [0, 0]
    prepared_claims = Checkpoint(str(tmp_path)).load()
    assert len(prepared_claims) == 50
    assert len(prepared_claims.exclusive("cpu")) == 50


# -- files that cannot be read -----------------------------------------------------------------------

READ_ERRORS = ["EIO", "ENOMEM", "EMFILE", "EACCES", "ELOOP"]
Fail = Callable[[str], None]


@pytest.fixture(name="fail")
def _fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Makes reading of every claim's file fail with an error; with none it works again."""
    real = module._read

    def set_error(name: str) -> None:
        def failing(path: str) -> bytes:
            code = getattr(errno, name)
            raise OSError(code, os.strerror(code), path)

        monkeypatch.setattr(module, "_read", failing if name else real)

    return set_error


def names(directory: Path) -> set[str]:
    return {name for name in os.listdir(directory) if not name.startswith(".")}


async def made(directory: Path, *entries: PreparedClaim) -> Checkpoint:
    checkpoint = Checkpoint(str(directory))
    checkpoint.load()
    for each in entries:
        await put(checkpoint, each)
    return checkpoint


@pytest.mark.parametrize("error", READ_ERRORS)
async def test_a_file_that_cannot_be_read_at_start_is_left_and_nothing_is_given_away(
    tmp_path: Path, fail: Fail, error: str
) -> None:
    await made(tmp_path, entry("a", "2"))
    fail(error)
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.load()
    assert names(tmp_path) == {"a.json"}
    assert checkpoint.problem is not None
    assert "a.json" in checkpoint.problem
    assert checkpoint.prepared_claims.orphaned == {"a": {}}, "so that page pools are not made smaller"
    with pytest.raises(NotReadyError, match=r"nothing new can be assigned.*claim a cannot be read"):
        await put(checkpoint, entry("b", "5"))
    async with checkpoint.transaction() as change:
        with pytest.raises(NotReadyError, match="cannot be read"):
            change.get("a")
        with pytest.raises(NotReadyError, match="cannot be read"):
            change.remove("a")
        change.remove("b")
    fail("")
    await put(checkpoint, entry("b", "5"))
    assert checkpoint.problem is None
    assert checkpoint.prepared_claims.exclusive("cpu") == CpuSet.parse("2,5")
    assert names(tmp_path) == {"a.json", "b.json"}


@pytest.mark.parametrize("error", READ_ERRORS)
async def test_a_known_claim_keeps_what_it_has_while_its_file_cannot_be_read(
    tmp_path: Path, fail: Fail, error: str
) -> None:
    checkpoint = await made(tmp_path, entry("a", "2"), entry("b", "3"))
    await put(await made(tmp_path), entry("a", "4"))  # another instance
    fail(error)
    assert checkpoint.refresh()
    for _ in range(3):
        assert not checkpoint.refresh(), "it is looked at again, and told once"
    assert checkpoint.prepared_claims.exclusive("cpu") == CpuSet.parse("2-3")
    with pytest.raises(NotReadyError):
        await put(checkpoint, entry("c", "4"))
    async with checkpoint.transaction() as change:
        assert change.remove("b"), "others can be released"
    fail("")
    assert checkpoint.refresh(), "read again though nothing changed on disk since"
    assert checkpoint.prepared_claims.exclusive("cpu") == CpuSet([4])
    assert checkpoint.problem is None


async def test_a_known_claim_can_be_released_while_its_file_cannot_be_read(
    tmp_path: Path, fail: Fail
) -> None:
    checkpoint = await made(tmp_path, entry("a", "2"))
    await put(await made(tmp_path), entry("a", "2", boot_id="other"))
    fail("EIO")
    async with checkpoint.transaction() as change:
        assert change.remove("a")
    assert checkpoint.problem is None
    assert names(tmp_path) == set()


async def test_a_link_in_place_of_a_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(encode(entry("a", "1")))
    (tmp_path / "a.json").symlink_to(tmp_path / "elsewhere")
    checkpoint = await made(tmp_path)
    with pytest.raises(NotReadyError):
        await put(checkpoint, entry("b", "1"))
    assert (tmp_path / "a.json").is_symlink()
    (tmp_path / "a.json").unlink()
    await put(checkpoint, entry("b", "1"))


async def test_a_quarantined_file_that_cannot_be_read_gives_nothing_away(tmp_path: Path, fail: Fail) -> None:
    await made(tmp_path)
    damaged = encode(entry("a", "2")).replace(b"name-a", b"name-X")
    (tmp_path / "a.json.unreadable").write_bytes(damaged)
    fail("EIO")
    checkpoint = await made(tmp_path)
    with pytest.raises(NotReadyError):
        await put(checkpoint, entry("b", "2"))
    fail("")
    with pytest.raises(ClaimConflictError, match="unreadable"):
        await put(checkpoint, entry("b", "2"))
    assert checkpoint.problem is None


async def test_a_file_that_a_listing_leaves_out_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that changes while it is read may show less than there is."""
    checkpoint = await made(tmp_path, entry("a", "2"))
    monkeypatch.setattr(module.os, "listdir", lambda path: [])
    checkpoint._stamp = None
    assert not checkpoint.refresh()
    assert checkpoint.prepared_claims.exclusive("cpu") == CpuSet([2])


async def test_only_who_holds_the_lock_renames(tmp_path: Path) -> None:
    await made(tmp_path)
    (tmp_path / "a.json").write_bytes(b"{")
    checkpoint = await made(tmp_path)
    assert names(tmp_path) == {"a.json"}
    assert checkpoint.unreadable == {"a": str(tmp_path / "a.json")}
    async with checkpoint.transaction():
        assert names(tmp_path) == {"a.json.unreadable"}
    assert checkpoint.unreadable == {"a": str(tmp_path / "a.json.unreadable")}


@pytest.mark.parametrize("cut", [b'"namespace"', b'"consumers"', b'"uid"'])
async def test_numbers_are_made_out_of_half_a_record(tmp_path: Path, cut: bytes) -> None:
    whole = encode(entry("a", "2-3", consumers=("p",)))
    half = whole[: whole.index(cut)]
    await made(tmp_path)
    (tmp_path / "a.json").write_bytes(half)
    held = (await made(tmp_path)).prepared_claims.exclusive("cpu")
    assert held == (CpuSet.parse("2-3") if b"exclusive" in half else CpuSet())


async def test_what_a_damaged_record_was_known_to_hold_stays_held_by_all(tmp_path: Path) -> None:
    first, second = await made(tmp_path, entry("a", "2")), await made(tmp_path)
    (tmp_path / "a.json").write_bytes(b"")
    first.refresh()
    second.refresh()
    async with second.transaction():
        pass  # sets it aside
    for checkpoint in (first, second):
        with pytest.raises(ClaimConflictError, match="unreadable"):
            await put(checkpoint, entry("b", "2"))


async def test_damage_found_by_the_transaction_that_assigns_gives_nothing_away(tmp_path: Path) -> None:
    checkpoint = await made(tmp_path, entry("a", "2"))
    damaged = encode(entry("a", "2")).replace(b"name-a", b"name-X")
    (tmp_path / "a.json").write_bytes(damaged)
    with pytest.raises(ClaimConflictError, match="unreadable"):
        await put(checkpoint, entry("b", "2"))
    assert names(tmp_path) == {"a.json.unreadable"}


async def test_a_quarantined_claim_that_another_instance_released_is_free(tmp_path: Path) -> None:
    first, second = await made(tmp_path, entry("a", "2")), await made(tmp_path)
    (tmp_path / "a.json").write_bytes(b"")
    async with first.transaction():
        pass
    second.refresh()
    async with first.transaction() as change:
        change.remove("a")
    await put(second, entry("b", "2"))
    assert second.unreadable == {}


async def test_what_containers_have_of_a_lost_claim_is_held_until_told_otherwise(tmp_path: Path) -> None:
    checkpoint = await made(tmp_path)
    checkpoint.hold_for_running({"lost": {"cpu": CpuSet([2])}})
    with pytest.raises(ClaimConflictError):
        await put(checkpoint, entry("b", "2"))
    assert checkpoint.hold_for_running({})
    assert not checkpoint.hold_for_running({})
    await put(checkpoint, entry("b", "2"))


async def test_a_record_that_came_back_and_went_leaves_nothing_held(tmp_path: Path) -> None:
    checkpoint, other = await made(tmp_path), await made(tmp_path)
    checkpoint.hold_for_running({"a": {"cpu": CpuSet([2])}})
    await put(other, entry("a", "2"))
    checkpoint.refresh()
    async with other.transaction() as change:
        change.remove("a")
    checkpoint.refresh()
    assert checkpoint.prepared_claims.exclusive("cpu") == CpuSet()


contents = st.one_of(
    entries.map(encode),
    entries.map(encode).map(lambda raw: raw.replace(b'"format":1', b'"format":7')),
    st.builds(
        lambda raw, at: raw[: at % len(raw)] + b"~" + raw[at % len(raw) + 1 :],
        entries.map(encode),
        st.integers(0, 500),
    ),
    st.binary(max_size=40),
)


@given(contents, st.sampled_from(["", *READ_ERRORS]))
def test_a_checkpoint_file_is_quarantined_only_because_of_what_it_contains(
    content: bytes, error: str
) -> None:
    def look(directory: Path) -> set[str]:
        async def both() -> set[str]:
            checkpoint = Checkpoint(str(directory), boot="b")
            checkpoint.load()
            async with checkpoint.transaction():
                return names(directory)

        return asyncio.run(both())

    try:
        uid = decode(content).uid
    except NewerFormatError:
        uid, damaged = "a", False
    except (ValueError, RecursionError):
        uid, damaged = "a", True
    else:
        damaged = False
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        path = Path(directory) / f"{uid}.json"
        path.write_bytes(content)
        if error:
            code = getattr(errno, error)
            failing = OSError(code, os.strerror(code))
            patch.setattr(module, "_read", lambda path: (_ for _ in ()).throw(failing))
        expected = path.name + (".unreadable" if damaged and not error else "")
        assert look(Path(directory)) == {expected}
        assert (Path(directory) / expected).read_bytes() == content


# -- files of a newer version ------------------------------------------------------------------------


def newer(one: PreparedClaim) -> bytes:
    return encode(one).replace(b'"format":1', b'"format":2')


async def test_a_newer_record_is_left_alone_and_what_it_holds_is_held(tmp_path: Path) -> None:
    await made(tmp_path)
    (tmp_path / "a.json").write_bytes(newer(entry("a", "2")))
    checkpoint = await made(tmp_path)
    async with checkpoint.transaction() as change:
        with pytest.raises(NotReadyError, match=r"newer version of drakit \(format 2, .* up to 1\)"):
            change.get("a")
        with pytest.raises(NotReadyError, match="newer version"):
            change.remove("a")
        with pytest.raises(NotReadyError, match="newer version"):
            change.put(entry("a", "5"), NOTHING)
    with pytest.raises(ClaimConflictError):
        await put(checkpoint, entry("b", "2"))
    await put(checkpoint, entry("b", "3"))
    assert checkpoint.problem is not None
    assert "newer version" in checkpoint.problem
    assert (tmp_path / "a.json").read_bytes() == newer(entry("a", "2"))
    assert checkpoint.unreadable == {}


@pytest.mark.parametrize(
    "content",
    [
        b'{"format":2}',
        b'{"format":3,"claims":"2-3"}',
        newer(PreparedClaim(uid="a", namespace="n", name="a", devices=())),
        newer(
            PreparedClaim(
                uid="a",
                namespace="n",
                name="a",
                devices=(
                    PreparedDevice(
                        request="r",
                        pool="p",
                        device="d",
                        exclusive={"cpu": CpuSet([2])},
                        amounts={"numa0/memory": 5},
                    ),
                ),
            )
        ),
    ],
)
async def test_nothing_new_is_given_while_a_newer_record_is_not_understood(
    tmp_path: Path, content: bytes
) -> None:
    held = entry("b", "3")
    await made(tmp_path, held)
    (tmp_path / "a.json").write_bytes(content)
    checkpoint = await made(tmp_path)
    with pytest.raises(NotReadyError, match=r"nothing new can be assigned.*newer version"):
        await put(checkpoint, entry("c", "4"))
    await put(checkpoint, entry("b", "3", boot_id="after a reboot"))
    (tmp_path / "a.json").unlink()  # the newer version unprepared it
    await put(checkpoint, entry("c", "4"))
    assert checkpoint.problem is None


async def test_a_known_claim_that_a_newer_version_rewrote_stays_held(tmp_path: Path) -> None:
    checkpoint = await made(tmp_path, entry("a", "2"))
    (tmp_path / "new").write_bytes(b'{"format":2,"secret":true}')
    (tmp_path / "new").rename(tmp_path / "a.json")
    checkpoint.refresh()
    assert checkpoint.prepared_claims.exclusive("cpu") == CpuSet([2])
    assert checkpoint.prepared_claims.get("a") is None
    (tmp_path / "new").write_bytes(encode(entry("a", "2")))
    (tmp_path / "new").rename(tmp_path / "a.json")  # back to the older version
    checkpoint.refresh()
    assert checkpoint.prepared_claims.get("a") is not None
    assert checkpoint.problem is None


def test_fields_that_a_newer_version_added_are_ignored() -> None:
    raw = encode(entry("a", "1"))
    body = raw[raw.index(b'"entry":') + len(b'"entry":') : -1]
    more = body[:-1] + b',"later":{"x":[1]},"bootID":"x"}'
    more = more.replace(b'"device":', b'"future":true,"device":')
    file = b'{"format":1,"checksum":%d,"entry":%s,"signature":"s"}' % (zlib.crc32(more), more)
    assert decode(file) == entry("a", "1")


# -- what a claim already has ------------------------------------------------------------------------


async def test_grants_that_a_claim_has_are_not_measured_against_a_smaller_machine(tmp_path: Path) -> None:
    def shared(uid: str, **changes: object) -> PreparedClaim:
        prepared = PreparedDevice(
            request="r",
            pool="p",
            device="d",
            share_id=uid,
            consumed_capacity={"c": Quantity(2)},
            amounts={"k": 2},
        )
        return PreparedClaim(uid=uid, namespace="n", name=uid, devices=(prepared,), **changes)  # type: ignore[arg-type]

    def offer(size: int) -> Offer:
        device = Device(
            name="d", allow_multiple_allocations=True, capacity={"c": Capacity(value=Quantity(size))}
        )
        return Offer((PoolOffer((device,), name="p"),), limits={"k": size})

    checkpoint = await made(tmp_path)
    for uid in "abc":
        await put(checkpoint, shared(uid), offer(6))
    for uid in "abc":
        await put(checkpoint, shared(uid, boot_id="after a reboot"), offer(5))
    with pytest.raises(ClaimConflictError, match="hold 6 of 5"):
        await put(checkpoint, shared("d"), offer(5))


async def test_grants_that_a_claim_has_are_checked_against_other_claims_all_the_same(tmp_path: Path) -> None:
    checkpoint = await made(tmp_path, entry("a", "2"))
    (tmp_path / "b.json").write_bytes(encode(entry("b", "2")))  # somebody meddled
    with pytest.raises(ClaimConflictError, match="held by claim ns/name-b"):
        await put(checkpoint, entry("a", "2", boot_id="after a reboot"))


# -- the index of prepared claims ---------------------------------------------------------------------------

small = st.builds(
    PreparedDevice,
    request=st.just("r"),
    pool=st.just("p"),
    device=st.sampled_from("de"),
    share_id=st.none() | st.just("s"),
    admin_access=st.booleans(),
    exclusive=st.dictionaries(st.sampled_from(["cpu", "gpu"]), st.sets(st.integers(0, 4)).map(CpuSet)),
    amounts=st.dictionaries(st.sampled_from("kl"), st.integers(0, 9)),
)
changes = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.lists(small, max_size=3).map(tuple)), max_size=8
)
orphaned = st.dictionaries(
    st.sampled_from("cdx"),
    st.dictionaries(st.just("cpu"), st.sets(st.integers(0, 4)).map(CpuSet)),
    max_size=2,
)


def assert_counted(
    prepared_claims: PreparedClaims, claims: dict[str, PreparedClaim], lost: dict[str, object]
) -> None:
    assert dict(prepared_claims.entries) == claims
    assert dict(prepared_claims.orphaned) == lost
    for excluding in (None, "a", "b", "c", "d", "x", "nobody"):
        for kind in ("cpu", "gpu"):
            held = [e.exclusive(kind) for e in claims.values() if e.uid != excluding]
            held += [g[kind] for u, g in lost.items() if kind in g and u != excluding]  # type: ignore[operator,index]
            assert prepared_claims.exclusive(kind, excluding=excluding) == CpuSet.union(held)
        for key in "kl":
            assert prepared_claims.amount(key, excluding=excluding) == sum(
                prepared.amounts.get(key, 0)
                for each in claims.values()
                if each.uid != excluding
                for prepared in each.devices
                if not prepared.admin_access
            )
    for device in "def":
        found = [(e.uid, id(g)) for e, g in prepared_claims.on_device("p", device)]
        assert sorted(found) == sorted(
            (e.uid, id(g))
            for e in claims.values()
            for g in e.devices
            if g.device == device and not g.admin_access
        )


@given(changes, orphaned, st.booleans())
def test_holdings_changed_step_by_step_are_those_counted_from_the_start(
    steps: list[tuple[str, tuple[PreparedDevice, ...] | None]], lost: dict[str, object], asked: bool
) -> None:
    prepared_claims, claims = PreparedClaims((), lost), {}  # type: ignore[arg-type]
    for uid, given_now in steps:
        made = None
        if given_now is not None:
            made = PreparedClaim(uid=uid, namespace="n", name=uid, devices=given_now)
        before, kept = prepared_claims, dict(claims)
        prepared_claims = prepared_claims.replacing(uid, made)
        claims.pop(uid, None)
        if made is not None:
            claims[uid] = made
        old_lost, lost = lost, {u: g for u, g in lost.items() if u != uid}
        if asked:
            assert_counted(prepared_claims, claims, lost)
            assert_counted(before, kept, old_lost)
    assert_counted(prepared_claims, claims, lost)
