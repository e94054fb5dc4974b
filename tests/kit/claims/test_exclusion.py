"""Drivers of the same things keep off one node."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from drakit.core.bootrecord import boot_id
from drakit.core.cpuset import CpuSet
from drakit.kit.claims import exclusion as rivals
from drakit.kit.claims.checkpoint import encode
from drakit.kit.claims.exclusion import LOCK, ConflictingDriverError, exclude_other_drivers
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import PreparedClaim, PreparedDevice


@pytest.fixture(name="options")
def _options(tmp_path: Path) -> HostOptions:
    return HostOptions(kubelet_root_dir=str(tmp_path))


def leave_claim(options: HostOptions, driver: str, *, boot: str, exclusive: bool) -> None:
    directory = Path(options.checkpoint_dir(driver))
    directory.mkdir(parents=True)
    held = {"cpu": CpuSet([3])} if exclusive else {}
    prepared = PreparedDevice(request="r", pool="n", device="d", exclusive=held)
    entry = PreparedClaim(uid="u", namespace="ns", name="claim", devices=(prepared,), boot_id=boot)
    (directory / "u.json").write_bytes(encode(entry))


def serve(options: HostOptions, driver: str, *rivals: str) -> None:
    with exclude_other_drivers(options, driver, rivals):
        pass


def test_a_rival_that_serves_is_named(options: HostOptions):
    named = pytest.raises(ConflictingDriverError, match=r"the driver one serves on this node .* as two")
    with exclude_other_drivers(options, "one", ("two",)), named:
        serve(options, "two", "one")
    serve(options, "two", "one")


def test_two_instances_of_one_driver_serve_together(options: HostOptions):
    with exclude_other_drivers(options, "one", ("two",)), exclude_other_drivers(options, "one", ("two",)):
        pass


def test_the_second_instance_keeps_the_rival_off_when_the_first_ends(options: HostOptions):
    with exclude_other_drivers(options, "one", ("two",)):
        serve(options, "one", "two")
        with pytest.raises(ConflictingDriverError):
            serve(options, "two", "one")


def test_a_driver_without_conflicts_excludes_nobody(options: HostOptions):
    """A driver that leaves the CPUs to another serves beside it."""
    with exclude_other_drivers(options, "one", ()):
        assert not os.path.exists(os.path.join(options.plugin_dir("one"), LOCK))
        serve(options, "two", "one")


def test_a_rejected_start_leaves_no_lock(options: HostOptions):
    with exclude_other_drivers(options, "one", ("two",)), pytest.raises(ConflictingDriverError):
        serve(options, "two", "one")
    serve(options, "one", "two")


def test_claims_that_a_rival_left_are_respected(options: HostOptions):
    leave_claim(options, "one", boot=boot_id(), exclusive=True)
    with pytest.raises(ConflictingDriverError, match="1 claims of the driver one still hold resources"):
        serve(options, "two", "one")


@pytest.mark.parametrize(("boot", "exclusive"), [("before", True), (None, False)])
def test_claims_that_hold_nothing_any_more_are_not(options: HostOptions, boot: str | None, exclusive: bool):
    leave_claim(options, "one", boot=boot or boot_id(), exclusive=exclusive)
    serve(options, "two", "one")


def test_a_record_that_cannot_be_read_may_hold_anything(options: HostOptions):
    leave_claim(options, "one", boot="before", exclusive=False)
    (Path(options.checkpoint_dir("one")) / "u.json").write_bytes(b"{")
    with pytest.raises(ConflictingDriverError, match="drain the node"):
        serve(options, "two", "one")


@pytest.mark.parametrize("boot", ["before", None])
def test_a_record_in_quarantine_may_hold_anything(options: HostOptions, boot: str | None):
    leave_claim(options, "one", boot=boot or boot_id(), exclusive=True)
    directory = Path(options.checkpoint_dir("one"))
    (directory / "u.json").rename(directory / "u.json.unreadable")
    with pytest.raises(ConflictingDriverError, match="1 claims of the driver one still hold"):
        serve(options, "two", "one")


def test_a_record_of_a_newer_version_may_hold_anything(options: HostOptions):
    leave_claim(options, "one", boot="before", exclusive=False)
    path = Path(options.checkpoint_dir("one")) / "u.json"
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(ConflictingDriverError, match="still hold"):
        serve(options, "two", "one")


def test_a_checkpoint_that_cannot_be_listed_is_no_empty_checkpoint(
    options: HostOptions, monkeypatch: pytest.MonkeyPatch
):
    leave_claim(options, "one", boot=boot_id(), exclusive=True)

    def failing(directory: str) -> list[str]:
        raise OSError(errno.EIO, "Input/output error", directory)

    monkeypatch.setattr(rivals.os, "listdir", failing)
    with pytest.raises(OSError, match="Input/output error"):
        serve(options, "two", "one")


def elsewhere(options: HostOptions, directory: Path) -> HostOptions:
    return HostOptions(kubelet_root_dir=options.kubelet_root_dir, state_dir=str(directory))


def test_claims_in_a_checkpoint_elsewhere_are_found(options: HostOptions, tmp_path: Path):
    theirs = elsewhere(options, tmp_path / "elsewhere")
    leave_claim(theirs, "one", boot=boot_id(), exclusive=True)
    serve(theirs, "one", "two")
    with pytest.raises(ConflictingDriverError, match=r"1 claims of the driver one .*elsewhere"):
        serve(options, "two", "one")
    (tmp_path / "elsewhere" / "u.json").unlink()
    serve(options, "two", "one")


def test_an_earlier_checkpoint_elsewhere_is_not_forgotten(options: HostOptions, tmp_path: Path):
    first = elsewhere(options, tmp_path / "first")
    leave_claim(first, "one", boot=boot_id(), exclusive=True)
    serve(first, "one", "two")
    (tmp_path / "second").mkdir()
    serve(elsewhere(options, tmp_path / "second"), "one", "two")
    with pytest.raises(ConflictingDriverError, match="first"):
        serve(options, "two", "one")


def test_a_checkpoint_that_cannot_be_seen_from_here_may_hold_anything(
    options: HostOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    serve(elsewhere(options, tmp_path / "not-mounted-here"), "one", "two")
    with pytest.raises(ConflictingDriverError, match=r"not accessible here.*remove .*ledgers"):
        serve(options, "two", "one")
    monkeypatch.setattr(rivals, "boot_id", lambda: "after a restart of the node")
    serve(options, "two", "one")


def test_a_damaged_note_is_no_missing_note(options: HostOptions, tmp_path: Path):
    serve(elsewhere(options, tmp_path / "elsewhere"), "one", "two")
    (note,) = (Path(options.plugin_dir("one")) / rivals.NOTES).iterdir()
    note.write_text("{")
    with pytest.raises(ConflictingDriverError, match="damaged"):
        serve(options, "two", "one")
