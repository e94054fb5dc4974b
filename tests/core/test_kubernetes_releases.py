from __future__ import annotations

import dataclasses
import re
from itertools import pairwise
from pathlib import Path

import pytest

import drakit.scheduler
from drakit.core.kubernetes_releases import (
    GATED_FIELDS,
    LATEST,
    RELEASES,
    CelEnvironment,
    KubernetesRelease,
    SchedulerBehavior,
    SliceLimits,
)
from drakit.scheduler.cel.checker.declarations import functions
from drakit.testing import kubelet_plugin_manager

ROWS = pytest.mark.parametrize("row", RELEASES.values(), ids=lambda row: row.name)


@ROWS
def test_every_row_is_complete(row: KubernetesRelease) -> None:
    assert RELEASES[row.name] is row
    for part, kind in ((row.slice_limits, SliceLimits), (row.scheduler, SchedulerBehavior)):
        assert type(part) is kind
        for field in dataclasses.fields(kind):
            value = getattr(part, field.name)
            if field.type == "bool":
                assert isinstance(value, bool), field.name
            else:
                assert value is None or (type(value) is int and value > 0), field.name
    assert type(row.cel) is CelEnvironment
    # New objects are checked against the previous minor, which cannot know more functions.
    assert row.cel.missing <= row.cel.rejected <= frozenset(functions())
    assert all(isinstance(default, bool) for default in row.gates.values())
    assert row.enables("DRAResourceClaimDeviceStatus")
    assert not row.enables("NoSuchGate")


def test_releases_ascend_without_a_gap() -> None:
    minors = [row.minor for row in RELEASES.values()]
    assert minors == list(range(34, 39))
    assert LATEST.name in RELEASES


def test_a_cel_function_is_accepted_in_new_objects_one_release_after_the_scheduler_has_it() -> None:
    for older, newer in pairwise(RELEASES.values()):
        assert newer.cel.missing <= older.cel.missing
        if newer.minor <= LATEST.minor:  # later rows repeat the latest until they can be tested
            assert newer.cel.rejected == older.cel.missing


def test_every_gate_that_the_scheduler_asks_for_exists() -> None:
    package = Path(drakit.scheduler.__file__).parent
    asked = {
        gate
        for file in package.rglob("*.py")
        for gate in re.findall(r'enables\("(\w+)"\)', file.read_text(encoding="utf-8"))
    }
    assert len(asked) >= 5
    assert asked <= set(LATEST.gates)


def test_the_fake_kubelet_knows_every_release() -> None:
    assert set(RELEASES) <= set(kubelet_plugin_manager.RELEASES)


def test_a_gate_is_never_forgotten_or_turned_off_again() -> None:
    for older, newer in pairwise(RELEASES.values()):
        assert set(older.gates) <= set(newer.gates)
        assert all(newer.enables(gate) for gate, on in older.gates.items() if on)


def test_the_newest_release_knows_every_gate_of_a_field() -> None:
    assert set(GATED_FIELDS) <= set(LATEST.gates)
    fields = [field for paths in GATED_FIELDS.values() for field in paths]
    assert len(fields) == len({field.rpartition(".")[2] for field in fields})


@pytest.mark.parametrize(
    ("gate", "first"),
    [
        ("DRADeviceTaints", 36),
        ("DRADeviceTaintRules", 37),
        ("DRAPartitionableDevices", 36),
        ("DRADeviceBindingConditions", 36),
        ("DRAConsumableCapacity", 36),
        ("DRAFractionalCapacityRange", 37),
        ("DRAListTypeAttributes", None),
    ],
)
def test_gates_are_on_from_the_release_that_says_so(gate: str, first: int | None) -> None:
    on = [row.minor for row in RELEASES.values() if row.enables(gate)]
    assert on == ([] if first is None else list(range(first, 39)))
