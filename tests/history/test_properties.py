"""Any legal history is judged legal, whatever the delays; one violation put into it is found.

A small true node: at every moment a claim's CPUs are its own, pods without claims have the rest. What is
written down of it is blurred as in reality: calls begin before what they cause and are answered after it,
readings take time, starts and stops are told late.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .checker import Report, judge, show
from .stories import Story

CPUS = frozenset(range(8))
SECOND = 1_000_000_000


class TrueNode:
    """What really happens, one step at a time, and the record of it in arbitrary order of telling."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.now = 1_000 * SECOND
        self.boot = 0
        self.events: list[tuple[int, int, str, dict]] = []
        self.owned: dict[str, frozenset[int]] = {}
        self.files: dict[str, str] = {}
        self.containers: dict[str, tuple[str, ...]] = {}
        self.placed: dict[str, frozenset[int]] = {}
        self.count = 0

    def name(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def tell(self, at: int, event: str, **facts: object) -> None:
        self.events.append((self.boot, at, event, facts))

    def before(self) -> int:
        return self.now - self.dice.choice([1, 1, SECOND // 3, 5 * SECOND])

    def after(self) -> int:
        return self.now + self.dice.choice([1, 1, SECOND // 3, 5 * SECOND])

    @property
    def free(self) -> frozenset[int]:
        return CPUS - {cpu for cpus in self.owned.values() for cpu in cpus}

    # -- what happens ------------------------------------------------------------------------------

    def step(self) -> None:
        self.now += self.dice.choice([10, SECOND // 2, 2 * SECOND])
        often = [self.prepare, self.start, self.stop, self.unprepare, self.start_shared]
        self.dice.choice([*often, self.look, self.look, self.hold, self.repeat])()

    def call(self, verb: str, claim: str, facts: dict[str, str]) -> None:
        """What the call causes happens now; it was called before, and answered later or never."""
        name = self.name("call")
        self.tell(self.before(), "call", call=name, verb=verb, claims=[claim])
        if self.dice.random() < 0.9:
            self.tell(self.after(), "answer", call=name, claims={claim: facts})

    def prepare(self) -> None:
        if len(self.free) < 3:
            return
        claim = self.name("claim")
        cpus = frozenset(self.dice.sample(sorted(self.free), self.dice.randint(1, 2)))
        self.owned[claim], self.files[claim] = cpus, self.name("file")
        self.call("prepare", claim, {"cpus": show(cpus)})

    def repeat(self) -> None:
        if self.owned:
            claim = self.dice.choice(sorted(self.owned))
            self.call("prepare", claim, {"cpus": show(self.owned[claim])})

    def unprepare(self) -> None:
        used = {claim for claims in self.containers.values() for claim in claims}
        idle = sorted(self.owned.keys() - used)
        if idle:
            claim = self.dice.choice(idle)
            del self.owned[claim], self.files[claim]
            self.call("unprepare", claim, {})
        elif used:
            self.call("unprepare", self.dice.choice(sorted(used)), {"error": "still used"})

    def start(self) -> None:
        if self.owned:
            self.begin(self.dice.choice(sorted(self.owned)))

    def start_shared(self) -> None:
        self.begin()

    def begin(self, *claims: str) -> None:
        container = self.name("container")
        self.containers[container] = claims
        facts = {"container": container, "pod": container, "claims": list(claims)}
        self.tell(self.now, "container", asked=self.before(), **facts)
        self.tell(self.now, "started", container=container)

    def stop(self) -> None:
        if self.containers:
            container = self.dice.choice(sorted(self.containers))
            del self.containers[container]
            self.tell(self.now, "stopping", container=container)
            self.tell(self.after(), "stopped", container=container)

    def look(self) -> None:
        found = {}
        for container, claims in self.containers.items():
            cpus = self.owned[claims[0]] if claims else self.free
            found[container] = [self.now - 5, self.now + 5, show(cpus)]
        self.tell(self.now + 5, "look", containers=found)

    def hold(self) -> None:
        held = {uid: [self.files[uid], show(cpus)] for uid, cpus in self.owned.items()}
        self.tell(self.now + 5, "held", **{"from": self.now - 5}, claims=held)

    # -- the record --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Longer than any delay: what follows is surely later."""
        self.now += 20 * SECOND

    def judged(self) -> Report:
        story = Story()
        for boot, at, event, facts in sorted(self.events, key=lambda each: each[:2]):
            story.boot, story.clock = boot, at - SECOND
            story.note(event, **facts)
        return judge(story.lines())


def lived(seed: int, steps: int) -> TrueNode:
    node = TrueNode(random.Random(seed))
    for _ in range(steps):
        node.step()
    return node


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 120))
def test_a_legal_history_is_judged_legal(seed: int, steps: int):
    node = lived(seed, steps)
    node.tell(node.after(), "settings", settling=0, correcting=0)
    assert node.judged().violations == []


# -- one violation, put where it is certain -----------------------------------------------------------


def _owner(node: TrueNode) -> tuple[str, str]:
    """A claim that certainly owns CPUs, and its container that certainly runs."""
    node.owned["v"], node.files["v"] = frozenset([40, 41]), "v-file"
    node.tell(node.now, "call", call="v1", verb="prepare", claims=["v"])
    node.tell(node.now + 1, "answer", call="v1", claims={"v": {"cpus": "40-41"}})
    node.pause()
    node.begin("v")
    container = list(node.containers)[-1]
    node.pause()
    node.look()
    node.pause()
    return "v", container


def _own_the_same(node: TrueNode) -> None:
    _owner(node)
    node.owned["w"], node.files["w"] = frozenset([41]), "w-file"
    node.tell(node.now, "call", call="w1", verb="prepare", claims=["w"])
    node.tell(node.now + 1, "answer", call="w1", claims={"w": {"cpus": "41"}})


def _give_away(node: TrueNode) -> None:
    _, container = _owner(node)
    del node.owned["v"], node.containers[container]
    node.tell(node.now, "call", call="v2", verb="unprepare", claims=["v"])
    node.tell(node.now + 1, "answer", call="v2", claims={"v": {}})
    _own_nothing_else(node)
    node.pause()
    node.tell(node.now, "stopping", container=container)


def _own_nothing_else(node: TrueNode) -> None:
    node.pause()
    node.tell(node.now, "call", call="w1", verb="prepare", claims=["w"])
    node.tell(node.now + 1, "answer", call="w1", claims={"w": {"cpus": "40"}})


def _intrude(node: TrueNode) -> None:
    _owner(node)
    node.begin()
    stranger = list(node.containers)[-1]
    node.pause()
    found = {stranger: [node.now, node.now + 1, show(node.free | {40})]}
    node.tell(node.now + 1, "look", containers=found)
    node.pause()
    node.look()


def _move(node: TrueNode) -> None:
    _, container = _owner(node)
    found = {container: [node.now, node.now + 1, "40"]}
    node.tell(node.now + 1, "look", containers=found)
    found = {container: [node.now + 2, node.now + 3, show(node.free | {42})]}
    node.tell(node.now + 3, "look", containers=found)


def _misplace(node: TrueNode) -> None:
    node.owned["v"], node.files["v"] = frozenset([40, 41]), "v-file"
    node.tell(node.now, "call", call="v1", verb="prepare", claims=["v"])
    node.tell(node.now + 1, "answer", call="v1", claims={"v": {"cpus": "40-41"}})
    node.pause()
    node.begin("v")
    container = list(node.containers)[-1]
    found = {container: [node.now + 1, node.now + 2, "42"]}
    node.tell(node.now + 2, "look", containers=found)


def _release(node: TrueNode) -> None:
    _, container = _owner(node)
    del node.owned["v"], node.containers[container]
    node.tell(node.now, "call", call="v2", verb="unprepare", claims=["v"])
    node.tell(node.now + 1, "answer", call="v2", claims={"v": {}})
    node.pause()
    node.hold()
    node.pause()
    node.tell(node.now, "stopping", container=container)


def _vanish(node: TrueNode) -> None:
    _, container = _owner(node)
    node.containers.pop(container)
    node.tell(node.now, "stopping", container=container)
    node.pause()
    cpus = node.owned.pop("v")
    node.hold()
    node.owned["v"] = cpus


def _change(node: TrueNode) -> None:
    _owner(node)
    node.tell(node.now, "call", call="v2", verb="prepare", claims=["v"])
    node.tell(node.now + 1, "answer", call="v2", claims={"v": {"cpus": "40"}})


def _return(node: TrueNode) -> None:
    _, container = _owner(node)
    node.tell(node.now, "stopping", container=container)
    del node.containers[container]
    node.tell(node.now + 1, "call", call="v2", verb="unprepare", claims=["v"])
    node.tell(node.now + 2, "answer", call="v2", claims={"v": {}})
    node.pause()
    node.hold()


INJECTED: dict[str, Callable[[TrueNode], None]] = {
    "two-owners": _own_the_same,
    "given-away": _give_away,
    "intruder": _intrude,
    "moved": _move,
    "misplaced": _misplace,
    "vanished": _vanish,
    "changed": _change,
    "returned": _return,
    "released": _release,
}


@pytest.mark.parametrize("kind", INJECTED)
@given(seed=st.integers(0, 2**32), before=st.integers(0, 40))
def test_one_violation_is_found_in_any_history(kind: str, seed: int, before: int):
    node = lived(seed, before)
    node.pause()
    INJECTED[kind](node)
    assert node.judged().kinds() == {kind}
