"""Whatever comes in whatever order: nothing of any kind is given twice, and every sum is exact."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.drivers.cpumem.driver import cpumem_driver
from drakit.drivers.cpumem.hugepages.sizes import kernel_size_name
from drakit.drivers.cpumem.kinds import CPU
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.driver import AllocatedDevice, RejectedError
from drakit.machine.model import Machine
from tests.drivers.cpu.machines import CROSSED, NESTED, machines
from tests.drivers.cpumem.amounts import MI, Node, container, share
from tests.drivers.cpumem.servers import servers


def some_claim(node: Node, rng: random.Random, uid: str) -> list[AllocatedDevice]:
    """One to three shares of any devices, of any amounts, sometimes too much."""
    allocated_devices = []
    for number in range(rng.randint(1, 3)):
        device = rng.choice(node.driver.devices)
        amounts: dict[str, int | str] = {}
        for kind, most in device.amounts.items():
            steps = min(most // kind.step, 4 if kind == CPU else most // kind.step)
            if rng.random() < 0.6:
                amounts[kind.name] = kind.step * rng.randint(0, max(1, steps * 2 // 3))
        if not any(amounts.values()):
            kind = next(iter(device.amounts))
            amounts[kind.name] = kind.step
        allocated_devices.append(share(device.name, f"r{number}", f"{uid}-{number}", **amounts))
    return allocated_devices


def check(node: Node) -> None:
    """The promises, from the point of view of the checkpoint and of containers."""
    drawn: Counter[str] = Counter()
    seen = EMPTY
    for entry in node.entries.values():
        assert entry.exclusive("cpu").isdisjoint(seen)
        seen |= entry.exclusive("cpu")
        for prepared in entry.devices:
            drawn.update(prepared.amounts)
    limits = node.offer.limits
    assert all(amount <= limits[key] for key, amount in drawn.items())
    assert seen <= node.driver.cpus.offered
    pool = node.desired().cpus
    assert pool == node.driver.cpus.allocatable - seen
    for uid in node.entries:
        check_container(node, uid, pool)


def check_container(node: Node, uid: str, pool: CpuSet) -> None:
    entry = node.entries[uid]
    desired = node.desired(container(entry))
    assert desired.cpus == (entry.exclusive("cpu") or pool)
    sums: Counter[str] = Counter()
    nodes = set()
    for prepared in entry.devices:
        for key, amount in prepared.amounts.items():
            where, _, kind = key.partition("/")
            nodes.add(int(where.removeprefix("numa")))
            sums[kind] += amount
    sizes = {kind.name: kind.page_size for kind in node.driver.memory.kinds}
    pages = {kernel_size_name(size): n for name, n in sums.items() if (size := sizes[name])}
    assert desired.hugepage_limits == pages
    if nodes:
        assert desired.mems is not None
        assert CpuSet(nodes) <= desired.mems
        assert sums["memory"] == 0 or desired.mems == CpuSet(nodes)


def asked(allocated_devices: list[AllocatedDevice]) -> Counter[str]:
    total: Counter[str] = Counter()
    for allocated in allocated_devices:
        for key, quantity in allocated.consumed_capacity.items():
            total[key.removeprefix("dra.cpumem/")] += quantity.ceil()
    return total


def given_amounts(node: Node, uid: str) -> Counter[str]:
    entry = node.entries[uid]
    total: Counter[str] = Counter({"cpu": len(entry.exclusive("cpu"))})
    for prepared in entry.devices:
        for key, amount in prepared.amounts.items():
            total[key.partition("/")[2]] += amount
    return total


def walk(node: Node, seed: int, steps: int) -> None:
    rng = random.Random(seed)
    check(node)
    for step in range(steps):
        uid = f"uid-{step}"
        if node.entries and rng.random() < 0.35:
            del node.entries[rng.choice(list(node.entries))]
        elif node.driver.devices:
            wanted = some_claim(node, rng, uid)
            try:
                node.prepare(*wanted, uid=uid)
            except RejectedError as no:
                # The kit's guard must find nothing: the driver itself knows better.
                assert no.reason in ("capacity", "shared-pool", "policy"), str(no)
            else:
                assert +given_amounts(node, uid) == +asked(wanted)
        check(node)


@given(
    servers(),
    st.sampled_from(["combined", "split"]),
    st.sampled_from(["numanode", "socket", "machine"]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_any_life_of_any_machine(machine: Machine, layout: str, group_by: str, seed: int, grows: bool):
    config = CpuMemConfig(
        layout=layout,  # type: ignore[arg-type]
        group_by=group_by,  # type: ignore[arg-type]
        reserved_memory="512Mi",
        hold_back_shared=True,
    )
    growth = {node.id: {2 * MI: 64} for node in machine.numa_nodes} if grows else {}
    walk(Node(cpumem_driver(config, machine, growth=growth)), seed, 12)


@given(machines(cpus=24, nestings=(*NESTED, CROSSED)), st.integers(0, 2**32))
def test_odd_machines(machine: Machine, seed: int):
    walk(Node(cpumem_driver(CpuMemConfig(hold_back_shared=True), machine)), seed, 6)


@given(servers(), st.integers(0, 2**32), st.sampled_from(["numanode", "machine"]))
def test_equal_questions_get_equal_answers(machine: Machine, seed: int, group_by: str):
    config = CpuMemConfig(group_by=group_by, hold_back_shared=True)  # type: ignore[arg-type]
    lives = []
    for _ in range(2):
        node = Node(cpumem_driver(config, machine))
        walk(node, seed, 6)
        lives.append({uid: entry.devices for uid, entry in node.entries.items()})
    assert lives[0] == lives[1]
