"""What ``/metrics`` tells of capacity and claims."""

from __future__ import annotations

from drakit.kit.driver import PreparedClaims
from tests.drivers.cpu import claims as cpu_claims
from tests.drivers.cpumem.amounts import GI, MI, SERVER, Node, driver, share


def told(node: Node, name: str) -> dict[tuple[str, str], float]:
    """By NUMA node and kind."""
    return {
        (dict(gauge.labels)["numa_node"], dict(gauge.labels)["kind"]): gauge.value
        for gauge in node.driver.gauges(node.prepared_claims)
        if gauge.name == name
    }


def test_capacity_and_claims_by_node_and_kind():
    node = Node(driver(reserved_cpus="0"))
    node.prepare(share("numa1", cpu=3, memory="1Gi", hugepages2Mi="64Mi"))
    capacity, claimed = told(node, "capacity"), told(node, "claimed")
    assert capacity.keys() == claimed.keys()
    assert capacity["0", "cpu"] == 7
    assert capacity["4", "memory"] == 13 * GI
    assert {key: n for key, n in claimed.items() if n} == {
        ("1", "cpu"): 3,
        ("1", "memory"): GI,
        ("1", "hugepages2Mi"): 64 * MI,
    }


def test_cpus_by_state_are_told_as_the_cpu_driver_does():
    names = {gauge.name for gauge in driver().gauges(PreparedClaims())}
    assert names == {
        "capacity",
        "claimed",
        "cpus",
        *(f"{w}_cpus" for w in ("allocated", "available", "reserved")),
    }
    without = {gauge.name for gauge in driver(manage_cpus=False).gauges(PreparedClaims())}
    assert without == {"capacity", "claimed"}


def test_the_cpu_driver_has_none_of_these():
    names = {gauge.name for gauge in cpu_claims.driver(SERVER).gauges(PreparedClaims())}
    assert names.isdisjoint({"capacity", "claimed"})
