"""A file is the old or the new one after a crash at any step, and leftovers are told from work."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from drakit.core import atomicfile

CRASHER = """
import json, os, sys
from drakit.core import atomicfile
plan = json.loads(sys.argv[1])
seen = 0
def die(name, path):
    global seen
    seen += 1
    if seen > plan["survive"]:
        os._exit(42)
atomicfile.observers.append(die)
if plan["verb"] == "write":
    atomicfile.write_atomic(plan["path"], plan["data"].encode(), 0o644)
else:
    atomicfile.remove_durably(plan["path"])
print(seen)
"""


@pytest.fixture
def steps() -> Iterator[list[str]]:
    """The names of the file-system steps taken while the test runs."""
    seen: list[str] = []

    def note(name: str, path: str) -> None:
        seen.append(name)

    atomicfile.observers.append(note)
    yield seen
    atomicfile.observers.remove(note)


def crash(verb: str, path: Path, survive: int, data: str = "") -> int:
    plan = {"verb": verb, "path": str(path), "survive": survive, "data": data}
    return subprocess.run([sys.executable, "-c", CRASHER, json.dumps(plan)], check=False).returncode


def test_write_makes_the_file_with_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    target = tmp_path / "claim.json"
    before = os.umask(0o777)
    try:
        atomicfile.write_atomic(str(target), b"one", 0o640)
    finally:
        os.umask(before)
    assert target.read_bytes() == b"one"
    assert target.stat().st_mode & 0o7777 == 0o640
    assert os.listdir(tmp_path) == ["claim.json"]


def test_write_takes_the_steps_in_the_order_that_survives(tmp_path: Path, steps: list[str]) -> None:
    atomicfile.write_atomic(str(tmp_path / "a"), b"x")
    assert steps == ["create", "write", "sync", "rename", "sync directory"]


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    atomicfile.write_atomic(str(tmp_path / "a"), b"")
    assert (tmp_path / "a").read_bytes() == b""


def test_a_crash_at_any_step_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    for survive in range(20):
        target = tmp_path / f"{survive}" / "claim.json"
        target.parent.mkdir()
        target.write_text("old")
        code = crash("write", target, survive, "new")
        assert target.read_text() == ("old" if survive < 4 else "new")
        leftovers = atomicfile.clean_temporaries(str(target.parent))
        assert len(leftovers) == (1 if 0 < survive < 4 else 0)
        assert os.listdir(target.parent) == ["claim.json"]
        if code == 0:
            assert survive == 5
            return
        assert code == 42
    pytest.fail("write_atomic never came to its end")


def test_a_crash_while_removing_leaves_all_or_nothing(tmp_path: Path) -> None:
    for survive, expected in enumerate([True, False, False]):
        target = tmp_path / f"{survive}"
        target.write_text("old")
        assert crash("remove", target, survive) == (0 if survive == 2 else 42)
        assert target.exists() == expected


def test_removing_says_whether_there_was_something(tmp_path: Path, steps: list[str]) -> None:
    target = tmp_path / "a"
    target.write_text("x")
    assert atomicfile.remove_durably(str(target)) is True
    assert atomicfile.remove_durably(str(target)) is False
    assert atomicfile.remove_durably(str(tmp_path / "no" / "such")) is False
    # The second removal syncs as well: the first may have been cut off before its own sync.
    assert steps[:4] == ["unlink", "sync directory"] * 2


def test_a_failed_write_leaves_no_temporary(tmp_path: Path) -> None:
    target = tmp_path / "directory"
    target.mkdir()
    with pytest.raises(IsADirectoryError):
        atomicfile.write_atomic(str(target), b"x")
    assert os.listdir(tmp_path) == ["directory"]


def test_a_missing_directory_is_an_error_for_writing_only(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomicfile.write_atomic(str(tmp_path / "no" / "a"), b"x")
    assert atomicfile.clean_temporaries(str(tmp_path / "no")) == []


def test_cleaning_spares_living_writers_others_names_and_odd_things(tmp_path: Path) -> None:
    suffix = atomicfile.TEMPORARY_SUFFIX
    dead = tmp_path / f".mine_a.0{suffix}"
    dead.write_text("half")
    foreign = tmp_path / f".other_b.1{suffix}"
    foreign.write_text("half")
    (tmp_path / f".mine_c.2{suffix}").symlink_to(foreign)
    os.mkfifo(tmp_path / f".mine_d.3{suffix}")
    living = tmp_path / f".mine_e.4{suffix}"
    with living.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = {entry for entry in os.listdir(tmp_path) if entry != dead.name}
        assert atomicfile.clean_temporaries(str(tmp_path), "mine_") == [str(dead)]
        assert set(os.listdir(tmp_path)) == kept


def test_a_writer_whose_temporary_was_cleaned_before_the_lock_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, robbed = fcntl.flock, []

    def rob_once(descriptor: int, operation: int) -> None:
        if not robbed:
            robbed.extend(tmp_path.iterdir())
            robbed[0].unlink()
        real(descriptor, operation)

    monkeypatch.setattr(atomicfile.fcntl, "flock", rob_once)
    atomicfile.write_atomic(str(tmp_path / "a"), b"x")
    assert os.listdir(tmp_path) == ["a"]
    assert len(robbed) == 1


def test_writers_and_cleaners_at_once_lose_nothing(tmp_path: Path) -> None:
    target, problems = str(tmp_path / "a"), []

    def write(text: bytes) -> None:
        try:
            for _ in range(40):
                atomicfile.write_atomic(target, text)
        except OSError as error:
            problems.append(error)

    writers = [threading.Thread(target=write, args=(bytes([65 + n]) * 5000,)) for n in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        atomicfile.clean_temporaries(str(tmp_path))
    assert not problems
    assert (tmp_path / "a").read_bytes() in {bytes([65 + n]) * 5000 for n in range(3)}
    assert os.listdir(tmp_path) == ["a"]


def test_directories_are_made_once_and_with_their_parents(tmp_path: Path, steps: list[str]) -> None:
    path = tmp_path / "x" / "y"
    atomicfile.ensure_directory(str(path), 0o750)
    assert path.stat().st_mode & 0o7777 == 0o750
    assert steps == ["mkdir", "sync directory"] * 2
    atomicfile.ensure_directory(str(path))
    assert len(steps) == 4


def test_the_names_of_a_directory_and_its_parents_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x" / "y"
    path.mkdir(parents=True)
    synced: list[str] = []

    def note(directory: str) -> None:
        synced.append(directory)
        if directory == str(tmp_path):
            raise PermissionError(directory)

    monkeypatch.setattr(atomicfile, "sync_directory", note)
    atomicfile.sync_parents(str(path))
    device = path.stat().st_dev
    assert synced == [str(p) for p in path.parents if p.stat().st_dev == device]
    assert synced[:2] == [str(tmp_path / "x"), str(tmp_path)]


def test_parents_on_another_file_system_are_none_of_our_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(atomicfile, "sync_directory", synced.append)
    monkeypatch.setattr(atomicfile.os, "stat", lambda path: type("Status", (), {"st_dev": len(path)}))
    atomicfile.sync_parents(str(tmp_path))
    assert synced == []
