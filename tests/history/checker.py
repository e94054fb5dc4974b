"""Decides from a record alone whether exclusive CPUs were ever shared: ``python checker.py RECORD``.

A program of its own: it reads JSON lines, uses the standard library only, and knows nothing of the
drivers' code. Exit status 0: no violation; 1: violations, one per line; 2: the record is incomplete or
contradicts itself, so that nothing can be decided from it.

The record
    Every line has ``machine``, ``source`` (who wrote it), ``seq`` (0, 1, 2 … per source, without gaps),
    ``boot`` (0, 1, … per machine), ``at`` (nanoseconds of the machine's monotonic clock, which starts
    over with every boot) and ``event``:

    ``call``      ``call`` (an id), ``verb`` (``prepare`` or ``unprepare``), ``claims`` (UIDs)
    ``answer``    ``call``, ``claims``: UID to ``{"cpus": "2-3"}`` (left out if unknown) or ``{"error": …}``
    ``container`` ``container``, ``pod``, ``claims``, perhaps ``cpus`` (exactly what it must be allowed) and
                  ``asked`` (when its creation was asked for, or a moment before that)
    ``started``, ``stopping``, ``stopped``   ``container``; it runs at least from the first to the second
    ``look``      ``containers``: id to ``[from, until, cpus]``: what the kernel allows it, read at some
                  moment between the two; an empty ``cpus`` means: no limit of its own
    ``held``      ``from``, ``claims``: UID to ``[identity, cpus]``: all that the driver's checkpoint
                  directory held at some moment between ``from`` and ``at``; a file that is replaced has
                  another identity; with ``atomic`` the claims were all there at one moment
    ``driver``    ``state``: ``away`` or ``back``
    ``settings``  ``settling`` and ``correcting``, seconds: see below
    ``end``       the source is complete

What is a violation (each only if it is certain)
    *two-owners*: two claims own one CPU at one moment; *given-away*: a CPU of a running container's claim
    belongs to another claim; *intruder*: a container is allowed on a CPU of a claim that it does not have,
    while a container of that claim runs; *misplaced*, *moved*: a running container of a claim is not
    allowed exactly the claim's CPUs, from the start or later; *vanished*, *changed*: an acknowledged
    prepare is not in the checkpoints, or was answered differently in the same boot; *released*: the claim
    of a running container is not in the checkpoints; *returned*: a claim is in the checkpoints again
    although its unprepare was acknowledged and nobody prepared it.

What is certain
    A claim owns its CPUs from the *answer* to its prepare until the next unprepare is *called*; if the two
    calls overlap, or an unprepare fails, nothing is concluded. A container runs from ``started`` (or the
    end of its first reading) to ``stopping`` (or the beginning of its last reading). A value was true at
    some moment of its reading, so the whole reading must lie within the time in question.
    While the driver is away the runtime creates containers without asking. Such a container may be
    anywhere until it was once seen in its place: while the driver is away, and then for ``settling`` seconds
    after its return, of them at most ``correcting`` in our view. One whose creation was asked for when the
    driver was there has no excuse. This, and whatever else is left open, is counted under ``undecided``.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Time = tuple[int, int]
"""Boot and nanoseconds."""
NEVER: Time = (1 << 60, 0)
SETTLING, CORRECTING = 20.0, 5.0


class RecordError(Exception):
    """Nothing can be decided from this record."""


@dataclass(frozen=True, order=True)
class Violation:
    """One thing that must not be, at the first moment at which it is certain."""

    machine: str
    at: Time
    kind: str
    text: str

    def __str__(self) -> str:
        boot, moment = self.at
        return f"{self.machine} boot {boot} {moment / 1e9:.6f} s: {self.kind}: {self.text}"


@dataclass
class Report:
    """What a record says."""

    violations: list[Violation] = field(default_factory=list)
    undecided: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """How much there was to decide from: calls, containers, readings …"""

    def kinds(self) -> set[str]:
        """The kinds of violations."""
        return {each.kind for each in self.violations}

    def check(self) -> None:
        """Raise ``AssertionError`` if there is a violation."""
        if self.violations:
            raise AssertionError("\n".join(map(str, self.violations)))


@dataclass
class Call:
    """A prepare or an unprepare."""

    verb: str
    claims: tuple[str, ...]
    start: Time
    end: Time = NEVER
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def succeeded(self, claim: str) -> bool:
        """Whether the claim was acknowledged."""
        return claim in self.answers and "error" not in self.answers[claim]

    def cpus(self, claim: str) -> frozenset[int] | None:
        """What the claim was given; ``None`` if the record does not tell."""
        text = self.answers.get(claim, {}).get("cpus")
        return None if text is None else parse_cpus(text)


@dataclass(frozen=True)
class Reading:
    """What the kernel allowed a container, at some moment between two."""

    start: Time
    end: Time
    cpus: frozenset[int] | None
    """``None``: no limit of its own."""


@dataclass
class Container:
    """Everything about one container."""

    name: str
    pod: str = ""
    claims: tuple[str, ...] = ()
    described: bool = False
    asked: Time | None = None
    """When its creation was asked for, if that is known."""
    told: frozenset[int] | None = None
    """Exactly what it must be allowed, if its start says so."""
    started: Time | None = None
    stopping: Time | None = None
    readings: list[Reading] = field(default_factory=list)

    def running(self) -> tuple[Time, Time]:
        """The longest time for which it certainly ran; empty if the first is not before the second."""
        starts = [self.started] if self.started else []
        ends = [self.stopping] if self.stopping else []
        starts += [each.end for each in self.readings[:1]]
        ends += [each.start for each in self.readings[-1:]]
        if not starts:
            return NEVER, NEVER
        return min(starts), max([*ends, min(starts)])

    def __str__(self) -> str:
        return f"container {self.name.lstrip('0')[:12]} of pod {self.pod or 'unknown'}"


@dataclass(frozen=True)
class Listing:
    """All claims in the checkpoint directory at some moment between two."""

    start: Time
    end: Time
    claims: dict[str, tuple[str, frozenset[int] | None]]
    atomic: bool = False


@dataclass(frozen=True)
class Ownership:
    """A claim certainly owned CPUs from ``start`` on, before ``end``."""

    claim: str
    cpus: frozenset[int] | None
    """``None``: not known which."""
    start: Time
    end: Time
    acknowledged: bool
    """By an answer; otherwise seen in the checkpoint directory."""


@dataclass
class History:
    """The record of one machine, by what it is about."""

    machine: str
    calls: dict[str, Call] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    listings: list[Listing] = field(default_factory=list)
    absences: list[list[Time]] = field(default_factory=list)
    settling: float = SETTLING
    correcting: float = CORRECTING

    def container(self, name: str) -> Container:
        """The container of that name."""
        return self.containers.setdefault(name, Container(name))


def parse_cpus(text: str) -> frozenset[int]:
    """``0-2,5`` as numbers."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def show(cpus: Iterable[int]) -> str:
    """Numbers as text."""
    return ",".join(map(str, sorted(cpus)))


# Reading -----------------------------------------------------------------------------------------


def read(lines: Iterable[str]) -> list[History]:
    """The histories in a record, one per machine. Raises :class:`RecordError`."""
    try:
        events = [json.loads(line) for line in lines if line.strip()]
        _check_complete(events)
        histories: dict[str, History] = {}
        for event in sorted(events, key=lambda e: (e["boot"], e["at"], e["source"], e["seq"])):
            machine = event["machine"]
            _take(histories.setdefault(machine, History(machine)), event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"a line cannot be understood: {error!r}") from error
    for history in histories.values():
        for container in history.containers.values():
            container.readings.sort(key=lambda reading: (reading.start, reading.end))
    return list(histories.values())


def _check_complete(events: list[dict[str, Any]]) -> None:
    """Every source from its first to its last line, and no clock that goes back."""
    if not events:
        raise RecordError("the record is empty")
    sources: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events:
        sources.setdefault((event["machine"], event["source"]), []).append(event)
    for (machine, source), own in sources.items():
        own.sort(key=lambda event: event["seq"])
        who = f"source {source} of machine {machine}"
        if [event["seq"] for event in own] != list(range(len(own))):
            raise RecordError(f"lines of {who} are missing or doubled")
        if own[-1]["event"] != "end":
            raise RecordError(f"the record of {who} has no end")
        times = [(event["boot"], event["at"]) for event in own]
        if times != sorted(times):
            raise RecordError(f"the clock of {who} goes back")


def _take(history: History, event: dict[str, Any]) -> None:
    at = event["boot"], event["at"]
    kind = event["event"]
    if kind == "call":
        _take_call(history, event, at)
    elif kind == "answer":
        call = history.calls[event["call"]]
        call.end, call.answers = at, event["claims"]
    elif kind == "container":
        container = history.container(event["container"])
        container.pod, container.claims = event["pod"], tuple(event["claims"])
        container.described = True
        container.asked = (at[0], event["asked"]) if "asked" in event else container.asked
        container.told = parse_cpus(event["cpus"]) if "cpus" in event else container.told
    elif kind == "started":
        history.container(event["container"]).started = at
    elif kind == "stopping":
        history.container(event["container"]).stopping = at
    elif kind == "look":
        _take_look(history, event)
    elif kind == "held":
        _take_listing(history, event, at)
    elif kind == "driver":
        _take_absence(history, event["state"], at)
    elif kind == "settings":
        history.settling, history.correcting = event["settling"], event["correcting"]
    elif kind not in {"stopped", "end"}:
        raise RecordError(f"{kind!r} is not a known event")


def _take_call(history: History, event: dict[str, Any], at: Time) -> None:
    if event["call"] in history.calls or event["verb"] not in {"prepare", "unprepare"}:
        raise RecordError(f"call {event['call']} is doubled or of unknown verb {event['verb']!r}")
    history.calls[event["call"]] = Call(event["verb"], tuple(event["claims"]), at)


def _take_look(history: History, event: dict[str, Any]) -> None:
    boot = event["boot"]
    for name, (start, end, cpus) in event["containers"].items():
        allowed = parse_cpus(cpus) or None
        reading = Reading((boot, start), (boot, end), allowed)
        if not start <= end <= event["at"]:
            raise RecordError(f"container {name} was read from {start} to {end}")
        history.container(name).readings.append(reading)


def _take_listing(history: History, event: dict[str, Any], at: Time) -> None:
    claims = {
        uid: (identity, None if cpus is None else parse_cpus(cpus))
        for uid, (identity, cpus) in event["claims"].items()
    }
    atomic = event.get("atomic", False)
    history.listings.append(Listing((at[0], event["from"]), at, claims, atomic))


def _take_absence(history: History, state: str, at: Time) -> None:
    away = bool(history.absences) and history.absences[-1][1] == NEVER
    if state == "away" and not away:
        history.absences.append([at, NEVER])
    elif state == "back" and away:
        history.absences[-1][1] = at
    elif state not in {"away", "back"}:
        raise RecordError(f"the driver cannot be {state!r}")


# Judging -----------------------------------------------------------------------------------------


def judge(lines: Iterable[str]) -> Report:
    """What the record says. Raises :class:`RecordError`."""
    report = Report()
    for history in read(lines):
        _Judge(history, report).judge()
    report.violations = sorted(set(report.violations))
    return report


class _Judge:
    """Looks for each kind of violation in the history of one machine."""

    def __init__(self, history: History, report: Report) -> None:
        self.history, self.report = history, report
        self.calls: dict[str, list[Call]] = {}
        for call in sorted(history.calls.values(), key=lambda call: call.start):
            for claim in call.claims:
                self.calls.setdefault(claim, []).append(call)
        self.ownerships = [*self._acknowledged(), *self._listed()]
        self.assigned = self._assigned()
        self.expected = {c.name: self._expected(c) for c in history.containers.values()}

    def judge(self) -> None:
        """All of it."""
        self.report.seen.update(
            calls=len(self.history.calls),
            containers=len(self.history.containers),
            readings=sum(len(c.readings) for c in self.history.containers.values()),
            listings=len(self.history.listings),
            ownerships=len(self.ownerships),
        )
        self._find_two_owners()
        self._find_double_entries()
        self._find_given_away()
        self._find_misplaced()
        self._find_intruders()
        self._find_vanished()
        self._find_released()
        self._find_changed()
        self._find_returned()

    def _note(self, at: Time, kind: str, text: str) -> None:
        self.report.violations.append(Violation(self.history.machine, at, kind, text))

    # -- what is certain ---------------------------------------------------------------------------

    def _acknowledged(self) -> Iterator[Ownership]:
        for claim, calls in self.calls.items():
            for call in calls:
                if call.verb != "prepare" or not call.succeeded(claim):
                    continue
                end = self._end_of(claim, call)
                cpus = call.cpus(claim)
                if cpus is None:
                    self.report.undecided["an answer whose CPUs are not known"] += 1
                if end <= call.end:
                    self.report.undecided["a prepare and an unprepare of one claim overlap"] += 1
                else:
                    yield Ownership(claim, cpus, call.end, end, acknowledged=True)

    def _end_of(self, claim: str, prepare: Call) -> Time:
        """Until when an acknowledged prepare certainly counts."""
        ends = [NEVER]
        for other in self.calls[claim]:
            if other.verb == "unprepare" and other.end > prepare.start:
                ends.append(other.start)
            elif other.verb == "prepare" and other.start[0] > prepare.end[0]:
                ends.append(other.start)  # after a reboot it may be given others
        return min(ends)

    def _listed(self) -> Iterator[Ownership]:
        """From the first to the last of consecutive listings with the very same file."""
        open_: dict[str, tuple[Listing, Listing]] = {}
        for listing in self.history.listings:
            for claim in list(open_):
                first, last = open_[claim]
                if listing.claims.get(claim) == first.claims[claim]:
                    open_[claim] = first, listing
                else:
                    yield from _from_listings(claim, *open_.pop(claim))
            for claim in listing.claims:
                open_.setdefault(claim, (listing, listing))
        for claim, (first, last) in open_.items():
            yield from _from_listings(claim, first, last)

    def _assigned(self) -> dict[str, list[tuple[Time, frozenset[int]]]]:
        """What the record says that each claim was given, and when it was said."""
        found: dict[str, list[tuple[Time, frozenset[int]]]] = {}
        for claim, calls in self.calls.items():
            for call in calls:
                cpus = call.cpus(claim) if call.verb == "prepare" else None
                if cpus is not None:
                    found.setdefault(claim, []).append((call.end, cpus))
        for listing in self.history.listings:
            for claim, (_, cpus) in listing.claims.items():
                if cpus is not None:
                    found.setdefault(claim, []).append((listing.end, cpus))
        for each in found.values():
            each.sort(key=lambda pair: pair[0])
        return found

    def _expected(self, container: Container) -> frozenset[int] | None:
        """The CPUs that are its own; none for one without claims, ``None`` if not known."""
        if container.told is not None:
            return container.told
        if not container.described:
            return None
        start, end = container.running()
        union: frozenset[int] = frozenset()
        for claim in container.claims:
            said = [cpus for at, cpus in self.assigned.get(claim, ()) if at <= start]
            later = [cpus for at, cpus in self.assigned.get(claim, ()) if start < at <= end]
            if not said and not later:
                return None
            union |= said[-1] if said else later[0]
        return union

    # -- claims against claims ---------------------------------------------------------------------

    def _find_two_owners(self) -> None:
        by_cpu: dict[int, list[Ownership]] = {}
        for each in sorted(self.ownerships, key=lambda each: each.start):
            for cpu in each.cpus or ():
                by_cpu.setdefault(cpu, []).append(each)
        for cpu, each_of in sorted(by_cpu.items()):
            active: list[Ownership] = []
            for later in each_of:
                active = [each for each in active if each.end > later.start]
                for first in active:
                    if first.claim != later.claim:
                        text = f"CPU {cpu} belongs to claim {first.claim} and to claim {later.claim}"
                        self._note(later.start, "two-owners", text)
                active.append(later)

    def _find_double_entries(self) -> None:
        for listing in self.history.listings:
            owner: dict[int, str] = {}
            for claim, (_, cpus) in listing.claims.items() if listing.atomic else ():
                for cpu in cpus or ():
                    if owner.setdefault(cpu, claim) != claim:
                        text = f"CPU {cpu} belongs to claim {owner[cpu]} and to claim {claim}"
                        self._note(listing.end, "two-owners", text)

    def _find_given_away(self) -> None:
        for container in self.history.containers.values():
            own = self.expected[container.name] or frozenset()
            start, end = container.running()
            for other in self.ownerships if own and start < end else ():
                shared = own & (other.cpus or frozenset())
                moment = max(start, other.start)
                if other.claim not in container.claims and shared and moment < min(end, other.end):
                    text = (
                        f"CPUs {show(shared)} of {container} (claims {', '.join(container.claims)}), "
                        f"which runs, belong to claim {other.claim}"
                    )
                    self._note(moment, "given-away", text)

    def _find_changed(self) -> None:
        for claim, calls in self.calls.items():
            answered = [c for c in calls if c.verb == "prepare" and c.cpus(claim) is not None]
            answered.sort(key=lambda call: call.end)
            for first, second in pairwise(answered):
                if self._end_of(claim, first) >= second.end and first.cpus(claim) != second.cpus(claim):
                    text = (
                        f"claim {claim} was given CPUs {show(first.cpus(claim) or ())}, "
                        f"then {show(second.cpus(claim) or ())} without an unprepare"
                    )
                    self._note(second.end, "changed", text)

    # -- claims against the checkpoint directory ---------------------------------------------------

    def _find_vanished(self) -> None:
        starts = [listing.start for listing in self.history.listings]
        for own in self.ownerships:
            if not own.acknowledged:
                continue
            for listing in self.history.listings[bisect_right(starts, own.start) :]:
                if listing.end >= own.end:
                    break
                if own.claim not in listing.claims:
                    text = f"claim {own.claim} was prepared and is not in the checkpoints"
                    self._note(listing.end, "vanished", text)
                    break
                cpus = listing.claims[own.claim][1]
                if cpus is not None and own.cpus is not None and cpus != own.cpus:
                    text = (
                        f"claim {own.claim} was given CPUs {show(own.cpus)}, its checkpoint has {show(cpus)}"
                    )
                    self._note(listing.end, "changed", text)
                    break

    def _find_released(self) -> None:
        starts = [listing.start for listing in self.history.listings]
        for container in self.history.containers.values():
            start, end = container.running()
            for listing in self.history.listings[bisect_right(starts, start) :]:
                if listing.end >= end:
                    break
                missing = [claim for claim in container.claims if claim not in listing.claims]
                if missing:
                    text = f"claim {', '.join(missing)} is not in the checkpoints while {container} runs"
                    self._note(listing.end, "released", text)
                    break

    def _find_returned(self) -> None:
        for claim, calls in self.calls.items():
            for call in calls:
                if call.verb == "unprepare" and call.succeeded(claim):
                    self._look_for_return(claim, call)

    def _look_for_return(self, claim: str, unprepare: Call) -> None:
        others = [c for c in self.calls[claim] if c.verb == "prepare"]
        if any(c.start <= unprepare.end and c.end >= unprepare.start for c in others):
            self.report.undecided["a prepare and an unprepare of one claim overlap"] += 1
            return
        again = min([c.start for c in others if c.start > unprepare.end], default=NEVER)
        for listing in self.history.listings:
            if unprepare.end < listing.start and listing.end < again and claim in listing.claims:
                text = f"claim {claim} was unprepared and is in the checkpoints again"
                self._note(listing.end, "returned", text)
                return

    # -- containers --------------------------------------------------------------------------------

    def _find_misplaced(self) -> None:
        for container in self.history.containers.values():
            own = self.expected[container.name]
            if own is None:
                self.report.undecided["a container whose CPUs are not known"] += 1
            elif own:
                self._judge_place(container, own)

    def _judge_place(self, container: Container, own: frozenset[int]) -> None:
        settled = False
        for reading in container.readings:
            if self._in_place(container, reading, own):
                settled = True
            elif not settled and self._excused(container, reading):
                self.report.undecided["a container started while the driver was away"] += 1
            else:
                where = "no CPUs of its own" if reading.cpus is None else show(reading.cpus)
                text = f"{container} has CPUs {show(own)} by its claims and is allowed {where}"
                self._note(reading.end, "moved" if settled else "misplaced", text)
                return

    @staticmethod
    def _in_place(container: Container, reading: Reading, own: frozenset[int]) -> bool:
        if reading.cpus is None:
            return False
        return reading.cpus == own if container.told is not None else reading.cpus <= own

    def _settled_at(self, container: Container, own: frozenset[int]) -> Time:
        """From when on it was seen in its place."""
        for reading in container.readings:
            if self._in_place(container, reading, own):
                return reading.start
        return NEVER

    def _excused(self, container: Container, reading: Reading) -> bool:
        """Whether the driver's absence explains where a container is that was never in its place."""
        seen = container.readings[0].start
        for away, back in self.history.absences:
            if not self._created_during(container, away, back):
                continue
            if away <= reading.end and reading.start <= back:
                return True
            if away <= reading.end and reading.end[0] == back[0]:
                since_back = (reading.end[1] - back[1]) / 1e9
                since_both = (reading.end[1] - max(seen, back)[1]) / 1e9
                if since_back <= self.history.settling and since_both <= self.history.correcting:
                    return True
        return False

    @staticmethod
    def _created_during(container: Container, away: Time, back: Time) -> bool:
        """Whether it may have been created in an absence of the driver."""
        if container.asked is not None and container.asked > back:
            return False
        return container.started is None or container.started >= away

    def _find_intruders(self) -> None:
        ordered = sorted(
            ((reading, each) for each in self.history.containers.values() for reading in each.readings),
            key=lambda pair: pair[0].start,
        )
        starts = [reading.start for reading, _ in ordered]
        for owner in self.history.containers.values():
            own = self.expected[owner.name]
            start, end = owner.running()
            if not own or not start < end:
                continue
            first, last = bisect_left(starts, start), bisect_right(starts, end)
            inside = [pair for pair in ordered[first:last] if pair[0].end <= end]
            self._judge_neighbors(owner, own, inside)

    def _judge_neighbors(
        self, owner: Container, own: frozenset[int], inside: list[tuple[Reading, Container]]
    ) -> None:
        apart: set[str] = set()
        noted: set[str] = set()
        settled = self._settled_at(owner, own) if owner.readings else (0, 0)
        for reading, other in inside:
            if other is owner or set(other.claims) & set(owner.claims) or other.name in noted:
                continue
            shared = own if reading.cpus is None else own & reading.cpus
            if not shared:
                apart.add(other.name)
            elif self._tolerated(owner, settled, other, reading, apart):
                self.report.undecided["a container started while the driver was away"] += 1
            elif not other.described:
                self.report.undecided["a container of which only the CPUs are known"] += 1
            else:
                noted.add(other.name)
                text = (
                    f"{other} is allowed on CPUs {show(shared)} of {owner} "
                    f"(claims {', '.join(owner.claims)}), which runs"
                )
                self._note(reading.end, "intruder", text)

    def _tolerated(
        self, owner: Container, settled: Time, other: Container, reading: Reading, apart: set[str]
    ) -> bool:
        if other.name not in apart and self._excused(other, reading):
            return True
        return reading.start < settled and self._excused(owner, reading)


def _from_listings(claim: str, first: Listing, last: Listing) -> Iterator[Ownership]:
    cpus = first.claims[claim][1]
    if cpus is not None and first.end < last.start:
        yield Ownership(claim, cpus, first.end, last.start, acknowledged=False)


def main(arguments: list[str] | None = None) -> int:
    """Judge the record named on the command line."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("usage: checker.py RECORD", file=sys.stderr)
        return 2
    try:
        with open(words[0], encoding="utf-8") as file:
            report = judge(file)
    except (OSError, RecordError) as error:
        print(f"{words[0]}: nothing can be decided: {error}", file=sys.stderr)
        return 2
    for violation in report.violations:
        print(violation)
    for reason, count in sorted(report.undecided.items()):
        print(f"undecided, {count} times: {reason}")
    seen = ", ".join(f"{count} {what}" for what, count in report.seen.items())
    print(f"{len(report.violations)} violations in {seen}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
