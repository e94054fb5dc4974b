"""The command: what it would publish, its settings, its warnings."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import yaml

from drakit.drivers.cpu.program import program as cpu_program
from drakit.drivers.cpumem.discovery import CpuMemDiscovery
from drakit.drivers.cpumem.hugepages.settings import PageCounts
from drakit.drivers.cpumem.program import main
from drakit.drivers.cpumem.program import program as cpumem_program
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.memory_policy import Knob
from drakit.kit.config.settings import settings_of
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree
from tests.drivers.cpumem.amounts import MI, capacities, pool


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> str:
    pages = [pool("2Mi", 100, free=90)]
    write_tree(build(sockets=2, cores=2, threads=2, hugepages=pages), str(tmp_path))
    return str(tmp_path)


def arguments(root: str) -> list[str]:
    kubelet = f"{root}/kubelet"
    return ["--sysfs-root", root, "--hostname-override", "here", "--kubelet-root-dir", kubelet]


def test_a_dry_run_prints_the_slices_of_any_machine(root: str, capsys: pytest.CaptureFixture[str]):
    assert main(["--dry-run", *arguments(root)]) == 0
    (only,) = yaml.safe_load_all(capsys.readouterr().out)
    assert only["spec"]["driver"] == "dra.cpumem"
    assert [
        (d["name"], d["capacity"]["dra.cpumem/hugepages2Mi"]["value"]) for d in only["spec"]["devices"]
    ] == [("numa0", "180Mi"), ("numa1", "180Mi")]  # ten pages of each are others'
    assert not (Path(root) / "kubelet").exists()


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["--print-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["layout"]["enum"] == ["combined", "split"]
    assert schema["properties"]["memoryQoS"]["enum"] == ["all", "claims", "off"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--reserved-memory", "0:memory", "reservedMemory: 'memory' is not KIND=AMOUNT"),
        ("--hugepage-pools", "2Mi=5", "hugepagePools: '2Mi=5' names no NUMA node"),
        ("--hugepage-growth", "0:3Mi=5", "hugepageGrowth: '3Mi' is not a valid page size"),
        ("--memory-throttling-factor", "1.5", "memoryThrottlingFactor must be between 0 and 1"),
        ("--hugepage-shrink-seconds", "-1", "hugepageShrinkSeconds must be between"),
        ("--reserved-cpus", "0-", "reservedCPUs is not a valid list of CPUs"),
        ("--layout", "splitt", "did you mean 'split'"),
    ],
)
def test_a_wrong_setting_is_exit_code_2(flag: str, value: str, said: str, capsys: pytest.CaptureFixture[str]):
    assert main([f"{flag}={value}"]) == 2
    assert said in capsys.readouterr().err


def test_settings_of_both_drivers_have_the_same_names():
    """Whoever changes from one driver to the other keeps what they have in common."""
    theirs = {one.key: one.flags for one in settings_of(cpu_program().config, "X")}
    ours = {one.key: one.flags for one in settings_of(cpumem_program().config, "X")}
    assert theirs.keys() - ours.keys() == {"cpuDeviceMode"}
    assert all(ours[key] == flags for key, flags in theirs.items() if key in ours and key != "groupBy")


def test_hugepage_settings_are_understood():
    config = CpuMemConfig(hugepage_pools="0:2Mi=512", hugepage_growth="*:1Gi=2")
    assert config.hugepages.pools == PageCounts({0: {2 * MI: 512}})
    assert config.hugepages.growth.of(7) == {1 << 30: 2}


def test_discovery_says_each_doubt_once_and_remembers_what_others_held(
    root: str, caplog: pytest.LogCaptureFixture
):
    discover = CpuMemDiscovery()
    config = CpuMemConfig(
        sysfs_root=root,
        kubelet_root_dir=f"{root}/kubelet",
        reserved_memory="7:memory=1Gi",
        hugepage_pools="9:2Mi=5",
    )
    with caplog.at_level(logging.WARNING):
        first = discover(config, "node")
        free = f"{root}/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages"
        Path(free).write_text("20\n")  # a claim's container has begun to use its pages
        second = discover(config, "node")
    assert capacities(first) == capacities(second)
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "reservedMemory" in text]) == 1
    assert len([text for text in said if "hugepagePools" in text]) == 1


def test_the_driver_yields_what_a_drop_in_gives_the_kubelet(root: str, tmp_path: Path):
    (tmp_path / "10-memory.conf").write_text("memoryReservationPolicy: TieredReservation\n")
    config = CpuMemConfig(
        sysfs_root=root, kubelet_root_dir=f"{root}/kubelet", kubelet_config_dir=str(tmp_path)
    )
    assert CpuMemDiscovery()(config, "node").memory_policy.kubelets == {Knob.PROTECTION}


def test_growth_is_offered(root: str):
    config = CpuMemConfig(sysfs_root=root, kubelet_root_dir=f"{root}/kubelet", hugepage_growth="0:2Mi=50")
    driver = CpuMemDiscovery()(config, "node")
    found = capacities(driver)
    assert (found["numa0"]["hugepages2Mi"], found["numa1"]["hugepages2Mi"]) == ("280Mi", "180Mi")


def test_the_two_drivers_are_rivals_for_cpus_only():
    assert cpumem_program().conflicts_with(CpuMemConfig()) == ("dra.cpu",)
    assert cpumem_program().conflicts_with(CpuMemConfig(manage_cpus=False)) == ()
    assert cpu_program().conflicts_with(cpu_program().config()) == ("dra.cpumem",)
