"""Every single file operation fails once, with every error that disks and kernels have.

Each scenario is run as many times as it makes file operations on the checkpoint, CDI and metadata
directories, and each time another one of them fails. After each: the caller got an answer or a clear
error, nothing that was acknowledged is lost, nobody holds what another does, nothing was renamed, and
as soon as the fault is gone everything works again, in the same process.

The invariants tested as properties here: "A checkpoint file is quarantined only because of what it
contains", "Releasing resources never requires disk space".

``python -m tests.kit.claims.test_faults`` prints how many faults that are.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import shutil
import tempfile

import pytest

from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.unprepared import Tombstones
from drakit.wire.kubelet import ClaimError
from tests.kit.crashing import Node, consistent
from tests.kit.syscalls import REAL_OPEN, Interposer

ERRORS = ("ENOSPC", "EROFS", "EIO", "ENOMEM", "EMFILE")
NEEDS_SPACE = {"create", "write", "mkdir", "link"}
WRITES = NEEDS_SPACE | {"rename", "replace", "unlink", "rmdir", "fchmod"}
LASTING = [("ENOSPC", NEEDS_SPACE), ("EROFS", WRITES)]
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Fault:
    """Fails the *number*-th call, or with *lasting* from there on every call it is about."""

    def __init__(self, number, error, lasting=()):
        self.number, self.code, self.lasting = number, getattr(errno, error), lasting
        self.calls, self.hit = 0, []

    def __call__(self, call):
        self.calls += 1
        opens_for_writing = call.name == "open" and isinstance(call.more, int) and call.more & 3
        about = call.name in self.lasting or (opens_for_writing and "rename" in self.lasting)
        if self.calls != self.number and not (self.calls > self.number and about):
            return
        if self.lasting and not about:
            return
        if call.name == "write" and self.code == errno.ENOSPC:
            with REAL_OPEN(call.path, "ab") as file:  # the disk takes some of it
                file.write(call.more[: len(call.more) // 2])
        self.hit.append(str(call))
        raise OSError(self.code, os.strerror(self.code), call.path)


class Trial:
    """One node, what the kubelet was told, and the calls it has no good answer to."""

    def __init__(self, root):
        self.node = Node(root)
        self.answers, self.open = {}, []

    async def prepare(self, name):
        self.open.append(("prepare", name))
        devices = await self.node.prepare(name)
        self.answers[name] = (devices, self.numbers(name))
        self.open.pop()

    async def unprepare(self, name):
        self.open.append(("unprepare", name))
        await self.node.unprepare(name)
        self.answers.pop(name, None)
        self.open.pop()

    async def restart(self, boot="boot-1"):
        self.node = Node(self.node.root, boot)
        self.open.append(("start", ""))
        await self.start("")
        self.open.pop()

    async def start(self, _name):
        await self.node.start()

    def numbers(self, name):
        return self.node.checkpoint.prepared_claims.get(f"uid-{name}").exclusive("number")


# -- scenarios ---------------------------------------------------------------------------------------


async def nothing(trial):
    pass


async def one_claim(trial):
    await trial.node.start()
    await trial.prepare("old")


async def leftovers(trial):
    """What a crash may leave: temporary files, a CDI spec without a record."""
    await one_claim(trial)
    root = trial.node.root
    shutil.copy(
        os.path.join(root, "cdi", "example.com-number_uid-old.json"),
        os.path.join(root, "cdi", "example.com-number_uid-gone.json"),
    )
    for place in ("claims/.uid-x.json.0.drakit-tmp", "cdi/.example.com-number_x.0.drakit-tmp"):
        with open(os.path.join(root, place), "w") as file:
            file.write("half")


async def another_instance(trial):
    """Prepared by another instance just now: this one has to read it."""
    await one_claim(trial)
    await Node(trial.node.root).prepare("new")
    trial.answers["new"] = (None, Checkpoint(trial.node.checkpoint.directory).load().get("uid-new"))
    trial.answers["new"] = (None, trial.answers["new"][1].exclusive("number"))


async def first_start(trial):
    await trial.restart()


async def first_prepare(trial):
    await trial.prepare("new")


async def repeated_prepare(trial):
    await trial.prepare("old")


async def unprepare(trial):
    await trial.unprepare("old")


async def unprepare_unknown(trial):
    await trial.unprepare("new")


async def restart(trial):
    await trial.restart()


async def restart_and_repeat(trial):
    await trial.restart()
    await trial.prepare("old")


async def reboot(trial):
    await trial.restart("boot-2")
    await trial.prepare("old")


async def life(trial):
    await trial.prepare("new")
    await trial.unprepare("old")
    await trial.prepare("third")
    await trial.unprepare("new")


SCENARIOS = {
    "first_start": (nothing, first_start),
    "first_prepare": (one_claim, first_prepare),
    "repeated_prepare": (one_claim, repeated_prepare),
    "unprepare": (one_claim, unprepare),
    "unprepare_unknown": (one_claim, unprepare_unknown),
    "restart": (one_claim, restart),
    "restart_with_leftovers": (leftovers, restart),
    "restart_and_repeat": (one_claim, restart_and_repeat),
    "reboot": (one_claim, reboot),
    "prepare_beside_another_instance": (another_instance, unprepare),
    "life": (one_claim, life),
}
LEAST_CALLS = {"first_start": 8, "first_prepare": 60, "unprepare": 30, "life": 150}


# -- running and looking -----------------------------------------------------------------------------


async def run(scenario, root, fault):
    """The scenario with the fault; returns the trial and what is wrong with how it ended."""
    before, work = SCENARIOS[scenario]
    trial, problems = Trial(root), []
    await before(trial)
    with Interposer(root, fault):
        try:
            await work(trial)
        except ClaimError as answer:
            problems += unclear(str(answer), fault)
        except OSError:
            if trial.open[-1][0] != "start":  # the host stays not ready and starts again
                raise
    return trial, problems


def unclear(text, fault):
    known = os.strerror(fault.code) in text or "cannot be read" in text
    return [] if known and "uid-" in text else [f"unclear error: {text}"]


def held(checkpoint):
    return {entry.name: entry.exclusive("number") for entry in checkpoint.prepared_claims}


def truth(trial, when):
    """What is on disk: nothing acknowledged is missing, nothing is held twice, nothing was renamed."""
    problems = []
    fresh = Checkpoint(trial.node.checkpoint.directory, boot=trial.node.checkpoint.boot)
    if os.path.isdir(fresh.directory):
        fresh.load()
        found = held(fresh)
        leaving = {name for verb, name in trial.open if verb == "unprepare"}
        for name, (_, numbers) in trial.answers.items():
            if found.get(name) != numbers and name not in leaving:
                problems.append(f"{name} was given {numbers}, on disk is {found.get(name)}")
        taken = list(itertools.chain(*found.values()))
        if len(taken) != len(set(taken)):
            problems.append(f"held twice: {found}")
        if fresh.unreadable or [n for n in os.listdir(fresh.directory) if "unreadable" in n]:
            problems.append("an intact file was quarantined")
        trial.node.checkpoint.refresh()
        if held(trial.node.checkpoint) != found:
            problems.append(f"in memory {held(trial.node.checkpoint)}, on disk {found}")
    return [f"{when}: {problem}" for problem in problems]


async def recovered(trial):
    """The fault is gone: all works again, in the same process."""
    problems = truth(trial, "after the fault")
    if trial.open and trial.open[-1][0] == "start":
        await trial.start("")
        trial.open.pop()
    if trial.node.checkpoint.problem:
        problems.append(f"still not ready: {trial.node.checkpoint.problem}")
    await trial.node.prepare("third")
    trial.answers["third"] = (None, trial.numbers("third"))
    problems += truth(trial, "after one more claim")
    for verb, name in reversed(trial.open[:]):
        await getattr(trial, verb)(name)
    trial.open.clear()
    problems += truth(trial, "after the call was repeated")
    for name, (devices, numbers) in list(trial.answers.items()):
        again = await trial.node.prepare(name)
        if (devices is not None and again != devices) or trial.numbers(name) != numbers:
            problems.append(f"{name} was told {devices}, now {again}")
    await trial.node.start()
    problems += consistent(trial.node, "after a restart")
    for name in ("old", "new", "third"):
        await trial.node.unprepare(name)
    problems += consistent(trial.node, "at the end")
    return problems


async def inject(scenario, error, lasting=()):
    """Fail every call in turn; returns how many faults were injected and all problems."""
    problems, number, injected = [], 0, 0
    while True:
        number += 1
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as root:
            fault = Fault(number, error, lasting)
            try:
                trial, found = await run(scenario, root, fault)
                found += await recovered(trial)
            except Exception as unexpected:  # whatever it is, it is a finding
                logging.getLogger(__name__).exception("unexpected")
                found = [f"{type(unexpected).__name__}: {unexpected}"]
            problems += [f"call {number}, {fault.hit[:1]}: {problem}" for problem in found]
        injected += bool(fault.hit)
        if fault.calls < number:
            return injected, problems


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_any_single_operation_may_fail(scenario, error):
    injected, problems = await inject(scenario, error)
    assert problems == [], f"{len(problems)} problems with {injected} faults"
    assert injected >= LEAST_CALLS.get(scenario, 1)


@pytest.mark.parametrize(("error", "about"), LASTING, ids=["full", "read-only"])
@pytest.mark.parametrize("scenario", ["first_start", "first_prepare", "reboot", "life"])
async def test_a_disk_may_stay_full_or_read_only(scenario, error, about):
    injected, problems = await inject(scenario, error, about)
    assert problems == [], f"{len(problems)} problems with {injected} faults"


async def damaged_record(root, fault):
    """Start on a damaged record with a fault; returns what is wrong then and afterwards."""
    trial, problems = Trial(root), []
    await one_claim(trial)
    (_, numbers) = trial.answers.pop("old")
    path = trial.node.checkpoint.path("uid-old")
    with open(path, "rb") as file:
        damaged = file.read().replace(b"default", b"DEFAULT")
    with open(path, "wb") as file:
        file.write(damaged)
    node = trial.node = Node(root)
    with Interposer(root, fault):
        for step in (node.start, lambda: node.prepare("new"), lambda: node.unprepare("old")):
            try:
                await step()
            except (ClaimError, OSError) as answer:
                problems += unclear(f"uid- {answer}", fault)
                break
    await node.start()
    gone = node.checkpoint.unreadable == {} and not os.path.exists(path)
    await node.prepare("third")
    for name in ("new", "third"):
        if name in held(node.checkpoint) and not gone and not trial.numbers(name).isdisjoint(numbers):
            problems.append(f"{name} has {trial.numbers(name)} of the damaged record's {numbers}")
    await node.unprepare("old")
    await node.prepare("old")
    taken = list(itertools.chain(*held(node.checkpoint).values()))
    if len(taken) != len(set(taken)) or node.checkpoint.unreadable or node.checkpoint.problem:
        problems.append(f"at the end: {held(node.checkpoint)} {node.checkpoint.unreadable}")
    return problems


@pytest.mark.parametrize("error", ERRORS)
async def test_a_damaged_record_keeps_its_numbers_whatever_fails(error):
    number, problems = 0, []
    while True:
        number += 1
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as root:
            fault = Fault(number, error)
            found = await damaged_record(root, fault)
            problems += [f"call {number}, {fault.hit}: {problem}" for problem in found]
        if not fault.hit:
            break
    assert problems == [], f"{len(problems)} problems with {number - 1} faults"
    assert number > 60


@pytest.mark.parametrize("name", ["old", "new"])
async def test_releasing_never_requires_disk_space(tmp_path, name):
    trial = Trial(str(tmp_path))
    await one_claim(trial)
    full = Fault(1, "ENOSPC", NEEDS_SPACE)
    with Interposer(str(tmp_path), full):
        await trial.unprepare(name)
        assert len(trial.node.checkpoint.prepared_claims) == (0 if name == "old" else 1)
    assert full.hit, "the disk was not full"
    assert not list(tmp_path.rglob("*.new")), "half a file takes room"
    assert await trial.node.prepare("third")


async def test_a_mark_that_could_not_be_written_counts_and_is_written_later(tmp_path):
    path = str(tmp_path / ".tombstones")
    marks, other = Tombstones(path, "boot"), Tombstones(path, "boot")
    with Interposer(str(tmp_path), Fault(1, "ENOSPC", NEEDS_SPACE)):
        marks.mark("a")
        assert marks.marked_since("a", 0.0)
    assert not other.marked_since("a", 0.0)
    marks.mark("b")
    assert other.marked_since("a", 0.0)
    assert other.marked_since("b", 0.0)


async def test_marks_that_cannot_be_read_stop_a_prepare_and_not_an_unprepare(tmp_path):
    trial = Trial(str(tmp_path))
    await one_claim(trial)
    await trial.unprepare("new")

    def unreadable_marks(call):
        if call.name == "open" and call.path.endswith(".tombstones"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), call.path)

    with Interposer(str(tmp_path), unreadable_marks):
        with pytest.raises(ClaimError, match="Input/output error"):
            await trial.node.prepare("third")
        await trial.unprepare("old")
    assert await trial.node.prepare("third")


async def main():
    outcomes = [await inject(scenario, error) for scenario in SCENARIOS for error in ERRORS]
    outcomes += [await inject(scenario, *each) for scenario in SCENARIOS for each in LASTING]
    for problem in itertools.chain(*(problems for _, problems in outcomes)):
        print(problem)
    print(sum(injected for injected, _ in outcomes), "faults injected")
    print(sum(len(problems) for _, problems in outcomes), "violations")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(main())
