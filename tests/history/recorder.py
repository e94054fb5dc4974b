"""Writes down what happens on a node, for :mod:`tests.history.checker` to decide from.

One :class:`Recorder` is one source of the record: a file of JSON lines, written line by line, so that a
test that dies leaves what it saw. What is asked for is written before it is asked, what has happened
after it has: the checker relies on that order.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import checker


class Recorder:
    """Appends the events of one source to *path*, which several sources may share."""

    def __init__(
        self,
        path: Path | str,
        machine: str = "node",
        source: str = "test",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = Path(path)
        self.boot = 0
        self._machine, self._source, self._clock = machine, source, clock
        self._seq, self._calls = itertools.count(), itertools.count(1)
        self._lock = threading.Lock()

    def note(self, event: str, *, at: int | None = None, **facts: Any) -> None:
        """One line; *at* is the clock's time unless it was read before."""
        with self._lock:
            line = {
                "machine": self._machine,
                "source": self._source,
                "seq": next(self._seq),
                "boot": self.boot,
                "at": self._clock() if at is None else at,
                "event": event,
                **facts,
            }
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def rebooted(self) -> None:
        """The machine's clock starts over."""
        self.boot += 1

    # -- calls -------------------------------------------------------------------------------------

    def called(self, verb: str, claims: Iterable[str]) -> str:
        """A call is about to be made; returns its id for :meth:`answered`."""
        call = f"{self._source}-{next(self._calls)}"
        self.note("call", call=call, verb=verb, claims=list(claims))
        return call

    def answered(self, call: str, claims: Mapping[str, Mapping[str, str]]) -> None:
        """The answer has arrived: per claim ``{"cpus": …}`` (or nothing) or ``{"error": …}``."""
        self.note("answer", call=call, claims={uid: dict(each) for uid, each in claims.items()})

    # -- containers --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def stopping(self, container: str) -> Iterator[None]:
        """Inside, a container is stopped."""
        self.note("stopping", container=container)
        yield
        self.note("stopped", container=container)

    # -- the driver --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def driver_away(self) -> Iterator[None]:
        """Inside, the driver is away, until it serves again."""
        self.note("driver", state="away")
        yield
        self.note("driver", state="back")

    def now(self) -> int:
        """The clock."""
        return self._clock()

    # -- the end -----------------------------------------------------------------------------------

    def end(self) -> None:
        """This source has nothing more to tell."""
        self.note("end")

    def judge(self) -> checker.Report:
        """What the checker says about the file; all sources must have ended."""
        with self.path.open(encoding="utf-8") as file:
            return checker.judge(file)


class Sampler(Recorder):
    """A source that looks over and over and tells only what changed.

    Of equal looks in a row the first and the last are written: nothing more follows from the others.
    """

    def __init__(self, path: Path | str, machine: str = "node", source: str = "sampler") -> None:
        super().__init__(path, machine, source)
        self._before: dict[str, Any] = {}
        self._again: dict[str, tuple[int, dict[str, Any]]] = {}

    def looked(self, containers: Mapping[str, tuple[int, int, str]]) -> None:
        """What the kernel allowed containers, each with when its reading began and ended."""
        found = {name: list(each) for name, each in containers.items()}
        values = {name: each[2] for name, each in containers.items()}
        self._tell("look", values, {"containers": found})

    def held(self, began: int, claims: Mapping[str, tuple[str, str | None]]) -> None:
        """All that the checkpoint directory holds: UID to the file's identity and its CPUs."""
        found = {uid: list(each) for uid, each in claims.items()}
        self._tell("held", found, {"from": began, "claims": found})

    def _tell(self, event: str, values: dict[str, Any], facts: dict[str, Any]) -> None:
        now = self.now()
        if self._before.get(event) == values:
            self._again[event] = now, facts
            return
        self._tell_again()
        self._before[event] = values
        self.note(event, at=now, **facts)

    def _tell_again(self) -> None:
        """Write the last of the equal looks, in the order of time."""
        for event, (at, facts) in sorted(self._again.items(), key=lambda each: each[1][0]):
            self.note(event, at=at, **facts)
        self._again.clear()

    def rebooted(self) -> None:
        """The machine's clock starts over."""
        self._tell_again()
        self._before.clear()
        super().rebooted()

    def end(self) -> None:
        """This source has nothing more to tell."""
        self._tell_again()
        super().end()


def checkpoints(directory: Path | str, kind: str = "cpu") -> dict[str, tuple[str, str | None]]:
    """The claims in a checkpoint directory, with each file's identity and the exclusive *kind* in it.

    Reads the files as anybody could, without the driver's code; one that ends meanwhile is left out.
    """
    found: dict[str, tuple[str, str | None]] = {}
    for path in Path(directory).glob("[!.]*.json"):
        try:
            status = path.stat()
            content = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            continue
        prepared_devices = [
            prepared for prepared in content["entry"]["grants"] if not prepared.get("adminAccess")
        ]
        parts = [prepared.get("exclusive", {}).get(kind, "") for prepared in prepared_devices]
        identity = f"{status.st_ino}:{status.st_mtime_ns}"
        found[path.name.removesuffix(".json")] = identity, ",".join(part for part in parts if part)
    return found
