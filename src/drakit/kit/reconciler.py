"""Reconciler: the node-level side effects of a driver, and the runner that serializes them.

``offer``, ``assign`` and ``enforce`` (:mod:`drakit.kit.driver`) are pure, and most drivers need
nothing else: the kit turns their answers into files and runtime updates. Some resources need more: the
cgroup of a *pod*, which no NRI event covers, or a hugepage pool that must grow before a claim can use
its pages. A :class:`Reconciler` does this work, and it is the only part of a driver that writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from drakit.core.log import get_logger
from drakit.kit.driver import ContainerView, Driver, PreparedClaim, PreparedClaims
from drakit.kit.tasks import TaskRunner

if TYPE_CHECKING:
    from drakit.kit.telemetry.metrics import Gauge

log = get_logger(__name__)
_EVENT_SECONDS: Final = 1.0
"""How long a runtime event waits for the reconciler; the runtime waits two seconds in all."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod known to the runtime, with its containers and the claims they use."""

    uid: str
    name: str
    namespace: str
    cgroup_parent: str = ""
    """As reported by the runtime; CRI-O with systemd reports only the last path component."""
    containers: tuple[ContainerView, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


class Reconciler:
    """The part of a driver with side effects on the node.

    A reconciler belongs to one host and lives as long as the host; the driver beside it is an immutable
    value that is replaced at every discovery. The contract:

    * **Idempotent.** Every call may be repeated, after a crash too, and for a state already reached.
      Compare first and write only differences.
    * **Desired state from the checkpoint.** It follows from the driver, the pods and the prepared claims
      passed in, never from the history of calls.
    * **Originals are kept and restored.** What was on the node before is recorded durably before the
      first write, and :meth:`restore` writes it back.

    Calls never overlap within a process. ``OSError`` is logged and the call is repeated with the next
    change. Override what the resource needs: the methods of this base class do nothing.
    """

    async def establish(self, prepared_claims: PreparedClaims) -> None:
        """Set up what the first offer depends on, such as configured hugepage pools.

        Called once, before the first discovery: discovery only reads, and then finds the result.
        *prepared_claims* are those in the checkpoint; what they use must stay available.
        """

    async def provision(self, driver: Driver, claim: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        """Make available what *claim* was assigned, before the claim is written to the checkpoint.

        *prepared_claims* do not contain *claim*. Raises :class:`~drakit.kit.driver.RejectedError` if
        the node cannot; the claim is then not prepared. Called with the checkpoint locked: take a few
        seconds at most (the kubelet waits 45 s for all claims of a pod together).
        """

    async def reserve(self, driver: Driver, claim: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        """Make sure that *claim* could be provisioned, before its pod is bound to the node.

        Called only for devices with binding conditions. Afterwards *claim* is among the prepared claims
        of all other calls, until it is provisioned or deallocated. Raises
        :class:`~drakit.kit.driver.RejectedError` if the node cannot: the pod is scheduled elsewhere.
        """

    async def reconcile(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """Bring the node to the desired state; after every change of pods or claims, and periodically."""

    async def restore(self) -> None:
        """Write back the original values, unless another program has changed them since; at uninstall."""

    def gauges(self) -> Iterable[Gauge]:
        """The reconciler's metrics, collected at every scrape."""
        return ()


class ReconcilerGroup(Reconciler):
    """Several reconcilers as one, called in order.

    A rejection by one ends :meth:`provision` and :meth:`reserve`. All other errors are raised after
    every reconciler was called: ``OSError`` with all texts, or an exception group.
    """

    def __init__(self, *reconcilers: Reconciler) -> None:
        self._reconcilers = reconcilers

    async def establish(self, prepared_claims: PreparedClaims) -> None:
        """See :class:`Reconciler`."""
        await self._each(lambda reconciler: reconciler.establish(prepared_claims))

    async def provision(self, driver: Driver, claim: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        """See :class:`Reconciler`."""
        for reconciler in self._reconcilers:
            await reconciler.provision(driver, claim, prepared_claims)

    async def reserve(self, driver: Driver, claim: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        """See :class:`Reconciler`."""
        for reconciler in self._reconcilers:
            await reconciler.reserve(driver, claim, prepared_claims)

    async def reconcile(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """See :class:`Reconciler`."""
        await self._each(lambda reconciler: reconciler.reconcile(driver, pods, prepared_claims))

    async def restore(self) -> None:
        """See :class:`Reconciler`."""
        await self._each(lambda reconciler: reconciler.restore())

    def gauges(self) -> Iterable[Gauge]:
        """The metrics of all."""
        for reconciler in self._reconcilers:
            yield from reconciler.gauges()

    async def _each(self, call: Callable[[Reconciler], Awaitable[None]]) -> None:
        errors: list[str] = []
        defects: list[Exception] = []
        for reconciler in self._reconcilers:
            try:
                await call(reconciler)
            except OSError as error:
                errors.append(str(error))
            except Exception as error:
                defects.append(error)
        if defects:
            raise ExceptionGroup("; ".join([*errors, *map(str, defects)]), defects)
        if errors:
            raise OSError("; ".join(errors))


MakeReconciler = Callable[[Any, str], Reconciler]
"""From a program's configuration and the node's name to its reconciler; without blocking I/O."""


class ReconciledNode(Protocol):
    """The current state of the node; see ``Host``."""

    driver: Driver
    """The driver for the machine as last discovered."""

    @property
    def prepared_claims(self) -> PreparedClaims:
        """The claims in the checkpoint."""

    def pods(self) -> Sequence[PodView]:
        """The pods that the runtime reports."""


class ReconcilerRunner:
    """Serializes and debounces the calls of a reconciler, each with the state at the time of the call."""

    def __init__(self, reconciler: Reconciler, node: ReconciledNode, tasks: TaskRunner | None = None) -> None:
        self._reconciler = reconciler
        self._node = node
        self._tasks = tasks or TaskRunner()
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._reserved: dict[str, PreparedClaim] = {}
        self.problem: str | None = None
        """Why the last reconciliation failed; None if it succeeded."""

    async def provision(self, claim: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        """See :meth:`Reconciler.provision`."""
        async with self._turn:
            others = self.with_reserved(prepared_claims, excluding=claim.uid)
            await self._reconciler.provision(self._node.driver, claim, others)

    async def reserve(self, claim: PreparedClaim) -> None:
        """See :meth:`Reconciler.reserve`; the reservation lasts until :meth:`keep_reserved` drops it."""
        async with self._turn:
            others = self.with_reserved(self._node.prepared_claims, excluding=claim.uid)
            await self._reconciler.reserve(self._node.driver, claim, others)
            self._reserved[claim.uid] = claim

    def keep_reserved(self, uids: Collection[str]) -> None:
        """Drop all reservations except those of these claims."""
        self._reserved = {uid: claim for uid, claim in self._reserved.items() if uid in uids}

    def with_reserved(self, prepared_claims: PreparedClaims, *, excluding: str = "") -> PreparedClaims:
        """*prepared_claims* and the reserved ones, both without the claim *excluding*."""
        reserved = (claim for uid, claim in self._reserved.items() if uid not in prepared_claims.entries)
        claims = [each for each in (*prepared_claims, *reserved) if each.uid != excluding]
        return PreparedClaims(claims, prepared_claims.orphaned)

    async def reconcile(self) -> None:
        """Reconcile the current state; calls made while one is waiting for its turn share that one."""
        if self._next is None:
            self._next = asyncio.create_task(self._reconcile())
        await asyncio.shield(self._next)

    async def reconcile_in_event(self) -> None:
        """Like :meth:`reconcile`, but return before the runtime event times out; the work continues."""
        try:
            async with asyncio.timeout(_EVENT_SECONDS):
                await self.reconcile()
        except TimeoutError:
            log.warning("runtime event does not wait for reconciliation", seconds=_EVENT_SECONDS)

    async def close(self) -> None:
        """Wait for the reconciliation in progress."""
        if self._next is not None:
            await asyncio.gather(self._next, return_exceptions=True)

    async def _reconcile(self) -> None:
        async with self._turn:
            self._next = None
            try:
                claims = self.with_reserved(self._node.prepared_claims)
                await self._reconciler.reconcile(self._node.driver, self._node.pods(), claims)
            except OSError as error:
                if self.problem != str(error):
                    log.error("cannot reconcile the node, will retry", error=error)
                self.problem = str(error)
            except Exception as error:
                # A defect of a reconciler. Runtime events wait for this: it must not fail them.
                self.problem = str(error) or type(error).__name__
                self._tasks.failed("reconciler", error)
            else:
                self.problem = None
                self._tasks.succeeded("reconciler")
