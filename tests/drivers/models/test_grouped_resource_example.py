"""The documented example of a grouped resource: offered, assigned and enforced by both drivers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drakit.core.quantity import Quantity
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.cpumem.driver import cpumem_driver
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.grouped import GroupedDriver
from drakit.kit.claims.checkpoint import entry_of
from drakit.kit.claims.conflicts import check_conflicts
from drakit.kit.driver import AllocatedDevice, Claim, PreparedClaim, PreparedClaims, RejectedError
from drakit.kit.slices.limits import check_offer
from drakit.testing.synthetic import two_socket_server
from tests.docs.pages import blocks, text_of

MI = 1 << 20


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page's code defines; its assertions hold."""
    names: dict[str, Any] = {"__name__": "scratchpad"}
    for block in blocks(text_of("docs/developers/grouped-resource.md"), "python"):
        exec(compile(block, "grouped-resource.md", "exec", dont_inherit=True), names)
    return names


def with_scratchpad(page: dict[str, Any], driver: Any) -> GroupedDriver:
    assert isinstance(driver, GroupedDriver)
    return replace(driver, resources=(*driver.resources, page["ScratchpadResource"](driver.cpus)))


def prepared(driver: GroupedDriver, held: PreparedClaims, uid: str, device: str, amount: str) -> Any:
    consumed = {
        kind.key: Quantity(amount if kind.name == "scratchpad" else 1)
        for each in driver.devices
        if each.name == device
        for kind in each.amounts
        if kind.name in ("cpu", "scratchpad")
    }
    claim = Claim(uid, "default", uid, (AllocatedDevice("main", "worker", device, uid, consumed),))
    entry = entry_of(claim, driver.assign(claim, held).devices, "boot")
    check_conflicts(entry, held, driver.offer().named("worker"))
    return entry


def test_the_cpumem_driver_accounts_for_it_by_numa_node(page: dict[str, Any]) -> None:
    driver = page["driver"]
    limits = driver.offer().limits
    assert limits["numa0/scratchpad"] == limits["numa1/scratchpad"] == 60 * MI
    entries: list[PreparedClaim] = []
    for number in range(2):
        entries.append(prepared(driver, PreparedClaims(entries), f"u{number}", "numa0", "30Mi"))
    with pytest.raises(RejectedError, match=r"needs 1Mi of dra\.cpumem/scratchpad, but only 0 are"):
        prepared(driver, PreparedClaims(entries), "u2", "numa0", "1Mi")
    assert prepared(driver, PreparedClaims(entries), "u3", "numa1", "1Mi")


@pytest.mark.parametrize("group_by", ["numanode", "socket", "machine"])
def test_it_is_offered_in_every_group_and_layout(page: dict[str, Any], group_by: Any) -> None:
    machine = two_socket_server()
    for layout in ("combined", "split"):
        config = CpuMemConfig(group_by=group_by, layout=layout)  # type: ignore[arg-type]
        driver = with_scratchpad(page, cpumem_driver(config, machine))
        capacities = [d.capacity for d in driver.offer().pools[0].devices]
        offered = [c["dra.cpumem/scratchpad"].value for c in capacities if "dra.cpumem/scratchpad" in c]
        assert sum(q.ceil() for q in offered) == 60 * MI * len(machine.numa_nodes)


def test_the_cpu_driver_can_offer_it_too(page: dict[str, Any]) -> None:
    driver = with_scratchpad(page, cpu_driver(CpuConfig(), two_socket_server()))
    entry = prepared(driver, PreparedClaims(), "u", "cpudevnuma001", "8Mi")
    assert entry.devices[0].amounts == {"numa1/scratchpad": 8 * MI}
    assert len(entry.exclusive("cpu")) == 1


def test_its_memory_is_not_bound_to_the_scratchpad_s_node(page: dict[str, Any]) -> None:
    """Only memory and hugepages decide where a container's memory is."""
    driver = page["driver"]
    share = {"dra.cpumem/scratchpad": Quantity("8Mi")}
    claim = Claim("u", "d", "c", (AllocatedDevice("main", "worker", "numa1", "s", share),))
    entry = entry_of(claim, driver.assign(claim, PreparedClaims()).devices, "boot")
    use = page["ClaimUse"](entry, entry.devices)
    container = page["ContainerView"]("id", "main", "pod", "pod", "d", uses=(use,))
    assert driver.enforce(container, PreparedClaims([entry])).mems is None


def test_it_is_not_mapped_to_a_resource_of_the_node(page: dict[str, Any]) -> None:
    config = CpuMemConfig(publish_node_allocatable_resource_mapping=True)
    driver = with_scratchpad(page, cpumem_driver(config, two_socket_server()))
    offer = driver.offer()
    check_offer(driver.name, offer.named("worker"))
    mapped = offer.pools[0].devices[0].node_allocatable_resources
    assert {"cpu", "memory"} <= set(mapped)
    assert "scratchpad" not in mapped


def test_a_numa_node_may_lack_the_resource(page: dict[str, Any]) -> None:
    class OnNode0(page["ScratchpadResource"]):  # type: ignore[misc]
        @property
        def offered(self) -> Any:
            return {0: {page["SCRATCHPAD"]: 8 * MI}}

    driver = cpumem_driver(CpuMemConfig(), two_socket_server())
    driver = replace(driver, resources=(*driver.resources, OnNode0(driver.cpus)))
    capacities = {d.name: d.capacity for d in driver.offer().pools[0].devices}
    assert capacities["numa0"]["dra.cpumem/scratchpad"].value == Quantity("8Mi")
    assert "dra.cpumem/scratchpad" not in capacities["numa1"]
    entry = prepared(driver, PreparedClaims(), "u", "numa0", "8Mi")
    assert entry.devices[0].amounts["numa0/scratchpad"] == 8 * MI
