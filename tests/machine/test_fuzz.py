"""Damaged trees: no crash, no hang, no CPU lost without a warning.

A tree is written once per shape; each case damages a few of its files, looks, and repairs them.
Every case is a number: ``damage(random.Random(case))`` does it again.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from drakit.core.cpuset import CpuSet
from drakit.machine import discover
from drakit.machine.model import HugepagePool, Machine
from drakit.testing.synthetic import MIB, Surroundings, build
from drakit.testing.sysfs_writer import KernelEra, write_tree
from tests.machine import invariants
from tests.machine.places import scratch
from tests.machine.shapes import arm_big_little, hybrid_laptop

CASES = 350
"""Per shape by default."""


def _server() -> Machine:
    return build(
        sockets=2,
        nodes=2,
        cores=1,
        threads=2,
        hugepages=[HugepagePool(2 * MIB, 8, 4)],
        memory_only_nodes=1,
        surroundings=Surroundings(offline=CpuSet([5]), pci_roots_per_node=1),
    )


SHAPES: dict[str, tuple[Callable[[], Machine], KernelEra]] = {
    "server": (_server, KernelEra.CURRENT),
    "old-server": (_server, KernelEra.OLD),
    "hybrid": (hybrid_laptop, KernelEra.CURRENT),
    "arm": (arm_big_little, KernelEra.CURRENT),
    "smt8": (lambda: build(cores=1, threads=8), KernelEra.CURRENT),
    "one": (lambda: build(cores=1, threads=1), KernelEra.CURRENT),
}

TEXTS = [
    "",
    "\n",
    "\0",
    "-1\n",
    "0\n",
    "1\n",
    "7\n",
    "65535\n",
    "2147483648\n",
    "18446744073709551616\n",
    "9" * 5000,
    "0-3\n",
    "3-1\n",
    "0-131071\n",
    "0-999999999\n",
    "1,,2\n",
    "0,2,4,6\n",
    "ffffffff\n",
    "ffffffff,ffffffff,ffffffff\n",
    "00000000\n",
    "hello\n",
    "Data\n",
    "1024K\n",
    "10 20 30\n",
    "Node 0 MemTotal: nonsense kB\n",
    "-\n:/\n" * 3000,
]


class Wreck:
    """Damages files below a root and can put everything back."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.stash = root + ".stash"
        os.mkdir(self.stash)
        self.places = sorted(
            os.path.join(where, name)
            for where, directories, files in os.walk(root)
            for name in [*directories, *files]
        )
        self._undo: list[Callable[[], None]] = []

    def damage(self, random_: random.Random) -> str:
        """Do one random damage; says what it did."""
        place = random_.choice(self.places)
        if not os.path.lexists(place):
            return "nothing"
        kind = random_.choice(
            [self.drop, self.write, self.write, self.write, self.swap, self.special, self.add]
        )
        return kind(place, random_)

    def _set_aside(self, place: str) -> None:
        kept = os.path.join(self.stash, str(len(self._undo)))
        os.rename(place, kept)

        def restore() -> None:
            _remove(place)
            os.rename(kept, place)

        self._undo.append(restore)

    def drop(self, place: str, _random: random.Random) -> str:
        self._set_aside(place)
        return f"removed {place}"

    def write(self, place: str, random_: random.Random) -> str:
        if os.path.isdir(place):
            return self.drop(place, random_)
        text = random_.choice([*TEXTS, random_.randbytes(64).decode("latin-1")])
        self._set_aside(place)
        with open(place, "w", encoding="latin-1") as out:
            out.write(text)
        return f"wrote {text[:40]!r} to {place}"

    def swap(self, place: str, random_: random.Random) -> str:
        other = random_.choice(self.places)
        if not os.path.isfile(place) or not os.path.isfile(other) or other == place:
            return "nothing"
        self._set_aside(place)
        shutil.copyfile(other, place)
        return f"copied {other} to {place}"

    def special(self, place: str, random_: random.Random) -> str:
        kind = random_.choice(["loop", "fifo", "zero", "null", "directory", "huge", "closed", "up"])
        self._set_aside(place)
        if kind == "loop":
            os.symlink(os.path.basename(place), place)
        elif kind == "fifo":
            os.mkfifo(place)
        elif kind in ("zero", "null"):
            os.symlink(f"/dev/{kind}", place)
        elif kind == "up":
            os.symlink("..", place)
        elif kind == "directory":
            os.mkdir(place)
        else:
            with open(place, "wb") as out:
                out.truncate(3 << 20 if kind == "huge" else 0)
            os.chmod(place, 0o644 if kind == "huge" else 0)
        return f"made {place} a {kind}"

    def add(self, place: str, random_: random.Random) -> str:
        if not os.path.isdir(place) or os.path.islink(place):
            return "nothing"
        name = random_.choice(["cpu77", "cpu2147483648", "cpuX", "node77", "node9999999", "index9"])
        made = os.path.join(place, name)
        if os.path.lexists(made):
            return "nothing"
        os.mkdir(made)
        self._undo.append(lambda: _remove(made))
        return f"added {made}"

    def repair(self) -> None:
        while self._undo:
            self._undo.pop()()


def _remove(place: str) -> None:
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    elif os.path.lexists(place):
        os.unlink(place)


@contextmanager
def wreck_of(machine: Machine, era: KernelEra) -> Iterator[Wreck]:
    with scratch() as base:
        root = os.path.join(base, "root")
        write_tree(machine, root, era)
        yield Wreck(root)


@pytest.mark.timeout(1800)  # with --long; a hang would be one of a single case
@pytest.mark.parametrize("name", SHAPES)
def test_damaged_trees_lose_no_cpu_silently(name: str, scale: int) -> None:
    make, era = SHAPES[name]
    machine = make()
    with wreck_of(machine, era) as wreck:
        sound = discover(wreck.root)
        for case in range(CASES * scale):
            random_ = random.Random(case)
            done = [wreck.damage(random_) for _ in range(random_.choice([1, 1, 2, 3, 8, 30]))]
            found = discover(wreck.root)
            wreck.repair()
            story = f"case {case}: {done}\n{found.warnings}"
            try:
                invariants.check(found)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{story}") from error
            lost = CpuSet(c.id for c in sound.cpus) - CpuSet(c.id for c in found.cpus)
            assert found.warnings or not lost | (sound.online - found.online), story
        assert discover(wreck.root) == sound


def test_the_wreck_is_repaired_completely() -> None:
    """The fuzz above means nothing if damage piles up or does not happen."""
    with wreck_of(_server(), KernelEra.CURRENT) as wreck:
        sound = discover(wreck.root)
        changed = 0
        for case in range(40):
            random_ = random.Random(case)
            for _ in range(10):
                wreck.damage(random_)
            changed += discover(wreck.root) != sound
            wreck.repair()
            assert discover(wreck.root) == sound
        assert changed > 30
