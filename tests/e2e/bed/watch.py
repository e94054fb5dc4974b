"""Continuous check of CPU ownership, from the kernel state of a node.

A thread in the guest's agent reads the cgroup of every container with a role (``BED_ROLE`` and
``BED_CPUS`` in its environment, see :func:`watched`) and records violations: one CPU owned by two
pods, an owner with more or fewer CPUs than claimed, a container of the shared pool on an owner's
CPU, an owner that is not pinned.

Files are read one after the other, so an apparent overlap may be two states in time. It is a violation
only if the first of the two containers still exists, unchanged, after the second was read.

Every reading, every checkpoint file and the downtimes of the driver can also be written to a record,
which ``tests.history.checker`` verifies independently: see :func:`watching`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.history import checker

from .guest import CONTAINER_CGROUP
from .kubernetes import Manifest
from .node import Node
from .pins import REPOSITORY

Role = Literal["owner", "sharer"]
CHECKPOINTS = "/var/lib/kubelet/plugins"


@dataclass(frozen=True)
class Report:
    """Observations since the start of the watch."""

    looks: int
    violations: tuple[str, ...]
    owners: dict[str, str] = field(repr=False)
    """Every container of an owner, by id, and the CPUs it was seen with."""
    unpinned_while_away: int = 0
    """Owners seen without exclusive CPUs while the driver was down, which is allowed."""

    def check(self) -> None:
        """Assert that there was no violation."""
        assert not self.violations, "\n".join(self.violations)


class Watch:
    """A running watch on one node."""

    def __init__(self, node: Node, record: Path | None = None) -> None:
        self._node, self._record = node, record
        self._told = {"kernel": 0, "driver": 0}

    def report(self) -> Report:
        """Observations so far."""
        seen: dict[str, Any] = self._node.python(_REPORT)
        self._keep(seen.pop("events"))
        return Report(**{**seen, "violations": tuple(seen["violations"])})

    @contextmanager
    def driver_away(self) -> Iterator[None]:
        """Mark that the driver is down: containers that start now are pinned after its return."""
        self._node.python(_AWAY, away=True)
        try:
            yield
        finally:
            self._node.python(_AWAY, away=False)

    def end(self) -> None:
        """Stop watching, and complete the record."""
        self._keep(self._node.python(_STOP))

    def _keep(self, events: dict[str, list[dict[str, Any]]]) -> None:
        """Append the guest's new observations to the record."""
        if self._record is None:
            return
        with self._record.open("a", encoding="utf-8") as file:
            for source, told in events.items():
                for event in told:
                    line = {"machine": "node", "source": source, "seq": self._told[source]}
                    file.write(json.dumps({**line, "boot": 0, **event}) + "\n")
                    self._told[source] += 1


@contextmanager
def watching(
    node: Node, below: str = "", record: Path | None = None, checkpoints: str = CHECKPOINTS
) -> Iterator[Watch]:
    """Watch the containers of the cgroups ``below``, including future ones.

    By default those of the kubelet's pods; ``Guest.node_tier_pods`` has those of the node tier.
    All observations are written to the file *record*, which is complete after the block: see :func:`judged`.
    *checkpoints* is the directory of the kubelet's plugins.
    """
    node.python(
        _START,
        below=below or node.guest.kubepods,
        pattern=CONTAINER_CGROUP,
        plugins=checkpoints,
        recording=record is not None,
    )
    watch = Watch(node, record)
    try:
        yield watch
    finally:
        watch.end()


def record_file(name: str) -> Path:
    """A new file in the artifacts for the record of the test *name*; it is always kept."""
    path = REPOSITORY / "build/e2e-artifacts/history" / f"{re.sub(r'[^a-zA-Z0-9.-]+', '_', name)}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def judged(record: Path) -> checker.Report:
    """Result of the history checker for a record, which is kept."""
    with record.open(encoding="utf-8") as file:
        return checker.judge(file)


def role(which: Role, cpus: int = 0) -> dict[str, str]:
    """The environment that gives a container its role; ``cpus`` is the number of an owner's CPUs."""
    return {"BED_ROLE": which, "BED_CPUS": str(cpus)}


def watched(pod: Manifest, which: Role, cpus: int = 0) -> Manifest:
    """The same pod, with the role of an owner of this many CPUs (or none) for each container."""
    variables = [{"name": name, "value": value} for name, value in role(which, cpus).items()]
    spec = pod["spec"]
    containers = [{**each, "env": [*each.get("env", []), *variables]} for each in spec["containers"]]
    return {**pod, "spec": {**spec, "containers": containers}}


# The state is in a new module, so that later requests to the agent find it.
_START = r"""
import glob, json, os, re, sys, threading, time, types

state = types.ModuleType("bed_watch")
state.ended, state.away = threading.Event(), False
state.back, state.looks, state.unpinned = -60.0, 0, {}
state.violations, state.owners, state.roles = {}, {}, {}
state.events, state.lock = {"kernel": [], "driver": []}, threading.Lock()
before, again, files = {}, {}, {}
sys.modules["bed_watch"] = state
SETTLING, CORRECTING = 20.0, 5.0

def read(path):
    with open(path) as file:
        return file.read()

def containers(directory, pod=""):
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            if re.fullmatch(pattern, entry.name):
                yield entry.path, pod
            else:
                yield from containers(entry.path, entry.name)

def id_of(path):
    return re.fullmatch(pattern, os.path.basename(path))[1]

def role_of(path, processes):
    name = id_of(path)
    if name not in state.roles:
        variables = read(f"/proc/{processes[0]}/environ").split("\0")
        found = dict(each.split("=", 1) for each in variables if "=" in each)
        if "BED_ROLE" not in found:
            return None  # a sandbox, or not yet the program that it will be
        claims = {each[10:].partition("_")[0] for each in found if each.startswith("DRA_CLAIM_")}
        record_again()
        record("container", container=name, pod=path.split("/")[-2], claims=sorted(claims))
        state.roles[name] = (found["BED_ROLE"], int(found["BED_CPUS"]))
    return state.roles[name]

def cpus_of(text):
    numbers = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)

def record(event, at=None, **facts):
    if recording:
        with state.lock:
            at = time.monotonic_ns() if at is None else at
            state.events["kernel"].append({"at": at, "event": event, **facts})

def record_again():
    for event, (at, facts) in sorted(again.items(), key=lambda each: each[1][0]):
        record(event, at, **facts)
    again.clear()

def record_change(event, values, **facts):
    # Of equal looks in a row the first and the last: nothing more follows from the others.
    now = time.monotonic_ns()
    if before.get(event) == values:
        again[event] = (now, facts)
    else:
        record_again()
        before[event] = values
        record(event, now, **facts)

def checkpoint(path):
    status = os.stat(path)
    identity = f"{status.st_ino}:{status.st_mtime_ns}"
    if files.get(path, ("",))[0] != identity:
        grants = json.loads(read(path))["entry"]["grants"]
        held = [g.get("exclusive", {}).get("cpu", "") for g in grants if not g.get("adminAccess")]
        files[path] = (identity, ",".join(each for each in held if each))
    return files[path]

def look_at_checkpoints():
    began, found = time.monotonic_ns(), {}
    for path in glob.glob(f"{plugins}/*/claims/*.json"):
        try:
            found[os.path.basename(path)[:-5]] = checkpoint(path)
        except FileNotFoundError:
            files.pop(path, None)  # it ended under our eyes
    record_change("held", found, **{"from": began}, claims=found)

def look_at(path):
    try:
        cpus = cpus_of(read(f"{path}/cpuset.cpus"))
        processes = read(f"{path}/cgroup.procs").split()
        role = role_of(path, processes) if processes else None
    except (OSError, ValueError):
        return None  # it ended under our eyes
    return None if role is None else (*role, cpus)

def note(path, pod, what):
    key = f"{pod} {id_of(path)[:12]} {what}"
    state.violations.setdefault(key, round(time.time() - begin, 2))

def judge_alone(path, pod, wanted, cpus, away):
    name = id_of(path)
    if cpus:
        state.owners[name] = ",".join(map(str, sorted(cpus)))
    if len(cpus) == wanted or look_at(path) != ("owner", wanted, cpus):
        return
    if cpus:
        note(path, pod, f"owns {sorted(cpus)}, not {wanted} CPUs")
    elif away or state.away:
        state.unpinned[name] = None
    else:
        judge_unpinned(path, pod, name)

def judge_unpinned(path, pod, name):
    # The runtime asks about a container when it creates it, which may be long before it starts:
    # one that was created while the driver was away is corrected as soon as it runs.
    now = time.monotonic()
    since = state.unpinned.get(name) or now
    state.unpinned[name] = since
    if now - state.back > SETTLING or now - since > CORRECTING:
        note(path, pod, "owns CPUs and is not pinned")

def judge_pair(first, second):
    (path, pod, role, wanted, cpus), (_, other, other_role, _, others) = first, second
    if pod == other or "owner" not in (role, other_role) or not cpus & others:
        return
    if look_at(path) == (role, wanted, cpus):
        note(path, pod, f"({role}) has {sorted(cpus & others)} together with {other} ({other_role})")

def look():
    away, seen, readings = state.away, [], {}
    for path, pod in containers(below):
        began = time.monotonic_ns()
        found = look_at(path)
        if found is not None:
            seen.append((path, pod, *found))
            cpus = ",".join(map(str, sorted(found[-1])))
            readings[id_of(path)] = (began, time.monotonic_ns(), cpus)
    if recording:
        values = {name: each[2] for name, each in readings.items()}
        record_change("look", values, containers=readings)
        look_at_checkpoints()
    for place, (path, pod, role, wanted, cpus) in enumerate(seen):
        if role == "owner":
            judge_alone(path, pod, wanted, cpus, away)
        for later in seen[place + 1:]:
            judge_pair(seen[place], later)
    state.looks += 1

def watch():
    while not state.ended.is_set():
        started = time.monotonic()
        try:
            look()
        except FileNotFoundError:
            pass  # a directory ended under our eyes, or there is none yet
        # A quarter of one CPU: under emulation the rest of the machine needs the others.
        state.ended.wait(min(3 * (time.monotonic() - started), 0.1))
    record_again()

begin = time.time()
state.thread = threading.Thread(target=watch, daemon=True)
state.thread.start()
result = None
"""
_AWAY = """
import sys, time
state = sys.modules["bed_watch"]
state.away, state.back = away, time.monotonic()
what = {"event": "driver", "state": "away" if away else "back"}
with state.lock:
    state.events["driver"].append({"at": time.monotonic_ns(), **what})
result = None
"""
_REPORT = """
import sys
state = sys.modules["bed_watch"]
with state.lock:
    events = {source: told.copy() for source, told in state.events.items()}
    for told in state.events.values():
        told.clear()
result = {
    "events": events,
    "looks": state.looks,
    "violations": [f"{when} s: {what}" for what, when in state.violations.copy().items()],
    "owners": state.owners.copy(),
    "unpinned_while_away": len(state.unpinned),
}
"""
_STOP = """
import sys, time
state = sys.modules.pop("bed_watch")
state.ended.set()
state.thread.join()
for told in state.events.values():
    told.append({"at": time.monotonic_ns(), "event": "end"})
result = state.events
"""
