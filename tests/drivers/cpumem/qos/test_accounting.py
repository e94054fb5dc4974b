"""Whether hugepages are charged as memory, by the mount table as the kernel writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from drakit.machine.cgroup_mounts import read_cgroups
from drakit.machine.sysfs import Reader, WarningCollector

WORD = "memory_hugetlb_accounting"
HEAD = "30 22 0:26 / /sys/fs/cgroup"


@pytest.mark.parametrize(
    ("line", "charged"),
    [
        (f"{HEAD} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,{WORD}", True),
        (f"{HEAD} rw,nosuid - cgroup2 cgroup2 rw,{WORD},memory_recursiveprot", True),
        (f"{HEAD} rw,{WORD} shared:4 - cgroup2 cgroup2 rw,nsdelegate", False),
        (f"{HEAD} rw,nosuid shared:4 - cgroup2 {WORD} rw,nsdelegate", False),
        (f"{HEAD}/{WORD} rw shared:4 - cgroup2 cgroup2 rw", False),
    ],
    ids=["super block", "in between", "mount options", "source", "mount point"],
)
def test_vector_1_the_word_counts_among_the_options_of_the_super_block_only(
    tmp_path: Path, line: str, charged: bool
) -> None:
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "proc" / "1" / "mountinfo").write_text(line + "\n")
    assert read_cgroups(Reader(str(tmp_path), WarningCollector())).memory_hugetlb_accounting is charged
