"""A node that is right is found right, and every single thing that is wrong is found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.cpumem.audit.verdict import Verdict, audit
from drakit.drivers.models.memory_policy import MemoryQosPolicy
from drakit.kit.driver import PreparedClaims, PreparedDevice
from tests.drivers.cpumem.audit.nodes import (
    LIMIT,
    OTHER,
    OTHER_PATH,
    POD_PATH,
    Node,
    as_it_must_be,
    claim,
    machine,
)

CLAIMED = f"{POD_PATH}/cri-containerd-{'a' * 64}.scope"
FREE = f"{OTHER_PATH}/cri-containerd-{'b' * 64}.scope"


def verdict(node: Node, path: str) -> Verdict:
    (found,) = [each for each in node.audit() if each.path == path]
    return found


def test_a_node_that_is_as_it_must_be_is_right(tmp_path: Path) -> None:
    verdicts = as_it_must_be(tmp_path).audit()
    assert [v.path for v in verdicts if not v.right] == []
    kinds = sorted(v.kind for v in verdicts)
    assert kinds == ["above", "above", "container", "container", "pod"]
    claimed = next(v for v in verdicts if v.path == CLAIMED)
    assert claimed.claims == ("default/claim-a",)
    assert {check.file for check in claimed.checks} == {
        "cpuset.cpus",
        "cpuset.mems",
        "hugetlb.2MB.max",
        "hugetlb.2MB.rsvd.max",
        "memory.min",
    }


@pytest.mark.parametrize(
    ("path", "file", "value"),
    [
        (CLAIMED, "cpuset.cpus", "2"),
        (CLAIMED, "cpuset.cpus", "0-3"),
        (CLAIMED, "cpuset.cpus", ""),
        (CLAIMED, "cpuset.mems", "0-1"),
        (CLAIMED, "cpuset.mems", ""),
        (CLAIMED, "hugetlb.2MB.max", "max"),
        (CLAIMED, "hugetlb.2MB.max", "0"),
        (CLAIMED, "hugetlb.2MB.rsvd.max", "2097152"),
        (CLAIMED, "memory.min", "0"),
        (POD_PATH, "hugetlb.2MB.max", "0"),
        (POD_PATH, "hugetlb.2MB.rsvd.max", "max"),
        (POD_PATH, "memory.min", "0"),
        ("kubepods.slice", "memory.min", "4096"),
        ("kubepods.slice", "hugetlb.2MB.max", "0"),
        ("kubepods.slice/kubepods-besteffort.slice", "memory.min", "0"),
        (FREE, "cpuset.cpus.effective", "0-2"),
    ],
)
def test_a_single_wrong_file_is_found(tmp_path: Path, path: str, file: str, value: str) -> None:
    node = as_it_must_be(tmp_path)
    node.file(path, file).write_text(f"{value}\n")
    wrong = [each for each in node.audit() if each.right is False]
    assert [each.path for each in wrong] == [path]
    (check,) = [check for check in wrong[0].checks if not check.right]
    assert check.file == file
    assert check.found == value
    assert str(check).startswith(f"{file} is {value or 'empty'}, must be ")


def test_classic_pages_on_top_of_a_claim_are_right(tmp_path: Path) -> None:
    """Vector 5's other side: the kubelet's own limit adds to the claim's, at both levels."""
    node = as_it_must_be(tmp_path)
    for path in (CLAIMED, POD_PATH):
        for file in ("hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"):
            node.file(path, file).write_text(str(int(LIMIT) * 2))
    assert all(each.right for each in node.audit())


def test_sizes_that_no_claim_names_are_not_looked_at(tmp_path: Path) -> None:
    node = as_it_must_be(tmp_path)
    node.file(CLAIMED, "hugetlb.64KB.max").write_text("0\n")
    assert not any("64KB" in c.file for each in node.audit() for c in each.checks)


def test_a_missing_cgroup_file_is_wrong_and_old_kernels_need_no_reservation_limit(tmp_path: Path) -> None:
    node = as_it_must_be(tmp_path)
    node.file(POD_PATH, "hugetlb.2MB.rsvd.max").unlink()
    assert verdict(node, POD_PATH).right
    node.file(POD_PATH, "hugetlb.2MB.max").unlink()
    assert verdict(node, POD_PATH).right is False


def test_a_container_without_claims_inherits_its_cpus_where_it_has_no_file(tmp_path: Path) -> None:
    node = as_it_must_be(tmp_path)
    node.file(FREE, "cpuset.cpus.effective").unlink()
    assert verdict(node, FREE).right is None
    node.file("kubepods.slice", "cpuset.cpus.effective").write_text("0-3\n")
    assert verdict(node, FREE).right is False


def test_a_claim_that_is_not_written_down_is_wrong(tmp_path: Path) -> None:
    node = as_it_must_be(tmp_path)
    stranger = claim("claim-z")
    path = node.container(POD_PATH, "c", stranger, cpuset__cpus="2-3")
    assert "DRA_CLAIM_claim-z" in verdict(node, path).problem


def test_another_pods_claim_is_wrong(tmp_path: Path) -> None:
    node = as_it_must_be(tmp_path)
    path = node.container(OTHER_PATH, "c", node.entries[0], cpuset__cpus="2-3")
    assert "belongs to pod" in verdict(node, path).problem


def test_where_processes_cannot_be_seen_a_fitting_container_is_right(tmp_path: Path) -> None:
    """In the driver's own pod other processes are hidden: cgroup.procs shows zeros."""
    node = as_it_must_be(tmp_path)
    node.file(CLAIMED, "cgroup.procs").write_text("0\n")
    node.file(FREE, "cgroup.procs").write_text("0\n")
    assert verdict(node, CLAIMED).right
    assert verdict(node, FREE).right
    node.file(CLAIMED, "cpuset.cpus").write_text("1-3\n")
    wrong = verdict(node, CLAIMED)
    assert wrong.right is False
    assert "a guess" in wrong.unknown


def test_a_claim_of_one_request_is_looked_at_alone(tmp_path: Path) -> None:
    node = as_it_must_be(tmp_path)
    entry = node.entries[0]
    more = PreparedDevice(request="more", pool="n", device="numa1", amounts={"numa1/hugepages64Ki": 64 << 10})
    node.entries = (msgspec.structs.replace(entry, devices=(*entry.devices, more)),)
    assert verdict(node, CLAIMED).right, "it uses the first request only"
    pod = verdict(node, POD_PATH)
    assert [c.file for c in pod.checks if not c.right] == ["hugetlb.64KB.max"]


def test_cgroupfs_paths_and_crio_names_are_understood(tmp_path: Path) -> None:
    node = Node(tmp_path, entries=(claim(consumer=OTHER),))
    node.write("", cgroup__controllers="cpuset memory hugetlb")
    node.write(f"kubepods/burstable/pod{OTHER}/crio-{'c' * 64}", cpuset__cpus="0")
    node.write(f"kubepods/burstable/pod{OTHER}/crio-conmon-{'c' * 64}")
    (pod,) = node.scanner().pods()
    assert pod.uid == OTHER
    assert [each.id for each in pod.containers] == ["c" * 64]


def test_exclusive_cpus_of_memory_only_claims_are_the_shared_ones(tmp_path: Path) -> None:
    """A container that claims no CPUs stays with the shared ones, wherever its memory is."""
    node = as_it_must_be(tmp_path)
    memory = PreparedDevice(request="m", pool="n", device="numa0", amounts={"numa0/memory": 2 << 20})
    entry = msgspec.structs.replace(claim("claim-m", OTHER), devices=(memory,))
    node.entries = (*node.entries, entry)
    path = node.container(
        OTHER_PATH, "d", entry, cpuset__cpus="0-1", cpuset__cpus__effective="0-1",
        cpuset__mems="0", memory__min=str(2 << 20),
    )  # fmt: skip
    found = verdict(node, path)
    assert found.right, [str(c) for c in found.checks]
    assert CpuSet.parse(next(c for c in found.checks if "cpus" in c.file).wanted) == CpuSet.parse("0-1")


def test_the_cpu_driver_is_audited_too(tmp_path: Path) -> None:
    """It has CPUs and memory nodes only; pods and above are not its business."""
    node = as_it_must_be(tmp_path)
    scanner = node.scanner()
    driver = cpu_driver(CpuConfig(), machine())
    pods, policy = scanner.pods(), MemoryQosPolicy(mode="off", page_limits=False)
    found = audit(driver, policy, PreparedClaims(node.entries), pods, scanner.read)
    assert [each.kind for each in found] == ["container", "container"]
    assert all(each.right for each in found)
    node.file(CLAIMED, "cpuset.cpus").write_text("0-3\n")
    found = audit(driver, policy, PreparedClaims(node.entries), pods, scanner.read)
    assert [each.path for each in found if each.right is False] == [CLAIMED]
