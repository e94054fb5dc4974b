from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from drakit.cli import main
from drakit.cli.commands.topology import report
from drakit.core.cpuset import CpuSet
from drakit.draw.terminal import Terminal
from drakit.machine.discover import discover
from drakit.machine.document import topology_document
from drakit.machine.model import HugepagePool, Machine
from drakit.testing.synthetic import MIB, Surroundings, build
from drakit.testing.sysfs_writer import write_tree
from tests.cli.machines import any_machine, hybrid, nonsense, server


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tree of a server with an offline and some isolated CPUs."""
    root = str(tmp_path_factory.mktemp("dump"))
    machine = build(
        sockets=2,
        llcs=2,
        cores=4,
        threads=2,
        hugepages=[HugepagePool(2 * MIB, 512, 100)],
        offline=CpuSet([3]),
        isolated=CpuSet([4, 5]),
    )
    write_tree(machine, root)
    return root


# -- the document ---------------------------------------------------------------------------------

CPU_FIELDS = {
    "id", "online", "socket", "die", "cluster", "core", "l3", "numaNode", "coreType", "siblings",
    "isolated",
}  # fmt: skip
NODE_FIELDS = {"id", "cpus", "memoryBytes", "distances", "hugepages"}


@given(any_machine)
def test_the_document_keeps_its_contract(machine: Machine) -> None:
    document = json.loads(json.dumps(topology_document(machine)))
    assert [cpu["id"] for cpu in document["cpus"]] == [cpu.id for cpu in machine.cpus]
    assert all(cpu.keys() >= CPU_FIELDS for cpu in document["cpus"])
    assert all(node.keys() >= NODE_FIELDS for node in document["numaNodes"])
    for shown, cpu in zip(document["cpus"], machine.cpus, strict=True):
        assert CpuSet.parse(shown["siblings"]) == cpu.siblings
        assert (shown["core"], shown["l3"]) == (cpu.core, cpu.llc)
        assert shown["coreType"] in ("p-core", "e-core", "standard")
    for node in document["numaNodes"]:
        CpuSet.parse(node["cpus"])
        assert len(node["distances"]) == len(document["numaNodes"])
    assert all(doubt.keys() == {"file", "reason"} for doubt in document["warnings"])


@given(nonsense())
def test_json_and_yaml_are_the_same_document(machine: Machine) -> None:
    document = topology_document(machine)
    assert yaml.safe_load(yaml.safe_dump(document, sort_keys=False)) == document
    assert json.loads(json.dumps(document)) == document


def test_distances_are_in_the_order_of_the_nodes() -> None:
    around = Surroundings(distances={(0, 1): 31, (1, 0): 32})
    first, second = topology_document(build(sockets=2, surroundings=around))["numaNodes"]
    assert first["distances"] == [10, 31]
    assert second["distances"] == [32, 10]


def test_unknown_values_are_null() -> None:
    machine = build(cores=2, threads=1, llcs=2, offline=CpuSet([1]))
    cpu = topology_document(machine)["cpus"][1]
    assert [cpu[name] for name in ("socket", "die", "core", "l3")] == [None] * 4
    assert cpu["siblings"] == "1"
    assert not cpu["online"]


# -- the text -------------------------------------------------------------------------------------


@given(any_machine, st.sampled_from([40, 60, 80, 120, 200]), st.booleans(), st.booleans())
def test_all_lines_of_the_report_fit(
    machine: Machine, width: int, unicode: bool, list_warnings: bool
) -> None:
    terminal = Terminal(width, color=False, unicode=unicode)
    text = report(machine, terminal, list_warnings=list_warnings)
    assert max(map(len, text.splitlines())) <= width
    assert unicode or text.isascii()
    assert "\x1b" not in text


def test_a_server_is_summed_up_in_the_heading() -> None:
    heading = report(server(), Terminal(120)).splitlines()[:2]
    assert heading == [
        "2 sockets · 2 NUMA nodes · 64 cores · 128 CPUs · 256 GiB memory · 12 GiB in hugepages",
        "x86_64 · Linux 6.12.9 · cgroup v2",
    ]


def test_kinds_and_offline_cpus_are_counted() -> None:
    assert "6 P-cores + 8 E-cores · 20 CPUs" in report(hybrid(), Terminal())
    assert "8 CPUs (2 offline)" in report(build(offline=CpuSet([1, 2])), Terminal())


def test_distances_are_a_table_unless_too_wide() -> None:
    text = report(build(sockets=2, nodes=2), Terminal())
    assert "NUMA distances\nnode   0   1   2   3\n   0  10  12  21  21\n" in text
    assert "NUMA distances" not in report(build(), Terminal())
    assert "see --output json" in report(build(sockets=30, cores=1), Terminal(80))


def test_nohz_full_is_shown() -> None:
    machine = build(surroundings=Surroundings(nohz_full=CpuSet([2, 3])))
    assert "nohz_full: 2-3" in report(machine, Terminal())


def test_color_is_in_the_heading_too() -> None:
    assert report(build(), Terminal(color=True)).startswith("\x1b[1m1 socket")


# -- the command ----------------------------------------------------------------------------------


def test_the_drawing_is_plain_when_piped(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", dump]) == 0
    printed = capsys.readouterr()
    assert "3x" in printed.out
    assert "4*" in printed.out
    assert "512 × 2 MiB hugepages, 100 free" in printed.out
    assert "\x1b" not in printed.out
    assert printed.err == ""


def test_json_is_the_document_of_what_was_discovered(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", dump, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == topology_document(discover(dump))


def test_yaml_is_the_same_document(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", dump, "--output", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == topology_document(discover(dump))


def test_svg_is_written_and_nothing_else_is_printed(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "machine.svg"
    assert main(["topology", "--root", dump, "--svg", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith("<svg ")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(target) in printed.err


def test_svg_goes_along_with_another_output(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "machine.svg"
    assert main(["topology", "--root", dump, "--svg", str(target), "--output", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cpus"]) == 32
    assert target.exists()


def test_svg_to_standard_output(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", dump, "--svg", "-"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("<svg ")
    assert printed.endswith("</svg>\n")


def test_an_svg_that_cannot_be_written_gets_a_reason_and_a_remedy(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "missing" / "machine.svg")
    assert main(["topology", "--root", dump, "--svg", target]) == 2
    printed = capsys.readouterr().err
    assert f"cannot write the SVG to {target!r}: No such file or directory" in printed
    assert "--svg -" in printed


def test_a_root_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", str(tmp_path / "nowhere")]) == 1
    printed = capsys.readouterr().err
    assert "nowhere' is not a directory" in printed
    assert "omit it for this machine" in printed


@pytest.mark.parametrize("output", ["text", "json", "yaml"])
def test_only_a_machine_without_any_cpu_is_a_failure(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", "--root", str(tmp_path), "--output", output]) == 1
    printed = capsys.readouterr()
    assert "no CPU found" in printed.err
    assert os.path.join(str(tmp_path), "sys/devices/system/cpu") in printed.err
    if output == "json":
        assert json.loads(printed.out)["cpus"] == []


def test_inconsistencies_are_counted_and_listed_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sys/devices/system/cpu/cpu0").mkdir(parents=True)
    doubts = discover(str(tmp_path)).warnings
    assert doubts
    assert main(["topology", "--root", str(tmp_path)]) == 0
    counted = capsys.readouterr().out
    assert f"{len(doubts)} inconsistencies in the kernel's topology files" in counted
    assert main(["topology", "--root", str(tmp_path), "--warnings"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    for doubt in doubts:
        assert f"{doubt.file}: " in listed
        assert " ".join(doubt.reason.split()) in listed


def test_the_absence_of_inconsistencies_is_reported(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert discover(dump).warnings == ()
    assert main(["topology", "--root", dump, "--warnings"]) == 0
    assert "no inconsistencies" in capsys.readouterr().out


def test_this_machine_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology"]) == 0
    assert "CPU" in capsys.readouterr().out.splitlines()[0]


def test_the_terminal_of_standard_output_decides(
    dump: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["topology", "--root", dump]) == 0
    assert "\x1b[1m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["topology", "--root", dump]) == 0
    assert "\x1b" not in capsys.readouterr().out
