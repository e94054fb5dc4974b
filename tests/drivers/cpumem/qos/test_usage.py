"""Usage by NUMA node, from texts as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

from drakit.drivers.cpumem.qos.usage import read_usage

MEMORY = """\
anon N0=4096 N1=8192
file N0=100 N1=0
kernel_stack N0=16 N1=0
pagetables N0=1 N1=0
shmem N0=77777 N1=0
file_mapped N0=55555 N1=0
slab_reclaimable N0=2 N1=0
slab_unreclaimable N0=3 N1=0
"""
EVENTS = "low 1\nhigh 42\nmax 3\noom 0\noom_kill 0\n"


def test_parts_add_up_and_are_not_counted_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.numa_stat").write_text(MEMORY)
        (tmp_path / name / "memory.events").write_text(EVENTS)
        (tmp_path / name / "hugetlb.2MB.numa_stat").write_text("total=4194304 N0=4194304 N1=0\n")
    usage = read_usage(str(tmp_path), ["a", "b", "gone"], ["2MB", "1GB"])
    assert usage.used == {
        (0, "memory"): 2 * (4096 + 100 + 16 + 1 + 2 + 3),
        (1, "memory"): 2 * 8192,
        (0, "hugepages2Mi"): 2 * 4194304,
        (1, "hugepages2Mi"): 0,
    }
    assert usage.throttled == {"a": 42, "b": 42}


def test_odd_texts_count_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "memory.numa_stat").write_text("anon\n\nfile N=3 Nx=4\n")
    (tmp_path / "a" / "memory.events").write_text("high many\n")
    usage = read_usage(str(tmp_path), ["a"], [])
    assert (dict(usage.used), dict(usage.throttled)) == ({}, {})
