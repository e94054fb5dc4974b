"""Handlers of NRI events: refresh the checkpoint, let the enforcer decide, answer the runtime.

Invariant: claims are served only while the runtime is synchronized with this instance or with another
instance of the driver; otherwise :attr:`RuntimeHost.problem` has the reason, for readiness, registration and
every kubelet call.

Changes that do not come from the runtime – a claim ended, another instance prepared one – are pushed where
the runtime accepts that (:mod:`drakit.kit.runtime.updates`), else sent with the answer to the next event,
and, where cgroups are writable, written directly (:mod:`drakit.kit.runtime.drift`).
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from drakit.cgroups.tree import CgroupTree
from drakit.core.filelock import FileLock
from drakit.core.log import get_logger
from drakit.kit.claims import cdi_names as names
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.resource_claims import ClaimSource
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import Driver, PreparedClaim, RejectedError
from drakit.kit.runtime.claim_usage import ClaimUsage, ReservationChecker
from drakit.kit.runtime.container_claims import exclusive_cpus
from drakit.kit.runtime.drift import ConfinementReport, DriftRepair, find_confined, read_cpusets
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.runtime.status import RuntimeStatus, measured
from drakit.kit.runtime.updates import Evictor, Pusher
from drakit.kit.telemetry.metrics import Gauge, HostMetrics
from drakit.wire.nri.handler import Disconnect, Handler, PluginOptions, RuntimeInfo
from drakit.wire.nri.plugin import NriPlugin
from drakit.wire.nri.values import Adjustment, ContainerUpdate, NriContainer, PodSandbox, Resources

log = get_logger(__name__)
_STANDBY_POLL_SECONDS: Final = 0.1
P = ParamSpec("P")
T = TypeVar("T")
Hook = Callable[Concatenate["RuntimeHost", P], Coroutine[Any, Any, T]]


def _event(name: str) -> Callable[[Hook[P, T]], Hook[P, T]]:
    """Wrap a handler: measured, with a refreshed checkpoint."""

    def wrap(hook: Hook[P, T]) -> Hook[P, T]:
        @functools.wraps(hook)
        async def handle(self: RuntimeHost, /, *args: P.args, **kwargs: P.kwargs) -> T:
            with measured(name, self._metrics, args):
                self._checkpoint.refresh()
                return await hook(self, *args, **kwargs)

        return handle

    return wrap


class RuntimeHost(Handler):
    """Keeps the runtime's containers at the resources that the driver wants.

    Only one instance per node is connected to the runtime: two plugins of one name would contradict each
    other in every container. During a rolling update the newer instance waits for the lock of the older one;
    meanwhile it is in *standby*, which is as good as synchronized for serving claims, because the active
    instance reads the same checkpoint before each answer.
    """

    def __init__(
        self,
        driver: Callable[[], Driver],
        checkpoint: Checkpoint,
        options: HostOptions,
        metrics: HostMetrics,
        source: ClaimSource | None = None,
    ) -> None:
        """*source* confirms that a claim is reserved for a pod that the kubelet did not report."""
        self._driver = driver
        self._checkpoint = checkpoint
        self._nri_off = options.nri == "off"
        self._metrics = metrics
        self.enforcer = Enforcer(driver, lambda: checkpoint.prepared_claims)
        self.plugin = NriPlugin(
            PluginOptions(
                name=driver().name,
                index=options.nri_index,
                socket_path=options.nri_socket,
                variables=(names.MARKER_PREFIX, names.LEGACY_PREFIX),
            ).with_environment(os.environ)
        )
        self._tree = tree = CgroupTree(options.cgroup_root) if options.cgroup_root else None
        self.pusher = Pusher(self.plugin, self.enforcer, metrics)
        self._evictor = Evictor(self.enforcer, self.pusher, tree)
        self._usage = ClaimUsage(driver, checkpoint, self.enforcer, tree)
        self._repair = DriftRepair(self.enforcer, tree, metrics) if tree is not None else None
        self._reservations = ReservationChecker(self.enforcer, source)
        self._confinement = ConfinementReport(metrics)
        self.specs_at_start: frozenset[str] = frozenset()
        """UIDs of claims with a CDI spec at start: evidence of a claim even if its record is lost."""
        self.reconcile: Callable[[], Awaitable[None]] | None = None
        """Called after a change of pods, before the answer (:mod:`drakit.kit.reconciler`)."""
        self.status = RuntimeStatus(options.nri)
        self.ready = self.status.ready
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.add_source(self._gauges)

    async def run(self, lock_path: str) -> None:
        """Serve the runtime until cancelled, after the other instance has ended."""
        if self._nri_off:
            log.warning("NRI is off by configuration, containers are not pinned by this driver")
            self.status.ready.set()
            return
        lock = FileLock(lock_path)
        while not lock.try_acquire():
            self.status.stand_by()
            await asyncio.sleep(_STANDBY_POLL_SECONDS)
        self.status.activate()
        try:
            await self.plugin.run(self)
        finally:
            self.status.synchronized = False
            lock.release()

    @property
    def problem(self) -> str | None:
        """Why containers cannot be served now; None if they can, or if that is optional."""
        return self.status.problem

    async def checkpoint_changed(self) -> None:
        """Push the updates that follow from a changed checkpoint, if the runtime accepts them."""
        if self.status.synchronized:  # otherwise the synchronization includes them
            await self.pusher.push()

    async def evict_others(self, claim: PreparedClaim) -> None:
        """Move other containers off the claim's CPUs before its prepare is answered.

        Raises :class:`RejectedError` if that takes too long.
        """
        if self.status.synchronized:
            self._spawn(self.checkpoint_changed())
            if cpus := exclusive_cpus(claim, self._driver()):
                await self._evictor.evict_others(claim, cpus)

    def user_of(self, claim_uid: str) -> str | None:
        """A container that was created with the claim and has not ended; None without one."""
        if self.status.state == "standby":
            return self._usage.standby_user_of(claim_uid)
        return self._usage.user_of(claim_uid)

    async def verify(self, container_ids: Sequence[str] | None = None) -> None:
        """Compare the cgroups of the given or all containers with desired resources, and repair."""
        if not self.status.synchronized or self._tree is None or self._repair is None:
            return
        if container_ids is None:
            self._confinement.update(find_confined(self.enforcer, self._tree))
        await self._repair.verify(container_ids, self.checkpoint_changed)

    def connected(self, runtime: RuntimeInfo) -> None:
        """Learn the features of the runtime."""
        self.enforcer.trust_cdi = runtime.features.reports_cdi_devices
        log.info(
            "connected to the container runtime",
            runtime=runtime.name,
            version=runtime.version,
            nri=runtime.nri,
            reports_cdi_devices=runtime.features.reports_cdi_devices,
            accepts_pushed_updates=runtime.features.unsolicited_updates,
        )

    def disconnected(self, end: Disconnect) -> None:
        """Record the end of the connection, or why it cannot be made."""
        if self.status.synchronized:
            self._metrics.reconnects.inc()
        self.status.disconnect(end)

    @_event("synchronize")
    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[NriContainer]
    ) -> Sequence[ContainerUpdate]:
        """Track all pods and containers; returns the updates they need."""
        self.enforcer.replace_all(pods, containers)
        runtime = self.plugin.runtime
        if runtime is not None and not runtime.features.reports_current_resources:
            read_cpusets(self.enforcer, self._tree)
        self._usage.hold_lost_claims(self.specs_at_start)
        updates = self.enforcer.collect_updates()
        self.status.connect()
        self._spawn(self._reconcile())
        conflicts = self.enforcer.conflicts()
        if conflicts:
            self._spawn(self._confirm_conflicts())
        log.info(
            "synchronized with the container runtime",
            pods=len(pods),
            containers=len(self.enforcer.containers),
            updates=len(updates),
            conflicts=len(conflicts),
        )
        return updates

    @_event("create")
    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        """Decide about a new container."""
        answer = await self._reservations.confirming(lambda: self.enforcer.create(pod, container))
        self._count(answer.updates)
        try:
            await self._reconcile()
        except asyncio.CancelledError:
            self.undelivered(answer)
            raise
        return answer

    @_event("update")
    async def update(
        self, pod: PodSandbox, container: NriContainer, resources: Resources
    ) -> Sequence[ContainerUpdate]:
        """Override the resources of another client with ours."""
        return self._count(
            await self._reservations.confirming(lambda: self.enforcer.update(pod, container, resources))
        )

    @_event("stop")
    async def stop(self, pod: PodSandbox, container: NriContainer) -> Sequence[ContainerUpdate]:
        """Update others after a container ended."""
        updates = self.enforcer.stopped(container.id)
        if self._usage.release_lost_claims():
            updates += self.enforcer.collect_updates()
        self._spawn(self._reconcile())
        return self._count(updates)

    @_event("start")
    async def starting(self, pod: PodSandbox, container: NriContainer) -> None:
        """Reject a container that must not start, and evict others from its CPUs."""
        missed = self.enforcer.started(pod, container)
        tracked = self.enforcer.containers[container.id]
        if tracked.references_claims:  # never start one that could not be created now
            await self._reservations.confirming(lambda: self.enforcer.desired(tracked))
        if self._repair is not None:
            self._repair.before_start(container.id)
        if not missed:
            return
        self._metrics.drift.labels("missed-create").inc()
        unenforced = await self._reservations.confirming(
            lambda: self.enforcer.unenforced_claims(container.id)
        )
        if unenforced and not self.pusher.possible:
            claims = ", ".join(str(use.claim) for use in unenforced)
            raise RejectedError(
                f"{container} of {pod} would run outside of {claims}: its creation was missed and "
                f"this runtime accepts no later change; it will be created again",
                reason="missed-create",
            )
        log.warning("creation of a container was missed, correcting it", id=container.id)

    async def started(self, pod: PodSandbox, container: NriContainer) -> None:
        """Correct a running container if it was missed or lacks its resources in the kernel.

        containerd starts a container with its old limits when an update arrives at the same moment (seen
        with 2.4.2 during synchronization), and reports the new ones.
        """
        self._metrics.contact("runtime")
        self.enforcer.started(pod, container, runs=True)
        asyncio.get_running_loop().call_soon(self._correct_later, container.id)

    async def removed(self, pod: PodSandbox, container: NriContainer) -> None:
        """Forget a container."""
        self._metrics.contact("runtime")
        self.enforcer.removed(container.id)
        self._usage.release_lost_claims()

    async def pod_started(self, pod: PodSandbox) -> None:
        """Track a running sandbox."""
        self._metrics.contact("runtime")
        self.enforcer.pod_started(pod)
        await self._reconcile()

    async def pod_stopped(self, pod: PodSandbox) -> None:
        """Release the claims of a stopped sandbox that its containers no longer use."""
        self._metrics.contact("runtime")
        self.enforcer.pod_stopped(pod)

    async def pod_removed(self, pod: PodSandbox) -> None:
        """Forget a sandbox."""
        self._metrics.contact("runtime")
        self.enforcer.pod_removed(pod.id)
        self._usage.release_lost_claims()
        self._spawn(self._reconcile())

    def undelivered(self, answer: Adjustment | Sequence[ContainerUpdate]) -> None:
        """Send the updates of a late answer again: the runtime did not apply them."""
        updates = answer.updates if isinstance(answer, Adjustment) else answer
        self.enforcer.mark_unsent(update.container_id for update in updates)
        self._spawn(self.checkpoint_changed())

    async def _reconcile(self) -> None:
        if self.reconcile is not None:
            await self.reconcile()

    def _correct_later(self, container_id: str) -> None:
        self._spawn(self._correct(container_id))

    async def _correct(self, container_id: str) -> None:
        await self._reconcile()
        await self.checkpoint_changed()
        await self.verify([container_id])

    async def _confirm_conflicts(self) -> None:
        await self._reservations.confirm_conflicts()
        await self.checkpoint_changed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a defect; the next event or verification does the work of the failed task."""
        self._tasks.discard(task)
        try:
            task.result()
        except asyncio.CancelledError:
            pass
        except Exception:
            self._metrics.task_failures.labels("containers").inc()
            log.exception("background task failed", task="containers")

    def _count(self, updates: Sequence[ContainerUpdate]) -> Sequence[ContainerUpdate]:
        if updates:
            self._metrics.container_updates.labels("answered").inc(len(updates))
        return updates

    def _gauges(self) -> list[Gauge]:
        containers = self.enforcer.containers.values()
        with_devices = sum(1 for each in containers if each.reported.cdi_devices)
        conflicts = len(self.enforcer.conflicts())
        return [
            Gauge("runtime_synchronized", "1 while synchronized with the runtime.", self.status.synchronized),
            Gauge("containers", "Containers known.", len(containers)),
            Gauge("containers_with_devices", "Containers with CDI devices.", with_devices),
            Gauge("containers_in_conflict", "Containers that cannot be served.", conflicts),
        ]
