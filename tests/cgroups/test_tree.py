"""Hierarchies of cgroup v1 and v2: reading, writing, finding pods, and whether a container has ended."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from drakit.cgroups import tree as cgroups
from drakit.cgroups.tree import CgroupTree
from drakit.core.cpuset import CpuSet


@pytest.mark.parametrize("unified", [True, False])
def test_reading_and_writing(tmp_path: Path, unified: bool) -> None:
    base = tmp_path if unified else tmp_path / "cpuset"
    if unified:
        (tmp_path / "cgroup.controllers").write_text("cpuset\n")
    group = base / "kubepods" / "c"
    group.mkdir(parents=True)
    (group / "cpuset.cpus").write_text("2-3\n")
    (group / "cpuset.mems").write_text("\n")
    (group / ("cpuset.cpus.effective" if unified else "cpuset.effective_cpus")).write_text("2\n")
    tree = CgroupTree(str(tmp_path))
    found = tree.cpuset("kubepods/c")
    assert found is not None
    assert (found.cpus, found.effective_cpus, found.mems) == (CpuSet([2, 3]), CpuSet([2]), None)
    tree.write("cpuset", "kubepods/c", "cpuset.cpus", "5")
    assert tree.read("cpuset", "kubepods/c", "cpuset.cpus") in ("5", "5-3")
    assert tree.cpuset("kubepods/gone") is None
    with pytest.raises(FileNotFoundError):
        tree.write("cpuset", "kubepods/gone", "cpuset.cpus", "1")
    (group / "cpuset.cpus").write_text("garbage")
    again = tree.cpuset("kubepods/c")
    assert again is not None
    assert again.cpus is None


@pytest.mark.parametrize(
    "pod",
    [
        "kubepods/besteffort/pod0a-1b",
        "kubepods/pod0a-1b",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a_1b.slice",
        "kubepods.slice/kubepods-pod0a_1b.slice",
        "kubelet/kubepods/burstable/pod0a-1b",
    ],
)
@pytest.mark.parametrize("unified", [True, False])
def test_the_containers_of_all_pods_are_found_in_every_layout(
    tmp_path: Path, pod: str, unified: bool
) -> None:
    top = tmp_path if unified else tmp_path / "cpuset"
    for name in ("one", "two"):
        (top / pod / name).mkdir(parents=True)
    (top / "kubepods/podother/three").mkdir(parents=True)
    events = "populated 1\nfrozen 0\n"
    (top / pod / "one" / ("cgroup.events" if unified else "cgroup.procs")).write_text(events)
    if unified:
        (tmp_path / "cgroup.controllers").write_text("cpuset\n")
        (top / pod / "two" / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    else:
        (top / pod / "two" / "cgroup.procs").write_text("")
        (tmp_path / "pids" / pod / "two").mkdir(parents=True)
        (tmp_path / "pids" / pod / "two" / "pids.current").write_text("0\n")
    tree = CgroupTree(str(tmp_path))
    mine = [path for path in tree.all_containers() if path.startswith(f"{pod}/")]
    assert mine == [f"{pod}/one", f"{pod}/two"]
    assert [tree.populated(path) for path in mine] == [True, False]
    assert sorted(tree.all_containers()) == sorted([*mine, "kubepods/podother/three"])


# -- whether a container has ended ---------------------------------------------------------------

POD = "kubepods/poduid/k1"


def v1_tree(root: Path, *nested: str, procs: str = "") -> Path:
    """A container's cgroup of the cpuset hierarchy, with cgroups below it; the last has *procs*."""
    top = root / "cpuset" / POD
    places = [top, *(top / each for each in nested)]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.procs").write_text("")
    (places[-1] / "cgroup.procs").write_text(procs)
    return top


@pytest.fixture
def in_host_pid_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_sees_every_process", lambda: True)


@pytest.fixture
def in_own_pid_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_sees_every_process", lambda: False)


@pytest.mark.usefixtures("in_host_pid_namespace")
@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("nested", [(), ("init.scope",), ("a", "a/b", "a/b/c")])
def test_on_v1_processes_in_nested_cgroups_are_seen(
    tmp_path: Path, nested: tuple[str, ...], hybrid: bool
) -> None:
    if hybrid:  # cgroup2 beside the v1 hierarchies, without controllers
        (tmp_path / "unified" / POD).mkdir(parents=True)
        (tmp_path / "unified" / "cgroup.controllers").write_text("")
        (tmp_path / "unified" / POD / "cgroup.events").write_text("populated 0\n")
    top = v1_tree(tmp_path, *nested, procs="4711\n")
    tree = CgroupTree(str(tmp_path))
    assert tree.populated(POD)
    (top / (nested[-1] if nested else "") / "cgroup.procs").write_text("")
    assert not tree.populated(POD)


@pytest.mark.usefixtures("in_host_pid_namespace")
def test_on_v1_unreadable_files_may_hide_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = v1_tree(tmp_path, "nested")
    tree = CgroupTree(str(tmp_path))
    assert not tree.populated(POD)
    (top / "nested" / "cgroup.procs").unlink()
    assert tree.populated(POD)
    v1_tree(tmp_path, *(f"n{i}" for i in range(19)), "nested")
    assert not tree.populated(POD)
    monkeypatch.setattr(cgroups, "_MOST_NESTED", 20)
    assert tree.populated(POD)


@pytest.mark.usefixtures("in_host_pid_namespace")
def test_a_cgroup_that_is_gone_has_no_processes_but_a_missing_hierarchy_proves_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "cpuset").mkdir()
    assert not CgroupTree(str(tmp_path)).populated(POD)
    assert CgroupTree(str(tmp_path / "nowhere")).populated(POD)
    unified = tmp_path / "v2"
    unified.mkdir()
    (unified / "cgroup.controllers").write_text("cpuset\n")
    tree = CgroupTree(str(unified))
    assert not tree.populated(POD)
    (unified / POD).mkdir(parents=True)
    assert tree.populated(POD)  # unknown without cgroup.events


@pytest.mark.usefixtures("in_own_pid_namespace")
@pytest.mark.parametrize(("tasks", "populated"), [("3", True), ("0", False), ("?", True)])
def test_on_v1_the_kernel_s_count_of_tasks_counts_where_processes_are_invisible(
    tmp_path: Path, tasks: str, populated: bool
) -> None:
    """In a PID namespace of its own the driver finds the cgroup.procs of other containers empty."""
    v1_tree(tmp_path)
    tree = CgroupTree(str(tmp_path))
    assert tree.populated(POD)  # unknown without the pids controller
    counted = tmp_path / "pids" / POD
    counted.mkdir(parents=True)
    assert tree.populated(POD)
    (counted / "pids.current").write_text(f"{tasks}\n")
    assert tree.populated(POD) is populated
    (counted / "pids.current").unlink()
    counted.rmdir()
    assert not tree.populated(POD)  # the container's cgroup is gone


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM])
@pytest.mark.usefixtures("in_host_pid_namespace")
def test_an_error_never_ends_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unified: bool, code: int
) -> None:
    v1_tree(tmp_path)
    if unified:
        (tmp_path / "cgroup.controllers").write_text("cpuset\n")
    tree = CgroupTree(str(tmp_path))

    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", fail)
    assert tree.populated(POD)
    assert tree.look(POD, "cpuset.cpus") == ""


def test_controllers_that_share_a_mount_are_found(tmp_path: Path) -> None:
    (tmp_path / "cpu,cpuacct" / POD).mkdir(parents=True)
    (tmp_path / "cpu,cpuacct" / POD / "cpu.cfs_quota_us").write_text("-1\n")
    tree = CgroupTree(str(tmp_path))
    assert tree.look(POD, "cpu.cfs_quota_us") == "-1"
    tree.write("cpu", POD, "cpu.cfs_quota_us", "5000")
    assert tree.look(POD, "cpu.cfs_quota_us") == "5000"
    assert tree.look(POD, "memory.limit_in_bytes") is None
