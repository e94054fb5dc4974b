"""One file per claim: durable, ours only, the same after a crash at any step."""

from __future__ import annotations

import builtins
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drakit.core import atomicfile
from drakit.testing.cdi import Catalog
from drakit.wire.cdi.directory import CdiDirectory, CdiDirectoryError
from drakit.wire.cdi.spec import CdiError, ContainerEdits, Spec, claim_spec, encode_spec

KIND = "dra.cpu/claim"
CRASHER = """
import json, os, sys
from drakit.core import atomicfile
from drakit.wire.cdi.directory import CdiDirectory
from drakit.wire.cdi.spec import ContainerEdits, claim_spec
path, verb, survive = json.loads(sys.argv[1])
def die(name, path, seen=[0]):
    seen[0] += 1
    if seen[0] > survive:
        os._exit(42)
atomicfile.observers.append(die)
directory = CdiDirectory(path, "dra.cpu/claim")
spec = claim_spec("dra.cpu/claim", "u1", {"r": ContainerEdits(env=("A=new",))})
if verb == "write":
    directory.write("u1", spec)
else:
    directory.remove("u1")
"""


def spec(value: str = "old", uid: str = "u1") -> Spec:
    return claim_spec(KIND, uid, {"r": ContainerEdits(env=(f"A={value}",))})


@pytest.fixture
def directory(tmp_path: Path) -> CdiDirectory:
    return CdiDirectory(str(tmp_path / "cdi"), KIND)


def crash(directory: CdiDirectory, verb: str, survive: int) -> int:
    plan = json.dumps([directory.path, verb, survive])
    return subprocess.run([sys.executable, "-c", CRASHER, plan], check=False).returncode


def resolved(directory: CdiDirectory) -> str | None:
    known = Catalog.read([directory.path]).devices.get(f"{KIND}=claim-u1_r")
    return known.device.container_edits.env[0] if known else None


def test_a_file_is_written_read_and_removed(directory: CdiDirectory) -> None:
    path = directory.write("u1", spec())
    assert os.path.basename(path) == "dra.cpu-claim_u1.json"
    assert Path(path).read_bytes() == encode_spec(spec())
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert os.stat(directory.path).st_mode & 0o777 == 0o755
    (entry,) = directory.entries().values()
    assert (entry.spec, entry.problem) == (spec(), "")
    assert directory.remove("u1") is True
    assert directory.remove("u1") is False
    assert directory.entries() == {}


def test_writing_the_same_again_touches_nothing(directory: CdiDirectory) -> None:
    directory.write("u1", spec())
    steps: list[str] = []
    atomicfile.observers.append(lambda name, path: steps.append(name))
    try:
        directory.write("u1", spec())
        assert steps == []
        directory.write("u1", spec("new"))
        assert steps == ["create", "write", "sync", "rename", "sync directory"]
    finally:
        atomicfile.observers.clear()
    assert resolved(directory) == "A=new"


def test_runtimes_ignore_temporary_files(directory: CdiDirectory) -> None:
    names: list[str] = []
    atomicfile.observers.append(lambda name, path: names.append(path) if name == "write" else None)
    try:
        directory.write("u1", spec())
    finally:
        atomicfile.observers.clear()
    (temporary,) = names
    assert os.path.dirname(temporary) == directory.path  # a move from elsewhere is not noticed
    assert not temporary.endswith((".json", ".yaml"))


def test_a_crash_at_any_step_of_writing_leaves_the_old_or_the_new(directory: CdiDirectory) -> None:
    outcomes = []
    for survive in range(20):
        directory.write("u1", spec("old"))
        code = crash(directory, "write", survive)
        outcomes.append(resolved(directory))
        directory.clean()
        assert os.listdir(directory.path) == ["dra.cpu-claim_u1.json"]
        if code == 0:
            break
    assert outcomes == ["A=old"] * 4 + ["A=new"] * 2


def test_a_crash_at_any_step_of_the_first_write_is_repaired(directory: CdiDirectory) -> None:
    for survive in range(20):
        code = crash(directory, "write", survive)
        assert resolved(directory) in (None, "A=new")
        directory.clean()
        directory.write("u1", spec("new"))
        assert resolved(directory) == "A=new"
        directory.remove("u1")
        os.rmdir(directory.path)
        if code == 0:
            return
        assert code == 42
    pytest.fail("never came to its end")


def test_a_crash_during_removal_is_repaired(directory: CdiDirectory) -> None:
    for survive in range(3):
        directory.write("u1", spec())
        crash(directory, "remove", survive)
        directory.clean()
        directory.remove("u1")
        assert os.listdir(directory.path) == []


def test_files_of_others_are_neither_listed_nor_touched(directory: CdiDirectory) -> None:
    os.mkdir(directory.path)
    foreign = {
        "nvidia.json": "{}",
        "dra.cpumem-claim_u1.json": "broken",
        "dra.cpu-claim.json": "x",
        "dra.cpu-claim_u1.yaml": "y",
        "dra.cpu-claim_.json": "no id",
        "dra.cpu-claim_ü.json": "odd id",
        "dra.cpu-claim_.hidden.json": "odd id",
        ".dra.cpumem-claim_u1.json.0" + atomicfile.TEMPORARY_SUFFIX: "z",
    }
    for name, text in foreign.items():
        Path(directory.path, name).write_text(text)
    assert directory.entries() == {}
    directory.clean()
    assert {each.name: each.read_text() for each in Path(directory.path).iterdir()} == foreign


def test_damaged_files_of_ours_are_listed_with_the_reason(directory: CdiDirectory) -> None:
    os.mkdir(directory.path)
    Path(directory.file_of("u1")).write_text("{")
    os.mkdir(directory.file_of("u2"))
    other = encode_spec(claim_spec("other/claim", "u", {"r": ContainerEdits(env=("A=1",))}))
    Path(directory.file_of("u3")).write_bytes(other)
    entries = directory.entries()
    assert {id_: entry.spec for id_, entry in entries.items()} == dict.fromkeys(["u1", "u2", "u3"])
    assert "not a CDI specification" in entries["u1"].problem
    assert "directory" in entries["u2"].problem.lower()
    assert "devices of other/claim" in entries["u3"].problem


@pytest.mark.parametrize("id_", ["", "../x", "a/b", ".", "x" * 250, "ü"])
def test_ids_that_are_not_valid_file_names_are_rejected(directory: CdiDirectory, id_: str) -> None:
    with pytest.raises(CdiError, match="part of a CDI file name"):
        directory.write(id_, spec())


def test_a_device_of_another_kind_is_rejected(directory: CdiDirectory) -> None:
    other = claim_spec("other/claim", "u", {"r": ContainerEdits(env=("A=1",))})
    with pytest.raises(CdiError, match="cannot hold a device of other/claim"):
        directory.write("u", other)
    with pytest.raises(CdiError):
        CdiDirectory("/x", "nonsense")


def test_a_directory_that_cannot_be_used_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    directory = CdiDirectory(str(tmp_path / "file" / "cdi"), KIND)
    with pytest.raises(CdiDirectoryError, match="cdi_spec_dirs"):
        directory.write("u1", spec())


def test_a_full_disk_leaves_the_old_file(directory: CdiDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.write("u1", spec("old"))

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomicfile.os, "write", full)
    with pytest.raises(CdiDirectoryError, match="No space left"):
        directory.write("u1", spec("new"))
    monkeypatch.undo()
    assert resolved(directory) == "A=old"
    assert os.listdir(directory.path) == ["dra.cpu-claim_u1.json"]


def test_a_removed_directory_is_created_again(directory: CdiDirectory) -> None:
    directory.write("u1", spec())
    directory.remove("u1")
    os.rmdir(directory.path)
    assert directory.remove("u1") is False
    assert directory.entries() == {}
    assert directory.clean() == []
    directory.write("u1", spec())
    assert resolved(directory) == "A=old"


def test_a_file_that_cannot_be_read_is_written_again(
    directory: CdiDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is derived: nothing in it is worth an error."""
    path = directory.write("u1", spec("old"))
    real = builtins.open

    def failing(file: str, *args: str) -> object:
        raise OSError(errno.EIO, os.strerror(errno.EIO), file)

    monkeypatch.setattr(builtins, "open", failing)
    directory.write("u1", spec("new"))
    monkeypatch.setattr(builtins, "open", real)
    assert Path(path).read_bytes() == encode_spec(spec("new"))
