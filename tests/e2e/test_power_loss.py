"""Node tier: after a power failure at any time, no acknowledged claim is lost and no CPU has two owners.

The checkpoints are on a disk that loses unflushed writes. While claims are prepared and unprepared, the
possible states after a power cut are examined at random writes and flushes: with none or with an arbitrary
part of the unflushed writes. The checkpoint after the replay of the journal is recorded, and the history
checker verifies the record. Some of the power cuts are real: the machine boots again.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError, StreamTerminatedError

from tests.e2e.bed.cri import Pod
from tests.e2e.bed.deploy import install_packages
from tests.e2e.bed.drivenode import Claim, ClaimRejectedError, DrivenNode, driven
from tests.e2e.bed.guestagent import GuestError
from tests.e2e.bed.node import Node
from tests.e2e.bed.volatile_disk import VolatileDisk, attached, empty_file_system, files_of, mount
from tests.history.checker import Report
from tests.history.recorder import Recorder, checkpoints

SETTINGS = {"reserved_cpus": "0", "verify_seconds": "0", "state_dir": "/volatile/claims"}
_CUT = (GRPCError, StreamTerminatedError, GuestError, OSError, TimeoutError)
"""Errors of a call during a power failure; its result is unknown to the caller."""
_MOST = 3
"""Claims at one time."""
_CHANCE = 0.4
"""Probability that a write or flush is examined."""


@dataclass
class Machine:
    """The node and its disk."""

    node: Node
    disk: VolatileDisk

    def start(self) -> None:
        """Boot, and mount the disk."""
        self.node.power_on()
        self.ready()

    def ready(self) -> None:
        """Mount the disk of a machine that has booted."""
        mount(self.node)
        self.node.wait_for_runtime()


@dataclass
class Loss:
    """A possible state after a power cut, at one write."""

    at: int
    image: bytes


@dataclass
class PowerLoss:
    """Prepares and unprepares claims and examines the disk."""

    machine: Machine
    driven: DrivenNode
    recorder: Recorder
    place: Path
    dice: random.Random
    losses: list[Loss] = field(default_factory=list)
    alive: list[Claim] = field(default_factory=list)
    unsure: list[Claim] = field(default_factory=list)
    """Claims of failed calls: the kubelet would unprepare them again."""
    later: list[tuple[int, dict[str, list[str | None]]]] = field(default_factory=list)
    """Contents of the disk, with times."""
    looked: int = 0

    # -- claims ------------------------------------------------------------------------------------

    def cycle(self) -> None:
        """Prepare or unprepare one claim."""
        if len(self.alive) < _MOST and (not self.alive or self.dice.random() < 0.5):
            pod = Pod(id="", name="pod", uid=str(uuid.uuid4()), config=None)
            claim = self.driven.claim(pod, self.dice.randint(1, 2), self.dice.randint(0, 1))
            if self.call("prepare", claim):
                self.alive.append(claim)
        else:
            claim = self.alive.pop(self.dice.randrange(len(self.alive)))
            self.call("unprepare", claim)
        self.judge_losses()

    def call(self, verb: str, claim: Claim) -> bool:
        """Call and record; return whether the call succeeded."""
        call = self.recorder.called(verb, [claim.uid])
        try:
            getattr(self.driven, verb)(claim)
        except ClaimRejectedError as rejection:
            self.recorder.answered(call, {claim.uid: {"error": str(rejection)}})
            self.unsure.append(claim)
            return False
        except _CUT:
            self.unsure.append(claim)
            raise
        self.recorder.answered(call, {claim.uid: {}})
        return True

    # -- the disk ----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Examine the disk after some of the writes."""
        if self.dice.random() < _CHANCE:
            dice = random.Random(self.dice.random()) if self.dice.random() < 0.5 else None
            self.losses.append(Loss(time.monotonic_ns(), self.machine.disk.after_cut(dice)))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Examine the disk during the block."""
        self.machine.disk.observer = self.watch
        try:
            yield
        finally:
            self.machine.disk.observer = None

    def judge_losses(self) -> None:
        """Record the contents of the disk after each power cut."""
        losses, self.losses = self.losses, []
        losses.append(Loss(time.monotonic_ns(), self.machine.disk.after_cut()))
        for loss in losses:
            self.looked += 1
            self.note_held(loss.at, loss.image)

    def note_held(self, at: int, image: bytes) -> None:
        """All claims on a disk."""
        found = files_of(image, "/claims", self.place / str(self.looked))
        held = {uid: list(each) for uid, each in checkpoints(found).items()}
        # A separate source: it is recorded later than it happened.
        self.later.append((at, held))

    # -- a real one ----------------------------------------------------------------------------------

    def fail_for_real(self) -> None:
        """The power fails in the middle of a call, at a random write; then the machine boots."""
        disk, left = self.machine.disk, self.dice.randint(1, 12)

        def count_down() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                disk.cut(random.Random(self.dice.random()))

        disk.observer = count_down
        try:
            while left > 0:
                self.cycle()
        except _CUT:
            pass
        finally:
            disk.observer = None
        disk.switch_on()  # not used before the machine boots again
        self.machine.node.reboot()
        self.machine.ready()
        self.driven.driver.start()
        self.judge_losses()
        for claim in self.alive:
            assert self.call("prepare", claim), "an acknowledged claim cannot be prepared again"
        unsure, self.unsure = self.unsure, []
        for claim in unsure:
            assert self.call("unprepare", claim), "a claim cannot be unprepared after the cut"

    # -- the end -----------------------------------------------------------------------------------

    def judge(self) -> Report:
        """Result of the history checker."""
        self.recorder.end()
        disk = Recorder(self.recorder.path, source="disk")
        for at, held in sorted(self.later, key=lambda each: each[0]):
            disk.note("held", at=at, **{"from": at}, claims=held, atomic=True)
        disk.end()
        return self.recorder.judge()


@pytest.fixture(scope="module")
def machine(runtime: Node, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The node with drakit and a volatile disk; restored afterwards."""
    install_packages(runtime, packages)
    place = tmp_path_factory.mktemp("disk")
    with VolatileDisk(place / "nbd.sock", empty_file_system(place)) as disk:
        _switch_off(runtime)
        with attached(runtime, disk):
            made = Machine(runtime, disk)
            made.start()
            yield made
            _switch_off(runtime)
    runtime.power_on()
    runtime.wait_for_runtime()


def _switch_off(node: Node) -> None:
    node.run("sync")
    node.cut_power()


@contextmanager
def losing(machine: Machine, place: Path, seed: int | None = None, mutant: str = "") -> Iterator[PowerLoss]:
    """A driver on the machine whose checkpoints are on the volatile disk."""
    seed = int(os.environ.get("DRAKIT_E2E_SEED", "0")) or seed or random.randrange(1, 1 << 32)
    print(f"the power fails by DRAKIT_E2E_SEED={seed}")
    machine.node.run("rm -rf /volatile/claims && sync")
    recorder = Recorder(place / "record.jsonl")
    with driven(machine.node, mutant, **SETTINGS) as node:
        loss = PowerLoss(machine, node, recorder, place, random.Random(seed))
        with loss.watched():
            yield loss


@pytest.mark.parametrize(
    ("cycles", "cuts"),
    [
        pytest.param(20, 1, id="short", marks=pytest.mark.full),
        pytest.param(300, 6, id="long", marks=[pytest.mark.full, pytest.mark.timeout(3600)]),
    ],
)
def test_no_acknowledged_claim_is_lost_when_the_power_fails(
    machine: Machine, tmp_path: Path, cycles: int, cuts: int
) -> None:
    with losing(machine, tmp_path) as loss:
        due = {(number + 1) * cycles // (cuts + 1) for number in range(cuts)}
        for number in range(cycles):
            loss.cycle()
            if number in due:
                loss.fail_for_real()
                machine.disk.observer = loss.watch
        report = loss.judge()
    print(report.seen, report.undecided, f"{loss.looked} cuts looked at, {cuts} real")
    report.check()
    assert report.seen["calls"] >= cycles
    assert loss.looked > cycles


@pytest.mark.full
@pytest.mark.parametrize(
    ("mutant", "kind"), [("does_not_sync_files", "vanished"), ("does_not_sync_directories", "vanished")]
)
def test_a_driver_that_does_not_sync_is_detected(
    machine: Machine, tmp_path: Path, mutant: str, kind: str
) -> None:
    with losing(machine, tmp_path, seed=1, mutant=mutant) as loss:
        for _ in range(8):
            loss.cycle()
        report = loss.judge()
    assert kind in report.kinds()
