"""``drakit verify`` as a command: exit codes, text and document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drakit.cli import main
from drakit.kit.claims.checkpoint import encode
from drakit.testing.sysfs_writer import write_tree
from tests.drivers.cpumem.audit.nodes import POD_PATH, as_it_must_be, claim, machine


@pytest.fixture(name="arguments")
def _arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for variable in ("NODE_NAME", "DRA_CPUMEM_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    as_it_must_be(tmp_path)
    write_tree(machine(), str(tmp_path))
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "claim-a.json").write_bytes(encode(claim()))
    return [
        "verify",
        "--driver=cpumem",
        "--memory-qos=claims",
        "--hostname-override=n",
        f"--sysfs-root={tmp_path}",
        f"--state-dir={tmp_path / 'claims'}",
        f"--cgroup-root={tmp_path / 'cgroup'}",
        f"--kubelet-root-dir={tmp_path / 'kubelet'}",
        f"--kubelet-config-dir={tmp_path / 'kubelet.conf.d'}",
    ]


def test_a_correct_node_is_exit_code_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "cpuset.cpus=2-3 cpuset.mems=1" in printed
    assert "[+] 1 container without claims not on claimed CPUs" in printed
    assert printed.endswith("all cgroups match the claims\n")


def test_wrong_values_are_exit_code_1_and_named(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cgroup" / POD_PATH / "memory.min").write_text("0\n")
    assert main([*arguments, "--output=json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "wrong"
    (wrong,) = [each for each in document["cgroups"] if each["verdict"] == "wrong"]
    assert (wrong["kind"], wrong["path"]) == ("pod", POD_PATH)
    (file,) = [each for each in wrong["files"] if each["verdict"] == "wrong"]
    assert file == {
        "file": "memory.min",
        "relation": "is",
        "wanted": str(256 << 20),
        "found": "0",
        "verdict": "wrong",
    }
    assert main(arguments) == 1
    assert "      memory.min is 0, must be 268435456" in capsys.readouterr().out


def test_vector_13_values_of_the_kubelet_are_not_required(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "cgroup").rglob("memory.min"):
        path.write_text("0\n")
    (tmp_path / "kubelet.yaml").write_text("memoryReservationPolicy: TieredReservation\n")
    kubelet = f"--kubelet-config={tmp_path / 'kubelet.yaml'}"
    assert main([*arguments, "--output=json", kubelet]) == 0
    document = json.loads(capsys.readouterr().out)
    files = [file["file"] for cgroup in document["cgroups"] for file in cgroup["files"]]
    assert "hugetlb.2MB.max" in files
    assert "memory.min" not in files


def test_values_that_a_drop_in_gives_the_kubelet_are_not_required(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "cgroup").rglob("memory.min"):
        path.write_text("0\n")
    assert main(arguments) == 1
    capsys.readouterr()
    drop_in = tmp_path / "kubelet.conf.d" / "10-memory.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("memoryReservationPolicy: TieredReservation\n")
    assert main(arguments) == 0
    assert "memory.min" not in capsys.readouterr().out


def test_an_unreadable_record_is_wrong(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "claims" / "claim-b.json").write_text("{")
    assert main(arguments) == 1
    assert "claim-b.json" in capsys.readouterr().out


def test_unknown_values_are_exit_code_3(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "cgroup").rglob("cpuset.cpus.effective"):
        path.unlink()
    assert main(arguments) == 3
    assert "[?] container" in capsys.readouterr().out


def test_no_cgroups_is_exit_code_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, f"--cgroup-root={tmp_path / 'none'}"]) == 2
    assert "is not a cgroup v2 hierarchy" in capsys.readouterr().err


def test_a_setting_of_the_other_driver_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--memory-qos=claims"]) == 2
    assert "--memory-qos is not a setting of dra-driver-cpu" in capsys.readouterr().err
