"""``drakit inspect``: total and allocatable resources of machines on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drakit.cli import main
from drakit.drivers.cpumem.driver import cpumem_driver
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.claims.checkpoint import encode
from drakit.kit.claims.checkpoint_files import read_checkpoint
from drakit.kit.driver import PreparedClaim, PreparedDevice
from drakit.machine.discover import discover
from drakit.machine.model import Cgroups, HugepagePool, Machine
from drakit.testing.synthetic import CGROUP2, build
from drakit.testing.sysfs_writer import write_tree

MI, GI = 1 << 20, 1 << 30


def machine(cgroups: Cgroups = CGROUP2) -> Machine:
    made = build(sockets=2, cores=2, threads=1)
    pools = (HugepagePool(2 * MI, 512, 500), HugepagePool(GI, 2, 2))
    nodes = tuple(
        replace(node, memory_bytes=64 * GI, memory_free_bytes=32 * GI, hugepages=pools)
        for node in made.numa_nodes
    )
    return replace(made, numa_nodes=nodes, cgroups=cgroups)


@pytest.fixture(name="root")
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DRA_CPUMEM_CONFIG", raising=False)
    root = tmp_path / "dump"
    write_tree(machine(), str(root))
    for kilobytes, reserved in ((2048, 7), (1048576, 0)):
        place = root / f"sys/kernel/mm/hugepages/hugepages-{kilobytes}kB"
        place.mkdir(parents=True)
        (place / "resv_hugepages").write_text(f"{reserved}\n")
        (place / "nr_overcommit_hugepages").write_text("0\n")
    return root


def inspect(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["inspect", "--output", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_the_document_contains_all_resources(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = inspect(capsys, f"--root={root}", "--reserved-memory=")
    assert code == 0
    node = document["numaNodes"][1]
    assert node["cpus"] == "2-3"
    assert node["memory"] == {"total": 64 * GI, "free": 32 * GI, "hugetlb": 3 * GI}
    assert node["hugepages"][0] == {
        "size": "2Mi",
        "bytes": 2 * MI,
        "total": 512,
        "free": 500,
        "surplus": 0,
        "growth": 0,
        "withheld": 12,
    }
    assert node["offered"] == {
        "cpus": "2-3",
        "cpu": 2,
        "memory": 61 * GI,
        "hugepages2Mi": 500 * 2 * MI,
        "hugepages1Gi": 2 * GI,
    }
    assert [pool["reserved"] for pool in document["hugepages"]] == [7, 0]
    assert [pool["total"] for pool in document["hugepages"]] == [1024, 4]
    assert document["cgroups"]["missing"] == []
    assert document["cgroups"]["hugetlbAccounting"] == "separate"


def test_vector_3_the_offer_equals_the_published_slices(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64 Gi, 3 Gi of them hugepages, 2 Gi reserved: 59 Gi."""
    reserved = "0:memory=2Gi,hugepages-2Mi=40Mi;1:memory=2Gi"
    _code, document = inspect(capsys, f"--root={root}", f"--reserved-memory={reserved}", "--reserved-cpus=0")
    assert document["numaNodes"][0]["offered"]["memory"] == 59 * GI
    assert document["numaNodes"][0]["reserved"] == {"memory": 2 * GI, "hugepages2Mi": 40 * MI}
    config = CpuMemConfig(reserved_memory=reserved, reserved_cpus="0", sysfs_root=str(root))
    others = {0: {2 * MI: 12}, 1: {2 * MI: 12}}
    driver = cpumem_driver(config, discover(str(root)), held_by_others=others)
    (pool,) = driver.offer().pools
    published = {
        device.name: {key.partition("/")[2]: c.value.ceil() for key, c in device.capacity.items()}
        for device in pool.devices
    }
    assert {d["name"]: d["offered"] for d in document["devices"]} == published


def test_growth_is_offered_as_pages_and_not_as_memory(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (f"--root={root}", "--reserved-memory=")
    _code, without = inspect(capsys, *arguments)
    _code, document = inspect(capsys, *arguments, "--hugepage-growth=1:1Gi=8")
    before, after = (d["numaNodes"][1]["offered"] for d in (without, document))
    assert after["hugepages1Gi"] - before["hugepages1Gi"] == 8 * GI
    assert before["memory"] - after["memory"] == 8 * GI


def test_impossible_settings_are_noted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _code, document = inspect(capsys, f"--root={root}", "--hugepage-pools=7:2Mi=1")
    assert any("NUMA node 7" in warning for warning in document["warnings"])


def test_the_text_has_a_line_for_every_node_pool_and_device(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"--root={root}", "--reserved-memory=1Gi"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "2-3", "64", "GiB", "32", "GiB", "3", "GiB"] in lines
    assert ["0", "2Mi", "512", "500", "0", "0", "12"] in lines
    assert ["all", "2Mi", "1024", "1000", "0", "7"] in lines
    assert ["DEVICE", "cpu", "memory", "hugepages2Mi", "hugepages1Gi"] in lines
    assert ["numa1", "2", "60.5", "GiB", "1000", "MiB", "2", "GiB"] in lines


def test_hugetlb_accounting_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Vector 1: the flag stands behind the dash of mountinfo."""
    cgroups = replace(CGROUP2, memory_hugetlb_accounting=True, controllers=frozenset({"memory", "cpuset"}))
    write_tree(machine(cgroups), str(tmp_path))
    _code, document = inspect(capsys, f"--root={tmp_path}")
    assert document["cgroups"]["hugetlbAccounting"] == "memory"
    assert document["cgroups"]["missing"] == ["hugetlb"]
    assert main(["inspect", f"--root={tmp_path}"]) == 0
    assert "missing: hugetlb · hugepages count as memory" in capsys.readouterr().out


def test_nothing_to_offer_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = inspect(capsys, f"--root={tmp_path}")
    assert (code, document["devices"]) == (1, [])
    assert main(["inspect", f"--root={tmp_path}"]) == 1
    assert "offered by dra-driver-cpumem: none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "printed"),
    [
        ("--root=/nowhere/at/all", "is not a directory"),
        ("--reserved-memory=0:cpu=1", "neither memory nor hugepages"),
        ("--hugepage-growth=2Mi=1", "names no NUMA node"),
    ],
)
def test_bad_input_is_exit_code_2(argument: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", argument]) == 2
    assert printed in capsys.readouterr().err


def test_a_checkpoint_is_read_without_being_changed(tmp_path: Path) -> None:
    prepared = PreparedDevice(request="r", pool="n", device="numa0")
    entry = PreparedClaim(uid="u1", namespace="d", name="c", devices=(prepared,))
    (tmp_path / "u1.json").write_bytes(encode(entry))
    (tmp_path / "u2.json").write_bytes(b"{")
    (tmp_path / ".lock").write_bytes(b"")
    (tmp_path / "hugepages").mkdir()
    before = sorted(tmp_path.iterdir())
    view = read_checkpoint(str(tmp_path))
    assert view.entries == (entry,)
    assert list(view.unreadable) == [str(tmp_path / "u2.json")]
    assert set(view.prepared_claims.orphaned) == {"u2"}
    assert sorted(tmp_path.iterdir()) == before
    assert read_checkpoint(str(tmp_path / "absent")).entries == ()
