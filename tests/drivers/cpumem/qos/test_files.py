"""Single cgroup files, in a tree of plain files and in the kernel's own."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from drakit.drivers.cpumem.qos import files
from drakit.drivers.cpumem.qos.files import Outcome, open_cgroup


def test_a_value_is_written_and_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "memory.min").write_text("123456\n")
    with open_cgroup(str(tmp_path), "a") as cgroup:
        assert cgroup is not None
        assert cgroup.value("memory.min") == "123456"
        assert cgroup.write("memory.min", "7") is Outcome.WRITTEN
        assert cgroup.value("memory.min") == "7"


def test_nothing_is_created(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with open_cgroup(str(tmp_path), "a") as cgroup:
        assert cgroup is not None
        assert cgroup.write("memory.min", "7") is Outcome.ABSENT
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
        assert cgroup.write("memory.low", "1") is Outcome.FAILED
        assert cgroup.read("memory.low") is None
    assert (tmp_path / "real" / "memory.min").read_text() == "0\n"


@pytest.mark.parametrize("path", ["../x", "a/../b", "", "a//b", "./a"])
def test_only_plain_paths_are_opened(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="no plain path"), open_cgroup(str(tmp_path), path):
        pass


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errno.EBUSY, Outcome.BUSY),
        (errno.EINVAL, Outcome.INVALID),
        (errno.EPERM, Outcome.DENIED),
        (errno.EROFS, Outcome.DENIED),
        (errno.ENODEV, Outcome.GONE),
        (errno.EIO, Outcome.FAILED),
    ],
)
def test_what_the_kernel_says_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, outcome: Outcome
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


# -- the kernel's own -----------------------------------------------------------------------------


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
        assert cgroup.write("cgroup.max.depth", "3") is Outcome.WRITTEN
        assert cgroup.value("cgroup.max.depth") == "3"
        assert cgroup.write("cgroup.max.depth", "deep") is Outcome.INVALID
        assert cgroup.write("cgroup.max.depth", "-5") is Outcome.INVALID
        assert cgroup.value("cgroup.max.depth") == "3"
        assert cgroup.write("memory.nothing", "1") in (Outcome.ABSENT, Outcome.DENIED)


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
            assert cgroup.write("cgroup.max.depth", "3") in (Outcome.GONE, Outcome.ABSENT)
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
        assert cgroup.write("memory.min", str(5 * page + 1)) is Outcome.WRITTEN
        assert cgroup.value("memory.min") == str(5 * page)
