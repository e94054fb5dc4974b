"""Marks of unprepared claims: seen by all processes of a boot, few, forgotten in time."""

from __future__ import annotations

import time

import pytest

from drakit.kit.claims import unprepared as tombstones
from drakit.kit.claims.unprepared import Tombstones


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / ".tombstones")


def test_a_mark_counts_for_calls_that_began_before_it_in_any_process(path):
    before = time.monotonic()
    Tombstones(path, "boot").mark("a")
    after = time.monotonic()
    other = Tombstones(path, "boot")
    assert other.marked_since("a", before)
    assert not other.marked_since("a", after + 1e-6)
    assert not other.marked_since("b", before)


def test_another_boot_has_another_clock(path):
    Tombstones(path, "boot-1").mark("a")
    assert not Tombstones(path, "boot-2").marked_since("a", 0.0)


def test_old_marks_go_and_only_the_newest_stay(path, monkeypatch):
    monkeypatch.setattr(tombstones, "MOST", 3)
    marks = Tombstones(path, "boot")
    for uid in ("a", "b", "c", "a", "d"):
        marks.mark(uid)
    assert [uid for uid in "abcd" if marks.marked_since(uid, 0.0)] == ["a", "c", "d"]
    monkeypatch.setattr(tombstones, "LIFETIME", 0.0)
    marks.mark("e")
    assert [uid for uid in "abcde" if marks.marked_since(uid, 0.0)] == ["e"]


def test_a_damaged_file_is_as_good_as_none(path):
    with open(path, "w") as file:
        file.write("{")
    marks = Tombstones(path, "boot")
    assert not marks.marked_since("a", 0.0)
    marks.mark("a")
    assert marks.marked_since("a", 0.0)
