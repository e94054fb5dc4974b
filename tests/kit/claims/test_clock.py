"""The time of day may be set at any moment, by any amount: nothing depends on it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from drakit.core.cpuset import CpuSet
from drakit.kit.claims.checkpoint import Checkpoint, encode
from drakit.kit.driver import PreparedClaim, PreparedDevice

DAY = 86_400.0


@dataclass
class Clocks:
    """Both clocks of this process, set by hand."""

    day: float
    monotonic: float

    def jump(self, seconds: float) -> None:
        """Somebody sets the time of day."""
        self.day += seconds

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.day += seconds
        self.monotonic += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks(time.time(), time.monotonic())
    monkeypatch.setattr(time, "time", lambda: clocks.day)
    monkeypatch.setattr(time, "time_ns", lambda: int(clocks.day * 1e9))
    monkeypatch.setattr(time, "monotonic", lambda: clocks.monotonic)
    return clocks


@pytest.fixture
def checkpoint(tmp_path: Path, clocks: Clocks) -> Checkpoint:
    checkpoint = Checkpoint(str(tmp_path / "claims"), boot="boot")
    checkpoint.load()
    return checkpoint


def written_by_another(checkpoint: Checkpoint, uid: str, cpu: int, stamp: int) -> None:
    """Another instance writes a claim; the directory's time is *stamp* afterwards."""
    prepared = PreparedDevice(request="r", pool="n", device="d", exclusive={"cpu": CpuSet([cpu])})
    entry = PreparedClaim(uid=uid, namespace="ns", name=uid, devices=(prepared,), boot_id="boot")
    Path(checkpoint.directory, "new").write_bytes(encode(entry))
    os.rename(Path(checkpoint.directory, "new"), checkpoint.path(uid))
    os.utime(checkpoint.directory, ns=(stamp, stamp))


def claims(checkpoint: Checkpoint) -> set[str]:
    return {entry.uid for entry in checkpoint.prepared_claims}


@pytest.mark.parametrize("jump", [DAY, -DAY, 0.2], ids=["forward", "back", "a-little"])
def test_a_second_change_in_the_same_tick_is_noticed(checkpoint: Checkpoint, clocks: Clocks, jump: float):
    """The clock is set between two changes that leave one stamp; neither may be missed."""
    stamp = int(clocks.day * 1e9) | 1
    written_by_another(checkpoint, "a", 1, stamp)
    clocks.jump(jump)
    checkpoint.refresh()
    assert claims(checkpoint) == {"a"}
    written_by_another(checkpoint, "b", 2, stamp)
    checkpoint.refresh()
    assert claims(checkpoint) == {"a", "b"}


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["forward", "back"])
def test_an_unchanged_directory_is_not_read_again(
    checkpoint: Checkpoint, clocks: Clocks, jump: float, monkeypatch: pytest.MonkeyPatch
):
    """Also when the directory's time lies in the future: nobody reads all claims at every event."""
    written_by_another(checkpoint, "a", 1, int(clocks.day * 1e9) | 1)
    clocks.jump(jump)
    checkpoint.refresh()
    clocks.wait(1)
    checkpoint.refresh()
    reads: list[object] = []
    list_directory = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: reads.append(path) or list_directory(path))
    clocks.wait(1)
    checkpoint.refresh()
    assert reads == []


def test_a_file_system_that_keeps_whole_seconds(checkpoint: Checkpoint, clocks: Clocks):
    """Two changes within one second leave one stamp, however long apart they are in our terms."""
    second = int(clocks.day) * 1_000_000_000
    written_by_another(checkpoint, "a", 1, second)
    clocks.wait(0.3)
    checkpoint.refresh()
    clocks.wait(0.3)
    checkpoint.refresh()
    written_by_another(checkpoint, "b", 2, second)
    clocks.wait(0.1)
    checkpoint.refresh()
    assert claims(checkpoint) == {"a", "b"}
