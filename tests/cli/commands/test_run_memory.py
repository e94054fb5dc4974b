"""``drakit run`` with memory and hugepages: accounted, confined, drawn."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drakit.cli import main
from drakit.cli.commands.run import _limits
from drakit.cli.local_node import claim_bars, held_words
from drakit.core.cpuset import CpuSet
from drakit.core.objects import CelSelector, DeviceClass, DeviceClassSpec, DeviceSelector, ObjectMeta
from drakit.core.quantity import Quantity
from drakit.draw.memory_map import memory_lines
from drakit.draw.terminal import Terminal
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.cpumem.driver import CpuMemDriver, cpumem_driver
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.driver import ClaimUse, RejectedError
from drakit.local import confine
from drakit.local.local_drivers import ClaimDriverError, amounts_claim, driver_for, simple_claim
from drakit.local.node import DoesNotFitError, LocalNode, fresh_claim
from drakit.machine.model import HugepagePool, Machine
from drakit.testing.synthetic import build

MI, GI = 1 << 20, 1 << 30


def machine() -> Machine:
    made = build(sockets=2, cores=2, threads=1)
    pools = (HugepagePool(2 * MI, 64, 64),)
    nodes = tuple(replace(n, memory_bytes=4 * GI + 128 * MI, hugepages=pools) for n in made.numa_nodes)
    return replace(made, numa_nodes=nodes)


def memory_node(directory: Path) -> tuple[CpuMemDriver, LocalNode]:
    driver = cpumem_driver(CpuMemConfig(reserved_memory="", min_shared_cpus=0), machine())
    return driver, LocalNode(driver, str(directory))


def amounts(**wanted: str) -> dict[str, Quantity]:
    return {f"dra.cpumem/{kind}": Quantity(amount) for kind, amount in wanted.items()}


async def test_a_claim_is_on_one_node_and_is_released(tmp_path: Path) -> None:
    driver, node = memory_node(tmp_path)
    wanted = amounts(cpu="2", memory="1Gi", hugepages2Mi="32Mi")
    (taken,) = await node.take([fresh_claim(amounts_claim(wanted))])
    home = driver.cpus.machine.nodes_of(taken.entry.exclusive("cpu"))
    (prepared,) = taken.entry.devices
    assert {key.partition("/")[0] for key in prepared.amounts} == {f"numa{home}"}
    assert held_words(taken.entry).startswith("CPUs ")
    assert f"1 GiB memory on node {home}, 32 MiB in 2Mi pages on node {home}" in held_words(taken.entry)
    uses = (ClaimUse(taken.entry, taken.entry.devices),)
    limit = str(32 * MI)
    assert _limits(driver, uses) == {
        "memory.min": str(GI),
        "memory.max": str(GI),
        "hugetlb.2MB.rsvd.max": limit,
        "hugetlb.2MB.max": limit,
    }
    await node.release(taken)
    assert len(await node.look()) == 0


async def test_no_node_is_over_committed_in_any_kind_at_any_moment(tmp_path: Path, scale: int) -> None:
    """Random commands come and go; the checkpoint and the scheduler agree on what is left."""
    driver, node = memory_node(tmp_path)
    dice = random.Random(7)
    held = []
    rejected = 0
    for _ in range(40 * scale):
        if held and dice.random() < 0.35:
            await node.release(held.pop(dice.randrange(len(held))))
        wanted = amounts(
            cpu=str(dice.randint(0, 1)),
            memory=f"{dice.choice([0, 300, 1500, 4000])}Mi",
            hugepages2Mi=f"{dice.choice([0, 2, 64, 130])}Mi",
        )
        wanted = {key: amount for key, amount in wanted.items() if amount}
        if wanted:
            try:
                held += await node.take([fresh_claim(amounts_claim(wanted))])
            except (DoesNotFitError, RejectedError):
                rejected += 1
        prepared_claims = await node.look()
        for key, limit in driver.offer().limits.items():
            assert prepared_claims.amount(key) <= limit, key
        assert len(prepared_claims.exclusive("cpu")) == sum(len(e.exclusive("cpu")) for e in prepared_claims)
    assert rejected
    for one in held:
        await node.release(one)


async def test_both_drivers_share_the_cpus_of_one_checkpoint(tmp_path: Path) -> None:
    _, memory = memory_node(tmp_path)
    cpu = LocalNode(cpu_driver(CpuConfig(min_shared_cpus=0), machine()), str(tmp_path))
    (first,) = await cpu.take([fresh_claim(simple_claim(2))])
    with pytest.raises(DoesNotFitError):
        await memory.take([fresh_claim(amounts_claim(amounts(cpu="2"))) for _ in range(2)])
    (second,) = await memory.take([fresh_claim(amounts_claim(amounts(cpu="2", memory="1Gi")))])
    assert first.entry.exclusive("cpu").isdisjoint(second.entry.exclusive("cpu"))
    with pytest.raises(DoesNotFitError):
        await cpu.take([fresh_claim(simple_claim(1))])
    await memory.release(second)
    (third,) = await cpu.take([fresh_claim(simple_claim(2))])
    for one in (first, third):
        await cpu.release(one)


async def test_another_grouping_sees_the_same_memory(tmp_path: Path) -> None:
    _, by_node = memory_node(tmp_path)
    config = CpuMemConfig(reserved_memory="", min_shared_cpus=0, group_by="machine")
    whole = LocalNode(cpumem_driver(config, machine()), str(tmp_path))
    (most,) = await whole.take([fresh_claim(amounts_claim(amounts(memory="7Gi")))])
    with pytest.raises(DoesNotFitError):
        await by_node.take([fresh_claim(amounts_claim(amounts(memory="2Gi")))])
    (rest,) = await by_node.take([fresh_claim(amounts_claim(amounts(memory="1Gi")))])
    for one in (most, rest):
        await whole.release(one)


async def test_the_bars_show_who_holds_what(tmp_path: Path) -> None:
    driver, node = memory_node(tmp_path)
    taken = []
    for wanted in (amounts(memory="1Gi"), amounts(memory="2Gi", hugepages2Mi="64Mi")):
        taken += await node.take([fresh_claim(amounts_claim(wanted))])
    lines = memory_lines(claim_bars(driver, [one.entry for one in taken]), Terminal(width=100))
    assert lines == [
        "node 0 memory         [AAAAAAAABBBBBBBBBBBBBBBB........] A 1 GiB, B 2 GiB, free 1 GiB",
        "node 0 hugepages-2Mi  [BBBBBBBBBBBBBBBB................] B 64 MiB, free 64 MiB",
        "node 1 memory         [................................] free 4 GiB",
        "node 1 hugepages-2Mi  [................................] free 128 MiB",
    ]
    for one in taken:
        await node.release(one)


def test_the_class_determines_the_driver() -> None:
    cel = CelSelector(expression='device.driver == "dra.cpumem"')
    own = DeviceClass(
        metadata=ObjectMeta(name="mine"), spec=DeviceClassSpec(selectors=(DeviceSelector(cel=cel),))
    )
    memory = amounts_claim(amounts(memory="1Gi"))
    assert driver_for([memory], []) == "dra.cpumem"
    assert driver_for([simple_claim(1)], []) == "dra.cpu"
    (request,) = memory.spec.devices.requests
    assert request.exactly is not None
    named = simple_claim(1)
    (wish,) = named.spec.devices.requests
    import msgspec

    exactly = msgspec.structs.replace(wish.exactly, device_class_name="mine")
    requests = (msgspec.structs.replace(wish, exactly=exactly),)
    devices = msgspec.structs.replace(named.spec.devices, requests=requests)
    spec = msgspec.structs.replace(named.spec, devices=devices)
    assert driver_for([msgspec.structs.replace(named, spec=spec)], [own]) == "dra.cpumem"
    with pytest.raises(ClaimDriverError, match=r"both dra\.cpu and dra\.cpumem"):
        driver_for([memory, simple_claim(1)], [])


# -- the cgroup ---------------------------------------------------------------------------------------


def fake_cgroups(root: Path, monkeypatch: pytest.MonkeyPatch, controllers: str) -> None:
    """A cgroup2 file system as far as make_group looks: a new directory has its files at once."""
    (root / "a.slice").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpuset memory hugetlb\n")
    (root / "a.slice" / "cgroup.subtree_control").write_text(controllers)
    monkeypatch.setattr(confine, "own_cgroup", lambda: "/a.slice/b.scope")
    make = os.mkdir

    def mkdir(name: str, *, dir_fd: int) -> None:
        make(name, dir_fd=dir_fd)
        path = root / "a.slice" / name
        files = ["cpuset.cpus", "cpuset.mems", "cpuset.cpus.effective"]
        files += ["memory.min", "memory.max"] if "memory" in controllers else []
        files += ["hugetlb.2MB.max"] if "hugetlb" in controllers else []
        for file in files:
            (path / file).write_text("2-3" if file == "cpuset.cpus.effective" else "")

    monkeypatch.setattr("os.mkdir", mkdir)


LIMITS = confine.memory_limits(256 * MI, {"2MB": 32 * MI})


def test_a_command_gets_a_cgroup_with_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cgroups(tmp_path, monkeypatch, "cpuset memory hugetlb")
    cpus, mems = CpuSet.parse("2-3"), CpuSet.parse("1")
    group = confine.make_group(str(tmp_path), "u", cpus, mems, LIMITS)
    assert group is not None
    assert group.left_out == ("hugetlb.2MB.rsvd.max",)  # as before Linux 5.7
    files = {path.name: path.read_text() for path in Path(group.path).iterdir()}
    assert files["cpuset.cpus"] == "2-3"
    assert files["cpuset.mems"] == "1"
    assert files["memory.max"] == files["memory.min"] == str(256 * MI)
    assert files["hugetlb.2MB.max"] == str(32 * MI)


def test_missing_controllers_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cgroups(tmp_path, monkeypatch, "cpuset")
    group = confine.make_group(str(tmp_path), "u", CpuSet.parse("2-3"), None, LIMITS)
    assert group is not None
    assert set(group.left_out) == set(LIMITS)


def test_pages_that_count_as_memory_get_room_in_its_limit() -> None:
    files = confine.memory_limits(256 * MI, {"2MB": 32 * MI}, charged=32 * MI)
    assert files["memory.max"] == str(288 * MI)
    assert confine.memory_limits(0, {}) == {}


# -- as a person uses it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--memory=lots"], "write --memory 1Gi"),
        (["--memory=0"], "request more than 0"),
        (["--hugepages=2Mi"], "write --memory 1Gi"),
        (["--hugepages=3Mi=6Mi"], "power of two"),
        (["--cpus=1", "-f", "x.yaml"], "a file and amounts are given"),
        ([], "no claim given"),
    ],
)
def test_bad_amounts_are_exit_code_2(
    arguments: list[str], printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"--state-dir={tmp_path}", *arguments, "--", "true"]) == 2
    assert printed in capsys.readouterr().err


def test_more_than_the_machine_has_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"--state-dir={tmp_path}", "--memory=8Pi", "--", "true"]) == 1
    assert "does not fit" in capsys.readouterr().err


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs: one to claim")
def test_the_command_knows_its_memory_and_the_kernel_binds_it(tmp_path: Path) -> None:
    script = "echo $DRA_MEMORY $DRA_MEMS $DRA_CPUSET; grep Mems_allowed_list /proc/self/status"
    command = [sys.executable, "-m", "drakit", "run", "--state-dir", str(tmp_path)]
    command += ["--cpus", "1", "--memory", "64Mi", "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    memory, mems, cpus, *_ = done.stdout.split()
    assert memory == str(64 * MI)
    assert "64 MiB memory on node " + mems in done.stderr
    assert f"CPU {cpus}" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".json"] == []


def test_ps_lists_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", f"--state-dir={tmp_path}"]) == 0
    assert capsys.readouterr().out.split()[:4] == ["CLAIM", "CPUS", "MEMORY", "HUGEPAGES"]


def test_the_cpus_of_either_driver_are_found() -> None:
    driver = cpumem_driver(CpuMemConfig(), machine())
    assert driver.cpus.machine == machine()
