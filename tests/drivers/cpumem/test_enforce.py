"""What containers must look like."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drakit.core.cpuset import CpuSet
from drakit.kit.driver import AllocatedDevice, DesiredResources, RejectedError
from drakit.machine.model import CgroupMode, Cgroups, Machine
from drakit.testing.synthetic import build
from tests.drivers.cpumem.amounts import GI, MI, SERVER, Node, container, driver, pool, share

GUARANTEED = "/kubepods/podpod"
BURSTABLE = "/kubepods/burstable/podpod"


def limits_in_files(desired: DesiredResources) -> dict[str, str]:
    return {file: value for file, value in desired.unified.items() if file.startswith("hugetlb.")}


def both(size: str, limit: int) -> dict[str, str]:
    return {f"hugetlb.{size}.max": str(limit), f"hugetlb.{size}.rsvd.max": str(limit)}


def test_a_claim_becomes_cpus_memory_nodes_and_page_limits():
    node = Node(driver())
    entry = node.prepare(share("numa1", cpu=2, memory="256Mi", hugepages2Mi="32Mi"))
    desired = node.desired(container(entry))
    assert desired.cpus == entry.exclusive("cpu")
    assert desired.mems == CpuSet([1])
    assert desired.lift_quota
    assert desired.hugepage_limits == {"2MB": 32 * MI}
    assert desired.unified == both("2MB", 32 * MI)
    assert desired.memory_limit is None
    assert {k: v for k, v in desired.env.items() if "uid" not in k} == {
        "DRA_CPUSET": str(desired.cpus),
        "DRA_MEMORY": str(256 * MI),
        "DRA_MEMS": "1",
        "DRA_HUGEPAGES_2MB": str(32 * MI),
    }


def test_vector_4_two_nodes_in_one_claim():
    node = Node(driver())
    entry = node.prepare(share("numa0", "a", hugepages2Mi="64Mi"), share("numa1", "b", hugepages2Mi="32Mi"))
    desired = node.desired(container(entry))
    assert str(desired.mems) == "0-1"
    assert desired.hugepage_limits == {"2MB": 96 * MI}
    one = node.desired(container(entry, request="b"))
    assert (str(one.mems), one.hugepage_limits) == ("1", {"2MB": 32 * MI})


def test_vector_5_classic_pages_are_left_alone_beside_a_claim_of_memory():
    """The peer sets every size it knows to 0; this container asks for 256 Mi in the classic way."""
    node = Node(driver())
    entry = node.prepare(share("numa0", memory="1Gi"))
    desired = node.desired(container(entry, classic={"2MB": 256 * MI, "1GB": 0}))
    assert desired.hugepage_limits == {}
    assert limits_in_files(desired) == {}


def test_classic_and_claimed_pages_of_one_size_add_up():
    node = Node(driver())
    first = node.prepare(share("numa0", hugepages2Mi="32Mi"), uid="first")
    second = node.prepare(share("numa0", hugepages2Mi="2Mi"), uid="second")
    desired = node.desired(container(first, second, classic={"2MB": 256 * MI, "1GB": GI}))
    assert desired.hugepage_limits == {"2MB": 290 * MI}
    assert limits_in_files(desired) == both("2MB", 290 * MI)


def test_page_limits_can_be_turned_off():
    node = Node(driver(hugepage_limits=False))
    desired = node.desired(container(node.prepare(share("numa0", hugepages2Mi="32Mi"))))
    assert (desired.hugepage_limits, limits_in_files(desired)) == ({}, {})
    assert desired.mems == CpuSet([0])


def test_page_limits_are_the_kubelet_s_where_claims_are_counted_as_the_node_s():
    node = Node(driver(publish_node_allocatable_resource_mapping=True))
    entry = node.prepare(share("numa0", hugepages2Mi="32Mi"))
    desired = node.desired(container(entry, classic={"2MB": 32 * MI}))
    assert (desired.hugepage_limits, limits_in_files(desired)) == ({}, {})


@pytest.mark.parametrize(
    ("machine", "files"),
    [
        (SERVER, {"hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"}),
        (replace(SERVER, kernel_release="5.6.19"), {"hugetlb.2MB.max"}),
        (replace(SERVER, kernel_release="unknown"), {"hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"}),
        (replace(SERVER, cgroups=Cgroups(CgroupMode.V1)), set()),
        (
            replace(
                SERVER, cgroups=Cgroups(CgroupMode.V2, "/c", controllers=frozenset({"cpuset", "memory"}))
            ),
            set(),
        ),
    ],
    ids=["new", "without rsvd", "unknown kernel", "cgroup v1", "without the controller"],
)
def test_only_files_that_the_kernel_has_are_named(machine: Machine, files: set[str]):
    """Each that it has not would fail the container's creation."""
    node = Node(driver(machine))
    desired = node.desired(container(node.prepare(share("numa0", hugepages2Mi="2Mi"))))
    assert set(desired.unified) == files
    assert desired.hugepage_limits == {"2MB": 2 * MI}


# -- which CPUs, which memory --------------------------------------------------------------------


def test_without_claims_the_shared_pool_and_nothing_else():
    node = Node(driver())
    entry = node.prepare(share("numa0", cpu=2, memory="1Gi"))
    assert node.desired(container(classic={"2MB": MI})) == DesiredResources(
        cpus=SERVER.online - entry.exclusive("cpu")
    )


def test_a_claim_without_cpus_stays_in_the_shared_pool():
    node = Node(driver())
    node.prepare(share("numa0", cpu=2), uid="cpus")
    entry = node.prepare(share("numa1", memory="1Gi"), uid="memory")
    desired = node.desired(container(entry))
    assert desired.cpus == node.desired().cpus
    assert desired.mems == CpuSet([1])
    assert not desired.lift_quota
    assert "DRA_CPUSET" not in desired.env


def test_cpus_alone_bring_the_memory_near_them():
    node = Node(driver())
    entry = node.prepare(share("numa3", cpu=2))
    assert node.desired(container(entry)).mems == CpuSet([3])


def test_memory_elsewhere_is_used_instead_of_that_near_the_cpus():
    node = Node(driver(layout="split"))
    entry = node.prepare(share("cpu-numa0", "cpus", cpu=2), share("memory-numa4", "memory", memory="1Gi"))
    assert node.desired(container(entry)).mems == CpuSet([4])
    assert node.desired(container(entry, request="cpus")).mems == CpuSet([0])


def test_pages_elsewhere_are_used_beside_the_memory_near_the_cpus():
    node = Node(driver(layout="split"))
    entry = node.prepare(
        share("cpu-numa0", "cpus", cpu=2), share("hugepages-2mi-numa4", "p", hugepages2Mi="2Mi")
    )
    assert str(node.desired(container(entry)).mems) == "0,4"


def test_memory_need_not_be_bound():
    node = Node(driver(bind_memory=False))
    assert node.desired(container(node.prepare(share("numa0", cpu=1, memory="1Gi")))).mems is None


def test_memory_that_has_gone_is_not_named():
    node = Node(driver(build(sockets=2, cores=2, hugepages=[pool("2Mi", 9)])))
    entry = node.prepare(share("numa1", memory="1Gi"), share("numa0", memory="2Mi"))
    node.driver = driver(build(sockets=1, cores=2))
    assert node.desired(container(entry)).mems == CpuSet([0])
    node.driver = driver(build(sockets=1, cores=2, memory_per_node=0))
    with pytest.raises(RejectedError, match="memory of NUMA nodes 0-1"):
        node.desired(container(entry))


def test_cpus_of_another_driver_are_not_touched():
    node = Node(driver(manage_cpus=False))
    entry = node.prepare(share("numa0", memory="1Gi"))
    assert node.desired().cpus is None
    assert node.desired(container(entry)) == DesiredResources(
        mems=CpuSet([0]), env={"DRA_MEMORY": str(GI), "DRA_MEMS": "0"}
    )


def test_administrators_get_no_limits():
    node = Node(driver())
    entry = node.prepare(AllocatedDevice("r", "worker", "numa0", "share", admin_access=True))
    desired = node.desired(container(entry, owner="another"))
    assert desired.cpus == SERVER.node_cpus[0]
    assert desired.mems == CpuSet([0])
    assert (desired.hugepage_limits, desired.unified, desired.lift_quota) == ({}, {}, False)


def test_another_pod_is_rejected():
    node = Node(driver())
    entry = node.prepare(share("numa0", memory="1Gi"))
    with pytest.raises(RejectedError, match="belongs to pod default/owner") as rejected:
        node.desired(container(entry, owner="owner", pod="thief"))
    assert rejected.value.reason == "foreign-claim"


def test_containers_of_one_pod_share_a_claim():
    node = Node(driver())
    entry = node.prepare(share("numa0", cpu=2, memory="1Gi", hugepages2Mi="2Mi"))
    main, sidecar = container(entry), replace(container(entry), id="another", name="sidecar")
    assert node.desired(main) == node.desired(sidecar)


# -- memory protection -----------------------------------------------------------------------------


@pytest.mark.parametrize(("parent", "file"), [(GUARANTEED, "memory.min"), (BURSTABLE, "memory.low")])
def test_claimed_memory_is_protected(parent: str, file: str):
    node = Node(driver())
    entry = node.prepare(share("numa0", memory="1Gi", hugepages2Mi="2Mi"))
    desired = node.desired(container(entry, cgroup_parent=parent))
    assert desired.unified == {file: str(GI), **both("2MB", 2 * MI)}


def test_protection_can_be_turned_off():
    node = Node(driver(memory_qos="off"))
    entry = node.prepare(share("numa0", memory="1Gi"))
    assert node.desired(container(entry, cgroup_parent=GUARANTEED)).unified == {}


def test_without_a_pod_s_cgroup_nothing_is_protected():
    node = Node(driver())
    entry = node.prepare(share("numa0", memory="1Gi", hugepages2Mi="2Mi"))
    assert node.desired(container(entry)).unified == both("2MB", 2 * MI)


def test_charged_pages_raise_the_memory_limit():
    charged = replace(SERVER, cgroups=replace(SERVER.cgroups, memory_hugetlb_accounting=True))
    node = Node(driver(charged))
    entry = node.prepare(share("numa0", hugepages2Mi="32Mi"))
    assert node.desired(container(entry, memory_limit=GI)).memory_limit == GI + 32 * MI
    assert node.desired(container(entry)).memory_limit is None
