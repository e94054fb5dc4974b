"""Single cgroup files, in a tree of plain files and in the kernel's cgroup file system."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from drakit.cgroups import files
from drakit.cgroups.files import WriteOutcome, open_beneath, open_cgroup, read_file, write_file
from drakit.cgroups.tree import CgroupTree


@pytest.fixture(params=["openat2", "walk"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to open a path: one system call, or part by part on kernels before 5.6."""
    if request.param == "walk":
        monkeypatch.setattr(files, "_openat2", lambda *_: None)


def test_a_value_is_written_and_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "memory.min").write_text("123456\n")
    with open_cgroup(str(tmp_path), "a") as cgroup:
        assert cgroup is not None
        assert cgroup.value("memory.min") == "123456"
        assert cgroup.write("memory.min", "7") is WriteOutcome.WRITTEN
        assert cgroup.value("memory.min") == "7"


def test_nothing_is_created(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with open_cgroup(str(tmp_path), "a") as cgroup:
        assert cgroup is not None
        assert cgroup.write("memory.min", "7") is WriteOutcome.ABSENT
        assert cgroup.read("memory.min") is None
    with open_cgroup(str(tmp_path), "a/b") as gone:
        assert gone is None
    assert list((tmp_path / "a").iterdir()) == []


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "memory.min").write_text("0\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with open_cgroup(str(tmp_path), "link") as cgroup:
        assert cgroup is None
    (tmp_path / "real" / "memory.low").symlink_to(tmp_path / "real" / "memory.min")
    with open_cgroup(str(tmp_path), "real") as cgroup:
        assert cgroup is not None
        assert cgroup.write("memory.low", "1") is WriteOutcome.FAILED
        assert cgroup.read("memory.low") is None
    assert (tmp_path / "real" / "memory.min").read_text() == "0\n"


@pytest.mark.parametrize("link", ["kubepods", "kubepods/pod", "kubepods/pod/c", "kubepods/pod/c/cpuset.cpus"])
@pytest.mark.parametrize("unified", [True, False])
def test_a_symbolic_link_in_any_part_of_a_path_is_an_error(tmp_path: Path, link: str, unified: bool) -> None:
    """A container with a writable cgroup mount could otherwise redirect the driver's writes."""
    path, file = "kubepods/pod/c", "cpuset.cpus"
    mount = tmp_path / "fs" if unified else tmp_path / "fs/cpuset"
    (mount / path).mkdir(parents=True)
    (mount / path / file).write_text("2-3\n")
    if unified:
        (mount / "cgroup.controllers").write_text("cpuset\n")
        (mount / path / "cgroup.events").write_text("populated 0\n")
    (mount / path / "cgroup.procs").write_text("")
    (mount / link).rename(tmp_path / "moved")
    (mount / link).symlink_to(tmp_path / "moved")
    tree = CgroupTree(str(tmp_path / "fs"))
    with pytest.raises(OSError, match="symbolic"):
        read_file(str(mount), f"{path}/{file}")
    with pytest.raises(OSError, match="symbolic"):
        write_file(str(mount), f"{path}/{file}", "7")
    assert tree.read("cpuset", path, file) is None
    assert tree.look(path, file) == ""
    assert tree.populated(path) is not link.endswith(file)
    with pytest.raises(OSError, match="symbolic"):
        tree.write("cpuset", path, file, "7")
    if link.endswith(file):
        found = tree.cpuset(path)
        assert found is not None
        assert found.cpus is None
    else:
        assert tree.cpuset(path) is None
    changed = [each for each in tmp_path.rglob(file) if not each.is_symlink()]
    assert all(each.read_text() == "2-3\n" for each in changed)


def test_the_root_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "fs/a").mkdir(parents=True)
    (tmp_path / "fs/a/memory.min").write_text("1\n")
    (tmp_path / "root").symlink_to(tmp_path / "fs")
    assert read_file(str(tmp_path / "root"), "a/memory.min") == "1"


@pytest.mark.parametrize("path", ["../x", "a/../b", "a//b", "./a", "/a", "a/", "a\0b"])
def test_a_path_that_is_not_plain_is_not_opened(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="not a valid cgroup path"):
        open_beneath(str(tmp_path), path, files.DIRECTORY)


@pytest.mark.parametrize("path", ["../x", "a/../b", "", "a//b", "./a"])
def test_only_plain_paths_are_opened(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="not a valid"), open_cgroup(str(tmp_path), path):
        pass


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errno.EBUSY, WriteOutcome.BUSY),
        (errno.EINVAL, WriteOutcome.INVALID),
        (errno.EPERM, WriteOutcome.DENIED),
        (errno.EROFS, WriteOutcome.DENIED),
        (errno.ENODEV, WriteOutcome.GONE),
        (errno.EIO, WriteOutcome.FAILED),
    ],
)
def test_errors_of_the_kernel_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, outcome: WriteOutcome
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "memory.min").write_text("0\n")

    def reject(descriptor: int, data: bytes) -> int:
        raise OSError(error, os.strerror(error))

    with open_cgroup(str(tmp_path), "a") as cgroup:
        assert cgroup is not None
        monkeypatch.setattr(files.os, "write", reject)
        assert cgroup.write("memory.min", "1") is outcome


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "memory.min").write_text("0\n")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a/b", "a/c", "x"):
        with open_cgroup(str(tmp_path), path) as cgroup:
            if cgroup is not None:
                cgroup.write("memory.min", "1")
                cgroup.write("none", "1")
    assert len(os.listdir("/proc/self/fd")) == before


# -- the kernel's cgroup file system ----------------------------------------------------------


def cgroup2_mounts() -> list[str]:
    with open("/proc/mounts", encoding="utf-8") as table:
        return [line.split()[1] for line in table if line.split()[2] == "cgroup2"]


@pytest.fixture
def real_cgroup() -> Iterator[tuple[str, str]]:
    """A mount of cgroup2 and a cgroup in it, made for the test."""
    name = f"drakit-test-{os.getpid()}"
    for mount in cgroup2_mounts():
        try:
            os.mkdir(os.path.join(mount, name))
        except OSError:
            continue
        try:
            yield mount, name
        finally:
            os.rmdir(os.path.join(mount, name))
        return
    pytest.skip("no cgroup2 file system is mounted in which this user may make a cgroup")


def test_a_real_cgroup(real_cgroup: tuple[str, str]) -> None:
    mount, path = real_cgroup
    with open_cgroup(mount, path) as cgroup:
        assert cgroup is not None
        assert cgroup.value("cgroup.max.depth") == "max"
        assert cgroup.write("cgroup.max.depth", "3") is WriteOutcome.WRITTEN
        assert cgroup.value("cgroup.max.depth") == "3"
        assert cgroup.write("cgroup.max.depth", "deep") is WriteOutcome.INVALID
        assert cgroup.write("cgroup.max.depth", "-5") is WriteOutcome.INVALID
        assert cgroup.value("cgroup.max.depth") == "3"
        assert cgroup.write("memory.nothing", "1") in (WriteOutcome.ABSENT, WriteOutcome.DENIED)


def test_a_real_cgroup_that_ends_while_it_is_open() -> None:
    for mount in cgroup2_mounts():
        path = os.path.join(mount, f"drakit-gone-{os.getpid()}")
        try:
            os.mkdir(path)
        except OSError:
            continue
        with open_cgroup(mount, os.path.basename(path)) as cgroup:
            os.rmdir(path)
            assert cgroup is not None
            assert cgroup.write("cgroup.max.depth", "3") in (WriteOutcome.GONE, WriteOutcome.ABSENT)
            assert cgroup.value("cgroup.max.depth") is None
        return
    pytest.skip("no cgroup2 file system is mounted in which this user may make a cgroup")


def test_real_memory_files_keep_whole_pages(real_cgroup: tuple[str, str]) -> None:
    mount, path = real_cgroup
    with open_cgroup(mount, path) as cgroup:
        assert cgroup is not None
        if cgroup.read("memory.min") is None:
            pytest.skip(f"the memory controller is not enabled for cgroups in {mount}")
        page = os.sysconf("SC_PAGE_SIZE")
        assert cgroup.write("memory.min", str(5 * page + 1)) is WriteOutcome.WRITTEN
        assert cgroup.value("memory.min") == str(5 * page)
