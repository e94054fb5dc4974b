"""What is put right in the kernel, and what is said of it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from drakit.cgroups import tree as cgroups
from drakit.cgroups.tree import CgroupTree
from drakit.core.cpuset import CpuSet
from drakit.kit.driver import Assignment, Claim, ContainerView, DesiredResources, Offer, PreparedClaims
from drakit.kit.runtime.drift import Drift, count_drift, files_of, find_drift, find_intruders, write_directly
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.nri.values import NriContainer, PodSandbox, State


@pytest.mark.parametrize("ran", [True, False])
def test_files_that_the_runtime_is_still_writing_are_not_drift_but_corrected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ran: bool
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "cgroup.controllers").write_text("cpuset\n")
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/cpuset.cpus").write_text("\n")
    metrics = HostMetrics("dra.test")
    drift = Drift("c0ffee", "pod", "cpuset.cpus", CpuSet([2, 3]), None, ran)
    count_drift([drift], metrics)
    assert write_directly([drift], CgroupTree(str(tmp_path)), metrics) == []
    assert (tmp_path / "pod/cpuset.cpus").read_text().startswith("2-3")
    (record,) = caplog.records
    assert record.levelno == (logging.WARNING if ran else logging.INFO)
    for what in ("found", "corrected"):
        assert metrics.drift.labels(what).value == ran


def test_a_container_that_ended_meanwhile_is_passed_over(tmp_path: Path) -> None:
    metrics = HostMetrics("dra.test")
    drift = Drift("c0ffee", "gone", "cpuset.cpus", CpuSet([2]), None)
    assert write_directly([drift], CgroupTree(str(tmp_path)), metrics) == []
    assert metrics.drift.labels("corrected").value == 0


# -- what is compared ----------------------------------------------------------------------------


def test_every_part_of_a_shape_has_its_file() -> None:
    desired = DesiredResources(
        cpus=CpuSet([1]),
        mems=CpuSet([0]),
        lift_quota=True,
        memory_limit=1 << 30,
        hugepage_limits={"2MB": 4 << 20},
        unified={"memory.min": "4096", "hugetlb.2MB.max": "2097152"},
    )
    assert files_of(desired, unified=True) == {
        "cpuset.cpus": CpuSet([1]),
        "cpuset.mems": CpuSet([0]),
        "cpu.max": "max",
        "memory.max": str(1 << 30),
        "memory.min": "4096",
        "hugetlb.2MB.max": "2097152",
    }
    assert files_of(desired, unified=False) == {
        "cpuset.cpus": CpuSet([1]),
        "cpuset.mems": CpuSet([0]),
        "cpu.cfs_quota_us": "-1",
        "memory.limit_in_bytes": str(1 << 30),
        "hugetlb.2MB.limit_in_bytes": str(4 << 20),
    }
    assert files_of(DesiredResources(), unified=True) == {}
    assert files_of(DesiredResources(memory_limit=-1), unified=True) == {"memory.max": "max"}
    assert files_of(DesiredResources(memory_limit=-1), unified=False) == {"memory.limit_in_bytes": "-1"}


@dataclass
class _Driver:
    """Gives every container the shape that its name asks for."""

    desired_resources: dict[str, DesiredResources]
    name: str = "dra.test"
    cdi_kind: str = "dra.test/x"
    cpuset_kinds: frozenset[str] = frozenset({"cpu"})
    asked: list[str] = field(default_factory=list)

    def offer(self) -> Offer:
        return Offer(())

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        raise NotImplementedError

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        self.asked.append(container.id)
        return self.desired_resources[container.id]


class _Containers:
    """Containers with their cgroups (v2), each with its shape and what its files say."""

    def __init__(self, root: Path, desired_resources: dict[str, DesiredResources]) -> None:
        (root / "cgroup.controllers").write_text("cpuset\n")
        self.root = root
        self.driver = _Driver(desired_resources)
        prepared_claims = PreparedClaims()
        self.enforcer = Enforcer(lambda: self.driver, lambda: prepared_claims)
        self.enforcer.replace_all(
            [PodSandbox(id="s", uid="u", name="p", namespace="n")],
            [
                NriContainer(id=each, pod_id="s", state=State.RUNNING, cgroups_path=f"/pods/{each}")
                for each in desired_resources
            ],
        )
        self.enforcer.collect_updates()
        for each in desired_resources:
            (root / "pods" / each).mkdir(parents=True)
        self.tree = CgroupTree(str(root))
        self.driver.asked.clear()

    def set(self, container: str, file: str, value: str) -> None:
        (self.root / "pods" / container / file).write_text(f"{value}\n")


def test_only_the_files_asked_for_are_compared(tmp_path: Path) -> None:
    desired = DesiredResources(cpus=CpuSet([1]), mems=CpuSet([0]))
    node = _Containers(tmp_path, {"a": desired, "b": desired})
    node.set("a", "cpuset.cpus", "2")
    node.set("a", "cpuset.mems", "1")
    node.set("b", "cpuset.cpus", "1")
    node.set("b", "cpuset.mems", "1")
    found = find_drift(node.enforcer, node.tree)
    assert [(d.container_id, d.file) for d in found] == [
        ("a", "cpuset.cpus"),
        ("a", "cpuset.mems"),
        ("b", "cpuset.mems"),
    ]
    assert (found[0].text, found[0].meant) == ("2", CpuSet([1]))
    found = find_drift(node.enforcer, node.tree, only=("cpuset.cpus",))
    assert [(d.container_id, d.found, d.meant) for d in found] == [("a", CpuSet([2]), CpuSet([1]))]
    assert find_drift(node.enforcer, node.tree, ["b", "unknown"], only=("cpuset.cpus",)) == []


def test_a_text_that_is_right_for_one_container_may_be_wrong_for_the_next(tmp_path: Path) -> None:
    desired_resources = {
        name: DesiredResources(cpus=CpuSet(cpus)) for name, cpus in (("a", [0, 1]), ("b", [2]))
    }
    node = _Containers(
        tmp_path, {**desired_resources, "c": desired_resources["a"], "d": desired_resources["b"]}
    )
    for each in "abcd":
        node.set(each, "cpuset.cpus", "0-1")
    assert [d.container_id for d in find_drift(node.enforcer, node.tree)] == ["b", "d"]


def test_containers_allowed_on_the_cpus_of_a_new_one_are_found(tmp_path: Path) -> None:
    shared = DesiredResources(cpus=CpuSet([0, 1]))
    ids = ("new", "right", "overlaps", "empty", "elsewhere", "may", "gone", "unreadable")
    node = _Containers(tmp_path, dict.fromkeys(ids, shared) | {"may": DesiredResources(cpus=CpuSet([2, 3]))})
    for container, cpus in (
        ("new", "0-7"),
        ("right", "0-1"),
        ("overlaps", "0-2"),
        ("empty", ""),
        ("elsewhere", "4-5"),
        ("may", "2-3"),
        ("unreadable", "???"),
    ):
        node.set(container, "cpuset.cpus", cpus)
    found = find_intruders(node.enforcer, node.tree, CpuSet([2]), excluding="new")
    assert {(d.container_id, d.file, d.meant) for d in found} == {
        (each, "cpuset.cpus", CpuSet([0, 1])) for each in ("overlaps", "empty", "unreadable")
    }
    write_directly(found, node.tree, HostMetrics("dra.test"))
    assert find_intruders(node.enforcer, node.tree, CpuSet([2]), excluding="new") == []
    assert node.tree.look("pods/elsewhere", "cpuset.cpus") == "4-5"  # left to the next comparison


def test_finding_intruders_reads_one_file_per_container_and_computes_only_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"c{i}" for i in range(50)]
    node = _Containers(tmp_path, dict.fromkeys(ids, DesiredResources(cpus=CpuSet([0, 1]))))
    for each in ids:
        node.set(each, "cpuset.cpus", "0-1")
    node.set("c7", "cpuset.cpus", "0-2")
    opened: list[str] = []
    really = os.open
    monkeypatch.setattr(cgroups.os, "open", lambda path, *rest: opened.append(path) or really(path, *rest))
    found = find_intruders(node.enforcer, node.tree, CpuSet([2]), excluding="c0")
    assert [d.container_id for d in found] == ["c7"]
    assert node.driver.asked == ["c7"]
    assert len(opened) == len(ids)  # c7's a second time, c0's not at all


def test_finding_drift_records_no_conflict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset\n")
    driver = _Driver({"c": DesiredResources(cpus=CpuSet([1]))})
    enforcer = Enforcer(lambda: driver, PreparedClaims)
    unknown = NriContainer(
        id="c", pod_id="s", cgroups_path="/pods/c", cdi_devices=(f"{driver.cdi_kind}=claim-gone_r",)
    )
    enforcer.replace_all([PodSandbox(id="s", uid="u")], [unknown])
    (tmp_path / "pods/c").mkdir(parents=True)
    (tmp_path / "pods/c/cpuset.cpus").write_text("2\n")
    found = find_drift(enforcer, CgroupTree(str(tmp_path)))
    assert [(drift.container_id, drift.meant) for drift in found] == [("c", CpuSet([1]))]
    assert (enforcer.conflicts(), caplog.records) == ({}, [])
    enforcer.note_conflicts()
    assert list(enforcer.conflicts()) == ["c"]
    assert "container cannot be served" in caplog.text
