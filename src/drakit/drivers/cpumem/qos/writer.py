"""Writer of planned cgroup files: restores original values and limits conflicts with other writers.

The original value of every file is recorded on disk before the first write, and restored when the plan
no longer contains the file, or at uninstall. A value is set again at once where systemd or the kubelet reset
it: to a slice's defaults when pods come and go and on daemon-reload, or a hugetlb limit to 0. Any other write
is a *foreign write*: it is repaired with growing delays at most :attr:`RepairLimits.repairs` times, then
reported and left alone, because two daemons that overwrite each other harm the workload.

Protection is raised from the top down and lowered from the bottom up, because it is worth no more
than that of the weakest ancestor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from drakit.cgroups.files import Cgroup, WriteOutcome, open_cgroup
from drakit.cgroups.values import PAGE_SIZE, amount, same_value
from drakit.core.log import get_logger
from drakit.drivers.cpumem.qos.planner import QosPlan
from drakit.drivers.cpumem.qos.record import CgroupRecord, FileKey, ManagedFile

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """How often a foreign write to the same file is repaired."""

    repairs: int = 5
    pause: float = 1.0
    """Seconds before the second repair; doubled before each further one."""
    quiet_period: float = 600.0
    """Seconds without a foreign write after which the repairs are counted from 0 again."""


@dataclass(slots=True)
class _WriteConflict:
    """Repairs of a file that another process writes too."""

    repairs: int = 0
    last: float = -math.inf
    given_up: bool = False


@dataclass(slots=True)
class WriteCounts:
    """Counts since the process started, and the current problems by file."""

    written: int = 0
    reset: int = 0
    """Values that the kubelet or systemd reset."""
    foreign: int = 0
    repaired: int = 0
    problems: dict[FileKey, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _FileState:
    """The current and the desired value of a file."""

    key: FileKey
    now: str
    identity: int
    managed: ManagedFile | None
    """The value that the driver set, if it did."""
    wanted: str | None = None
    """None: the driver no longer manages the file."""

    @property
    def original(self) -> str:
        """The value before the driver's first write."""
        if self.managed is not None:
            return self.managed.before
        # A file without record that already has the desired value: the record was lost.
        return default_value(self.key.file) if self.now == self.wanted else self.now


@dataclass(frozen=True, slots=True)
class _PlannedWrite:
    state: _FileState
    value: str

    @property
    def order(self) -> tuple[int, int]:
        """Raise from the top down first, then lower from the bottom up."""
        depth = self.state.key.path.count("/")
        return (0, depth) if amount(self.value) >= amount(self.state.now) else (1, -depth)


def default_value(file: str) -> str:
    """The value that systemd and the kubelet write to a file they have no setting for."""
    return "max" if file == "memory.high" else "0"


class CgroupWriter:
    """Sets files below the cgroup mount *root* and records them in *record*."""

    def __init__(
        self,
        root: str,
        record: CgroupRecord,
        *,
        page_size: int = PAGE_SIZE,
        limits: RepairLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._record = record
        self._page_size = page_size
        self._limits = limits or RepairLimits()
        self._clock = clock
        self._conflicts: dict[FileKey, _WriteConflict] = {}
        self.counts = WriteCounts()

    @property
    def contested(self) -> list[FileKey]:
        """Files that are no longer repaired, because another process keeps writing them."""
        return [key for key, conflict in self._conflicts.items() if conflict.given_up]

    def original(self, path: str, file: str) -> str | None:
        """The value of a file before the driver's first write; None if there is no such file."""
        with open_cgroup(self._root, path) as cgroup:
            if cgroup is None:
                return None
            managed = self._record.get(FileKey(path, file))
            if managed is not None and managed.identity == cgroup.identity:
                return managed.before
            return cgroup.value(file)

    def manages(self, path: str, file: str) -> bool:
        """Whether the driver has set this file, as recorded."""
        return self._record.get(FileKey(path, file)) is not None

    def apply(self, plan: QosPlan, *, pods_changed: bool) -> None:
        """Write the files whose values differ from *plan*.

        *pods_changed*: pods were created or removed recently. Raises ``OSError`` if the original
        values cannot be recorded; nothing is written then.
        """
        states = list(self._states(plan))
        correct = [
            state for state in states if state.wanted and self._same(state.key.file, state.now, state.wanted)
        ]
        writes = [w for state in states if (w := self._decide(state, pods_changed)) is not None]
        # First on disk, then in the cgroup: the original value must never be lost.
        self._record.change(_managed(each.state for each in writes if each.state.managed is None))
        failed = {
            each.state.key for each in sorted(writes, key=lambda each: each.order) if not self._write(each)
        }
        done = [each.state for each in writes if each.state.key not in failed]
        dropped = self._dropped(states, failed)
        self._record.change({**_managed(done), **_managed(correct)}, dropped)
        self._forget(plan, failed)

    def restore(self) -> list[str]:
        """Restore the original values; returns a message for each that could not be.

        A file with another value than the driver set was changed by somebody else and is kept.
        """
        self.apply(QosPlan(), pods_changed=False)
        return [f"{each.key}: {self.counts.problems.get(each.key, '')}" for each in self._record]

    def _states(self, plan: QosPlan) -> Iterator[_FileState]:
        """All files that are planned or recorded, of cgroups that exist."""
        recorded: dict[str, list[str]] = {}
        for managed in self._record:
            recorded.setdefault(managed.path, []).append(managed.file)
        for path in sorted({*plan.tree, *plan.floors, *recorded}):
            exact, floors = plan.tree.get(path, {}), plan.floors.get(path, {})
            with open_cgroup(self._root, path) as cgroup:
                if cgroup is None:
                    continue
                for file in dict.fromkeys((*exact, *floors, *recorded.get(path, ()))):
                    if (state := self._state(cgroup, FileKey(path, file))) is None:
                        continue
                    if file in exact:
                        yield replace(state, wanted=exact[file])
                    elif file in floors and self._is_below(state, floors[file]):
                        yield replace(state, wanted=floors[file])
                    elif state.managed is not None:
                        yield state

    def _is_below(self, state: _FileState, floor: str) -> bool:
        """Whether a file would be below *floor* without the driver.

        A value that somebody raised since is theirs: a restarted kubelet counts the page pools again.
        """
        without_us = state.original if self._is_ours(state) else state.now
        return amount(without_us) < amount(floor)

    def _is_ours(self, state: _FileState) -> bool:
        """Whether the file still has the value that the driver set."""
        managed = state.managed
        return managed is not None and self._same(state.key.file, state.now, managed.value)

    def _state(self, cgroup: Cgroup, key: FileKey) -> _FileState | None:
        now = cgroup.value(key.file)
        if now is None:
            self._problem(key, WriteOutcome.ABSENT)
            return None
        managed = self._record.get(key)
        if managed is not None and managed.identity != cgroup.identity:
            managed = None  # another cgroup of this name
        return _FileState(key, now, cgroup.identity, managed)

    def _same(self, file: str, now: str, value: str) -> bool:
        return same_value(file, now, value, self._page_size)

    def _decide(self, state: _FileState, pods_changed: bool) -> _PlannedWrite | None:
        if state.wanted is None:
            return _PlannedWrite(state, state.original) if self._is_ours(state) else None
        if self._same(state.key.file, state.now, state.wanted):
            self._end_conflict(state.key)
            return None
        return _PlannedWrite(state, state.wanted) if self._may_write(state, pods_changed) else None

    def _may_write(self, state: _FileState, pods_changed: bool) -> bool:
        managed, key = state.managed, state.key
        if managed is None or self._is_ours(state):
            return True  # the plan changed, not the file
        # systemd writes a slice's defaults at any time: on daemon-reload, and with set-property.
        expected = pods_changed or key.file.startswith("hugetlb.") or key.path.endswith(".slice")
        if expected and state.now in (default_value(key.file), managed.before):
            self.counts.reset += 1
            return True
        return self._may_repair(key, state.now)

    def _may_repair(self, key: FileKey, now: str) -> bool:
        limits, conflict = self._limits, self._conflicts.setdefault(key, _WriteConflict())
        clock, repairs = self._clock(), conflict.repairs
        waiting = repairs and clock < conflict.last + limits.pause * 2 ** (repairs - 1)
        if conflict.given_up or waiting:
            return False
        self.counts.foreign += 1
        if repairs >= limits.repairs:
            conflict.given_up = True
            log.error(
                "cgroup file is no longer repaired: another process keeps writing it; find that "
                "process, or set memoryQoS to off",
                path=key,
                value=now,
                repairs=repairs,
            )
            return False
        conflict.last = clock
        conflict.repairs += 1
        self.counts.repaired += 1
        log.warning("repairing a cgroup file that another process changed", path=key, value=now)
        return True

    def _end_conflict(self, key: FileKey) -> None:
        conflict = self._conflicts.get(key)
        if conflict and (conflict.given_up or self._clock() - conflict.last >= self._limits.quiet_period):
            log.info("cgroup file has its desired value again", path=key)
            del self._conflicts[key]

    def _write(self, write: _PlannedWrite) -> bool:
        """Write one file; whether nothing remains to be done for it."""
        key = write.state.key
        with open_cgroup(self._root, key.path) as cgroup:
            if cgroup is None or cgroup.identity != write.state.identity:
                outcome = WriteOutcome.GONE
            elif _in_use(cgroup, key.file) > amount(write.value):
                outcome = WriteOutcome.BUSY
            else:
                outcome = cgroup.write(key.file, write.value)
        if outcome is WriteOutcome.WRITTEN:
            self.counts.written += 1
            self.counts.problems.pop(key, None)
            log.debug("cgroup file written", path=key, value=write.value, before=write.state.now)
        elif outcome is not WriteOutcome.GONE:
            self._problem(key, outcome)
        return outcome in (WriteOutcome.WRITTEN, WriteOutcome.GONE)

    def _problem(self, key: FileKey, outcome: WriteOutcome) -> None:
        if self.counts.problems.get(key) != outcome.value:
            report = log.info if outcome is WriteOutcome.BUSY else log.warning
            report("cannot set cgroup file", path=key, reason=outcome.value)
        self.counts.problems[key] = outcome.value

    def _dropped(self, states: list[_FileState], failed: set[FileKey]) -> list[FileKey]:
        """Files to remove from the record: never set, restored, changed by others, or gone."""
        never = [s.key for s in states if s.managed is None and s.key in failed]
        done = [s.key for s in states if s.wanted is None and s.key not in failed]
        present = {s.key for s in states}
        return [*never, *done, *(each.key for each in self._record if each.key not in present)]

    def _forget(self, plan: QosPlan, failed: set[FileKey]) -> None:
        """Forget conflicts and problems of files that are no longer planned."""
        levels = (*plan.tree.items(), *plan.floors.items())
        planned = failed | {FileKey(path, file) for path, files in levels for file in files}
        self._conflicts = {k: v for k, v in self._conflicts.items() if k in planned}
        self.counts.problems = {k: v for k, v in self.counts.problems.items() if k in planned}


def _managed(states: Iterable[_FileState]) -> dict[FileKey, ManagedFile]:
    return {
        state.key: ManagedFile(
            path=state.key.path,
            file=state.key.file,
            value=state.wanted,
            before=state.original,
            identity=state.identity,
        )
        for state in states
        if state.wanted is not None
    }


def _in_use(cgroup: Cgroup, file: str) -> float:
    """Bytes in use under a hugetlb limit; other limits may be below what is in use."""
    if not (file.startswith("hugetlb.") and file.endswith(".max")):
        return -math.inf
    return amount(cgroup.value(f"{file.removesuffix('.max')}.current") or "0")
