"""What the kernel makes of a value that was written to a cgroup file."""

from __future__ import annotations

import os

import pytest

from drakit.cgroups.values import same_value

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


@pytest.mark.parametrize(
    ("file", "found", "meant", "same"),
    [
        ("cpuset.cpus", "0-3", "3,0-2", True),
        ("cpuset.cpus", "", "0", False),
        ("cpuset.cpus", "garbage", "0", False),
        ("cpuset.mems", "0-1", "0", False),
        ("cpu.max", "max 100000", "max", True),
        ("cpu.max", "max 100000", "max 50000", False),
        ("cpu.max", "50000 100000", "max", False),
        ("cpu.cfs_quota_us", "-1", "-1", True),
        ("cpu.cfs_quota_us", "50000", "-1", False),
        ("memory.min", str(10 * PAGE), str(10 * PAGE + 1), True),
        ("memory.min", str(10 * PAGE), str(11 * PAGE), False),
        ("memory.min", str(10 * PAGE), str(10 * PAGE - 1), False),
        ("memory.min", "0", "max", False),
        ("memory.min", "max", str((1 << 63) - PAGE), True),
        ("memory.max", "max", "max", True),
        ("memory.max", "max", str(1 << 40), False),
        ("memory.limit_in_bytes", str((1 << 63) - PAGE), "-1", True),
        ("hugetlb.2MB.max", str(4 * MIB), str(5 * MIB), True),
        ("hugetlb.2MB.max", str(4 * MIB), str(6 * MIB), False),
        ("hugetlb.1GB.rsvd.max", "0", str(1 << 30), False),
        ("hugetlb.1GB.rsvd.max", "1073741824", str((1 << 30) + MIB), True),
        ("hugetlb.2MB.limit_in_bytes", "9223372036852678656", "max", True),
        ("hugetlb.2MB.max", "", "0", False),
        ("pids.max", "100", "100", True),
        ("pids.max", "101", "100", False),
        ("io.max", "8:0 rbps=1 wbps=max riops=max wiops=max", "8:0 rbps=1", True),
        ("io.max", "8:0 rbps=2 wbps=max riops=max wiops=max", "8:0 rbps=1", False),
        ("cpuset.cpus.partition", "root", "root", True),
        ("cpuset.cpus.partition", "member", "root", False),
    ],
)
def test_a_value_as_the_kernel_keeps_it(file: str, found: str, meant: str, same: bool) -> None:
    assert same_value(file, found, meant) is same
