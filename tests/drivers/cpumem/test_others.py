"""Hugepages that others hold when the driver starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from drakit.drivers.cpumem.others import held_by_others
from drakit.kit.driver import PreparedClaim, PreparedDevice
from drakit.machine.model import Machine
from drakit.testing.synthetic import build
from tests.drivers.cpumem.amounts import MI, pool

POD = "0a1b-2c"


def entry(pages: int = 10, consumers: tuple[str, ...] = (POD,), uid: str = "u") -> PreparedClaim:
    prepared = PreparedDevice(
        request="r", pool="n", device="numa0", amounts={"numa0/hugepages2Mi": pages * 2 * MI}
    )
    return PreparedClaim(uid=uid, namespace="ns", name="claim", devices=(prepared,), consumers=consumers)


@pytest.fixture(name="machine")
def _machine() -> Machine:
    return build(cores=1, hugepages=[pool("2Mi", 100, free=70)])  # 30 in use


def usage(root: Path, cgroup: str, pages: int) -> None:
    (root / cgroup).mkdir(parents=True)
    (root / "cgroup.controllers").write_text("hugetlb\n")
    text = f"total={pages * 2 * MI} N0={pages * 2 * MI}\n"
    (root / cgroup / "hugetlb.2MB.numa_stat").write_text(text)


def test_all_is_others_where_nothing_was_claimed(machine: Machine, tmp_path: Path):
    assert held_by_others(machine, [], str(tmp_path)) == {0: {2 * MI: 30}}


@pytest.mark.parametrize(
    "cgroup",
    [
        f"kubepods/burstable/pod{POD}",
        "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0a1b_2c.slice",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod0a1b_2c.slice",
    ],
)
def test_what_our_pods_use_is_ours(machine: Machine, tmp_path: Path, cgroup: str):
    usage(tmp_path, cgroup, 4)
    usage(tmp_path, "kubepods/podanother", 9)
    assert held_by_others(machine, [entry()], str(tmp_path)) == {0: {2 * MI: 26}}


def test_two_claims_of_a_pod_are_counted_once(machine: Machine, tmp_path: Path):
    usage(tmp_path, f"kubepods/pod{POD}", 4)
    claims = [entry(), entry(uid="v")]
    assert held_by_others(machine, claims, str(tmp_path)) == {0: {2 * MI: 26}}


@pytest.mark.parametrize("root", ["missing", ""])
def test_where_usage_cannot_be_read_claims_count_in_full(machine: Machine, tmp_path: Path, root: str):
    where = str(tmp_path / root) if root else ""
    assert held_by_others(machine, [entry(10)], where) == {0: {2 * MI: 20}}
    assert held_by_others(machine, [entry(99)], where) == {0: {2 * MI: 0}}


def test_machines_without_hugepages(tmp_path: Path):
    assert held_by_others(build(cores=1), [entry()], str(tmp_path)) == {}
