"""Whatever comes in whatever order: one CPU is never two claims', and everybody knows where to run."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.kit.driver import Claim, RejectedError
from drakit.kit.slices.limits import check_offer
from drakit.machine.model import Machine
from tests.drivers.cpu.claims import NODE, Node, amount, claim, container, driver, policy_config, single
from tests.drivers.cpu.machines import CROSSED, NESTED, large_machines, machines, subset

WISHES: list[dict[str, Any]] = [
    {},
    {},
    {"wholeCores": True},
    {"placement": "spread"},
    {"distribute": "numa"},
    {"sameL3": "required"},
]


def _grouped_claim(node: Node, rng: random.Random, uid: str) -> Claim:
    devices = [device.name for device in node.offer.pools[0].devices]
    allocated_devices = []
    for number in range(rng.randint(1, 2)):
        config = policy_config(**rng.choice(WISHES))
        count = rng.randint(1, 6)
        if rng.random() < 0.1:
            cpus = CpuSet(rng.sample(list(node.driver.cpus.machine.present), 1))
            config, count = policy_config(cpuset=str(cpus)), 1
        allocated_devices.append(
            amount(rng.choice(devices), count, config, request=f"r{number}", share_id=f"{uid}{number}")
        )
    return claim(*allocated_devices, uid=uid)


def _individual_claim(node: Node, rng: random.Random, uid: str) -> Claim:
    cpus = list(node.driver.cpus.machine.present)
    chosen = rng.sample(cpus, min(len(cpus), rng.randint(1, 4)))
    return claim(*(single(cpu, request=f"r{cpu % 2}") for cpu in chosen), uid=uid)


def _check(node: Node) -> None:
    """The promises, from the point of view of containers."""
    cpus, prepared_claims = node.driver.cpus, node.prepared_claims
    pool = node.driver.enforce(container(), prepared_claims).cpus
    assert pool is not None
    assert len(pool) >= cpus.config.min_shared_cpus
    seen = pool
    for entry in node.entries.values():
        desired = node.driver.enforce(container(entry), prepared_claims)
        assert desired.cpus is not None
        assert desired.cpus.isdisjoint(seen)
        assert desired.cpus.isdisjoint(cpus.reserved)
        assert desired.mems == cpus.machine.nodes_of(desired.cpus)
        seen |= desired.cpus
        parts = [
            node.driver.enforce(container(entry, request=request), prepared_claims).cpus
            for request in {prepared.request for prepared in entry.devices}
        ]
        assert sum(len(part or ()) for part in parts) == len(desired.cpus)
    assert seen == cpus.allocatable


def _walk(node: Node, rng: random.Random, make: Any, steps: int) -> None:
    _check(node)
    for step in range(steps):
        if node.entries and rng.random() < 0.4:
            node.unprepare(rng.choice(list(node.entries)))
        else:
            try:
                node.prepare(make(node, rng, f"uid-{step}"))
            except RejectedError as no:
                # The kit's guard must find nothing: the driver itself knows better.
                assert no.reason != "conflict" or "held by claim" in str(no)
        _check(node)


@given(
    st.data(),
    st.one_of(machines(cpus=30, nestings=(*NESTED, CROSSED)), large_machines()),
    st.integers(0, 2**32),
    st.sampled_from(["numanode", "socket", "machine"]),
    st.booleans(),
)
def test_grouped(data: st.DataObject, machine: Machine, seed: int, group_by: str, hold_back: bool):
    reserved = data.draw(subset(machine.present)) if data.draw(st.booleans()) else CpuSet()
    least = data.draw(st.integers(1, 3))
    one = driver(
        machine,
        group_by=group_by,
        reserved_cpus=str(reserved),
        min_shared_cpus=least,
        hold_back_shared=hold_back,
    )
    if len(one.cpus.offered) < 1 or len(one.cpus.allocatable) < least:
        assert one.cpus.warnings
        return
    _walk(Node(one), random.Random(seed), _grouped_claim, 12)


@given(st.data(), machines(cpus=30), st.integers(0, 2**32), st.booleans())
def test_individual(data: st.DataObject, machine: Machine, seed: int, hold_back: bool):
    reserved = data.draw(subset(machine.present)) if data.draw(st.booleans()) else CpuSet()
    one = driver(
        machine, cpu_device_mode="individual", reserved_cpus=str(reserved), hold_back_shared=hold_back
    )
    if len(one.cpus.allocatable) < 1:
        assert one.cpus.warnings
        return
    _walk(Node(one), random.Random(seed), _individual_claim, 12)


@given(
    st.data(),
    st.one_of(machines(cpus=30, nestings=(*NESTED, CROSSED)), large_machines()),
    st.sampled_from(["grouped", "individual"]),
    st.sampled_from(["numanode", "socket", "machine"]),
)
def test_the_api_server_would_accept_every_offer(
    data: st.DataObject, machine: Machine, mode: str, group_by: str
):
    reserved = data.draw(subset(machine.present))
    one = driver(
        machine,
        cpu_device_mode=mode,
        group_by=group_by,
        reserved_cpus=str(reserved),
        expose_pcie_roots=True,
        publish_node_allocatable_resource_mapping=True,
    )
    check_offer(one.name, one.offer().named(NODE))


@given(machines(cpus=20), st.integers(0, 2**32))
def test_equal_questions_get_equal_answers(machine: Machine, seed: int):
    first, second = Node(driver(machine)), Node(driver(machine))
    assert first.offer == second.offer
    for step in range(5):
        wanted = _grouped_claim(first, random.Random(seed + step), f"uid-{step}")
        answers = []
        for node in (first, second):
            try:
                answers.append(node.prepare(wanted).devices)
            except RejectedError as no:
                answers.append(str(no))
        assert answers[0] == answers[1]
