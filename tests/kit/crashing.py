"""Dies at every file-system step of prepare and unprepare, and looks at what is left each time.

Run as a program, because it forks: ``python -m tests.kit.crashing DIRECTORY``. For each scenario it
makes a node, lets a child do the work and end itself (``os._exit``, as a ``kill -9`` would) before
the n-th step, for n = 1, 2, … until a child gets through; after each death a new child starts the
driver on what is left and checks it. Prints one JSON object: steps and problems by scenario.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback

from drakit.core import atomicfile
from drakit.kit.claims.cdi_specs import ClaimSpecs
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.metadata import MetadataFiles
from drakit.kit.claims.preparer import Preparer
from drakit.wire.cdi.spec import decode_spec
from drakit.wire.kubelet import ClaimRef
from tests.kit.claimworld import DRIVER, Claims, FakeNode, NumberDriver, resource_claim, result

DIED = 7


class Node:
    """What is on disk, and the driver on it. Claims ``old`` and ``new`` can be asked for."""

    def __init__(self, root, boot="boot-1"):
        self.root = root
        self.checkpoint = Checkpoint(os.path.join(root, "claims"), boot=boot)
        self.claims = Claims()
        for name in ("old", "new", "third"):
            shares = (result("a", share=f"{name}-1"), result("b", share=f"{name}-2"))
            self.claims.add(resource_claim(name, results=shares))
        self.metadata = MetadataFiles(os.path.join(root, "plugin"), DRIVER)
        driver = NumberDriver()
        self.preparer = Preparer(
            FakeNode(driver),
            checkpoint=self.checkpoint,
            source=self.claims,
            cdi=ClaimSpecs(os.path.join(root, "cdi"), driver.cdi_kind),
            metadata=self.metadata,
        )

    async def start(self):
        self.checkpoint.load()
        await self.preparer.restore()

    async def prepare(self, name):
        return await self.preparer.prepare(ref(name))

    async def unprepare(self, name):
        await self.preparer.unprepare(ref(name))


def ref(name):
    return ClaimRef("default", name, f"uid-{name}")


# -- scenarios: what was true before, what is being done -------------------------------------------


async def first_prepare(node):
    await node.prepare("new")


async def repeated_prepare(node):
    await node.prepare("old")


async def prepare_after_reboot(node):
    await Node(node.root, boot="boot-2").start()
    await Node(node.root, boot="boot-2").prepare("old")


async def unprepare(node):
    await node.unprepare("old")


async def unprepare_unknown(node):
    await node.unprepare("new")


async def restart(node):
    await Node(node.root).start()


async def life(node):
    await node.prepare("new")
    await node.unprepare("old")
    await node.prepare("third")
    await node.unprepare("new")


SCENARIOS = {
    function.__name__: function
    for function in (
        first_prepare,
        repeated_prepare,
        prepare_after_reboot,
        unprepare,
        unprepare_unknown,
        restart,
        life,
    )
}


# -- dying -----------------------------------------------------------------------------------------


def work(scenario, root, step, answers):
    """In a child: do the scenario, and die before the given step."""
    node = Node(root)
    asyncio.run(prepare_old(node, answers))
    left = [step]

    def countdown(name, path):
        left[0] -= 1
        if left[0] == 0:
            os._exit(DIED)

    for verb in ("prepare", "unprepare"):
        setattr(Node, verb, answered(getattr(Node, verb), verb, answers))
    atomicfile.observers.append(countdown)
    asyncio.run(SCENARIOS[scenario](node))


async def prepare_old(node, answers):
    await node.start()
    devices = await node.prepare("old")
    tell(answers, "prepare", "old", devices)


def answered(method, verb, answers):
    """The same, but telling the parent what the kubelet was told, as soon as it was."""

    async def call(self, name):
        os.write(answers, json.dumps(["asked", verb, name]).encode() + b"\n")
        devices = await method(self, name)
        tell(answers, verb, name, devices)

    return call


def tell(answers, verb, name, devices):
    known = [[d.request_names, d.device, d.share_id, d.cdi_device_ids] for d in devices or ()]
    os.write(answers, json.dumps(["answered", verb, name, known]).encode() + b"\n")


# -- looking ---------------------------------------------------------------------------------------


class Expectation:
    """What the kubelet knows: answers it got, and calls of which it never heard again."""

    def __init__(self, lines):
        self.prepared, self.open = {}, None
        for line in lines:
            kind, verb, name, *rest = json.loads(line)
            self.open = (verb, name) if kind == "asked" else None
            if kind == "answered" and verb == "prepare":
                self.prepared[name] = rest[0]
            elif kind == "answered":
                self.prepared.pop(name, None)


def look(root, lines):
    """In a child: start on what is left; returns what is wrong with it."""
    expected = Expectation(lines)
    return asyncio.run(examine(Node(root), expected))


async def examine(node, expected):
    problems = []
    await node.start()
    problems += consistent(node, "after restart")
    held = {entry.name for entry in node.checkpoint.prepared_claims}
    maybe = {expected.open[1]} if expected.open else set()
    if lost := set(expected.prepared) - held - maybe:
        problems.append(f"lost: {lost}")
    if extra := held - set(expected.prepared) - maybe:
        problems.append(f"brought back: {extra}")
    # The kubelet repeats the call it has no answer to, and later all others.
    if expected.open:
        verb, name = expected.open
        await getattr(node, verb)(name)
        if verb == "unprepare":
            expected.prepared.pop(name, None)
        problems += consistent(node, f"after {verb} was repeated")
    for name, before in expected.prepared.items():
        now = await node.prepare(name)
        again = [[list(d.request_names), d.device, d.share_id, list(d.cdi_device_ids)] for d in now]
        if again != before:
            problems.append(f"{name} was told {before}, now {again}")
    await node.prepare("third")
    problems += consistent(node, "after one more claim")
    for name in ("old", "new", "third"):
        await node.unprepare(name)
    problems += consistent(node, "at the end")
    left = [n for n in os.listdir(node.checkpoint.directory) if n.endswith(".json")]
    if left or len(node.checkpoint.prepared_claims):
        problems.append(f"left at the end: {left}")
    return problems


def consistent(node, when):
    """Checkpoint, CDI specs and metadata files say the same, nobody holds what another does."""
    problems = []
    fresh = Checkpoint(node.checkpoint.directory, boot="boot-1")
    fresh.refresh()
    entries = {entry.uid: entry for entry in fresh.prepared_claims}
    if fresh.unreadable:
        problems.append(f"unreadable: {fresh.unreadable}")
    numbers = [n for entry in entries.values() for n in entry.exclusive("number")]
    if len(numbers) != len(set(numbers)):
        problems.append(f"assigned twice: {sorted(numbers)}")
    specs = cdi_specs(os.path.join(node.root, "cdi"))
    if set(specs) != set(entries):
        problems.append(f"CDI specs of {set(specs)}, checkpoint of {set(entries)}")
    for uid in set(specs) & set(entries):
        env = {e for device in specs[uid].devices for e in device.container_edits.env}
        granted = {f"{k}={v}" for prepared in entries[uid].devices for k, v in prepared.env.items()}
        if not granted <= env:
            problems.append(f"the CDI spec of {uid} does not match the checkpoint")
    wanted = {node.metadata.path(entry, request) for entry in entries.values() for request in ("a", "b")}
    found = {
        os.path.join(folder, name)
        for folder, _, names in os.walk(os.path.join(node.root, "plugin"))
        for name in names
    }
    if found != wanted:
        problems.append(f"metadata files {found ^ wanted} are missing or too many")
    return [f"{when}: {problem}" for problem in problems]


def cdi_specs(directory):
    specs = {}
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        with open(os.path.join(directory, name), "rb") as file:
            spec = decode_spec(file.read()) if name.endswith(".json") else None
        if spec is None:
            specs[name] = None
            continue
        (uid,) = {device.name.split("uid-")[1].split("_")[0] for device in spec.devices}
        specs[f"uid-{uid}"] = spec
    return specs


# -- the parent ------------------------------------------------------------------------------------


def forked(function, *arguments):
    """Run in a child of its own; returns its exit status and what it wrote to its pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            function(*arguments, writing)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().splitlines()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lines


def run_scenario(name, root):
    """Die at every step; returns the number of steps and all problems found."""
    problems, step = [], 0
    while True:
        step += 1
        place = os.path.join(root, f"{name}-{step}")
        os.mkdir(place)
        status, lines = forked(lambda pipe: work(name, place, step, pipe))  # noqa: B023
        if status not in (0, DIED):
            problems.append(f"step {step}: the work itself failed with status {status}")
            return step, problems

        def examine_into(pipe):
            os.write(pipe, json.dumps(look(place, lines)).encode())  # noqa: B023

        seen, verdict = forked(examine_into)
        found = json.loads(verdict[0]) if seen == 0 else [f"restart failed with status {seen}"]
        problems += [f"step {step}: {problem}" for problem in found]
        if status == 0:
            return step - 1, problems


def main():
    outcome = {}
    for name in SCENARIOS:
        steps, problems = run_scenario(name, sys.argv[1])
        outcome[name] = {"steps": steps, "problems": problems}
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
