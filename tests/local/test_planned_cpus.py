"""``drakit plan`` shows the CPUs that dra-driver-cpu would give, on the machine of the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.cli import main
from drakit.core.cpuset import CpuSet
from drakit.core.objects import to_builtins
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.kit.slices.preview import preview_slices
from drakit.local.node import builtin_classes
from drakit.local.published_machine import published_machine
from drakit.machine.discover import discover
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree

Json = dict[str, Any]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sockets, four caches, 32 CPUs, as files."""
    root = tmp_path_factory.mktemp("machine")
    write_tree(build(sockets=2, llcs=2, cores=4, threads=2), str(root))
    return root


def cluster(directory: Path, root: Path, *more: Json, **config: Any) -> str:
    """A cluster of one node with that machine; CPUs 0 and 16 are the system's."""
    driver = cpu_driver(CpuConfig(reserved_cpus="0,16", **config), discover(str(root)))
    items = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "w1"}}]
    items += [to_builtins(entry) for entry in preview_slices(driver, "w1")]
    items += [to_builtins(c) for c in builtin_classes("dra.cpu").values()]
    (directory / "cluster.json").write_text(json.dumps({"kind": "List", "items": [*items, *more]}))
    return str(directory / "cluster.json")


def claim(name: str, **wish: Any) -> Json:
    exactly = {"deviceClassName": "dra.cpu", **wish}
    devices = {"requests": [{"name": "cpus", "exactly": exactly}]}
    return {"kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": devices}}


def cpus(count: int) -> Json:
    return {"capacity": {"requests": {"dra.cpu/cpu": str(count)}}}


def holding(name: str, device: str, count: int) -> Json:
    result = {
        "request": "cpus", "driver": "dra.cpu", "pool": "w1", "device": device,
        "shareID": "11111111-1111-1111-1111-111111111111",
        "consumedCapacity": {"dra.cpu/cpu": str(count)},
    }  # fmt: skip
    held = claim(name, **cpus(count))
    held["status"] = {"allocation": {"devices": {"results": [result]}}}
    return held


def plan(directory: Path, source: str, wanted: Json, *options: str) -> list[str]:
    (directory / "claim.json").write_text(json.dumps(wanted))
    return ["plan", "--from", source, "-f", str(directory / "claim.json"), *options]


def on(machine: Path) -> list[str]:
    return ["--machine", str(machine), "--reserved-cpus", "0,16"]


def test_grouped_cpus_are_those_the_driver_would_choose(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = cluster(tmp_path, machine, holding("before", "cpudevnuma000", 4))
    wanted = claim("six", **cpus(6))
    assert main(plan(tmp_path, source, wanted, *on(machine), "--output", "json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["feasible", "node", "nodes", "claims", "cpus", "cpusLeft"]
    (only,) = document["cpus"]
    chosen = CpuSet.parse(only["cpus"])
    assert only["claim"] == "default/six"
    assert len(chosen) == 6
    assert not chosen & CpuSet([0, 16])
    assert len(CpuSet.parse(document["cpusLeft"])) == 30 - 4 - 6
    assert main(plan(tmp_path, source, wanted, *on(machine))) == 0
    printed = capsys.readouterr().out
    assert f"claim default/six gets CPUs {chosen}" in printed
    assert f"A default/six: {chosen}" in printed
    assert "a default/before: " in printed
    assert "Socket 1 · NUMA node 1" in printed


def test_individual_cpus_need_no_machine(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = cluster(tmp_path, machine, cpu_device_mode="individual")
    assert main(plan(tmp_path, source, claim("four", count=4))) == 0
    printed = capsys.readouterr().out
    assert "claim default/four gets CPUs 1-2,17-18" in printed
    assert "[1A 17A]" in printed
    assert "memory" not in printed


def test_without_the_machine_the_option_is_suggested(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = cluster(tmp_path, machine)
    assert main(plan(tmp_path, source, claim("six", **cpus(6)))) == 0
    assert "--machine DIR" in capsys.readouterr().out


def test_a_machine_that_does_not_match_the_node_is_rejected(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = cluster(tmp_path, machine)
    options = ["--machine", str(machine)]  # without the reserved CPUs
    assert main(plan(tmp_path, source, claim("six", **cpus(6)), *options)) == 0
    assert "cpudevnuma000 has 14 CPUs there, 16 here" in capsys.readouterr().out


def test_a_rejection_by_the_driver_is_predicted(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = cluster(tmp_path, machine)
    wanted = claim("odd", **cpus(3))
    parameters = {"apiVersion": "v1alpha1", "cpuConfig": {"nonsense": True}}
    wanted["spec"]["devices"]["config"] = [{"opaque": {"driver": "dra.cpu", "parameters": parameters}}]
    assert main(plan(tmp_path, source, wanted, *on(machine))) == 0
    assert "dra-driver-cpu would reject the claim when the pod starts" in capsys.readouterr().out


def test_a_directory_without_a_machine_is_an_error(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = cluster(tmp_path, machine)
    wanted = claim("six", **cpus(6))
    assert main(plan(tmp_path, source, wanted, "--machine", str(tmp_path / "none"))) == 2
    assert "check --machine" in capsys.readouterr().err


@given(sockets=st.integers(1, 2), llcs=st.integers(1, 2), cores=st.integers(1, 4), threads=st.integers(1, 2))
def test_a_machine_is_reconstructed_from_its_devices(
    sockets: int, llcs: int, cores: int, threads: int
) -> None:
    real = build(sockets=sockets, llcs=llcs, cores=cores, threads=threads)
    driver = cpu_driver(CpuConfig(cpu_device_mode="individual"), real)
    devices = [d for entry in preview_slices(driver, "n") for d in entry.spec.devices]
    found = published_machine(devices)
    for level in ("sockets", "cores", "llc_cpus", "online"):
        assert getattr(found, level) == getattr(real, level)
    assert [c.numa_node for c in found.cpus] == [c.numa_node for c in real.cpus]
    assert [c.siblings for c in found.cpus] == [c.siblings for c in real.cpus]
