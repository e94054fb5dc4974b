"""Histories written by hand: one clock that ticks with every line, and the words for what happens."""

from __future__ import annotations

import itertools
import json
from typing import Any

from .checker import Report, judge


class Story:
    """A record in the making. Every event is one tick (a second) after the last."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.boot, self.clock = 0, 0
        self._calls = itertools.count(1)

    def note(self, event: str, **facts: Any) -> Story:
        """One line, one tick later."""
        self.clock += 1_000_000_000
        line = {"machine": "node", "source": "story", "boot": self.boot, "at": self.clock}
        self.events.append({**line, "event": event, **facts})
        return self

    def reboot(self) -> Story:
        """The clock starts over."""
        self.boot, self.clock = self.boot + 1, 0
        return self

    # -- calls -------------------------------------------------------------------------------------

    def call(self, verb: str, claim: str) -> str:
        """A call that is not answered yet."""
        name = str(next(self._calls))
        self.note("call", call=name, verb=verb, claims=[claim])
        return name

    def answer(self, call: str, claim: str, cpus: str | None = None, error: str = "") -> Story:
        """The answer to a call."""
        facts = {"error": error} if error else {} if cpus is None else {"cpus": cpus}
        return self.note("answer", call=call, claims={claim: facts})

    def prepare(self, claim: str, cpus: str | None) -> Story:
        """Call and answer."""
        return self.answer(self.call("prepare", claim), claim, cpus)

    def unprepare(self, claim: str, error: str = "") -> Story:
        """Call and answer."""
        return self.answer(self.call("unprepare", claim), claim, error=error)

    # -- containers --------------------------------------------------------------------------------

    def start(self, container: str, *claims: str, **facts: Any) -> Story:
        """A container, from the request to the confirmation. Its pod has the same name."""
        facts = {"asked": self.clock + 1, **facts}
        self.note("container", container=container, pod=container, claims=list(claims), **facts)
        return self.note("started", container=container)

    def stop(self, container: str) -> Story:
        """The other way round."""
        return self.note("stopping", container=container).note("stopped", container=container)

    def look(self, **containers: str) -> Story:
        """The kernel's answer for each, read within this tick."""
        began, ended = self.clock + 100, self.clock + 200
        return self.note("look", containers={k: [began, ended, v] for k, v in containers.items()})

    def held(self, *, atomic: bool = False, **claims: str) -> Story:
        """The checkpoint directory: ``claim="identity:cpus"``."""
        found = {uid: each.split(":") for uid, each in claims.items()}
        return self.note("held", **{"from": self.clock + 100}, claims=found, atomic=atomic)

    def away(self) -> Story:
        """The driver goes."""
        return self.note("driver", state="away")

    def back(self) -> Story:
        """It serves again."""
        return self.note("driver", state="back")

    # -- the end -----------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """The record: numbered, complete."""
        events = [*self.events, {**self.events[-1], "event": "end"}]
        return [json.dumps({**event, "seq": number}) for number, event in enumerate(events)]

    def judged(self) -> Report:
        """What the checker says."""
        return judge(self.lines())
