"""Reading anything that may lie where a file of sysfs is expected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drakit.core.cpuset import CpuSet
from drakit.machine.caches import parse_size
from drakit.machine.sysfs import LARGEST_FILE, Reader, WarningCollector, parse_number, shown


@pytest.fixture
def collector() -> WarningCollector:
    return WarningCollector()


@pytest.fixture
def reader(tmp_path: Path, collector: WarningCollector) -> Reader:
    return Reader(str(tmp_path), collector)


def reason(collector: WarningCollector) -> str:
    (warning,) = collector.warnings()
    return warning.reason


def test_a_missing_file_needs_no_warning(reader: Reader, collector: WarningCollector, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert reader.text("/missing") is None
    assert reader.text("/file/below") is None
    assert reader.number("/missing") is None
    assert reader.cpus("/missing", "/missing") is None
    assert reader.names("/missing") == []
    assert reader.link("/missing") is None
    assert not reader.exists("/missing")
    assert collector.warnings() == ()


def test_a_fifo_does_not_block(reader: Reader, collector: WarningCollector, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert reader.text("/fifo") == ""
    assert "not a regular file" in reason(collector)


def test_a_fifo_that_somebody_holds_open_does_not_block(
    reader: Reader, collector: WarningCollector, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    holder = os.open(tmp_path / "fifo", os.O_RDWR)
    try:
        assert reader.text("/fifo") is None
        assert reader.beginning("/fifo") == ""
    finally:
        os.close(holder)
    assert "cannot be read" in reason(collector)


def test_a_device_without_end_is_not_read_on(
    reader: Reader, collector: WarningCollector, tmp_path: Path
) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert reader.text("/zero") == ""
    assert "not a regular file" in reason(collector)


def test_a_loop_of_links_needs_a_warning(reader: Reader, collector: WarningCollector, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert reader.text("/loop") is None
    assert reader.beginning("/loop") == ""
    assert reader.names("/loop") == []
    assert not reader.exists("/loop")
    assert len(collector.warnings()) == 2


def test_a_directory_needs_a_warning(reader: Reader, collector: WarningCollector, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    assert reader.text("/directory") is None
    assert "cannot be read" in reason(collector)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_needs_a_warning(
    reader: Reader, collector: WarningCollector, tmp_path: Path
) -> None:
    (tmp_path / "closed").write_text("1")
    (tmp_path / "closed").chmod(0)
    assert reader.text("/closed") is None
    assert "cannot be opened" in reason(collector)


def test_a_path_with_nul_needs_a_warning(reader: Reader, collector: WarningCollector) -> None:
    assert reader.text("/a\0b") is None
    assert collector.warnings()


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 70_000, LARGEST_FILE])
def test_a_file_is_read_to_its_end(
    reader: Reader, collector: WarningCollector, tmp_path: Path, length: int
) -> None:
    content = os.urandom(length)
    (tmp_path / "file").write_bytes(content)
    assert reader.text("/file") == content.decode("latin-1")
    assert collector.warnings() == ()


def test_a_huge_file_is_read_in_part(reader: Reader, collector: WarningCollector, tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as out:
        out.truncate(1 << 34)  # sparse
    text = reader.text("/huge")
    assert text is not None
    assert len(text) == LARGEST_FILE
    assert "longer than" in reason(collector)
    assert len(reader.beginning("/huge")) == 4096


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7\n", 7),
        (" -1\n\0", -1),
        ("2147483648", 2147483648),
        ("", None),
        ("-", None),
        ("--1", None),
        ("1 2", None),
        ("0x10", None),
        ("٣", None),
        ("9" * 30, None),
    ],
)
def test_numbers(text: str, number: int | None) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("32K\n", 32768),
        ("1024K", 1 << 20),
        ("2M", 2 << 20),
        ("1G", 1 << 30),
        ("512\n", 512),
        ("0K", None),
        ("K", None),
        ("", None),
        ("-4K", None),
    ],
)
def test_cache_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def test_the_mask_file_stands_in_for_a_bad_list_file(
    reader: Reader, collector: WarningCollector, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("3-1\n")
    (tmp_path / "mask").write_text("0x0000000f\n")
    assert reader.cpus("/list", "/mask") == CpuSet.range(0, 4)
    assert "backwards" in reason(collector)


def test_the_same_bad_content_needs_a_warning_wherever_it_is(
    reader: Reader, collector: WarningCollector, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("garbage\n")
        assert reader.cpu_list(f"/{name}") is None
        assert reader.cpu_mask(f"/{name}") is None
        assert reader.number(f"/{name}") is None
    assert {warning.file for warning in collector.warnings()} == {"/a", "/b"}
    assert len(collector.warnings()) == 6


def test_numbered_entries(reader: Reader, collector: WarningCollector, tmp_path: Path) -> None:
    for name in ("cpu10", "cpu2", "cpufreq", "cpu", "cpu99", "cpu" + "9" * 25, "xcpu1", "cpu²"):
        (tmp_path / name).mkdir()
    assert reader.numbered("/", "cpu", 50) == [2, 10]
    assert len(collector.warnings()) == 2


def test_an_optional_file_is_given_up_after_a_while(reader: Reader, tmp_path: Path) -> None:
    for cpu in range(20):
        (tmp_path / f"cpu{cpu}").mkdir()
    (tmp_path / "cpu19" / "rare").write_text("1")
    (tmp_path / "cpu3" / "early").write_text("2")
    (tmp_path / "cpu19" / "early").write_text("3")
    assert [reader.optional_number(f"/cpu{c}/", "rare") for c in range(20)] == [None] * 20
    early = [reader.optional_number(f"/cpu{c}/", "early") for c in range(20)]
    assert (early[3], early[19]) == (2, 3)


def test_one_warning_about_many_cpus_is_reported_once(collector: WarningCollector) -> None:
    for cpu in (3, 4, 5):
        collector.note_cpu(cpu, "/topology", "is gone")
    collector.note_cpu(9, "/cache", "is gone")
    collector.note("/proc/stat", "is odd")
    collector.note("/proc/stat", "is odd")
    assert [(w.file, w.reason) for w in collector.warnings()] == [
        ("/proc/stat", "is odd"),
        ("/sys/devices/system/cpu/cpu*/topology", "CPUs 3-5: is gone"),
        ("/sys/devices/system/cpu/cpu9/cache", "is gone"),
    ]


def test_long_contents_are_shown_shortened() -> None:
    assert shown("short") == "'short'"
    assert len(shown("x" * 1000)) < 50
