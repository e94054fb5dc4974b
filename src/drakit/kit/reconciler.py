"""A driver's hands: what must be done on the node except answering the runtime.

The three verbs of :mod:`drakit.kit.driver` are pure, and most drivers need nothing else: the kit
turns their answers into files and runtime limits. Some resources need more – the cgroup of a *pod*,
which no NRI event covers, or a page pool that must grow before a claim can have its pages. A
:class:`Reconciler` does that work. It belongs to one host and lives as long as it; the driver beside it
stays an immutable value and is made anew whenever the machine changes.

What may happen to a reconciler: every call may come twice, after a crash, and for a state that it has
already seen; it must compare and write only differences. Calls never overlap within a process. A
call that raises ``OSError`` is logged and repeated with the next one; it ends nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from drakit.kit.driver import ContainerView, Driver, PreparedClaim, PreparedClaims

if TYPE_CHECKING:
    from drakit.kit.telemetry.metrics import Gauge


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod that the runtime has, with its containers and the claims they use."""

    uid: str
    name: str
    namespace: str
    cgroup_parent: str = ""
    """As the runtime reports it; on CRI-O with systemd only the last part of the path."""
    containers: tuple[ContainerView, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


class Reconciler(Protocol):
    """Keeps the node in the state that the checkpoint and the pods demand."""

    async def provide(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """Make sure that the node has what *entry* was assigned; before it is written down.

        *prepared_claims* do not contain *entry*. Raises :class:`~drakit.kit.driver.RejectedError` when the node
        cannot; nothing is assigned then. Called under the checkpoint's lock: be quick, a few seconds at
        most (the kubelet waits 45 s for all claims of a pod together).
        """
        ...

    async def promise(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """Make sure that the node could provide for *entry* now; before a pod is bound to the node.

        Asked only where devices have binding conditions. From then on *entry* is among the prepared claims
        of all other calls, until it is provided for or its allocation is gone. Raises
        :class:`~drakit.kit.driver.RejectedError` when the node could not: the pod goes elsewhere.
        """
        ...

    async def settle(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """Bring the node in line: after each change of pods or prepared claims, and every so often."""
        ...

    async def restore(self) -> None:
        """Put back what was changed on the node, as far as it is still so; at uninstall."""
        ...

    def gauges(self) -> Iterable[Gauge]:
        """Its metrics, at every scrape."""
        ...


class ReconcilerGroup:
    """Several reconcilers as one, asked in order; one that fails does not keep the next from work."""

    def __init__(self, *reconcilers: Reconciler) -> None:
        self._reconcilers = reconcilers

    async def provide(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """See :class:`Reconciler`; the first rejection counts."""
        for reconciler in self._reconcilers:
            await reconciler.provide(driver, entry, prepared_claims)

    async def promise(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """See :class:`Reconciler`; the first rejection counts."""
        for reconciler in self._reconcilers:
            await reconciler.promise(driver, entry, prepared_claims)

    async def settle(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """See :class:`Reconciler`. Raises ``OSError`` with all that went wrong, after all were asked."""
        await self._each(lambda reconciler: reconciler.settle(driver, pods, prepared_claims))

    async def restore(self) -> None:
        """See :class:`Reconciler`. Raises ``OSError`` with all that went wrong, after all were asked."""
        await self._each(lambda reconciler: reconciler.restore())

    def gauges(self) -> Iterable[Gauge]:
        """Those of all."""
        for reconciler in self._reconcilers:
            yield from reconciler.gauges()

    async def _each(self, ask: Callable[[Reconciler], Awaitable[None]]) -> None:
        problems: list[str] = []
        defects: list[Exception] = []
        for reconciler in self._reconcilers:
            try:
                await ask(reconciler)
            except OSError as error:
                problems.append(str(error))
            except Exception as error:
                defects.append(error)
        if defects:
            raise ExceptionGroup("; ".join([*problems, *map(str, defects)]), defects)
        if problems:
            raise OSError("; ".join(problems))


MakeReconciler = Callable[[Any, str], Reconciler]
"""From a program's configuration and the node's name to its reconciler. No I/O that can fail for long."""
