"""One machine as a node: nobody ever holds what another holds, whatever ends how."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drakit.core.bootrecord import boot_id
from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.kit.claims.checkpoint import Checkpoint, encode
from drakit.kit.claims.exclusion import exclude_other_drivers
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import PreparedClaim, PreparedClaims, PreparedDevice, RejectedError
from drakit.local import node_drivers as nodedrivers
from drakit.local import tether
from drakit.local.local_drivers import simple_claim
from drakit.local.node import DoesNotFitError, LocalNode, fresh_claim, state_directory
from drakit.scheduler.errors import FatalError
from drakit.testing.synthetic import build

ROOT = str(Path(__file__).parents[2])


def node(directory: Path | str, **settings: object) -> LocalNode:
    machine = build(sockets=2, cores=4, threads=2)
    return LocalNode(cpu_driver(CpuConfig(**settings), machine), str(directory))  # type: ignore[arg-type]


async def test_a_claim_is_taken_and_given_back(tmp_path: Path) -> None:
    here = node(tmp_path)
    (taken,) = await here.take([fresh_claim(simple_claim(2))])
    assert len(taken.entry.exclusive("cpu")) == 2
    assert len(await here.look()) == 1
    await here.release(taken)
    assert len(await here.look()) == 0
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tether"] == []


async def test_whole_cores_and_individual_cpus(tmp_path: Path) -> None:
    grouped = node(tmp_path)
    (taken,) = await grouped.take([fresh_claim(simple_claim(2))])
    cpus = taken.entry.exclusive("cpu")
    assert grouped.driver.cpus.machine.by_id[cpus.min()].siblings == cpus  # type: ignore[attr-defined]
    single = node(tmp_path, cpu_device_mode="individual")
    with pytest.raises(RejectedError, match="is held by claim default/2-cpus-"):
        await single.take([fresh_claim(simple_claim(2, "individual"))])
    await grouped.release(taken)
    (other,) = await single.take([fresh_claim(simple_claim(2, "individual"))])
    assert len(other.entry.exclusive("cpu")) == 2
    await single.release(other)


async def test_several_claims_all_or_none(tmp_path: Path) -> None:
    here = node(tmp_path)
    with pytest.raises(DoesNotFitError):
        await here.take([fresh_claim(simple_claim(4)), fresh_claim(simple_claim(9))])
    assert len(await here.look()) == 0
    both = await here.take([fresh_claim(simple_claim(4)), fresh_claim(simple_claim(4))])
    assert len(CpuSet.union(t.entry.exclusive("cpu") for t in both)) == 8
    for one in both:
        await here.release(one)


async def test_an_unknown_class_is_the_claims_fault(tmp_path: Path) -> None:
    from drakit.core.objects import DeviceClaim, DeviceRequest, ExactRequest, ResourceClaimSpec

    claim = simple_claim(1)
    request = DeviceRequest(name="r", exactly=ExactRequest(device_class_name="nobody"))
    wrong = type(claim)(
        metadata=claim.metadata, spec=ResourceClaimSpec(devices=DeviceClaim(requests=(request,)))
    )
    with pytest.raises(FatalError, match="nobody"):
        await node(tmp_path).take([fresh_claim(wrong)])


async def test_a_dry_run_takes_nothing(tmp_path: Path) -> None:
    here = node(tmp_path)
    here.checkpoint.load()
    entries = here.assignment([fresh_claim(simple_claim(3))], PreparedClaims())
    assert len(entries[0].exclusive("cpu")) == 3
    assert len(await here.look()) == 0


HOLDER = """
import asyncio, sys, time
sys.path.insert(0, sys.argv[2])
from tests.local.test_local import node, simple_claim, fresh_claim
from drakit.core.filelock import LockTimeoutError
from drakit.local.node import DoesNotFitError
from drakit.kit.driver import RejectedError

async def main():
    here = node(sys.argv[1])
    try:
        (taken,) = await here.take([fresh_claim(simple_claim(int(sys.argv[3])))])
    except (DoesNotFitError, RejectedError, LockTimeoutError):  # the last on a starved machine
        print("full", flush=True)
        return
    print(taken.entry.exclusive("cpu"), flush=True)
    sys.stdin.read()
    await here.release(taken)
asyncio.run(main())
"""


def hold(directory: Path, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), ROOT, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_after_kill_9_the_next_one_notices(tmp_path: Path) -> None:
    first = hold(tmp_path, 7)
    assert first.stdout
    cpus = first.stdout.readline().strip()
    assert cpus != "full"
    assert asyncio.run(node(tmp_path).look()).exclusive("cpu") == CpuSet.parse(cpus)
    first.kill()
    first.wait()
    assert len(asyncio.run(node(tmp_path).look())) == 0
    first.stdout.close()
    assert first.stdin
    first.stdin.close()


def test_a_child_that_outlives_its_parent_keeps_the_claim(tmp_path: Path) -> None:
    code = (
        "import asyncio,os,sys,time; sys.path.insert(0, sys.argv[2])\n"
        "from tests.local.test_local import node, simple_claim, fresh_claim\n"
        "t = asyncio.run(node(sys.argv[1]).take([fresh_claim(simple_claim(2))]))\n"
        "if os.fork() == 0: time.sleep(60)\n"
        "print('taken', flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), ROOT],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert done.stdout
        assert done.stdout.readline() == "taken\n"
        done.wait()
        assert len(asyncio.run(node(tmp_path).look())) == 1
    finally:
        os.killpg(done.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while len(asyncio.run(node(tmp_path).look())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(asyncio.run(node(tmp_path).look())) == 0
    assert done.stdout
    done.stdout.close()


def test_many_starts_and_random_kills_never_two_owners(tmp_path: Path, scale: int) -> None:
    rng = random.Random(7)
    alive: list[tuple[subprocess.Popen[str], CpuSet]] = []
    started = 0
    while started < 12 * scale:
        batch = [hold(tmp_path, rng.randint(1, 5)) for _ in range(3)]
        started += len(batch)
        for process in batch:
            assert process.stdout
            answer = process.stdout.readline().strip()
            if answer == "full":
                process.communicate()
                continue
            mine = CpuSet.parse(answer)
            for _, theirs in alive:
                assert mine.isdisjoint(theirs), "two owners of one CPU"
            alive.append((process, mine))
        rng.shuffle(alive)
        for _ in range(min(2, len(alive))):
            process, _ = alive.pop()
            if rng.random() < 0.5:
                process.kill()
                process.communicate()
            else:
                process.communicate()
    for process, _ in alive:
        process.kill()
        process.communicate()
    assert len(asyncio.run(node(tmp_path).look())) == 0


def test_process_identity() -> None:
    me = tether.identity_of(os.getpid())
    assert tether.is_alive(me)
    assert not tether.is_alive(f"{os.getpid()}:1")
    assert not tether.is_alive("")
    assert tether.identity_of(2**22 + 1) == ""


async def test_a_reboot_frees_everything(tmp_path: Path) -> None:
    here = node(tmp_path)
    (taken,) = await here.take([fresh_claim(simple_claim(2))])
    later = node(tmp_path)
    later.checkpoint = Checkpoint(str(tmp_path), boot="another")
    assert len(await later.look()) == 0
    os.close(taken.descriptor)


def test_two_hundred_starts_at_once_and_random_kills(tmp_path: Path, scale: int) -> None:
    """All start together and race for one checkpoint; the victims die at any point of their start."""
    if scale == 1:
        pytest.skip("two hundred processes: runs with --long")
    rng = random.Random(11)
    waiting = [hold(tmp_path, rng.randint(1, 3)) for _ in range(200)]
    doomed = set(rng.sample(range(200), 60))
    victims = rng.sample(sorted(doomed), len(doomed))
    alive: list[CpuSet] = []
    for index, process in enumerate(waiting):
        if victims and rng.random() < 0.5:
            waiting[victims.pop()].kill()
        assert process.stdout
        if index in doomed:
            continue  # what it gets, if anything, others may have later
        answer = process.stdout.readline().strip()
        assert answer, "a start that nobody killed has an answer"
        if answer != "full":
            mine = CpuSet.parse(answer)
            assert all(mine.isdisjoint(theirs) for theirs in alive), "two owners of one CPU"
            alive.append(mine)
    for index in doomed:
        waiting[index].kill()
        waiting[index].wait()
    held = asyncio.run(node(tmp_path).look())
    assert CpuSet.union(alive) == held.exclusive("cpu")
    for process in waiting:
        process.kill()
        process.communicate()
    assert len(asyncio.run(node(tmp_path).look())) == 0


# -- where claims are kept -----------------------------------------------------------------------


@pytest.fixture
def shared_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of ``/tmp``, for a user who is not root."""
    monkeypatch.setattr("drakit.local.node._TEMPORARY", str(tmp_path))
    user = os.geteuid()
    if user == 0:
        user = 4711
        monkeypatch.setattr("os.geteuid", lambda: user)
        made = os.mkdir

        def mkdir(path: str, mode: int = 0o777) -> None:
            made(path, mode)
            os.chown(path, user, -1)

        monkeypatch.setattr("os.mkdir", mkdir)
    return tmp_path / f"drakit-{user}"


def test_without_a_runtime_directory_claims_are_kept_in_a_private_one(shared_tmp: Path) -> None:
    for _ in range(2):  # it is made, and then used again
        assert state_directory({}) == str(shared_tmp / "drakit/claims")
        assert stat.S_IMODE(shared_tmp.stat().st_mode) == 0o700


def test_a_directory_others_can_write_to_is_rejected(shared_tmp: Path) -> None:
    state_directory({})
    for mode in (0o777, 0o770, 0o755, 0o710):
        shared_tmp.chmod(mode)
        with pytest.raises(PermissionError, match=rf"mode {mode:04o}.*XDG_RUNTIME_DIR"):
            state_directory({})


def test_a_link_is_rejected(shared_tmp: Path) -> None:
    state_directory({})
    own = shared_tmp.rename(shared_tmp.parent / "elsewhere")
    shared_tmp.symlink_to(own)
    with pytest.raises(PermissionError, match="not a directory"):
        state_directory({})


def test_a_directory_of_another_user_is_rejected(shared_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state_directory({})
    user = os.geteuid()
    os.rename(shared_tmp, shared_tmp.parent / f"drakit-{user + 1}")
    monkeypatch.setattr("os.geteuid", lambda: user + 1)
    with pytest.raises(PermissionError, match=f"directory, has owner {user} and mode 0700"):
        state_directory({})


def test_a_runtime_directory_others_can_write_to_is_rejected(shared_tmp: Path) -> None:
    state_directory({})  # makes a directory that belongs to the user
    environ = {"XDG_RUNTIME_DIR": str(shared_tmp)}
    assert state_directory(environ) == str(shared_tmp / "drakit/claims")
    shared_tmp.chmod(0o777)
    with pytest.raises(PermissionError, match="0777"):
        state_directory(environ)


# -- beside a Kubernetes driver ------------------------------------------------------------------


def record(uid: str, cpus: CpuSet, boot: str) -> PreparedClaim:
    prepared = PreparedDevice(request="r", pool="p", device="d", exclusive={"cpu": cpus})
    return PreparedClaim(uid=uid, namespace="n", name=uid, devices=(prepared,), boot_id=boot)


def keep(kubelet: Path, driver: str, *entries: PreparedClaim) -> Path:
    directory = kubelet / "plugins" / driver / "claims"
    directory.mkdir(parents=True)
    for entry in entries:
        (directory / f"{entry.uid}.json").write_bytes(encode(entry))
    return directory


def test_the_cpus_of_a_kubernetes_driver_are_known(tmp_path: Path) -> None:
    assert nodedrivers.find(str(tmp_path)) == nodedrivers.NodeDrivers()
    boot = boot_id()
    keep(tmp_path, "dra.cpu", record("a", CpuSet([2, 3]), boot), record("b", CpuSet([4]), boot))
    keep(tmp_path, "dra.cpumem", record("c", CpuSet([6]), boot), record("d", CpuSet([7]), "old"))
    found = nodedrivers.find(str(tmp_path))
    assert found.cpus == CpuSet([2, 3, 4, 6]), "those of an earlier boot are free"
    assert found.warnings == ()


def test_a_record_that_cannot_be_understood_is_an_error(tmp_path: Path) -> None:
    directory = keep(tmp_path, "dra.cpu", record("a", CpuSet([2]), boot_id()))
    (directory / "b.json").write_bytes(b"{")
    with pytest.raises(OSError, match=r"b\.json"):
        nodedrivers.find(str(tmp_path))


def test_a_driver_that_serves_is_warned_of(tmp_path: Path) -> None:
    options = HostOptions(kubelet_root_dir=str(tmp_path))
    keep(tmp_path, "dra.cpu")
    with exclude_other_drivers(options, "dra.cpu", ["dra.cpumem"]):
        (warning,) = nodedrivers.find(str(tmp_path)).warnings
    assert "the driver dra.cpu serves Kubernetes on this machine" in warning
    assert nodedrivers.find(str(tmp_path)).warnings == ()


def test_a_checkpoint_that_may_not_be_read_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.listdir", forbidden)
    found = nodedrivers.find(str(tmp_path))
    assert found.cpus == CpuSet()
    assert all("cannot determine the CPUs that the driver" in warning for warning in found.warnings)
    assert len(found.warnings) == 2
