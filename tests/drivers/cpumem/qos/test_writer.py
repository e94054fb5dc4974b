"""Keeping files as planned: differences only, what was there put back, foreign writes with patience."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.cgroups.files import Cgroup, WriteOutcome
from drakit.cgroups.values import amount
from drakit.core import atomicfile
from drakit.drivers.cpumem.qos.planner import QosPlan
from drakit.drivers.cpumem.qos.record import CgroupRecord, FileKey
from drakit.drivers.cpumem.qos.writer import CgroupWriter, RepairLimits
from tests.drivers.cpumem.qos.cgrouptree import Tree

ROOT, SLICE, POD = "kubepods", "kubepods/burstable", "kubepods/burstable/pod1"
MIN = "memory.min"


class World:
    """A tree, a clock and a writer that can be made anew, as after a restart."""

    def __init__(self, directory: Path) -> None:
        self.tree = Tree(str(directory / "cgroup"))
        self.tree.make(POD)
        self.path = str(directory / "state" / "qos.json")
        self.now = 1000.0
        self.restart()

    def restart(self, boot: str = "boot-1") -> CgroupWriter:
        self.writer = CgroupWriter(
            self.tree.root,
            CgroupRecord(self.path, boot),
            page_size=4096,
            limits=RepairLimits(repairs=3, pause=10, quiet_period=600),
            clock=lambda: self.now,
        )
        return self.writer

    def apply(self, tree: dict[str, dict[str, str]], pods_changed: bool = False) -> None:
        self.writer.apply(QosPlan(tree=tree), pods_changed=pods_changed)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def chain(value: int) -> dict[str, dict[str, str]]:
    return {path: {MIN: str(value)} for path in (ROOT, SLICE, POD)}


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """All writes to cgroup files, in order."""
    seen: list[tuple[str, str]] = []
    original = Cgroup.write

    def spy(self: Cgroup, file: str, value: str) -> WriteOutcome:
        where = os.readlink(f"/proc/self/fd/{self._descriptor}")
        seen.append((f"{where.partition('/cgroup/')[2]}/{file}", value))
        return original(self, file, value)

    monkeypatch.setattr(Cgroup, "write", spy)
    return seen


# -- setting and putting back -------------------------------------------------------------------------


def test_only_differences_are_written(world: World, writes: list[tuple[str, str]]) -> None:
    world.apply(chain(8192))
    assert len(writes) == 3
    world.apply(chain(8192))
    world.restart()
    world.apply(chain(8192))
    assert len(writes) == 3
    assert [world.tree.get(path, MIN) for path in (ROOT, SLICE, POD)] == ["8192"] * 3


def test_raised_from_the_top_and_lowered_from_the_bottom(world: World, writes: list[tuple[str, str]]) -> None:
    world.apply(chain(8192))
    assert [path for path, _ in writes] == [f"{path}/{MIN}" for path in (ROOT, SLICE, POD)]
    writes.clear()
    world.apply(chain(4096))
    assert [path for path, _ in writes] == [f"{path}/{MIN}" for path in (POD, SLICE, ROOT)]
    writes.clear()
    world.apply({})
    assert [path for path, _ in writes] == [f"{path}/{MIN}" for path in (POD, SLICE, ROOT)]


def test_both_limits_of_pages_in_their_order(world: World, writes: list[tuple[str, str]]) -> None:
    world.apply({POD: {"hugetlb.2MB.rsvd.max": "4194304", "hugetlb.2MB.max": "4194304"}})
    assert [path.rpartition("/")[2] for path, _ in writes] == ["hugetlb.2MB.rsvd.max", "hugetlb.2MB.max"]


def test_what_was_there_is_put_back(world: World) -> None:
    world.tree.set(ROOT, MIN, "4096")
    before = world.tree.snapshot()
    world.apply(chain(8192))
    world.restart()
    world.apply(chain(16384))
    world.restart()
    assert world.writer.restore() == []
    assert world.tree.snapshot() == before
    assert not os.path.exists(world.path)


def test_a_file_not_planned_any_more_is_put_back(world: World) -> None:
    before = world.tree.snapshot()
    world.apply(chain(8192))
    world.apply({ROOT: {MIN: "8192"}})
    assert world.tree.get(POD, MIN) == "0"
    world.apply({})
    assert world.tree.snapshot() == before


def test_what_somebody_else_set_since_is_not_put_back(world: World) -> None:
    world.apply(chain(8192))
    world.tree.set(ROOT, MIN, "12288")
    assert world.writer.restore() == []
    assert world.tree.get(ROOT, MIN) == "12288"
    assert world.tree.get(POD, MIN) == "0"


def test_what_cannot_be_put_back_is_told_and_stays_on_record(world: World) -> None:
    files = {"hugetlb.2MB.rsvd.max": "4194304", "hugetlb.2MB.max": "4194304"}
    world.apply({POD: files})
    world.tree.set(POD, "hugetlb.2MB.current", "2097152")
    (left,) = world.writer.restore()
    assert left.startswith(f"{POD}/hugetlb.2MB.max: ")
    world.tree.set(POD, "hugetlb.2MB.current", "0")
    assert world.restart().restore() == []
    assert world.tree.get(POD, "hugetlb.2MB.max") == "0"


def test_pages_in_use_are_never_cut_off(world: World) -> None:
    world.apply({POD: {"hugetlb.2MB.max": str(8 << 20)}})
    world.tree.set(POD, "hugetlb.2MB.current", str(6 << 20))
    world.apply({POD: {"hugetlb.2MB.max": str(4 << 20)}})
    assert world.tree.get(POD, "hugetlb.2MB.max") == str(8 << 20)
    assert len(world.writer.counts.problems) == 1
    world.tree.set(POD, "hugetlb.2MB.current", str(4 << 20))
    world.apply({POD: {"hugetlb.2MB.max": str(4 << 20)}})
    assert world.tree.get(POD, "hugetlb.2MB.max") == str(4 << 20)
    assert world.writer.counts.problems == {}
    assert world.writer.counts.foreign == 0


def test_floors_raise_and_never_lower(world: World) -> None:
    file = "hugetlb.2MB.max"
    world.tree.set(ROOT, file, "2097152")
    world.tree.set(ROOT, "memory.low", "max")
    floor = QosPlan(floors={ROOT: {file: "4194304", "memory.low": "4096"}})
    world.writer.apply(floor, pods_changed=False)
    assert world.tree.get(ROOT, file) == "4194304"
    assert world.tree.get(ROOT, "memory.low") == "max"
    world.writer.apply(QosPlan(floors={ROOT: {file: "1048576"}}), pods_changed=False)
    assert world.tree.get(ROOT, file) == "2097152"


def test_a_floor_that_somebody_raised_is_theirs(world: World) -> None:
    file = "hugetlb.2MB.max"
    world.tree.set(ROOT, file, "2097152")
    floor = QosPlan(floors={ROOT: {file: "4194304"}})
    world.writer.apply(floor, pods_changed=False)
    world.tree.set(ROOT, file, "8388608")  # a kubelet restarted and counted the pool anew
    world.writer.apply(floor, pods_changed=False)
    assert world.writer.restore() == []
    assert world.tree.get(ROOT, file) == "8388608"
    assert world.writer.counts.foreign == 0


def test_values_the_kernel_rounds_are_not_taken_for_foreign(world: World) -> None:
    world.apply({POD: {MIN: "10000"}})
    world.tree.set(POD, MIN, "8192")  # as the kernel would have kept it
    world.apply({POD: {MIN: "10000"}})
    assert world.writer.counts.foreign == 0
    assert world.tree.get(POD, MIN) == "8192"


def test_hugepage_limits_that_the_kernel_rounds_are_not_taken_for_foreign(world: World) -> None:
    """It keeps whole hugepages: 5 MiB in pages of 2 MiB are 4 MiB."""
    plan = {POD: {"hugetlb.2MB.max": str(5 << 20)}}
    world.apply(plan)
    world.tree.set(POD, "hugetlb.2MB.max", str(4 << 20))
    world.apply(plan)
    assert world.writer.counts.foreign == 0
    assert world.tree.get(POD, "hugetlb.2MB.max") == str(4 << 20)
    world.tree.set(POD, "hugetlb.2MB.max", str(2 << 20))
    world.apply(plan)
    assert world.writer.counts.foreign == 1


def test_a_cgroup_that_is_gone_is_forgotten(world: World) -> None:
    world.apply(chain(8192))
    world.tree.remove(POD)
    world.apply({ROOT: {MIN: "8192"}, SLICE: {MIN: "8192"}, POD: {MIN: "8192"}})
    assert not world.writer.manages(POD, MIN)
    assert world.writer.counts.problems == {}


def test_a_cgroup_made_anew_is_set_anew(world: World) -> None:
    world.apply(chain(8192))
    before = os.stat(f"{world.tree.root}/{POD}").st_ino
    os.rename(f"{world.tree.root}/{POD}", f"{world.tree.root}/{POD}-old")
    world.tree.make(POD, s2MB=2097152)
    assert os.stat(f"{world.tree.root}/{POD}").st_ino != before
    world.apply(chain(8192))
    assert world.tree.get(POD, MIN) == "8192"
    assert world.writer.counts.foreign == world.writer.counts.reset == 0


def test_a_record_of_another_boot_is_void(world: World) -> None:
    world.apply(chain(8192))
    for path in (ROOT, SLICE, POD):
        world.tree.set(path, MIN, "4096")
    world.restart("boot-2")
    world.apply(chain(8192))
    assert world.writer.counts.foreign == 0
    world.writer.restore()
    assert world.tree.get(ROOT, MIN) == "4096"


def test_a_lost_record_is_made_up_for(world: World) -> None:
    world.apply(chain(8192))
    os.unlink(world.path)
    world.restart()
    world.apply(chain(8192))
    assert world.writer.restore() == []
    assert world.tree.get(ROOT, MIN) == "0"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"bootId": 3}', b"\xff"])
def test_an_unreadable_record_is_reported_and_does_not_stop(
    world: World, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    os.makedirs(os.path.dirname(world.path), exist_ok=True)
    Path(world.path).write_bytes(content)
    world.restart()
    assert "will not be restored" in caplog.text
    world.apply(chain(8192))
    assert world.tree.get(POD, MIN) == "8192"
    assert len(json.loads(Path(world.path).read_bytes())["files"]) == 3


def test_nothing_is_set_that_cannot_be_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = world.tree.snapshot()

    def full(name: str, path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomicfile, "observers", [full])
    with pytest.raises(OSError, match="No space left"):
        world.apply(chain(8192))
    assert world.tree.snapshot() == before
    monkeypatch.undo()
    world.apply(chain(8192))
    assert world.writer.counts.foreign == 0


def test_a_crash_between_record_and_write_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tree.set(ROOT, MIN, "4096")

    def die(self: Cgroup, file: str, value: str) -> WriteOutcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(Cgroup, "write", die)
    with pytest.raises(KeyboardInterrupt):
        world.apply(chain(8192))
    monkeypatch.undo()
    world.restart()
    world.apply(chain(8192), pods_changed=True)
    assert world.tree.get(ROOT, MIN) == "8192"
    world.writer.restore()
    assert world.tree.get(ROOT, MIN) == "4096"


def test_a_write_that_is_rejected_is_no_foreign_write_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cgroup, "write", lambda self, file, value: WriteOutcome.DENIED)
    world.apply(chain(8192))
    assert set(world.writer.counts.problems.values()) == {WriteOutcome.DENIED.value}
    monkeypatch.undo()
    world.apply(chain(8192))
    assert world.writer.counts.problems == {}
    assert world.writer.counts.foreign == 0
    assert world.tree.get(POD, MIN) == "8192"


def test_a_file_the_kernel_does_not_have_is_reported_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        world.apply({POD: {"hugetlb.64KB.max": "65536", MIN: "4096"}})
    assert caplog.text.count("cannot set cgroup file") == 1
    assert list(world.writer.counts.problems) == [FileKey(POD, "hugetlb.64KB.max")]
    assert world.tree.get(POD, MIN) == "4096"
    world.apply({})
    assert world.writer.counts.problems == {}


# -- others --------------------------------------------------------------------------------------------


def test_vector_14_a_foreign_write_is_repaired_at_most_n_times_then_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.apply(chain(8192))
    repaired = 0
    for _ in range(20):
        world.tree.set(ROOT, MIN, "4096")
        world.apply(chain(8192))
        repaired += world.tree.get(ROOT, MIN) == "8192"
        world.now += 100
    assert repaired == 3 == world.writer.counts.repaired
    assert world.writer.counts.foreign == 4
    assert world.writer.contested == [FileKey(ROOT, MIN)]
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 1
    assert f"path={ROOT}/{MIN} value=4096" in errors[0].getMessage()


def test_repairs_pause_longer_each_time(world: World) -> None:
    world.apply(chain(8192))
    moments = []
    for _ in range(100):
        world.tree.set(ROOT, MIN, "4096")
        world.apply(chain(8192))
        if world.tree.get(ROOT, MIN) == "8192":
            moments.append(world.now)
        world.now += 1
    assert [later - sooner for sooner, later in itertools.pairwise(moments)] == [10, 20]


def test_who_gives_up_takes_it_up_again_when_the_file_is_right(world: World) -> None:
    world.apply(chain(8192))
    for _ in range(6):
        world.tree.set(ROOT, MIN, "4096")
        world.apply(chain(8192))
        world.now += 100
    world.tree.set(ROOT, MIN, "8192")
    world.apply(chain(8192))
    assert world.writer.contested == []
    world.tree.set(ROOT, MIN, "4096")
    world.apply(chain(8192))
    assert world.tree.get(ROOT, MIN) == "8192"


def test_rare_foreign_writes_never_exhaust_patience(world: World) -> None:
    world.apply(chain(8192))
    for _ in range(10):
        world.tree.set(ROOT, MIN, "4096")
        world.apply(chain(8192))
        world.now += 700
        world.apply(chain(8192))
    assert world.writer.counts.repaired == 10
    assert world.writer.contested == []


def test_what_systemd_resets_with_pods_is_set_again_without_limit(world: World) -> None:
    world.apply(chain(8192))
    for _ in range(20):
        world.tree.set(ROOT, MIN, "0")
        world.apply(chain(8192), pods_changed=True)
        assert world.tree.get(ROOT, MIN) == "8192"
    assert world.writer.counts.reset == 20
    assert world.writer.counts.foreign == 0


def test_what_systemd_resets_in_a_slice_is_set_again_at_any_time_without_limit(world: World) -> None:
    """``systemctl daemon-reload`` writes the defaults of every slice; a package upgrade runs it often."""
    pod = world.tree.make("kubepods.slice/kubepods-pod1.slice")
    plan = {path: {MIN: "8192"} for path in ("kubepods.slice", pod)}
    world.apply(plan)
    for _ in range(20):
        for path in plan:
            world.tree.set(path, MIN, "0")
        world.apply(plan)
        assert [world.tree.get(path, MIN) for path in plan] == ["8192", "8192"]
    assert (world.writer.counts.reset, world.writer.counts.foreign) == (40, 0)
    world.tree.set(pod, MIN, "4096")  # nobody's default
    world.apply(plan)
    assert world.writer.counts.foreign == 1


def test_hugepage_limits_zeroed_by_a_resize_come_back_at_once(world: World) -> None:
    files = {"hugetlb.2MB.rsvd.max": "4194304", "hugetlb.2MB.max": "4194304"}
    world.apply({POD: files})
    for file in files:
        world.tree.set(POD, file, "0")
    world.apply({POD: files})
    assert [world.tree.get(POD, file) for file in files] == ["4194304"] * 2
    assert world.writer.counts.foreign == 0


# -- properties ------------------------------------------------------------------------------------------

_values = st.sampled_from(["0", "4096", "8192", "12288", "max"])
_files = st.dictionaries(st.sampled_from(["memory.min", "memory.low", "memory.high"]), _values)
_plans = st.dictionaries(st.sampled_from([ROOT, SLICE, POD]), _files)
_earlier = st.dictionaries(
    st.sampled_from([ROOT, SLICE, POD]),
    # Never what a plan says: who finds that takes it for a lost record of his own.
    st.dictionaries(st.sampled_from(["memory.min", "memory.low"]), st.sampled_from(["20480", "1"])),
)


@pytest.fixture(scope="module")
def _no_sync() -> Iterator[None]:
    """Durability is not what is looked at here, and a busy disk takes its time for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.mark.usefixtures("_no_sync")
@given(plans=st.lists(_plans, max_size=4), start=_earlier, restarts=st.booleans())
def test_any_plans_hold_and_leave_no_trace(
    tmp_path_factory: pytest.TempPathFactory,
    plans: list[dict[str, dict[str, str]]],
    start: dict[str, dict[str, str]],
    restarts: bool,
) -> None:
    world = World(tmp_path_factory.mktemp("any"))
    for path, files in start.items():
        for file, value in files.items():
            world.tree.set(path, file, value)
    before = world.tree.snapshot()
    for plan in plans:
        if restarts:
            world.restart()
        world.apply(plan)
        after = world.tree.snapshot()
        for key, value in after.items():
            path, _, file = key.rpartition("/")
            assert value == plan.get(path, {}).get(file, before[key])
    assert world.writer.restore() == []
    assert world.tree.snapshot() == before
    assert world.writer.counts.foreign == world.writer.counts.reset == 0


# -- the kernel's own ----------------------------------------------------------------------------------------


@pytest.fixture
def hugetlb_cgroup() -> Iterator[tuple[str, str]]:
    """A cgroup of the kernel's with the hugetlb controller, made for the test."""
    with open("/proc/mounts", encoding="utf-8") as table:
        mounts = [line.split()[1] for line in table if line.split()[2] == "cgroup2"]
    for mount in mounts:
        control = os.path.join(mount, "cgroup.subtree_control")
        name = f"drakit-keeping-{os.getpid()}"
        try:
            enabled = "hugetlb" in Path(control).read_text().split()
            if not enabled:
                Path(control).write_text("+hugetlb")
            os.mkdir(os.path.join(mount, name))
        except OSError:
            continue
        try:
            yield mount, name
        finally:
            os.rmdir(os.path.join(mount, name))
            if not enabled:
                Path(control).write_text("-hugetlb")
        return
    pytest.skip("no cgroup2 mount where this user may make a cgroup with the hugetlb controller")


def test_page_limits_of_a_real_cgroup(hugetlb_cgroup: tuple[str, str], tmp_path: Path) -> None:
    mount, path = hugetlb_cgroup
    writer = CgroupWriter(mount, CgroupRecord(str(tmp_path / "record"), "boot"))
    names = ("hugetlb.2MB.rsvd.max", "hugetlb.2MB.max")
    if writer.original(path, names[0]) is None:
        pytest.skip("this kernel has no 2 MiB pages")

    def look() -> list[float]:
        return [amount(Path(mount, path, name).read_text().strip()) for name in names]

    before = look()
    writer.apply(QosPlan(tree={path: dict.fromkeys(names, str(6 << 20))}), pods_changed=False)
    assert look() == [6 << 20] * 2
    writer.apply(QosPlan(tree={path: dict.fromkeys(names, str(4 << 20))}), pods_changed=False)
    assert look() == [4 << 20] * 2
    assert writer.counts.foreign == 0
    assert writer.restore() == []
    assert look() == before == [math.inf] * 2
