"""Every example manifest lints; every example of the CPU driver has the effect of its comment.

Those of the CPU and memory driver are run in :mod:`test_cpumem_examples`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drakit.cluster import read_claims
from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.kit.driver import PreparedClaim, PreparedClaims
from drakit.local.node import LocalNode, fresh_claim
from drakit.testing.synthetic import build

EVERYTHING = sorted((Path(__file__).parents[2] / "deploy/examples").glob("*.yaml"))
EXAMPLES = [path for path in EVERYTHING if not path.name.startswith("cpumem-")]
MACHINE = build(sockets=2, llcs=2, cores=8, threads=2)
SETTINGS: dict[str, dict[str, str]] = {
    "individual": {"cpu_device_mode": "individual"},
    "individual-selected": {"cpu_device_mode": "individual"},
    "distribute": {"group_by": "machine"},
}


def entries(name: str, tmp_path: Path) -> list[PreparedClaim]:
    (path,) = [p for p in EXAMPLES if p.stem == name]
    settings = SETTINGS.get(name, {})
    driver = cpu_driver(CpuConfig(**settings), MACHINE)  # type: ignore[arg-type]
    file = read_claims(str(path))
    node = LocalNode(driver, str(tmp_path), file.classes)
    return node.assignment([fresh_claim(claim) for claim in file.claims], PreparedClaims())


def cpus(name: str, tmp_path: Path) -> CpuSet:
    (entry,) = entries(name, tmp_path)
    return entry.exclusive("cpu")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_placed(path: Path, tmp_path: Path) -> None:
    given = entries(path.stem, tmp_path)
    assert given
    everything = CpuSet.union(entry.exclusive("cpu") for entry in given)
    assert len(everything) == sum(len(entry.exclusive("cpu")) for entry in given) > 0


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: path.stem)
def test_every_example_lints(path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "drakit", "lint", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grouped_gives_ten_cpus_of_one_node(tmp_path: Path) -> None:
    given = cpus("grouped", tmp_path)
    assert len(given) == 10
    assert len(MACHINE.nodes_of(given)) == 1


def test_individual_gives_four_and_six(tmp_path: Path) -> None:
    assert [len(e.exclusive("cpu")) for e in entries("individual", tmp_path)] == [4, 6]


def test_individual_selected_shares_a_cache(tmp_path: Path) -> None:
    given = cpus("individual-selected", tmp_path)
    assert len({MACHINE.by_id[cpu].llc for cpu in given}) == 1


def test_whole_cores(tmp_path: Path) -> None:
    given = cpus("whole-cores", tmp_path)
    assert all(MACHINE.by_id[cpu].siblings <= given for cpu in given)


def test_spread_uses_one_thread_per_core(tmp_path: Path) -> None:
    given = cpus("spread", tmp_path)
    assert len({MACHINE.by_id[cpu].core for cpu in given}) == len(given) == 2


def test_same_cache(tmp_path: Path) -> None:
    assert len({MACHINE.by_id[cpu].llc for cpu in cpus("same-cache", tmp_path)}) == 1


def test_distribute_is_even(tmp_path: Path) -> None:
    given = cpus("distribute", tmp_path)
    assert [len(given & node) for node in MACHINE.node_cpus.values()] == [4, 4]


def test_explicit_cpuset_is_assigned_exactly(tmp_path: Path) -> None:
    assert cpus("explicit-cpuset", tmp_path) == CpuSet.parse("2-3")


def test_two_requests_are_on_two_nodes(tmp_path: Path) -> None:
    (entry,) = entries("two-requests", tmp_path)
    sides = [MACHINE.nodes_of(prepared.exclusive["cpu"]) for prepared in entry.devices]
    assert {prepared.request for prepared in entry.devices} == {"left", "right"}
    assert sides[0].isdisjoint(sides[1])


def test_first_available_prefers_the_first(tmp_path: Path) -> None:
    assert len(cpus("first-available", tmp_path)) == 16


def test_template_gives_two(tmp_path: Path) -> None:
    assert len(cpus("template", tmp_path)) == 2
