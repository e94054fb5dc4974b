"""The kernel's files: of a tree on disk, and of this machine where it lets us."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from drakit.cgroups.values import parse_numa_stat
from drakit.drivers.cpumem.hugepages.configured import configured_pools, machine_and_growth
from drakit.drivers.cpumem.hugepages.files import SysfsPools
from drakit.drivers.cpumem.hugepages.pools import HugepagePools, nothing_withheld
from drakit.drivers.cpumem.hugepages.record import PoolRecord
from drakit.drivers.cpumem.hugepages.settings import HugepageSettings, PageCounts, PoolKey
from drakit.drivers.cpumem.hugepages.usage import used_from_cgroups
from drakit.drivers.cpumem.kinds import DRIVER
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.driver import ClaimUse, ContainerView, Driver, PreparedClaim, PreparedClaims, PreparedDevice
from drakit.kit.reconciler import PodView
from drakit.machine.discover import discover
from drakit.machine.model import HugepagePool
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree

MI = 1 << 20
REAL = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"


def tree(root: Path) -> None:
    made = build(sockets=2, cores=1)
    pools = (HugepagePool(2 * MI, 100, 40, 3),)
    nodes = tuple(replace(n, memory_bytes=8 << 30, hugepages=pools) for n in made.numa_nodes)
    write_tree(replace(made, numa_nodes=nodes), str(root))


def test_pools_are_read_and_written_below_any_root(tmp_path: Path) -> None:
    tree(tmp_path)
    files = SysfsPools(str(tmp_path))
    key = PoolKey(1, 2 * MI)
    assert files.read(key) == HugepagePool(2 * MI, 100, 40, 3)
    files.write(key, 7)
    place = tmp_path / "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
    assert place.read_text() == "7"
    assert files.read(PoolKey(0, 2 * MI)).total == 100


def test_slices_follow_what_was_obtained(tmp_path: Path) -> None:
    tree(tmp_path)
    settings = HugepageSettings(pools=PageCounts.parse("0:2Mi=300"))
    record = PoolRecord(str(tmp_path / "state"), "boot")
    HugepagePools(settings, discover(str(tmp_path)), SysfsPools(str(tmp_path)), record).set_static_sizes()
    assert [n.hugepages[0].total for n in discover(str(tmp_path)).numa_nodes] == [300, 100]


def test_a_pool_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path)
    with pytest.raises(FileNotFoundError):
        SysfsPools(str(tmp_path)).read(PoolKey(1, 1 << 30))
    place = tmp_path / "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
    place.write_text("many\n")
    with pytest.raises(OSError, match="does not contain a number"):
        SysfsPools(str(tmp_path)).read(PoolKey(1, 2 * MI))


def test_compaction_is_per_node_or_of_the_machine(tmp_path: Path) -> None:
    tree(tmp_path)
    node = tmp_path / "sys/devices/system/node/node0/compact"
    whole = tmp_path / "proc/sys/vm/compact_memory"
    whole.parent.mkdir(parents=True, exist_ok=True)
    whole.write_text("")
    SysfsPools(str(tmp_path)).compact(0)
    assert whole.read_text() == "1"
    whole.write_text("")
    node.write_text("")
    SysfsPools(str(tmp_path)).compact(0)
    assert (node.read_text(), whole.read_text()) == ("1", "")


def test_a_kernel_without_nodes_has_the_pools_of_the_machine(tmp_path: Path) -> None:
    place = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB"
    place.mkdir(parents=True)
    for name, count in (("nr", 5), ("free", 4), ("surplus", 0)):
        (place / f"{name}_hugepages").write_text(f"{count}\n")
    assert SysfsPools(str(tmp_path)).read(PoolKey(0, 2 * MI)) == HugepagePool(2 * MI, 5, 4)


def test_usage_is_read_from_the_cgroups_of_claimants(tmp_path: Path) -> None:
    assert parse_numa_stat("total=6291456 N0=4194304 N1=2097152\n") == {0: 4 * MI, 1: 2 * MI}
    assert parse_numa_stat("nonsense N=1 N0= Nx=3") == {}
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    for name in ("with", "without"):
        place = tmp_path / "kubepods" / name
        place.mkdir(parents=True)
        (place / "hugetlb.2MB.numa_stat").write_text("total=6291456 N0=4194304 N1=2097152\n")
    entry = PreparedClaim(uid="u", namespace="d", name="c", devices=())
    containers = tuple(
        ContainerView(name, name, "p", "p", "d", uses=uses, cgroup_path=f"/kubepods/{name}")
        for name, uses in (("with", (ClaimUse(entry, ()),)), ("without", ()))
    )
    used = used_from_cgroups(str(tmp_path), [2 * MI, 1 << 30])
    assert used([PodView("p", "p", "d", containers=containers)]) == {
        PoolKey(0, 2 * MI): 2,
        PoolKey(1, 2 * MI): 1,
    }


@pytest.fixture
def real_pool() -> Iterator[int]:
    """The pool of this machine, put back afterwards; the test is skipped where we may not."""
    try:
        with open(REAL, encoding="ascii") as file:
            before = int(file.read())
        with open(REAL, "w", encoding="ascii") as file:
            file.write(str(before))
    except OSError as error:
        pytest.skip(f"this machine's hugepages cannot be changed: {error}")
    yield before
    with open(REAL, "w", encoding="ascii") as file:
        file.write(str(before))


def test_real_pages_are_made_and_given_back(tmp_path: Path, real_pool: int) -> None:
    key = PoolKey(0, 2 * MI)
    settings = HugepageSettings(pools=PageCounts.parse(f"0:2Mi={real_pool + 4}"))
    files = SysfsPools()
    pools = HugepagePools(settings, discover(), files, PoolRecord(str(tmp_path), "now"))
    short = pools.set_static_sizes()
    if short:
        pytest.skip(f"the kernel gave {short[0]}")
    assert files.read(key).total == real_pool + 4
    lower = HugepageSettings(pools=PageCounts.parse(f"0:2Mi={real_pool}"))
    HugepagePools(lower, discover(), files, PoolRecord(str(tmp_path), "now")).set_static_sizes()
    assert files.read(key).total == real_pool
    assert os.path.exists(tmp_path / "hugepages.json")


async def test_the_pools_of_a_configuration(tmp_path: Path) -> None:
    """Grown pages move from the budget into the pool; what is offered of both stays the same."""
    tree(tmp_path)
    config = CpuMemConfig(
        sysfs_root=str(tmp_path),
        kubelet_root_dir=str(tmp_path / "kubelet"),
        cgroup_root=str(tmp_path / "cgroup"),
        hugepage_growth="1:2Mi=8",
    )
    pools = configured_pools(config, nothing_withheld)
    assert machine_and_growth(config)[1] == {1: {2 * MI: 8}}
    prepared = PreparedDevice(
        request="r", pool="n", device="numa1", amounts={"numa1/hugepages2Mi": 102 * 2 * MI}
    )
    entry = PreparedClaim(uid="u", namespace="d", name="c", devices=(prepared,))
    place = tmp_path / "sys/devices/system/node/node1/hugepages/hugepages-2048kB"
    (place / "surplus_hugepages").write_text("0\n")
    (place / "free_hugepages").write_text("102\n")
    await pools.provision(cast("Driver", None), entry, PreparedClaims())
    machine, growth = machine_and_growth(config)
    assert machine.numa_nodes[1].hugepages[0].total == 102
    assert growth == {1: {2 * MI: 6}}
    assert Checkpoint(config.checkpoint_dir(DRIVER)).load().entries == {}  # ours is no claim's record
    await pools.restore()
    assert machine_and_growth(config)[1] == {1: {2 * MI: 8}}
