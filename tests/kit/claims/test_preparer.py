"""Prepare as a reconcile, unprepare from local state, nothing brought back from the dead."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil

import msgspec
import pytest

from drakit.core import atomicfile
from drakit.core.cpuset import CpuSet
from drakit.core.objects import ResourceClaim, ResourceClaimStatus, from_builtins
from drakit.kit.claims.cdi_names import ClaimRequest, qualified_name
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.metadata import MetadataFiles
from drakit.kit.claims.preparer import Preparer
from drakit.kit.driver import Assignment
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.kubelet import ClaimError, ClaimRef
from tests.kit.claimworld import DRIVER, Claims, FakeNode, FileCdi, NumberDriver, resource_claim, result


class World:
    """One node: directories that outlive processes, and instances of the driver on them."""

    def __init__(self, root):
        self.root = root
        self.claims = Claims()
        self.cdi = FileCdi(os.path.join(root, "cdi"))
        self.boot = "boot-1"
        self.changes = []

    def instance(self, driver=None, metrics=None, ready_timeout=0.0, **options):
        node = FakeNode(driver or NumberDriver(), self.changes, **options)
        checkpoint = Checkpoint(os.path.join(self.root, "claims"), boot=self.boot)
        checkpoint.load()
        self.checkpoint = checkpoint
        return Preparer(
            node,
            checkpoint=checkpoint,
            source=self.claims,
            cdi=self.cdi,
            metadata=MetadataFiles(self.root, DRIVER),
            metrics=metrics,
            ready_timeout=ready_timeout,
        )

    def claim(self, name="claim", **options):
        document = self.claims.add(resource_claim(name, **options))
        return ClaimRef("default", name, document.metadata.uid)

    def numbers(self, ref):
        return self.checkpoint.prepared_claims.get(ref.uid).exclusive("number")


@pytest.fixture
def world(tmp_path):
    return World(str(tmp_path))


async def test_first_prepare_writes_checkpoint_cdi_and_metadata_and_answers(world):
    preparer, ref = world.instance(), world.claim()
    (device,) = await preparer.prepare(ref)
    assert device.request_names == ("req",)
    assert device.cdi_device_ids == (qualified_name("example.com/number", ClaimRequest(ref.uid, "req")),)
    assert (device.pool, device.device, device.share_id) == ("node-1", "numbers", "share-uid-claim")
    assert world.numbers(ref) == CpuSet([0])
    spec = world.cdi.read(ref.uid)
    assert spec["env"] == [{f"NUMBER_{ref.uid}": "0"}]
    assert os.path.exists(spec["mounts"]["req"])
    assert world.changes == [{ref.uid}]


async def test_a_repeat_is_the_same_answer_and_changes_nothing(world):
    preparer, ref = world.instance(), world.claim()
    first = await preparer.prepare(ref)
    assert await preparer.prepare(ref) == first
    assert await world.instance().prepare(ref) == first
    assert world.changes == [{ref.uid}]


async def test_a_repeat_rewrites_what_a_reboot_took(world):
    ref = world.claim()
    first = await world.instance().prepare(ref)
    shutil.rmtree(world.cdi.directory)
    shutil.rmtree(os.path.join(world.root, "dra-device-metadata"))
    world.boot = "boot-2"
    assert await world.instance().prepare(ref) == first
    spec = world.cdi.read(ref.uid)
    assert os.path.exists(spec["mounts"]["req"])
    assert world.checkpoint.prepared_claims.get(ref.uid).boot_id == "boot-2"


async def test_a_damaged_cdi_spec_is_repaired_by_a_repeat(world):
    preparer, ref = world.instance(), world.claim()
    await preparer.prepare(ref)
    good = world.cdi.read(ref.uid)
    with open(world.cdi.path(ref.uid), "w") as file:
        file.write("{}")
    await preparer.prepare(ref)
    assert world.cdi.read(ref.uid) == good


async def test_several_requests_and_devices(world):
    results = (result("a/one", share="1"), result("a/one", share="2"), result("b", share="3"))
    ref = world.claim(results=results)
    devices = await world.instance().prepare(ref)
    assert [d.request_names for d in devices] == [("a",), ("a",), ("b",)]
    assert [len(d.cdi_device_ids) for d in devices] == [1, 0, 1]
    assert [d.share_id for d in devices] == ["1", "2", "3"]


async def test_claims_get_different_numbers_also_from_different_instances(world):
    one, other = world.instance(), world.instance()
    refs = [world.claim(f"c{n}") for n in range(8)]
    await asyncio.gather(*((one, other)[n % 2].prepare(ref) for n, ref in enumerate(refs)))
    world.checkpoint.refresh()
    assert sorted(n for ref in refs for n in world.numbers(ref)) == list(range(8))


async def test_a_rejection_of_the_driver_is_the_claims_error_and_leaves_nothing(world):
    preparer = world.instance(NumberDriver(numbers=1))
    await preparer.prepare(world.claim("first"))
    second = world.claim("second")
    with pytest.raises(ClaimError, match="no number is free"):
        await preparer.prepare(second)
    assert world.cdi.listed() == {"uid-first"}
    assert world.checkpoint.prepared_claims.get(second.uid) is None


async def test_a_driver_that_gives_a_number_twice_is_stopped_by_the_checkpoint(world):
    class Careless(NumberDriver):
        def assign(self, claim, prepared_claims):
            (prepared,) = super().assign(claim, prepared_claims).devices
            return Assignment((msgspec.structs.replace(prepared, exclusive={"number": CpuSet([0])}),))

    preparer = world.instance(Careless())
    await preparer.prepare(world.claim("first"))
    with pytest.raises(ClaimError, match=r"held by claim default/first \(uid-first\)"):
        await preparer.prepare(world.claim("second"))


async def test_a_driver_that_answers_for_another_device_is_rejected(world):
    class Confused(NumberDriver):
        def assign(self, claim, prepared_claims):
            (prepared,) = super().assign(claim, prepared_claims).devices
            return Assignment((msgspec.structs.replace(prepared, device="else"),))

    with pytest.raises(ClaimError, match="defect of the driver"):
        await world.instance(Confused()).prepare(world.claim())


async def test_missing_replaced_and_unallocated_claims_are_told_apart(world):
    preparer, ref = world.instance(), world.claim()
    with pytest.raises(ClaimError, match="does not exist"):
        await preparer.prepare(ClaimRef("default", "nothing", "uid"))
    with pytest.raises(ClaimError, match="was replaced"):
        await preparer.prepare(ClaimRef("default", "claim", "another-uid"))
    document = world.claims.documents["default", "claim"]
    world.claims.add(msgspec.structs.replace(document, status=ResourceClaimStatus()))
    with pytest.raises(ClaimError, match="is not allocated"):
        await preparer.prepare(ref)


async def test_without_an_api_server_a_repeat_works_and_a_first_time_does_not(world):
    known, new = world.claim("known"), world.claim("new")
    first = await world.instance().prepare(known)
    world.claims.away = True
    shutil.rmtree(world.cdi.directory)
    assert await world.instance().prepare(known) == first
    assert world.cdi.listed() == {known.uid}
    with pytest.raises(ClaimError, match="does not answer"):
        await world.instance().prepare(new)


async def test_unprepare_needs_no_api_server_and_leaves_nothing(world):
    preparer, ref = world.instance(), world.claim()
    await preparer.prepare(ref)
    world.claims.away = True
    await world.instance().unprepare(ref)
    assert world.cdi.listed() == set()
    assert os.listdir(os.path.join(world.root, "dra-device-metadata")) == []
    assert not [n for n in os.listdir(os.path.join(world.root, "claims")) if n.endswith(".json")]
    assert world.changes[-1] == set()


async def test_unprepare_of_an_unknown_claim_is_a_success_every_time(world):
    preparer = world.instance()
    for _ in range(2):
        await preparer.unprepare(ClaimRef("default", "never", "never"))
    assert world.changes == []


async def test_unprepare_of_an_unreadable_record_is_a_success_and_frees_it(world):
    ref = world.claim()
    await world.instance().prepare(ref)
    with open(world.checkpoint.path(ref.uid), "w") as file:
        file.write("damaged")
    preparer = world.instance()
    with pytest.raises(ClaimError, match="unreadable"):
        await preparer.prepare(ref)
    await preparer.unprepare(ref)
    assert await preparer.prepare(ref)


async def test_numbers_are_free_again_after_unprepare(world):
    preparer = world.instance(NumberDriver(numbers=1))
    first, second = world.claim("first"), world.claim("second")
    await preparer.prepare(first)
    await preparer.unprepare(first)
    await preparer.prepare(second)
    assert world.numbers(second) == CpuSet([0])


@pytest.mark.parametrize("same_process", [True, False])
async def test_a_stale_prepare_does_not_bring_an_unprepared_claim_back(world, same_process):
    fetching, go_on = asyncio.Event(), asyncio.Event()
    ref = world.claim()

    class Slow(Claims):
        async def get(self, namespace, name):
            fetching.set()
            await go_on.wait()
            return await super().get(namespace, name)

    quick, world.claims = world.claims, Slow(world.claims.documents)
    slow = world.instance()
    stale = asyncio.create_task(slow.prepare(ref))
    await fetching.wait()
    world.claims = quick
    other = slow if same_process else world.instance()
    await other.unprepare(ref)
    go_on.set()
    with pytest.raises(ClaimError, match="was unprepared while"):
        await stale
    assert world.cdi.listed() == set()
    assert await world.instance().prepare(ref)  # a call that begins later is not stale


async def test_a_tombstone_of_an_earlier_boot_does_not_count(world):
    ref = world.claim()
    await world.instance().unprepare(ref)
    with open(os.path.join(world.root, "claims", ".tombstones"), "wb") as file:
        file.write(msgspec.json.encode({"boot": "boot-0", "marks": {ref.uid: 1e12}}))
    assert await world.instance().prepare(ref)


async def test_new_consumers_are_written_down_on_a_repeat(world):
    preparer, ref = world.instance(), world.claim(pods=("one",))
    await preparer.prepare(ref)
    world.claim(pods=("one", "two"))
    await preparer.prepare(ref)
    assert world.instance() is not preparer
    assert world.checkpoint.prepared_claims.get(ref.uid).consumers == ("one", "two")


async def test_a_claim_allocated_anew_keeps_its_old_numbers_until_unprepared(world):
    preparer, ref = world.instance(), world.claim()
    await preparer.prepare(ref)
    world.claim(results=(result(share="another"),))
    with pytest.raises(ClaimError, match=r"earlier devices .* still in use"):
        await preparer.prepare(ref)
    await preparer.unprepare(ref)
    (device,) = await preparer.prepare(ref)
    assert device.share_id == "another"


async def test_a_claim_allocated_anew_is_assigned_anew_after_a_reboot(world):
    ref = world.claim()
    await world.instance().prepare(ref)
    world.claim(results=(result(share="another"),))
    world.boot = "boot-2"
    (device,) = await world.instance().prepare(ref)
    assert device.share_id == "another"


async def test_restore_makes_all_derived_files_match_the_checkpoint(world):
    kept, lost = world.claim("kept"), world.claim("lost")
    preparer = world.instance()
    await preparer.prepare(kept)
    await preparer.prepare(lost)
    os.unlink(world.cdi.path(lost.uid))
    with open(world.cdi.path("orphan"), "w") as file:
        file.write("{}")
    await world.instance().restore()
    assert world.cdi.listed() == {kept.uid, lost.uid}
    assert world.cdi.read(lost.uid)["env"] == [{f"NUMBER_{lost.uid}": "1"}]


async def test_restore_survives_a_file_that_cannot_be_written(world, caplog):
    preparer, ref = world.instance(), world.claim()
    await preparer.prepare(ref)

    def broken(entry, mounts):
        raise OSError("read-only file system")

    world.cdi.write = broken
    await world.instance().restore()
    assert "read-only file system" in caplog.text
    with pytest.raises(ClaimError, match="read-only file system"):
        await preparer.prepare(ref)


async def test_cancellation_while_waiting_leaves_nothing(world):
    preparer, ref = world.instance(), world.claim()
    async with world.checkpoint.transaction():
        waiting = asyncio.create_task(preparer.prepare(ref))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert world.cdi.listed() == set()
    assert await preparer.prepare(ref)


async def test_claims_are_counted_by_result(world):
    metrics = HostMetrics(DRIVER)
    preparer = world.instance(metrics=metrics)
    ref = world.claim()
    await preparer.prepare(ref)
    with pytest.raises(ClaimError):
        await preparer.prepare(ClaimRef("default", "nothing", "uid"))
    await preparer.unprepare(ref)
    text = metrics.exposition().decode()
    for line in (
        'numbers_example_com_prepare_claims_total{result="success"} 1.0',
        'numbers_example_com_prepare_claims_total{result="error"} 1.0',
        'numbers_example_com_unprepare_claims_total{result="success"} 1.0',
        'numbers_example_com_rejections_total{operation="assign",reason="missing"} 1.0',
    ):
        assert line in text


async def test_a_claim_that_makes_no_sense_is_rejected_alone(world):
    class Odd(Claims):
        async def get(self, namespace, name):
            return from_builtins({"metadata": {"uid": 7}}, ResourceClaim)

    ref = world.claim()
    world.claims = Odd()
    with pytest.raises(ClaimError, match=r"cannot be decoded: .*uid"):
        await world.instance().prepare(ref)


async def test_without_an_api_server_an_unprepared_claim_is_not_guessed_at(world):
    ref, preparer = world.claim(), world.instance()
    await preparer.prepare(ref)
    world.claims.away = True
    async with world.checkpoint.transaction() as transaction:
        repeat = asyncio.create_task(preparer.prepare(ref))
        await asyncio.sleep(0)  # the repeat has looked at the checkpoint and waits for the lock
        transaction.remove(ref.uid)
    with pytest.raises(ClaimError, match="was unprepared meanwhile"):
        await repeat


# -- not ready ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("looks", [0, 1])
@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
async def test_nothing_is_answered_nor_changed_while_not_ready(world, verb, looks):
    """Also if that begins while the call waits for the API server or the lock."""
    ref, other = world.claim(), world.claim("other")
    await world.instance().prepare(ref)
    good = [None] * looks

    def not_ready():
        return good.pop() if good else "the runtime is away"

    metrics = HostMetrics(DRIVER)
    preparer = world.instance(not_ready=not_ready, metrics=metrics)
    asked = ref if verb == "unprepare" else other
    with pytest.raises(ClaimError, match=rf"cannot be {verb}d now: the runtime is away; the kubelet"):
        await getattr(preparer, verb)(asked)
    assert set(world.checkpoint.prepared_claims.entries) == {ref.uid}
    assert world.cdi.listed() == {ref.uid}
    part = "assign" if verb == "prepare" else "release"
    assert metrics.rejections.labels(part, "not-ready").value == 1


@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
async def test_a_call_waits_for_what_is_soon_there(world, verb):
    missing = ["soon", "soon", "soon"]
    preparer = world.instance(
        not_ready=lambda: missing.pop() if missing else None, ready_timeout=float("inf")
    )
    await getattr(preparer, verb)(world.claim())
    assert len(world.checkpoint.prepared_claims) == (1 if verb == "prepare" else 0)


async def test_a_call_that_lost_the_runtime_while_it_waited_for_the_lock_waits_without_it(world):
    """Another instance may need the lock meanwhile."""
    held, looks = [], iter([None, None, "away", "away", "away"])

    def not_ready():
        held.append(world.checkpoint._lock.held)
        return next(looks, None)

    preparer = world.instance(not_ready=not_ready, ready_timeout=float("inf"))
    assert await preparer.prepare(world.claim())
    assert held[:6] == [False, False, True, False, False, False]
    assert all(held[6:])


async def test_nothing_is_written_down_when_the_runtime_goes_while_the_node_provides(world):
    away = []

    async def provision(entry, prepared_claims):
        away.append("the runtime is away")

    preparer = world.instance(provision=provision, not_ready=lambda: away[0] if away else None)
    with pytest.raises(ClaimError, match="the runtime is away"):
        await preparer.prepare(world.claim())
    assert len(world.checkpoint.prepared_claims) == 0


# -- faults ------------------------------------------------------------------------------------------


async def test_others_hear_of_a_release_whose_first_try_failed_half_way(world, monkeypatch):
    """The file was gone and the sync failed: the second try finds nothing to remove."""
    preparer, ref = world.instance(), world.claim()
    await preparer.prepare(ref)
    real = atomicfile.sync_directory

    def failing(directory):
        if directory == world.checkpoint.directory:
            raise OSError(errno.EIO, os.strerror(errno.EIO), directory)
        real(directory)

    monkeypatch.setattr(atomicfile, "sync_directory", failing)
    with pytest.raises(ClaimError, match=r"Input/output error.*see the kernel log.*retries"):
        await preparer.unprepare(ref)
    monkeypatch.setattr(atomicfile, "sync_directory", real)
    await preparer.unprepare(ref)
    assert world.changes[-1] == set()


async def test_others_hear_of_what_another_instance_did(world):
    one = world.instance()
    first, second = world.claim("first"), world.claim("second")
    await world.instance().prepare(first)
    world.changes.clear()
    await one.prepare(second)
    await one.unprepare(second)
    assert world.changes == [{first.uid, second.uid}, {first.uid}]


async def test_restore_keeps_what_may_belong_to_a_claim_that_cannot_be_read(world, monkeypatch):
    ref = world.claim()
    await world.instance().prepare(ref)
    metadata = os.path.join(world.root, "dra-device-metadata", "default_claim", "req")
    with open(world.checkpoint.path(ref.uid), "rb") as file:
        own = file.read()
    for content in (None, own.replace(b'"format":1', b'"format":2')):
        if content is None:
            os.rename(world.checkpoint.path(ref.uid), world.checkpoint.path(ref.uid) + ".real")
            os.symlink(world.checkpoint.path(ref.uid) + ".real", world.checkpoint.path(ref.uid))
        else:
            os.unlink(world.checkpoint.path(ref.uid))
            with open(world.checkpoint.path(ref.uid), "wb") as file:
                file.write(content)
        await world.instance().restore()
        assert world.checkpoint.problem
        assert world.cdi.listed() == {ref.uid}
        assert os.path.exists(os.path.join(metadata, "metadata.json"))


async def test_restore_survives_files_that_cannot_be_removed(world, caplog):
    preparer, ref = world.instance(), world.claim()
    await preparer.prepare(ref)

    def failing(uids):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    world.cdi.keep_only = failing
    await world.instance().restore()
    assert "Read-only file system" in caplog.text
