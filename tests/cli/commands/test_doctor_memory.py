"""``drakit doctor`` and ``drakit gather`` for dra-driver-cpumem."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from drakit.cli import main
from drakit.cli.driver_settings import add_options, driver_settings
from drakit.cli.errors import CliError
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.config.settings import settings_of
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree


@pytest.fixture(name="settings")
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Settings under which nothing of this very machine is looked at."""
    for variable in ("NODE_NAME", "KUBECONFIG", "POD_UID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_tree(build(sockets=2, cores=2), str(tmp_path))
    return [
        "--driver=cpumem",
        f"--sysfs-root={tmp_path}",
        f"--cgroup-root={tmp_path / 'cgroup'}",
        f"--kubelet-root-dir={tmp_path / 'kubelet'}",
        f"--cdi-dir={tmp_path / 'cdi'}",
        f"--nri-socket={tmp_path / 'nri.sock'}",
        "--hostname-override=n",
        "--bind-address=",
    ]


def test_doctor_names_what_memory_needs(
    settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubelet").mkdir()
    text = "memoryManagerPolicy: Static\nreservedSystemCPUs: 0-1\n"
    (tmp_path / "kubelet" / "config.yaml").write_text(text)
    assert main(["doctor", "--output=json", *settings]) == 1
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    problems = [remark["text"] for remark in remarks if remark["level"] == "problem"]
    assert any("cgroup" in text and "does not exist" in text for text in problems)
    assert any("memoryManagerPolicy is Static" in text for text in problems)
    notes = [remark["text"] for remark in remarks if remark["level"] == "note"]
    assert any("reservedSystemCPUs is 0-1" in text for text in notes)
    assert any("dra.cpumem offers 2 devices" in remark["text"] for remark in remarks)


def test_gather_includes_the_settings_of_the_selected_driver(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gather", "--file=-", "--output=json", *settings]) == 0
    document = json.loads(capsys.readouterr().out)
    keys = {one.key for one in settings_of(CpuMemConfig, "X")}
    assert set(document["configuration"]["effective"]) == keys
    assert document["slices"]["preview"][0]["spec"]["driver"] == "dra.cpumem"


def test_the_driver_is_found_by_its_pid(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    words = ["python3", "/usr/bin/dra-driver-cpumem", "--layout=split", "--hostname-override=n"]
    (tmp_path / "7" / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    parser = ArgumentParser()
    add_options(parser)
    found = driver_settings(parser.parse_args(["--pid=7"]), str(tmp_path))
    assert found.program.name == "dra-driver-cpumem"
    assert isinstance(found.config, CpuMemConfig)
    assert found.config.layout == "split"
    with pytest.raises(CliError, match="is a dra-driver-cpumem, not a dra-driver-cpu"):
        driver_settings(parser.parse_args(["--pid=7", "--driver=cpu"]), str(tmp_path))
