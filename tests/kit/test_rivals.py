"""Drivers of the same things keep off one node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drakit.core.cpuset import CpuSet
from drakit.kit.driver import Entry, Grant
from drakit.kit.ledger import boot_id, encode
from drakit.kit.options import HostOptions
from drakit.kit.rivals import LOCK, RivalError, serving_without


@pytest.fixture(name="options")
def _options(tmp_path: Path) -> HostOptions:
    return HostOptions(kubelet_root_dir=str(tmp_path))


def leave_claim(options: HostOptions, driver: str, *, boot: str, exclusive: bool) -> None:
    directory = Path(options.ledger_dir(driver))
    directory.mkdir(parents=True)
    held = {"cpu": CpuSet([3])} if exclusive else {}
    grant = Grant(request="r", pool="n", device="d", exclusive=held)
    entry = Entry(uid="u", namespace="ns", name="claim", grants=(grant,), boot_id=boot)
    (directory / "u.json").write_bytes(encode(entry))


def serve(options: HostOptions, driver: str, *rivals: str) -> None:
    with serving_without(options, driver, rivals):
        pass


def test_a_rival_that_serves_is_named(options: HostOptions):
    named = pytest.raises(RivalError, match=r"the driver one serves on this node .* as two")
    with serving_without(options, "one", ("two",)), named:
        serve(options, "two", "one")
    serve(options, "two", "one")


def test_two_instances_of_one_driver_serve_together(options: HostOptions):
    with serving_without(options, "one", ("two",)), serving_without(options, "one", ("two",)):
        pass


def test_the_second_instance_keeps_the_rival_off_when_the_first_ends(options: HostOptions):
    with serving_without(options, "one", ("two",)):
        serve(options, "one", "two")
        with pytest.raises(RivalError):
            serve(options, "two", "one")


def test_who_has_no_rivals_is_nobody_s_rival(options: HostOptions):
    """A driver that leaves the CPUs to another serves beside it."""
    with serving_without(options, "one", ()):
        assert not os.path.exists(os.path.join(options.plugin_dir("one"), LOCK))
        serve(options, "two", "one")


def test_a_refused_start_leaves_no_lock(options: HostOptions):
    with serving_without(options, "one", ("two",)), pytest.raises(RivalError):
        serve(options, "two", "one")
    serve(options, "one", "two")


def test_claims_that_a_rival_left_are_respected(options: HostOptions):
    leave_claim(options, "one", boot=boot_id(), exclusive=True)
    with pytest.raises(RivalError, match="1 claims of the driver one still hold things"):
        serve(options, "two", "one")


@pytest.mark.parametrize(("boot", "exclusive"), [("before", True), (None, False)])
def test_claims_that_hold_nothing_any_more_are_not(
    options: HostOptions, boot: str | None, exclusive: bool
):
    leave_claim(options, "one", boot=boot or boot_id(), exclusive=exclusive)
    serve(options, "two", "one")


def test_a_record_that_cannot_be_read_may_hold_anything(options: HostOptions):
    leave_claim(options, "one", boot="before", exclusive=False)
    (Path(options.ledger_dir("one")) / "u.json").write_bytes(b"{")
    with pytest.raises(RivalError, match="drain the node"):
        serve(options, "two", "one")
