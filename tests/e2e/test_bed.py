"""Tests of the test cluster itself that need no machine: caching, cleanup, waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bed.cache import Artifact
from tests.e2e.bed.gobuild import runtime_programs
from tests.e2e.bed.guest import guest_of
from tests.e2e.bed.host import what_can_run
from tests.e2e.bed.pins import REPOSITORY, load_pins
from tests.e2e.bed.processes import Run
from tests.e2e.bed.shapes import load_shapes, parse_cpus
from tests.e2e.bed.waiting import NotYetError, wait_for

# A run with one child that ignores SIGTERM and has a child itself; it prints its
# directory and then waits forever.
_RUN = """
import signal
from tests.e2e.bed.processes import Run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
run = Run.begin()
child = run.start("stubborn", ["sh", "-c", "trap '' TERM INT; exec sleep 1000"])
print(run.directory, child.process.pid, flush=True)
signal.pause()
"""


# Tests whose machine dies during the first test, and again during the teardown of its fixture.
_HOOKS = """
from tests.e2e.conftest import (
    pytest_runtest_makereport, pytest_runtest_protocol, pytest_terminal_summary
)
"""
_DYING = """
import pytest
from tests.e2e.bed.emulator import EmulatorDiedError
made = []

@pytest.fixture(scope="module")
def bed():
    made.append("a machine")
    yield len(made)
    if len(made) == 1:
        raise OSError("no answer")

def test_first(bed):
    if bed == 1:
        raise EmulatorDiedError("the machine is gone")

def test_second(bed):
    assert bed == 2
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for one test."""
    monkeypatch.setenv("DRAKIT_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_or_file_outlives_a_run(cache: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _RUN], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as owner:
        assert owner.stdout is not None
        directory, pid = owner.stdout.readline().split()
        assert Path(directory).is_dir()
        assert Path(f"/proc/{pid}").exists()
        owner.send_signal(number)
        owner.wait()
    wait_for("the child to be gone", lambda: not _runs(pid), limit=60)
    wait_for("the directory to be gone", lambda: not Path(directory).exists(), limit=60)


def _runs(pid: str) -> bool:
    """Whether a process exists and is not a zombie: not every sandbox has a reaping process 1."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_run_ends_its_programs_and_removes_its_directory(cache: Path) -> None:
    with Run.begin() as run:
        child = run.start("sleeper", ["sleep", "1000"])
        directory = run.directory
        assert child.alive()
    assert not child.alive()
    assert not directory.exists()


def test_the_files_of_a_dead_run_are_removed_by_the_next_one(cache: Path) -> None:
    with Run.begin() as alive:
        dead = cache / "runs" / "run-dead"
        dead.mkdir()
        (dead / "lock").touch()
        (dead / "disk.qcow2").touch()
        for directory in (dead, alive.directory):
            os.utime(directory, (1, 1))
        with Run.begin():
            assert not dead.exists()
            assert alive.directory.exists()


@dataclass(frozen=True)
class Draft(Artifact):
    """An artifact whose build can be made to fail."""

    flavor: str
    broken: bool = False
    name: str = "draft"
    version: str = "1"

    def recipe(self) -> dict[str, Any]:
        return {"flavor": self.flavor}

    def build(self, directory: Path, log: Path) -> None:
        (directory / "part").write_text(self.flavor)
        if self.broken:
            raise RuntimeError("interrupted")


def test_an_interrupted_build_does_not_look_finished(cache: Path) -> None:
    with pytest.raises(RuntimeError, match="interrupted"):
        Draft("a", broken=True).get()
    assert not Draft("a").is_built()
    assert (Draft("a").get() / "part").read_text() == "a"
    assert Draft("a", broken=True).get() == Draft("a").get()  # found, not built again


def test_a_changed_recipe_is_another_artifact(cache: Path) -> None:
    assert Draft("a").get() != Draft("b").get()


def test_a_timeout_reports_the_last_observed_state() -> None:
    def never() -> bool:
        raise NotYetError("the pod is Pending")

    with pytest.raises(TimeoutError, match="for a pod; last seen: the pod is Pending"):
        wait_for("a pod", never, limit=0, pause=0)


def test_a_test_whose_machine_died_is_repeated_visibly_on_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_HOOKS)
    (tmp_path / "test_dying.py").write_text(_DYING)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "THE BED DIED during test_dying.py::test_first: the machine is gone" in done.stdout
    assert "tidying up on it failed: OSError('no answer')" in done.stdout
    assert "REPEATED after the test cluster died: test_dying.py::test_first" in done.stdout
    assert "2 passed" in done.stdout
    assert done.returncode == 0


def test_only_pinned_versions_can_be_selected() -> None:
    assert load_pins({"DRAKIT_E2E_CONTAINERD": "debian"}).containerd_is_debians
    assert load_pins({"DRAKIT_E2E_RUNTIME": "crio"}).is_crio
    assert not load_pins({}).is_crio
    with pytest.raises(ValueError, match="pins kubernetes"):
        load_pins({"DRAKIT_E2E_KUBERNETES": "1.0.0"})
    assert guest_of(load_pins({})).systemd
    assert not guest_of(load_pins({"DRAKIT_E2E_GUEST": "cgroupfs"})).systemd
    with pytest.raises(ValueError, match="pins guest systemd, cgroupfs"):
        load_pins({"DRAKIT_E2E_GUEST": "sysvinit"})


def test_nothing_of_cri_o_is_built_unless_it_is_selected() -> None:
    """A cold ``make e2e`` has a time limit."""
    default, selected = load_pins({}), load_pins({"DRAKIT_E2E_RUNTIME": "crio"})
    assert {"crio", "pinns"}.isdisjoint(runtime_programs(default))
    assert set(runtime_programs(selected)) == {"crio", "pinns"}
    assert set(selected.guest_packages) - set(default.guest_packages) == {"conmon", "skopeo"}
    assert "gcc" not in default.host_tools


def test_every_shape_places_each_cpu_once() -> None:
    for shape in load_shapes().values():
        placed = [cpu for numa in shape.numa for cpu in numa.cpus]
        assert sorted(placed) == list(range(shape.cpu_count)), shape.name


def test_cpu_lists_are_read_as_the_kernel_writes_them() -> None:
    assert parse_cpus("0-2,5,7-8\n") == (0, 1, 2, 5, 7, 8)
    assert parse_cpus("\n") == ()


def test_the_generated_cri_messages_are_current(tmp_path: Path) -> None:
    source = "tests/e2e/proto/cri.proto"
    generate = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}"]
    subprocess.run([*generate, source], check=True, cwd=REPOSITORY)
    made = (tmp_path / source).with_name("cri_pb2.py").read_text()
    assert made == (REPOSITORY / source).with_name("cri_pb2.py").read_text()


def test_a_machine_without_go_or_root_reports_what_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == "go" else f"/usr/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv("DRAKIT_E2E_RUNTIME", raising=False)
    without_go = what_can_run()
    assert without_go.vm
    assert not without_go.cluster
    assert without_go.pins(load_pins({})).containerd_is_debians
    assert "no Go" in without_go.why_not()
    monkeypatch.setenv("DRAKIT_E2E_RUNTIME", "crio")
    assert not what_can_run().vm, "containerd would be tested under the name of CRI-O"
    assert "CRI-O cannot be built" in what_can_run().why_not()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    neither = what_can_run()
    assert not neither.vm
    assert "not root" in neither.why_not()
