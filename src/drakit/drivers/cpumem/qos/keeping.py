"""Brings cgroup files in line with a plan, and keeps them so without fighting for ever.

For every file that is set, the value found first is remembered on disk before the first write, and
put back when the plan does not mention the file any more, or at uninstall.

Three things can undo a value:

* systemd and the kubelet, which write a slice's defaults (0, or ``max``) when pods come and go, and
  systemd also on daemon-reload. That is expected after such a change, and in a slice at any time; the
  value is set again at once.
* A hugetlb limit of 0, from the kubelet's partial updates: likewise.
* Anybody else. Such a *foreign write* is counted, and repaired with growing pauses at most
  :attr:`Patience.repairs` times; then it is reported and left alone until it is gone. Who loses a
  fight of two daemons is the workload.

Protection is raised from the top down and lowered from the bottom up, because it is worth no more
than that of the weakest ancestor.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from drakit.cgroups.tree import hugepage_size
from drakit.drivers.cpumem.qos.files import Cgroup, Outcome, open_cgroup
from drakit.drivers.cpumem.qos.planner import Plan
from drakit.drivers.cpumem.qos.record import FileKey, Kept, Record

_LOG = logging.getLogger(__name__)
_NOTHING: Final = Plan()
_UNLIMITED: Final = (1 << 63) - (1 << 34)
"""The greatest number, less the greatest page."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to put up with somebody else who writes the same file."""

    repairs: int = 5
    pause: float = 1.0
    """Seconds before the second repair; twice as many before each further one."""
    calm: float = 600.0
    """A value left alone for so many seconds is at peace: repairs are counted anew."""


@dataclass(slots=True)
class _Quarrel:
    """A file that somebody else writes too."""

    repairs: int = 0
    last: float = -math.inf
    given_up: bool = False


@dataclass(slots=True)
class Tally:
    """What happened since the process started, and what stands in the way now."""

    written: int = 0
    undone: int = 0
    """Values that the kubelet or systemd reset."""
    foreign: int = 0
    repaired: int = 0
    problems: dict[FileKey, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Look:
    """A file as it is, and as it is meant to be."""

    key: FileKey
    now: str
    identity: int
    kept: Kept | None
    """What we set it to, if we did."""
    wanted: str | None
    """None: it is not ours any more."""

    @property
    def before(self) -> str:
        """What it said before we came.

        A file that says what is wanted though we know nothing of it was set by us, and the record
        of it was lost.
        """
        if self.kept is not None:
            return self.kept.before
        return reset_value(self.key.file) if self.now == self.wanted else self.now


@dataclass(frozen=True, slots=True)
class _Step:
    """One write to be done."""

    look: _Look
    value: str

    @property
    def order(self) -> tuple[int, int]:
        """Raise from the top down first, then lower from the bottom up."""
        depth = self.look.key.path.count("/")
        return (0, depth) if number(self.value) >= number(self.look.now) else (1, -depth)


def number(value: str) -> float:
    """A file's value as a number; ``max`` is more than any.

    A limit that nobody ever set reads as the greatest number of whole pages, and as ``max`` once
    that very number was written.
    """
    if value == "max":
        return math.inf
    try:
        found = int(value)
    except ValueError:
        return math.nan
    return found if found < _UNLIMITED else math.inf


def reset_value(file: str) -> str:
    """What systemd and the kubelet write into a file that they know nothing of."""
    return "max" if file == "memory.high" else "0"


class Keeper:
    """Sets files below the cgroup mount *root* and remembers them in *record*."""

    def __init__(
        self,
        root: str,
        record: Record,
        *,
        page_size: int | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._record = record
        self._page_size = page_size or os.sysconf("SC_PAGE_SIZE")
        self._patience = patience or Patience()
        self._clock = clock
        self._quarrels: dict[FileKey, _Quarrel] = {}
        self.tally = Tally()

    @property
    def given_up(self) -> list[FileKey]:
        """Files left to whoever keeps writing them."""
        return [key for key, quarrel in self._quarrels.items() if quarrel.given_up]

    def original(self, path: str, file: str) -> str | None:
        """What a file said before we set it, or says now if we never did; None: there is none."""
        with open_cgroup(self._root, path) as cgroup:
            if cgroup is None:
                return None
            kept = self._record.get(FileKey(path, file))
            if kept is not None and kept.identity == cgroup.identity:
                return kept.before
            return cgroup.value(file)

    def keeps(self, path: str, file: str) -> bool:
        """Whether this file is known to have been set by us."""
        return self._record.get(FileKey(path, file)) is not None

    def apply(self, plan: Plan, *, churned: bool) -> None:
        """Make the files say what *plan* says, writing only differences.

        *churned* says that pods came or went lately. Raises ``OSError`` when what is to be set
        cannot be remembered; nothing is written then.
        """
        looks = list(self._look(plan))
        right = [
            look
            for look in looks
            if look.wanted and self._same(look.key.file, look.now, look.wanted)
        ]
        steps = [step for look in looks if (step := self._decide(look, churned)) is not None]
        # First on disk, then in the cgroup: what was there before must never be lost.
        self._record.change(_as_kept(step.look for step in steps if step.look.kept is None))
        failed = {
            step.look.key
            for step in sorted(steps, key=lambda each: each.order)
            if not self._do(step)
        }
        done = [step.look for step in steps if step.look.key not in failed]
        self._record.change({**_as_kept(done), **_as_kept(right)}, self._dropped(looks, failed))
        self._tidy(plan, failed)

    def restore(self) -> list[str]:
        """Put back what was there before; returns what could not be, in words.

        A file that says something else than we set is somebody else's by now and stays as it is.
        """
        self.apply(_NOTHING, churned=False)
        return [f"{kept.key}: {self.tally.problems.get(kept.key, '')}" for kept in self._record]

    # -- looking ---------------------------------------------------------------------------------

    def _look(self, plan: Plan) -> Iterator[_Look]:
        """All files that are planned or were set, of cgroups that are there."""
        recorded: dict[str, list[str]] = {}
        for kept in self._record:
            recorded.setdefault(kept.path, []).append(kept.file)
        for path in sorted({*plan.tree, *plan.floors, *recorded}):
            exact, floors = plan.tree.get(path, {}), plan.floors.get(path, {})
            with open_cgroup(self._root, path) as cgroup:
                if cgroup is None:
                    continue
                for file in dict.fromkeys((*exact, *floors, *recorded.get(path, ()))):
                    look = self._look_at(cgroup, FileKey(path, file))
                    if look is None:
                        continue
                    if file in exact:
                        yield replace(look, wanted=exact[file])
                    elif file in floors and self._is_below(look, floors[file]):
                        yield replace(look, wanted=floors[file])
                    elif look.kept is not None:
                        yield look

    def _is_below(self, look: _Look, floor: str) -> bool:
        """Whether a file would say less than *floor* without us.

        What somebody raised since is theirs: a kubelet that restarts counts the page pools anew.
        """
        ours = look.kept is not None and self._same(look.key.file, look.now, look.kept.value)
        without_us = look.before if ours else look.now
        return number(without_us) < number(floor)

    def _look_at(self, cgroup: Cgroup, key: FileKey) -> _Look | None:
        now = cgroup.value(key.file)
        if now is None:
            self._problem(key, Outcome.ABSENT)
            return None
        kept = self._record.get(key)
        if kept is not None and kept.identity != cgroup.identity:
            kept = None  # another cgroup of this name; what we set went with it
        return _Look(key, now, cgroup.identity, kept, None)

    def _same(self, file: str, now: str, value: str) -> bool:
        """Whether a file says *value*: the kernel keeps whole pages, and of hugepages whole ones."""
        there, wanted = number(now), number(value)
        if now == value or there == wanted:
            return True
        unit = hugepage_size(file) or self._page_size
        return wanted < math.inf and there == wanted // unit * unit

    # -- deciding --------------------------------------------------------------------------------

    def _decide(self, look: _Look, churned: bool) -> _Step | None:
        if look.wanted is None:
            ours = look.kept is not None and self._same(look.key.file, look.now, look.kept.value)
            return _Step(look, look.before) if ours else None
        if self._same(look.key.file, look.now, look.wanted):
            self._at_peace(look.key)
            return None
        return _Step(look, look.wanted) if self._may_write(look, churned) else None

    def _may_write(self, look: _Look, churned: bool) -> bool:
        """Whether a file that says something else may be written; others' need patience."""
        kept, key = look.kept, look.key
        if kept is None or self._same(look.key.file, look.now, kept.value):
            return True  # what is new is the plan, not the file
        # systemd writes a slice's defaults at any time: on daemon-reload, and with set-property.
        expected = churned or key.file.startswith("hugetlb.") or key.path.endswith(".slice")
        if expected and look.now in (reset_value(key.file), kept.before):
            self.tally.undone += 1
            return True
        return self._repair(key, look.now)

    def _repair(self, key: FileKey, now: str) -> bool:
        patience, quarrel = self._patience, self._quarrels.setdefault(key, _Quarrel())
        clock = self._clock()
        waiting = quarrel.repairs and clock < quarrel.last + patience.pause * 2 ** (
            quarrel.repairs - 1
        )
        if quarrel.given_up or waiting:
            return False
        self.tally.foreign += 1
        if quarrel.repairs >= patience.repairs:
            quarrel.given_up = True
            _LOG.error(
                "%s was set to %s by somebody else, after %d repairs: it is left so. Find who writes "
                "it, or turn memoryQoS off; the driver keeps it again once it says what it should",
                key,
                now,
                quarrel.repairs,
            )
            return False
        quarrel.last = clock
        quarrel.repairs += 1
        self.tally.repaired += 1
        _LOG.warning("%s was set to %s by somebody else; set right again", key, now)
        return True

    def _at_peace(self, key: FileKey) -> None:
        quarrel = self._quarrels.get(key)
        if quarrel is None:
            return
        if quarrel.given_up or self._clock() - quarrel.last >= self._patience.calm:
            _LOG.info("%s says what it should again", key)
            del self._quarrels[key]

    # -- doing -----------------------------------------------------------------------------------

    def _do(self, step: _Step) -> bool:
        """Write; says whether the file needs nothing more."""
        key = step.look.key
        with open_cgroup(self._root, key.path) as cgroup:
            if cgroup is None or cgroup.identity != step.look.identity:
                outcome = Outcome.GONE
            elif _in_use(cgroup, key.file) > number(step.value):
                outcome = Outcome.BUSY
            else:
                outcome = cgroup.write(key.file, step.value)
        if outcome is Outcome.WRITTEN:
            self.tally.written += 1
            self.tally.problems.pop(key, None)
            _LOG.debug("%s: %s, was %s", key, step.value, step.look.now)
        elif outcome is not Outcome.GONE:
            self._problem(key, outcome)
        return outcome in (Outcome.WRITTEN, Outcome.GONE)

    def _problem(self, key: FileKey, outcome: Outcome) -> None:
        if self.tally.problems.get(key) != outcome.value:
            log = _LOG.info if outcome is Outcome.BUSY else _LOG.warning
            log("%s cannot be set: %s", key, outcome.value)
        self.tally.problems[key] = outcome.value

    def _dropped(self, looks: Iterable[_Look], failed: set[FileKey]) -> list[FileKey]:
        """What need not be remembered: never set, put back, taken over by others, or gone."""
        looks = list(looks)
        never = [look.key for look in looks if look.kept is None and look.key in failed]
        done = [look.key for look in looks if look.wanted is None and look.key not in failed]
        there = {look.key for look in looks}
        return [*never, *done, *(kept.key for kept in self._record if kept.key not in there)]

    def _tidy(self, plan: Plan, failed: set[FileKey]) -> None:
        """Forget what concerns files that nobody asks for any more."""
        levels = (*plan.tree.items(), *plan.floors.items())
        asked = failed | {FileKey(path, file) for path, files in levels for file in files}
        self._quarrels = {k: v for k, v in self._quarrels.items() if k in asked}
        self.tally.problems = {k: v for k, v in self.tally.problems.items() if k in asked}


def _as_kept(looks: Iterable[_Look]) -> dict[FileKey, Kept]:
    return {
        look.key: Kept(
            path=look.key.path,
            file=look.key.file,
            value=look.wanted,
            before=look.before,
            identity=look.identity,
        )
        for look in looks
        if look.wanted is not None
    }


def _in_use(cgroup: Cgroup, file: str) -> float:
    """Bytes in use of what a hugetlb limit counts; other limits may be below what is in use."""
    if not (file.startswith("hugetlb.") and file.endswith(".max")):
        return -math.inf
    return number(cgroup.value(f"{file.removesuffix('.max')}.current") or "0")
