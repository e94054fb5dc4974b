"""The command: what it would publish, its schema, its doubts."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import yaml

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.program import CpuDiscovery, main
from drakit.drivers.models.individual import IndividualCpus
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> str:
    write_tree(build(sockets=2, cores=2, threads=2), str(tmp_path))
    return str(tmp_path)


def _slices(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main(["--dry-run", *arguments]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_a_dry_run_prints_the_slices_of_any_machine(root: str, capsys: pytest.CaptureFixture[str]):
    (only,) = _slices(capsys, "--sysfs-root", root, "--hostname-override", "here")
    devices = only["spec"]["devices"]  # type: ignore[index]
    assert [(d["name"], d["capacity"]["dra.cpu/cpu"]["value"]) for d in devices] == [
        ("cpudevnuma000", "4"),
        ("cpudevnuma001", "4"),
    ]


def test_w13_the_node_is_called_what_the_downward_api_says(
    root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Where node name and host name differ, the slices must be the node's."""
    monkeypatch.setenv("NODE_NAME", "ip-10-0-0-7.example")
    (only,) = _slices(capsys, "--sysfs-root", root, "--hostname-override", "here")
    assert only["spec"]["nodeName"] == "ip-10-0-0-7.example"  # type: ignore[index]
    assert only["spec"]["pool"]["name"] == "ip-10-0-0-7.example"  # type: ignore[index]


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["--print-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["groupBy"]["enum"] == ["machine", "numanode", "socket"]


def test_a_wrong_setting_is_exit_code_2(capsys: pytest.CaptureFixture[str]):
    assert main(["--reserved-cpus", "0-"]) == 2
    assert "reservedCPUs is not a valid list of CPUs" in capsys.readouterr().err


def test_discovery_reads_the_machine_and_logs_each_warning_once(root: str, caplog: pytest.LogCaptureFixture):
    discover = CpuDiscovery()
    config = CpuConfig(sysfs_root=root, cpu_device_mode="individual", reserved_cpus="0,99")
    with caplog.at_level(logging.WARNING):
        first, second = discover(config, "node"), discover(config, "node")
    assert isinstance(first, IndividualCpus)
    assert first.cpus.allocatable == CpuSet.range(1, 8)
    assert first.offer() == second.offer()
    (line,) = (r.getMessage() for r in caplog.records if "reservedCPUs" in r.getMessage())
    reason = "reservedCPUs names CPUs 99, which this machine does not have"
    assert line == f'configuration does not fit this machine reason="{reason}"'
