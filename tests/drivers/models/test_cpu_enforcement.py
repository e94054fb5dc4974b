"""What containers must look like."""

from __future__ import annotations

import pytest

from drakit.core.cpuset import CpuSet
from drakit.kit.driver import PreparedClaim, PreparedClaims, RejectedError
from drakit.testing.synthetic import CoreSpec, NumaSpec, Numbering, Surroundings, assemble, build
from tests.drivers.cpu.claims import Node, amount, claim, container, driver, prepared_claims_of, single

ADJACENT = Surroundings(numbering=Numbering.ADJACENT)
SERVER = build(sockets=2, cores=4, threads=2, surroundings=ADJACENT)  # nodes 0-7 and 8-15


def _prepared(*counts: tuple[str, int], **settings: object) -> tuple[Node, list[PreparedClaim]]:
    node = Node(driver(SERVER, **settings))
    entries = [
        node.prepare(claim(amount(device, count), uid=f"uid-{index}"))
        for index, (device, count) in enumerate(counts)
    ]
    return node, entries


def test_a_claimed_container_gets_its_cpus():
    node, (entry,) = _prepared(("cpudevnuma001", 4))
    desired = node.driver.enforce(container(entry), node.prepared_claims)
    assert str(desired.cpus) == "8-11"
    assert desired.env == {"DRA_CPUSET": "8-11", "DRA_CPUSET_uid-0": "8-11"}


def test_w17_owned_cpus_are_not_throttled_unless_told():
    node, (entry,) = _prepared(("cpudevnuma001", 4))
    assert node.driver.enforce(container(entry), node.prepared_claims).lift_quota
    node, (entry,) = _prepared(("cpudevnuma001", 4), lift_quota=False)
    assert not node.driver.enforce(container(entry), node.prepared_claims).lift_quota


def test_w18_memory_comes_from_the_cpus_nodes_unless_told():
    node, (entry,) = _prepared(("cpudevnuma001", 4))
    assert node.driver.enforce(container(entry), node.prepared_claims).mems == CpuSet([1])
    node, (entry,) = _prepared(("cpudevnuma001", 4), bind_memory=False)
    assert node.driver.enforce(container(entry), node.prepared_claims).mems is None


def test_w18_a_node_without_memory_borrows_from_its_nearest():
    machine = assemble(
        [CoreSpec(node=0), CoreSpec(node=1), CoreSpec(node=2)],
        nodes={1: NumaSpec(memory_bytes=0)},
        surroundings=Surroundings(distances={(1, 0): 30, (1, 2): 20}),
    )
    node = Node(driver(machine))
    entry = node.prepare(claim(amount("cpudevnuma001", 1)))
    assert node.driver.enforce(container(entry), node.prepared_claims).mems == CpuSet([2])


def test_memory_is_left_alone_where_no_node_is_known_to_have_any():
    machine = assemble([CoreSpec(), CoreSpec()], nodes={0: NumaSpec(memory_bytes=0)})
    node = Node(driver(machine))
    entry = node.prepare(claim(amount("cpudevnuma000", 1)))
    assert node.driver.enforce(container(entry), node.prepared_claims).mems is None


def test_several_claims_unite():
    node, entries = _prepared(("cpudevnuma000", 2), ("cpudevnuma001", 2))
    desired = node.driver.enforce(container(*entries), node.prepared_claims)
    assert str(desired.cpus) == "0-1,8-9"
    assert desired.mems == CpuSet([0, 1])
    assert desired.env == {"DRA_CPUSET": "0-1,8-9", "DRA_CPUSET_uid-0": "0-1", "DRA_CPUSET_uid-1": "8-9"}


def test_w11_a_container_that_names_one_request_gets_that_requests_cpus():
    node = Node(driver(SERVER))
    entry = node.prepare(
        claim(amount("cpudevnuma000", 2, request="a"), amount("cpudevnuma000", 3, request="b"))
    )
    one = node.driver.enforce(container(entry, request="a"), node.prepared_claims)
    other = node.driver.enforce(container(entry, request="b"), node.prepared_claims)
    both = node.driver.enforce(container(entry), node.prepared_claims)
    assert [str(desired.cpus) for desired in (one, other, both)] == ["0-1", "2-4", "0-4"]
    assert one.env["DRA_CPUSET_uid-1"] == "0-1"
    assert both.env["DRA_CPUSET_uid-1"] == "0-4"


def test_all_others_get_the_rest_and_everything_back():
    node, _ = _prepared(("cpudevnuma000", 4), reserved_cpus="15")
    plain = container(name="plain")
    before = node.driver.enforce(plain, node.prepared_claims)
    assert str(before.cpus) == "4-14"
    assert before.mems is None
    assert not before.lift_quota
    assert not before.env
    node.unprepare("uid-0")
    assert str(node.driver.enforce(plain, node.prepared_claims).cpus) == "0-14"


def test_w06_an_empty_pool_rejects_instead_of_running_anywhere():
    one = driver(build(cores=2, threads=1), min_shared_cpus=0)
    with pytest.raises(RejectedError, match="no CPU is left for container default/pod/main") as no:
        one.enforce(container(), prepared_claims_of({"all": "0-1"}))
    assert no.value.reason == "shared-pool"


def test_a_claims_cpu_that_went_offline_is_left_out():
    one = driver(build(cores=4, threads=1, offline=CpuSet([2])))
    (entry,) = prepared_claims_of({"mine": "1-2"})
    assert str(one.enforce(container(entry), PreparedClaims([entry])).cpus) == "1"
    (gone,) = prepared_claims_of({"gone": "2"})
    with pytest.raises(RejectedError, match="are offline") as no:
        one.enforce(container(gone), PreparedClaims([gone]))
    assert no.value.reason == "offline"


def test_a_claim_keeps_cpus_that_were_reserved_later():
    one = driver(build(cores=4, threads=1), reserved_cpus="0-1")
    (entry,) = prepared_claims_of({"mine": "1-2"})
    prepared_claims = PreparedClaims([entry])
    assert str(one.enforce(container(entry), prepared_claims).cpus) == "1-2"
    assert str(one.enforce(container(), prepared_claims).cpus) == "3"


def test_admin_access_keeps_its_quota():
    node = Node(driver(SERVER, cpu_device_mode="individual"))
    entry = node.prepare(claim(single(3, admin_access=True)))
    desired = node.driver.enforce(container(entry), node.prepared_claims)
    assert str(desired.cpus) == "3"
    assert not desired.lift_quota


def test_gauges_count_every_online_cpu_once():
    node, _ = _prepared(("cpudevnuma000", 3), reserved_cpus="15")
    readings = {(g.name, *dict(g.labels).values()): g.value for g in node.driver.gauges(node.prepared_claims)}
    assert readings["allocated_cpus",] == 3
    assert readings["available_cpus",] == 12
    assert readings["reserved_cpus",] == 1
    assert readings["cpus", "0", "exclusive"] == 3
    assert readings["cpus", "0", "shared"] == 5
    assert readings["cpus", "1", "allocatable"] == 7
    assert readings["cpus", "1", "reserved"] == 1
    assert readings["cpus", "1", "offline"] == 0


def test_a_second_pod_is_rejected_and_told_whose_the_claim_is() -> None:
    from drakit.core.cpuset import CpuSet
    from drakit.drivers.cpu.config import CpuConfig
    from drakit.drivers.cpu.driver import cpu_driver
    from drakit.kit.driver import (
        ClaimUse,
        ContainerView,
        PreparedClaim,
        PreparedClaims,
        PreparedDevice,
        RejectedError,
    )
    from drakit.testing.synthetic import build

    node = cpu_driver(CpuConfig(), build())
    prepared = PreparedDevice(request="r", pool="p", device="d", exclusive={"cpu": CpuSet([2, 3])})
    entry = PreparedClaim(uid="u", namespace="ns", name="c", devices=(prepared,), consumers=("one",))
    use = ClaimUse(entry, (prepared,), "one", "ns/owner")

    def container(uid: str) -> ContainerView:
        return ContainerView(id="x", name="main", pod_uid=uid, pod_name="p", namespace="ns", uses=(use,))

    assert node.enforce(container("one"), PreparedClaims([entry])).cpus == CpuSet([2, 3])
    with pytest.raises(RejectedError, match=r"belongs to pod ns/owner.*ResourceClaimTemplate"):
        node.enforce(container("two"), PreparedClaims([entry]))
