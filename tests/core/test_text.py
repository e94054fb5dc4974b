from __future__ import annotations

import pytest

from drakit.core.cpuset import CpuSet
from drakit.core.text import count, cpu_list, human_bytes, shortened

MIB = 1 << 20


def test_human_bytes() -> None:
    sizes = [0, 512, 1024, 36 * MIB, 1023 * MIB, 1024 * MIB, int(31.34 * 1024 * MIB), 5 * 2**60]
    assert [human_bytes(size) for size in sizes] == [
        "0 B", "512 B", "1 KiB", "36 MiB", "1023 MiB", "1 GiB", "31.3 GiB", "5120 PiB",
    ]  # fmt: skip


@pytest.mark.parametrize(("number", "text"), [(0, "0 devices"), (1, "1 device"), (2, "2 devices")])
def test_only_one_is_singular(number: int, text: str) -> None:
    assert count(number, "device") == text


@pytest.mark.parametrize(("cpus", "text"), [("", "no CPUs"), ("3", "CPU 3"), ("0-3", "CPUs 0-3")])
def test_a_single_cpu_is_singular(cpus: str, text: str) -> None:
    assert cpu_list(CpuSet.parse(cpus)) == text


def test_only_the_number_of_the_rest_follows_the_first_names() -> None:
    assert shortened(["a", "b"], most=2) == "a, b"
    assert shortened(["a", "b", "c", "d"], most=2) == "a, b, … 2 more"
