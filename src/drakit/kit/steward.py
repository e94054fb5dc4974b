"""A driver's hands: what must be done on the node besides answering the runtime.

The three verbs of :mod:`drakit.kit.driver` are pure, and most drivers need nothing else: the kit
turns their answers into files and runtime limits. Some resources need more – the cgroup of a *pod*,
which no NRI event covers, or a page pool that must grow before a claim can have its pages. A
:class:`Steward` does that work. It belongs to one host and lives as long as it; the driver beside it
stays an immutable value and is made anew whenever the machine changes.

What may happen to a steward: every call may come twice, after a crash, and for a state that it has
already seen; it must compare and write only differences. Calls never overlap within a process. A
call that raises ``OSError`` is logged and repeated with the next one; it ends nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from drakit.kit.driver import Container, Driver, Entry, Holdings

if TYPE_CHECKING:
    from drakit.kit.metrics import Gauge


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod that the runtime has, with its containers and the claims they use."""

    uid: str
    name: str
    namespace: str
    cgroup_parent: str = ""
    """As the runtime reports it; on CRI-O with systemd only the last part of the path."""
    containers: tuple[Container, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


class Steward(Protocol):
    """Keeps the node in the state that the ledger and the pods demand."""

    async def provide(self, driver: Driver, entry: Entry, holdings: Holdings) -> None:
        """Make sure that the node has what *entry* was assigned; before it is written down.

        *holdings* do not contain *entry*. Raises :class:`~drakit.kit.driver.Refused` when the node
        cannot; nothing is assigned then. Called under the ledger's lock: be quick, a few seconds at
        most (the kubelet waits 45 s for all claims of a pod together).
        """
        ...

    async def promise(self, driver: Driver, entry: Entry, holdings: Holdings) -> None:
        """Make sure that the node could provide for *entry* now; before a pod is bound to the node.

        Asked only where devices have binding conditions. From then on *entry* is among the holdings
        of all other calls, until it is provided for or its allocation is gone. Raises
        :class:`~drakit.kit.driver.Refused` when the node could not: the pod goes elsewhere.
        """
        ...

    async def settle(self, driver: Driver, pods: Sequence[PodView], holdings: Holdings) -> None:
        """Bring the node in line: after each change of pods or holdings, and every so often."""
        ...

    async def restore(self) -> None:
        """Put back what was changed on the node, as far as it is still so; at uninstall."""
        ...

    def gauges(self) -> Iterable[Gauge]:
        """Its metrics, at every scrape."""
        ...


class Stewards:
    """Several stewards as one, asked in order; one that fails does not keep the next from work."""

    def __init__(self, *stewards: Steward) -> None:
        self._stewards = stewards

    async def provide(self, driver: Driver, entry: Entry, holdings: Holdings) -> None:
        """See :class:`Steward`; the first refusal counts."""
        for steward in self._stewards:
            await steward.provide(driver, entry, holdings)

    async def promise(self, driver: Driver, entry: Entry, holdings: Holdings) -> None:
        """See :class:`Steward`; the first refusal counts."""
        for steward in self._stewards:
            await steward.promise(driver, entry, holdings)

    async def settle(self, driver: Driver, pods: Sequence[PodView], holdings: Holdings) -> None:
        """See :class:`Steward`. Raises ``OSError`` with all that went wrong, after all were asked."""
        await self._each(lambda steward: steward.settle(driver, pods, holdings))

    async def restore(self) -> None:
        """See :class:`Steward`. Raises ``OSError`` with all that went wrong, after all were asked."""
        await self._each(lambda steward: steward.restore())

    def gauges(self) -> Iterable[Gauge]:
        """Those of all."""
        for steward in self._stewards:
            yield from steward.gauges()

    async def _each(self, ask: Callable[[Steward], Awaitable[None]]) -> None:
        problems: list[str] = []
        defects: list[Exception] = []
        for steward in self._stewards:
            try:
                await ask(steward)
            except OSError as problem:
                problems.append(str(problem))
            except Exception as problem:
                defects.append(problem)
        if defects:
            raise ExceptionGroup("; ".join([*problems, *map(str, defects)]), defects)
        if problems:
            raise OSError("; ".join(problems))


MakeSteward = Callable[[Any, str], Steward]
"""From a program's configuration and the node's name to its steward. No I/O that can fail for long."""
