"""What is put right in the kernel, and what is said of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from drakit.core.cpuset import CpuSet
from drakit.kit.cgroups import CgroupTree
from drakit.kit.metrics import Metrics
from drakit.kit.verification import Drift, count_found, write_directly


@pytest.mark.parametrize("ran", [True, False])
def test_what_the_runtime_is_still_filling_in_is_no_drift_but_put_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ran: bool
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "cgroup.controllers").write_text("cpuset\n")
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/cpuset.cpus").write_text("\n")
    metrics = Metrics("dra.test")
    drift = Drift("c0ffee", "pod", "cpuset.cpus", CpuSet([2, 3]), None, ran)
    count_found([drift], metrics)
    assert write_directly([drift], CgroupTree(str(tmp_path)), metrics) == []
    assert (tmp_path / "pod/cpuset.cpus").read_text().startswith("2-3")
    (record,) = caplog.records
    assert record.levelno == (logging.WARNING if ran else logging.INFO)
    for what in ("found", "corrected"):
        assert metrics.drift.labels(what).value == ran


def test_a_container_that_ended_meanwhile_is_passed_over(tmp_path: Path) -> None:
    metrics = Metrics("dra.test")
    drift = Drift("c0ffee", "gone", "cpuset.cpus", CpuSet([2]), None)
    assert write_directly([drift], CgroupTree(str(tmp_path)), metrics) == []
    assert metrics.drift.labels("corrected").value == 0
