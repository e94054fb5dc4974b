"""The preflight names what is missing, with the way out, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drakit.drivers.cpumem.preflight import CGROUP2_MAGIC, filesystem_magic, findings, pods_cgroup
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.preflight import CheckResult
from drakit.machine.model import HugepagePool
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree

MI = 1 << 20


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Path:
    """A node that lacks nothing."""
    made = build(cores=2)
    pools = (HugepagePool(2 * MI, 8, 8),)
    nodes = tuple(replace(n, memory_bytes=8 << 30, hugepages=pools) for n in made.numa_nodes)
    write_tree(replace(made, numa_nodes=nodes), str(tmp_path))
    pods = tmp_path / "cgroup" / "kubepods.slice"
    pods.mkdir(parents=True)
    (pods / "cgroup.controllers").write_text("cpuset cpu memory hugetlb pids\n")
    (pods / "hugetlb.2MB.rsvd.max").write_text("max\n")
    (tmp_path / "kubelet").mkdir()
    (tmp_path / "kubelet" / "config.yaml").write_text("kind: KubeletConfiguration\n")
    return tmp_path


def config(place: Path, **settings: str) -> CpuMemConfig:
    return CpuMemConfig(
        sysfs_root=str(place),
        cgroup_root=str(place / "cgroup"),
        kubelet_root_dir=str(place / "kubelet"),
        kubelet_config_dir=str(place / "kubelet.conf.d"),
        **settings,
    )


def look(place: Path, magic: int | None = CGROUP2_MAGIC, **settings: str) -> list[CheckResult]:
    return list(findings(config(place, **settings), magic=lambda _: magic))


def lacking(found: list[CheckResult]) -> list[str]:
    return [f"{each.subject}: {each.problem or each.note}" for each in found if each.remedy]


def test_a_node_that_lacks_nothing(place: Path) -> None:
    found = look(place)
    assert lacking(found) == []
    assert [str(each)[:4] for each in found] == ["[+] "] * len(found)
    assert {each.subject for each in found} == {"cgroups", "kernel", "kubelet"}


@pytest.mark.parametrize(("magic", "said"), [(0x01021994, "magic 0x1021994"), (None, "does not exist")])
def test_hybrid_and_v1_hosts_are_told_by_the_file_system(place: Path, magic: int | None, said: str) -> None:
    (problem, *_) = [each for each in look(place, magic) if each.problem]
    assert said in problem.problem
    assert "unified_cgroup_hierarchy" in problem.remedy


def test_the_magic_of_a_real_file_system(tmp_path: Path) -> None:
    assert filesystem_magic("/proc") == 0x9FA0
    assert filesystem_magic(str(tmp_path / "none")) is None


@pytest.mark.parametrize("controller", ["cpuset", "memory", "hugetlb"])
def test_a_missing_controller_is_a_problem(place: Path, controller: str) -> None:
    path = place / "cgroup" / "kubepods.slice" / "cgroup.controllers"
    path.write_text(path.read_text().replace(controller, ""))
    (problem,) = [each for each in look(place) if each.problem]
    assert f"the controller {controller} is missing" in problem.problem


def test_kernels_without_reservation_limits_are_noted(place: Path) -> None:
    (place / "cgroup" / "kubepods.slice" / "hugetlb.2MB.rsvd.max").unlink()
    (note,) = [each for each in look(place) if each.note]
    assert "does not limit reservations of 2Mi pages" in note.note
    assert str(note).startswith("[!] ")


@pytest.mark.parametrize(
    ("release", "sign"), [("4.18.0", "[-]"), ("5.10.0", "[!]"), ("6.1.9", "[+]"), ("", "[!]")]
)
def test_old_kernels(place: Path, release: str, sign: str) -> None:
    (place / "proc/sys/kernel/osrelease").write_text(release)
    (place / "proc/version").write_text("")
    (kernel,) = [each for each in look(place) if each.subject == "kernel"]
    assert str(kernel).startswith(sign)


@pytest.mark.parametrize(
    ("text", "sign", "said"),
    [
        ("cpuManagerPolicy: static", "[-]", "cpuManagerPolicy is static"),
        ("memoryManagerPolicy: Static", "[-]", "memoryManagerPolicy is Static"),
        ("topologyManagerPolicy: single-numa-node", "[!]", "does not consider claims"),
        ("memoryReservationPolicy: TieredReservation", "[!]", "memory.min and memory.low"),
        ("memoryThrottlingFactor: 0.9", "[!]", "memory.high is the kubelet's"),
        ("[", "[!]", "cannot be read"),
    ],
)
def test_what_the_kubelet_does_itself(place: Path, text: str, sign: str, said: str) -> None:
    (place / "kubelet" / "config.yaml").write_text(text)
    told = [str(each) for each in look(place) if each.subject == "kubelet"]
    assert any(line.startswith(sign) and said in line for line in told), told


def test_what_a_drop_in_makes_the_kubelet_do(place: Path) -> None:
    drop_in = place / "kubelet.conf.d" / "10-memory.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("memoryManagerPolicy: Static\nmemoryThrottlingFactor: 0.9\n")
    told = [str(each) for each in look(place) if each.subject == "kubelet"]
    assert any("[-] kubelet: memoryManagerPolicy is Static" in line for line in told), told
    assert any("[!] kubelet: memory.high is the kubelet's" in line for line in told), told
    drop_in.write_text("[")
    (kubelet,) = [each for each in look(place) if each.subject == "kubelet"]
    assert "10-memory.conf cannot be read" in kubelet.note


def test_a_kubelet_configuration_that_is_not_there_is_a_note(place: Path) -> None:
    (place / "kubelet" / "config.yaml").unlink()
    (kubelet,) = [each for each in look(place) if each.subject == "kubelet"]
    assert "memoryManagerPolicy" in kubelet.remedy


def test_pools_that_cannot_be_are_noted(place: Path) -> None:
    (note,) = [each for each in look(place, hugepage_pools="0:1Gi=1") if each.note]
    assert "1Gi pages on NUMA node 0" in note.note


def test_a_node_whose_kubelet_has_not_started(place: Path) -> None:
    (place / "cgroup" / "kubepods.slice").rename(place / "cgroup" / "system.slice")
    (place / "cgroup" / "cgroup.controllers").write_text("cpuset memory hugetlb\n")
    (note,) = [each for each in look(place) if each.remedy]
    assert "no kubepods" in note.note


def test_kubepods_is_found_below_a_cgroup_root(tmp_path: Path) -> None:
    inner = tmp_path / "kubelet.slice" / "kubelet-kubepods.slice"
    inner.mkdir(parents=True)
    assert pods_cgroup(str(tmp_path)) == str(inner)
    assert pods_cgroup(str(tmp_path / "none")) is None
