"""What is configured, and what it means on a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.drivers.cpumem.hugepages.settings import (
    HugepageSettings,
    PageCounts,
    PoolKey,
    budget,
    configuration_warnings,
    static_pools,
)
from drakit.drivers.cpumem.hugepages.sizes import kernel_size_name, parse_size, size_name
from drakit.machine.model import HugepagePool, Machine
from drakit.testing.synthetic import build

MI, GI = 1 << 20, 1 << 30


def machine(*pools: tuple[HugepagePool, ...], memory: int = 64 * GI) -> Machine:
    made = build(sockets=len(pools), cores=1)
    nodes = tuple(
        replace(node, memory_bytes=memory, hugepages=pages)
        for node, pages in zip(made.numa_nodes, pools, strict=True)
    )
    return replace(made, numa_nodes=nodes)


TWO_NODES = machine((HugepagePool(2 * MI, 0, 0), HugepagePool(GI, 0, 0)), (HugepagePool(2 * MI, 0, 0),))


@given(st.integers(10, 40))
def test_a_size_is_read_as_it_is_spelt(power: int) -> None:
    size = 1 << power
    assert parse_size(size_name(size)) == size
    assert parse_size(kernel_size_name(size)) == size
    assert parse_size(f"{size // 1024}kB") == size


def test_sizes_are_spelt_as_kubernetes_and_the_kernel_do() -> None:
    assert [size_name(s) for s in (64 << 10, 2 * MI, 32 * MI, GI, 16 * GI)] == [
        "64Ki",
        "2Mi",
        "32Mi",
        "1Gi",
        "16Gi",
    ]
    assert [kernel_size_name(s) for s in (64 << 10, 2 * MI, GI)] == ["64KB", "2MB", "1GB"]


@pytest.mark.parametrize("text", ["", "Mi", "3Mi", "0Gi", "2Ti", "-2Mi", "2Mi "[:-1] + "x"])
def test_what_is_no_page_size_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="page size"):
        parse_size(text)


def test_pages_are_named_by_node_and_size() -> None:
    counts = PageCounts.parse("0:2Mi=512, hugepages-1Gi=4; 2-3:2M=7; *:2Mi=1")
    assert counts.of(0) == {2 * MI: 512, GI: 4}
    assert counts.of(2) == counts.of(3) == {2 * MI: 7}
    assert counts.of(1) == counts.of(99) == {2 * MI: 1}
    assert not PageCounts.parse(" ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2Mi=512", "names no NUMA node"),
        (":2Mi=512", "names no NUMA node"),
        ("x:2Mi=512", "'x:2Mi=512'"),
        ("0:2Mi", "not SIZE=PAGES"),
        ("0:2Mi=-1", "not SIZE=PAGES"),
        ("0:2Mi=1Gi", "not SIZE=PAGES"),
        ("0:3Mi=1", "power of two"),
        ("0:2Mi=1,2048kB=2", "twice"),
        ("0:2Mi=1;0-1:2Mi=2", "NUMA node 0 is given twice"),
        ("*:2Mi=1;*:2Mi=2", "twice"),
        ("0:2Mi=99999999999", "more than any machine"),
    ],
)
def test_a_mistake_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PageCounts.parse(text)


def test_only_pools_that_the_machine_has_are_set() -> None:
    settings = HugepageSettings(pools=PageCounts.parse("*:2Mi=8,1Gi=1;7:2Mi=1"))
    assert static_pools(settings, TWO_NODES) == {
        PoolKey(0, 2 * MI): 8,
        PoolKey(0, GI): 1,
        PoolKey(1, 2 * MI): 8,
    }


def test_settings_that_do_not_fit_the_machine_are_reported() -> None:
    settings = HugepageSettings(
        pools=PageCounts.parse("7:2Mi=1;1:1Gi=1"), growth=PageCounts.parse("0:1Gi=65")
    )
    said = list(configuration_warnings(settings, TWO_NODES))
    assert len(said) == 3
    assert "NUMA node 7, which this machine does not have" in said[0]
    assert "1Gi pages on NUMA node 1" in said[1]
    assert "65Gi on NUMA node 0, which has 65536Mi" in said[2]
    assert not list(configuration_warnings(HugepageSettings(pools=PageCounts.parse("*:2Mi=1")), TWO_NODES))


@given(
    configured=st.integers(0, 40_000),
    grown=st.integers(0, 40_000),
    standing=st.integers(0, 1000),
    memory=st.integers(1, 64),
)
def test_growing_changes_neither_the_pages_nor_the_memory_offered(
    configured: int, grown: int, standing: int, memory: int
) -> None:
    """Design: the budget is subtracted from memory beforehand, and a page is promised once."""
    fits = max(0, memory * GI - standing * 2 * MI) // (2 * MI)
    grown = min(grown, configured, fits)
    settings = HugepageSettings(growth=PageCounts.parse(f"0:2Mi={configured}"))

    def offered(pages: int) -> tuple[int, int]:
        total = standing + pages
        now = machine((HugepagePool(2 * MI, total, total),), memory=memory * GI)
        left = budget(settings, now, {PoolKey(0, 2 * MI): pages})[0][2 * MI]
        assert left * 2 * MI <= now.numa_nodes[0].usable_bytes
        return total + left, now.numa_nodes[0].usable_bytes - left * 2 * MI

    if standing * 2 * MI <= memory * GI:
        assert offered(grown) == offered(0)


def test_a_budget_beyond_the_memory_is_cut_and_shared_by_the_sizes() -> None:
    settings = HugepageSettings(growth=PageCounts.parse("*:2Mi=20480,1Gi=100"))
    assert budget(settings, TWO_NODES) == {0: {2 * MI: 20480, GI: 24}, 1: {2 * MI: 20480}}
    assert budget(HugepageSettings(), TWO_NODES) == {}
