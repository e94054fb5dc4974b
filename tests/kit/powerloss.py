"""A disk that forgets what was not synced, and lives of a node on it.

The real calls of prepare and unprepare are recorded (:mod:`tests.kit.syscalls`) and replayed on a model
of a file system that promises no more than POSIX does:

* the bytes of a file are safe after ``fsync`` of the file, its name after ``fsync`` of its directory;
* of the changes to a directory since its last sync, *any* subset may have survived, each as a whole;
* of a file's bytes written since its last sync, none, half, all, or zeros in their place.

The power is cut after every recorded call, and the driver is started on each state that may be left
(all of the checkpoint directory, random ones of the others). Checked each time: every acknowledged
claim is there, with the numbers it was given; nobody holds what another does; no record is damaged; an
unprepare that was acknowledged stays done. (A claim that came back would hold its numbers until its pod,
of which the kubelet knows nothing, is unprepared: never. It must not happen, though it hurts nobody else
unless the numbers were given away since, which is the first check.)

In such a life processes are killed at random calls, and syncs fail, with the call repeated each time.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import tempfile
from dataclasses import dataclass, field

from drakit.wire.kubelet import ClaimError
from tests.kit.claimworld import resource_claim, result
from tests.kit.crashing import Node, consistent
from tests.kit.syscalls import Call, Interposer

NAMES = tuple(f"c{number}" for number in range(6))
AT_ONCE = 4
MOST_STATES = 64
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# -- the disk ----------------------------------------------------------------------------------------


@dataclass
class File:
    data: bytes = b""
    safe: bytes | None = b""
    """What is on the platter; None: not the present bytes."""


@dataclass
class Directory:
    names: dict = field(default_factory=dict)
    safe: dict = field(default_factory=dict)
    pending: list = field(default_factory=list)

    def change(self, *changes):
        for name, node in changes:
            self.names.pop(name, None)
            if node is not None:
                self.names[name] = node
        self.pending.append(changes)

    def sync(self):
        self.safe, self.pending = dict(self.names), []

    def after_loss(self, survivors):
        names = dict(self.safe)
        for changes, survives in zip(self.pending, survivors, strict=True):
            for name, node in changes if survives else ():
                names.pop(name, None)
                if node is not None:
                    names[name] = node
        return names


class Disk:
    """The model; *root* itself is safe."""

    def __init__(self, root):
        self.root, self.top = root, Directory()

    def at(self, path):
        node = self.top
        for part in os.path.relpath(path, self.root).split(os.sep):
            node = node if part == "." else node.names.get(part)
            if node is None:
                return None
        return node

    def apply(self, call):
        parent, name = self.at(os.path.dirname(call.path)), os.path.basename(call.path)
        node = self.at(call.path)
        if call.name == "create":
            if node is None:
                parent.change((name, File()))
            else:
                node.data, node.safe = b"", None  # truncated
        elif call.name == "write":
            node.data, node.safe = node.data + call.more, None
        elif call.name == "fsync" and isinstance(node, Directory):
            node.sync()
        elif call.name == "fsync":
            node.safe = node.data
        elif call.name in ("rename", "replace"):
            assert os.path.dirname(call.more) == os.path.dirname(call.path)
            parent.change((name, None), (os.path.basename(call.more), node))
        elif call.name in ("unlink", "rmdir"):
            parent.change((name, None))
        elif call.name == "mkdir":
            parent.change((name, Directory()))
        else:
            return False
        return True

    def states(self, chance, exhaustive):
        """What may be left: trees of bytes. All there are of the directory *exhaustive*, if few."""
        target = self.at(os.path.join(self.root, exhaustive))
        pending = len(target.pending) if target is not None else 0
        every = list(itertools.product((True, False), repeat=min(pending, 6)))
        for survivors in every[:MOST_STATES]:
            fixed = (*survivors, *(chance.random() < 0.5 for _ in range(pending - len(survivors))))
            for way in ("none", "half", "zeros", "all"):
                yield self._left(self.top, target, fixed, way, chance)

    def _left(self, node, target, fixed, way, chance):
        if isinstance(node, File):
            if node.safe is not None:
                return node.safe
            size = len(node.data)
            return {"none": b"", "half": node.data[: size // 2], "zeros": b"\0" * size, "all": node.data}[way]
        survivors = fixed if node is target else [chance.random() < 0.5 for _ in range(len(node.pending))]
        return {
            name: self._left(each, target, fixed, way, chance)
            for name, each in node.after_loss(survivors).items()
        }


def lay_out(tree, directory):
    for name, content in tree.items():
        path = os.path.join(directory, name)
        if isinstance(content, dict):
            os.mkdir(path)
            lay_out(content, path)
        else:
            with open(path, "wb") as file:
                file.write(content)


# -- a life ------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is no more: nothing it would still do happens."""


@dataclass(frozen=True)
class Answer:
    verb: str
    name: str
    numbers: object = None


@dataclass(frozen=True)
class Asked:
    verb: str
    name: str


class World(Node):
    """A node with more claims, two numbers each."""

    def __init__(self, root, boot="boot-1"):
        super().__init__(root, boot)
        for name in NAMES:
            shares = (result("a", share=f"{name}-1"), result("b", share=f"{name}-2"))
            self.claims.add(resource_claim(name, results=shares))

    def numbers(self, name):
        entry = self.checkpoint.prepared_claims.get(f"uid-{name}")
        return entry.exclusive("number") if entry is not None else None


class Life:
    """Random calls on one node, recorded."""

    def __init__(self, root, seed):
        self.root, self.chance = root, random.Random(seed)
        self.log: list[Call | Answer | Asked] = []
        self.held: set[str] = set()
        self.fatal = self.failing = None
        self.dead = False
        self.cycles = self.kills = self.failures = 0

    def _before(self, call):
        if self.fatal is not None:
            self.fatal -= 1
            if self.fatal <= 0:
                self.dead = True
        if self.dead:
            raise Killed
        if self.failing is not None and call.name == "fsync":
            self.failing -= 1
            if self.failing <= 0:
                self.failing = None
                self.failures += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), call.path)

    async def run(self, cycles):
        with Interposer(self.root, self._before, self.log.append):
            await self._start()
            for _ in range(cycles):
                self.cycles += 1
                await self._cycle()

    async def _start(self):
        """A new process; it may die while it starts, too."""
        while True:
            self.dead = False
            self.fatal = self.chance.randrange(1, 60) if self.chance.random() < 0.3 else None
            try:
                self.node = World(self.root)
                await self.node.start()
                return
            except Killed:
                self.kills += 1
            finally:
                self.fatal = None

    async def _cycle(self):
        free = [name for name in NAMES if name not in self.held]
        choices = [("prepare", name) for name in free if len(self.held) < AT_ONCE]
        choices += [(verb, name) for verb in ("unprepare", "prepare") for name in self.held]
        verb, name = self.chance.choice(choices)
        self.log.append(Asked(verb, name))
        fate = self.chance.random()
        self.fatal = self.chance.randrange(1, 80) if fate < 0.3 else None
        self.failing = self.chance.randrange(1, 8) if 0.3 <= fate < 0.5 else None
        while True:
            try:
                await getattr(self.node, verb)(name)
                break
            except Killed:
                self.kills += 1
                await self._start()
            except ClaimError:
                self.fatal = self.failing = None
        self.fatal = self.failing = None
        numbers = self.node.numbers(name)
        (self.held.add if verb == "prepare" else self.held.discard)(name)
        self.log.append(Answer(verb, name, numbers))


# -- looking -----------------------------------------------------------------------------------------


@dataclass
class Outcome:
    cycles: int = 0
    kills: int = 0
    failures: int = 0
    cuts: int = 0
    states: int = 0
    problems: list = field(default_factory=list)


class Checker:
    """Cuts the power after every call of a recorded life."""

    def __init__(self, life, seed):
        self.life, self.chance = life, random.Random(seed)
        self.outcome = Outcome(life.cycles, life.kills, life.failures)
        self.prepared, self.asked = {}, None
        self._seen = set()

    async def check(self, most_problems=5):
        disk = Disk(os.path.realpath(self.life.root))
        for event in self.life.log:
            if isinstance(event, Asked):
                self.asked = event
            elif isinstance(event, Answer):
                self.asked = None
                self.prepared.pop(event.name, None)
                if event.verb == "prepare":
                    self.prepared[event.name] = event.numbers
            elif not disk.apply(event):
                continue
            self.outcome.cuts += 1
            for tree in disk.states(self.chance, "claims"):
                await self._look(tree, event)
            if len(self.outcome.problems) >= most_problems:
                break
        return self.outcome

    async def _look(self, tree, event):
        claims = tree.get("claims", {})
        records = {name: data for name, data in claims.items() if name.endswith(".json")}
        key = (tuple(sorted(records.items())), tuple(sorted(self.prepared)), self.asked)
        if key in self._seen:
            return
        self._seen.add(key)
        self.outcome.states += 1
        directory = tempfile.mkdtemp(dir=IN_MEMORY)
        try:
            lay_out(tree, directory)
            found = await self._problems(directory)
        finally:
            shutil.rmtree(directory)
        self.outcome.problems += [f"power cut after {event}: {each}" for each in found]

    async def _problems(self, directory):
        node = World(directory, "boot-2")
        await node.start()
        held = {entry.name: entry.exclusive("number") for entry in node.checkpoint.prepared_claims}
        open_name = self.asked.name if self.asked else None
        problems = [
            f"{name} was given {numbers}, now it has {held.get(name)}"
            for name, numbers in self.prepared.items()
            if held.get(name) != numbers
            and not (name == open_name and self.asked.verb == "unprepare" and name not in held)
        ]
        problems += [
            f"{name} came back with {numbers}"
            for name, numbers in held.items()
            if name not in self.prepared and name != open_name
        ]
        taken = list(itertools.chain(*held.values()))
        if len(taken) != len(set(taken)):
            problems.append(f"held twice: {held}")
        if node.checkpoint.unreadable or node.checkpoint.problem:
            problems.append(f"damaged: {node.checkpoint.unreadable} {node.checkpoint.problem}")
        return problems + consistent(node, "after the start")


async def live_and_check(seed, cycles):
    """One life and all its power cuts."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as root:
        life = Life(root, seed)
        await life.run(cycles)
        return await Checker(life, seed).check()


async def violations(seeds=range(20), cycles=15):
    """The first problems found in some lives; for code that must have some."""
    for seed in seeds:
        outcome = await live_and_check(seed, cycles)
        if outcome.problems:
            return outcome.problems
    return []


def total(outcomes):
    """Sums for the report."""
    numbers = ("cycles", "kills", "failures", "cuts", "states")
    return {name: sum(getattr(each, name) for each in outcomes) for name in numbers}
