"""Every example of dra-driver-cpumem, run on a simulated node and compared with its comment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drakit.core.cpuset import CpuSet
from drakit.testing.containers import FakeContainer
from tests.deploy.simulated import GI, MACHINE, MI, Ran, running

EXAMPLES = Path(__file__).parents[2] / "deploy/examples"
SETTINGS: dict[str, dict[str, Any]] = {"split": {"layout": "split"}}


@pytest.fixture
async def ran(request: pytest.FixtureRequest) -> AsyncIterator[Ran]:
    name: str = request.param
    async with running(EXAMPLES / f"cpumem-{name}.yaml", **SETTINGS.get(name, {})) as it:
        yield it


def example(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("ran", [name], indirect=True)


def cpus(container: FakeContainer) -> CpuSet:
    return CpuSet.parse(container.cpus)


def nodes(container: FakeContainer) -> CpuSet:
    """The NUMA nodes of a container's CPUs."""
    return CpuSet(MACHINE.nodes_of(cpus(container)))


def page_files(size: str, limit: int) -> dict[str, str]:
    return {f"hugetlb.{size}.max": str(limit), f"hugetlb.{size}.rsvd.max": str(limit)}


@example("dpdk")
async def test_dpdk_has_cores_memory_and_large_pages_of_one_node(ran: Ran) -> None:
    main = ran.containers["main"]
    assert len(cpus(main)) == 4
    assert all(MACHINE.by_id[cpu].siblings <= cpus(main) for cpu in cpus(main))
    assert str(nodes(main)) == main.mems == "0"
    assert main.resources.hugepage_limits == {"1GB": 2 * GI}
    assert main.resources.unified == {"memory.min": str(GI), **page_files("1GB", 2 * GI)}
    told = {name: main.env[name] for name in ("DRA_MEMS", "DRA_MEMORY", "DRA_HUGEPAGES_1GB")}
    assert told == {"DRA_MEMS": "0", "DRA_MEMORY": str(GI), "DRA_HUGEPAGES_1GB": str(2 * GI)}
    assert main.env["DRA_CPUSET"] == main.cpus


@example("dpdk")
async def test_the_pod_may_use_the_pages_and_no_others(ran: Ran) -> None:
    assert ran.pod_file("hugetlb.1GB.max") == ran.pod_file("hugetlb.1GB.rsvd.max") == str(2 * GI)
    assert ran.pod_file("hugetlb.2MB.max") == ran.pod_file("hugetlb.2MB.rsvd.max") == "0"


@example("database")
async def test_the_database_s_memory_is_protected_from_the_top_down(ran: Ran) -> None:
    main = ran.containers["main"]
    assert len(cpus(main)) == 2
    assert str(nodes(main)) == main.mems
    assert main.resources.unified == {"memory.min": str(3 * GI)}
    assert main.resources.memory_limit == 4 * GI
    assert not main.resources.hugepage_limits
    assert ran.pod_file("memory.min") == ran.root_file("memory.min") == str(3 * GI)
    assert ran.pod_file("memory.low") == ran.root_file("memory.low") == "0"


@example("two-nodes")
async def test_two_nodes_add_up_in_one_container(ran: Ran) -> None:
    main, near = ran.containers["main"], ran.containers["near"]
    assert [len(cpus(main) & node) for node in MACHINE.node_cpus.values()] == [4, 2, 0]
    assert main.mems == "0-1"
    assert main.resources.hugepage_limits == {"2MB": 96 * MI}
    assert main.env["DRA_MEMORY"] == str(3 * GI)
    assert len(cpus(near)) == 2
    assert str(nodes(near)) == near.mems == "1"
    assert near.resources.hugepage_limits == {"2MB": 32 * MI}


@example("two-nodes")
async def test_the_pod_of_two_nodes_has_each_request_once(ran: Ran) -> None:
    assert ran.pod_file("hugetlb.2MB.max") == str(96 * MI)


@example("split")
async def test_split_requests_meet_on_one_node(ran: Ran) -> None:
    main = ran.containers["main"]
    assert len(cpus(main)) == 2
    assert str(nodes(main)) == main.mems
    assert main.resources.hugepage_limits == {"2MB": 128 * MI}
    assert main.resources.unified == {"memory.min": str(512 * MI), **page_files("2MB", 128 * MI)}
    assert main.env["DRA_MEMORY"] == str(512 * MI)


@example("sidecar")
async def test_containers_share_a_claim_and_the_pod_counts_it_once(ran: Ran) -> None:
    shapes = {
        (each.cpus, each.mems, tuple(sorted(each.resources.unified.items())))
        for each in ran.containers.values()
    }
    assert list(ran.containers) == ["fill", "main", "observer"]
    ((_cpus, mems, files),) = shapes
    assert mems == "0"
    assert dict(files) == {"memory.min": str(GI), **page_files("2MB", 256 * MI)}
    assert ran.pod_file("memory.min") == ran.root_file("memory.min") == str(GI)
    assert ran.pod_file("hugetlb.2MB.max") == str(256 * MI)


@example("memory-only")
async def test_only_containers_that_name_the_claim_get_remote_memory(ran: Ran) -> None:
    worker, cache = ran.containers["worker"], ran.containers["cache"]
    assert len(cpus(worker)) == 2
    assert (worker.mems, cache.mems) == ("0", "2")
    assert cpus(cache).isdisjoint(cpus(worker)), "without CPUs of its own: the shared ones"
    assert cache.env["DRA_MEMORY"] == str(8 * GI)


def test_every_example_is_run() -> None:
    run = {marker.args[1][0] for test in TESTS for marker in test.pytestmark}
    assert run == {path.stem.removeprefix("cpumem-") for path in EXAMPLES.glob("cpumem-*.yaml")}


TESTS: list[Any] = [each for each in list(globals().values()) if hasattr(each, "pytestmark")]
