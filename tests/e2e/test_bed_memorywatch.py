"""The memory watch reports violations and nothing else; needs no machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.e2e.bed.memorywatch import MemoryReport, watching_memory
from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import wait_for
from tests.e2e.test_bed_watch import POD_CGROUPS, Here

MI = 1 << 20


class Tree:
    """Directories that look like NUMA nodes and the cgroups of pods."""

    def __init__(self, root: Path, place: str) -> None:
        self._pods, self._nodes, self._place = root / "kubepods", root / "node", place
        self._pods.mkdir()
        for number in (0, 1):
            pool = self._nodes / f"node{number}" / "hugepages" / "hugepages-2048kB"
            pool.mkdir(parents=True)
            (pool / "nr_hugepages").write_text("64\n")
            total = f"Node {number} MemTotal:     {1024 * 1024} kB\n"
            (self._nodes / f"node{number}" / "meminfo").write_text(total)

    def pod(self, name: str, mems: str, *, memory: int = 0, pages: int = 0, used: str = "") -> None:
        """A pod bound to NUMA nodes, with guarantees and used pages in kernel notation."""
        identity = (name.encode().hex() + "0" * 64)[:64]
        container = self._pods / self._place.format(pod=name, id=identity)
        container.mkdir(parents=True)
        directory = container.parent
        (container / "cgroup.procs").write_text("1\n")
        (container / "cpuset.mems").write_text(f"{mems}\n")
        (directory / "hugetlb.2MB.numa_stat").write_text(f"total=0 {used}\n")
        (directory / "hugetlb.2MB.max").write_text(f"{pages * 2 * MI}\n")
        (directory / "memory.low").write_text("0\n")
        (directory / "memory.min").write_text(f"{memory}\n")

    @contextmanager
    def watched(self) -> Iterator[MemoryReport]:
        """Observations of a watch in two complete passes."""
        here = cast("Node", Here())
        with watching_memory(here, str(self._pods), str(self._nodes)) as watch:
            wait_for("two looks", lambda: watch.report().looks >= 2, limit=30)
            yield watch.report()


@pytest.fixture(params=POD_CGROUPS.values(), ids=POD_CGROUPS.keys())
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    return Tree(tmp_path, request.param)


def test_guarantees_that_fit_are_accepted(tree: Tree) -> None:
    tree.pod("a", "0", memory=500 * MI, pages=40, used="N0=4096 N1=0")
    tree.pod("b", "1", memory=800 * MI, pages=64)
    tree.pod("c", "0-1", memory=396 * MI, pages=24)
    tree.pod("unclaimed", "", memory=900 * MI)
    with tree.watched() as report:
        report.check()
        assert report.pods == 3
        assert report.most == {"memory": 1696 * MI, "hugepages": 128 * 2 * MI}


@pytest.mark.parametrize(
    ("mems", "memory", "pages", "said"),
    [
        ("0", 0, 25, r"nodes \[0\] have \d+ bytes of hugepages"),
        ("0", 500 * MI, 0, r"nodes \[0\] have \d+ bytes of memory"),
        ("0-1", 900 * MI, 0, r"nodes \[0, 1\] have \d+ bytes of memory"),
    ],
)
def test_an_overcommitted_node_is_reported(tree: Tree, mems: str, memory: int, pages: int, said: str) -> None:
    tree.pod("a", "0", memory=500 * MI, pages=40)
    tree.pod("b", "1", memory=400 * MI, pages=64)
    tree.pod("c", mems, memory=memory, pages=pages)
    with tree.watched() as report, pytest.raises(AssertionError, match=said):
        report.check()


def test_pages_on_a_foreign_node_are_reported(tree: Tree) -> None:
    tree.pod("a", "0", pages=40, used="N0=0 N1=2097152")
    with tree.watched() as report, pytest.raises(AssertionError, match=r"has pages of \[1\]"):
        report.check()
