"""The host's side towards the container runtime: NRI events in, enforcement out.

Desired resources are computed in :mod:`drakit.kit.runtime.enforcer`; this module feeds it. Invariant: claims are
served only while the runtime is synchronized (or another instance of this driver is), so
:attr:`RuntimeHost.problem` tells what is missing, for readiness, registration and every kubelet call.

Changes that do not come from the runtime – a claim ended, another instance prepared one – go out by the
best way this runtime allows: pushed where that is safe (:mod:`drakit.kit.runtime.updates`), else with the answer to
the next event, and, where cgroups are writable, by writing them directly
(:mod:`drakit.kit.runtime.drift`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from drakit.cgroups.tree import CgroupTree, relative_path
from drakit.core.cpuset import CpuSet
from drakit.core.filelock import FileLock
from drakit.kit.claims import cdi_names as names
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.preparer import ClaimSource, ClaimSourceError
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import Driver, PreparedClaim, RejectedError
from drakit.kit.runtime.confinement import ConfinementReport, find_confined
from drakit.kit.runtime.drift import count_found, find_drift, find_intruders, write_directly
from drakit.kit.runtime.enforcer import Enforcer, ForeignClaimError, TrackedContainer
from drakit.kit.runtime.updates import Pusher
from drakit.kit.telemetry.logs import about
from drakit.kit.telemetry.metrics import Gauge, HostMetrics
from drakit.wire.nri.handler import Cause, ContainerRejectedError, Disconnect, Handler, RuntimeInfo
from drakit.wire.nri.options import PluginOptions
from drakit.wire.nri.plugin import NriPlugin
from drakit.wire.nri.values import Adjustment, ContainerUpdate, NriContainer, PodSandbox, Resources
from drakit.wire.nri.versions import PINNING_EVENTS, Event

_LOG = logging.getLogger(__name__)
_STANDBY_POLL = 0.1
_WITNESS_SECONDS = 1.0
"""How long the API server may take to confirm a pod; the runtime waits two seconds in all."""
_DENIAL_SECONDS = 5.0
"""How long a "not reserved" of the API server counts: a forged variable must not slow every event."""
_MOST_DENIALS = 1000
_VACATE_SECONDS = 3.0
"""How long a prepare waits for containers to leave the claim's CPUs; after that the kubelet retries."""
T = TypeVar("T")

EVENTS = PINNING_EVENTS | {Event.RUN_POD_SANDBOX, Event.STOP_POD_SANDBOX}


class RuntimeHost(Handler):
    """Keeps the runtime's containers in the shapes the driver wants.

    Only one instance per node talks to the runtime: two plugins of one name would contradict each
    other in every container. During a rolling update the newer one waits for the lock of the
    older; meanwhile it counts as *standby*, which is as good as synchronized for serving claims,
    because the active instance reads the same checkpoint before each answer.
    """

    def __init__(
        self,
        driver: Callable[[], Driver],
        checkpoint: Checkpoint,
        options: HostOptions,
        metrics: HostMetrics,
        source: ClaimSource | None = None,
    ) -> None:
        """*source* is asked whether a claim is reserved for a pod that the kubelet did not name."""
        self._checkpoint = checkpoint
        self._source = source
        self._options = options
        self._metrics = metrics
        self._driver = driver
        self.enforcer = Enforcer(driver, lambda: checkpoint.prepared_claims)
        self.plugin = NriPlugin(
            PluginOptions(
                name=driver().name,
                index=options.nri_index,
                socket_path=options.nri_socket,
                events=EVENTS,
                variables=(names.MARKER_PREFIX, names.LEGACY_PREFIX),
            ).with_environment(os.environ)
        )
        self.pusher = Pusher(self.plugin, self.enforcer, metrics)
        self.prepared_before: frozenset[str] = frozenset()
        """UIDs of claims with a CDI spec at start: evidence of a claim even if its record is lost."""
        self.tend: Callable[[], Awaitable[None]] | None = None
        """What else follows a change of pods (:mod:`drakit.kit.reconciling`), before the answer."""
        self.settled = asyncio.Event()
        """Set once claims can be served: synchronized, standby, or NRI known to be off and optional."""
        self._standby = False
        self._synchronized = False
        self._last_end: Disconnect | None = None
        self._denied: dict[tuple[str, str], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._confinement = ConfinementReport(metrics)
        metrics.add_source(self._gauges)

    # -- life ----------------------------------------------------------------------------------------

    async def run(self, lock_path: str) -> None:
        """Talk to the runtime for ever; ends when cancelled. First wait for the other instance."""
        if self._options.nri == "off":
            _LOG.warning("NRI is off by configuration: containers are not pinned by this driver")
            self.settled.set()
            return
        lock = FileLock(lock_path)
        while not lock.try_acquire():
            if not self._standby:
                _LOG.info("another instance serves the runtime; standing by until it ends")
            self._standby = True
            self.settled.set()
            await asyncio.sleep(_STANDBY_POLL)
        self._standby = False
        if self._options.nri == "required":
            self.settled.clear()
        try:
            await self.plugin.run(self)
        finally:
            self._synchronized = False
            lock.release()

    @property
    def problem(self) -> str | None:
        """Why containers cannot be shaped now; None when they can (or it is allowed not to)."""
        if self._synchronized or self._standby or self._options.nri == "off":
            return None
        if self._last_end is None:
            return "not yet synchronized with the container runtime"
        if self._options.nri == "optional" and self._last_end.cause is Cause.NO_SOCKET:
            return None
        return str(self._last_end)

    @property
    def state(self) -> str:
        """In one word: ``synchronized``, ``standby``, ``off`` or ``disconnected``."""
        if self._options.nri == "off":
            return "off"
        if self._standby:
            return "standby"
        return "synchronized" if self._synchronized else "disconnected"

    # -- changes from elsewhere ------------------------------------------------------------------------

    async def checkpoint_changed(self) -> None:
        """The checkpoint changed: bring all containers in line, by the best way there is."""
        if self._synchronized:  # else synchronizing will do it
            await self.pusher.push()

    async def evict_others(self, entry: PreparedClaim) -> None:
        """Before a prepare is answered: take all other containers off the claim's CPUs.

        First in the kernel, where cgroups can be written, then through the runtime. Waits for updates
        that are on their way and would bring a container back. Raises :class:`RejectedError` if that takes too
        long; the claim stays prepared, and the kubelet calls again.
        """
        own = entry.exclusive("cpu")
        if not self._synchronized:
            return
        self._spawn(self.checkpoint_changed())
        if not own:
            return
        left = self._evict(own, self._others_on(own, entry.uid))
        self.pusher.prefer(left)  # the driver's own container, for one: it may not write its cgroup
        stale = self.pusher.stale(own)

        def clear() -> bool:
            return not self.pusher.stale(own) and not any(self._allows(each, own) for each in left)

        if self.pusher.possible and not await self.pusher.wait_until(clear, _VACATE_SECONDS):
            raise RejectedError(
                f"{entry} is prepared, but the container runtime has not moved other containers off its "
                f"CPUs {own} within {_VACATE_SECONDS:g} s; the kubelet tries again",
                reason="runtime-busy",
            )
        self._evict(own, stale)

    def _others_on(self, cpus: CpuSet, claim_uid: str) -> list[str]:
        """Containers that may use some of *cpus*, except those of the claim itself."""
        users = {known.reported.id for known in self.enforcer.users_of(claim_uid)}
        return [
            each
            for each in self.enforcer.containers
            if each not in users and self._allows(each, cpus)
        ]

    def _allows(self, container_id: str, cpus: CpuSet) -> bool:
        """Whether the container may use any of *cpus*, as far as the runtime has confirmed."""
        if container_id not in self.enforcer.containers:
            return False
        allowed = self.enforcer.allowed(container_id)
        return allowed is None or bool(allowed & cpus) or self.pusher.is_in_flight(container_id)

    def _evict(self, cpus: CpuSet, container_ids: Sequence[str]) -> list[str]:
        """Write the desired CPUs of containers into their cgroups; returns where that failed."""
        if not self._options.cgroup_root:
            return list(container_ids)
        tree, left = CgroupTree(self._options.cgroup_root), []
        for container_id in container_ids:
            known = self.enforcer.containers.get(container_id)
            path = relative_path(known.reported.cgroups_path) if known is not None else None
            desired = self.enforcer.settled_desired(known) if known is not None else None
            if path is None or desired is None or desired.cpus is None or desired.cpus & cpus:
                continue
            try:
                tree.write("cpuset", path, "cpuset.cpus", str(desired.cpus))
            except FileNotFoundError:
                continue  # it ended, or does not run yet: then its start looks again
            except OSError as error:
                _LOG.warning("cannot write cpuset of container %s: %s", container_id, error)
                left.append(container_id)
        return left

    def user_of(self, claim_uid: str) -> str | None:
        """A container that has not ended and was created with a claim, in words; None without one."""
        tree = CgroupTree(self._options.cgroup_root) if self._options.cgroup_root else None
        if self._standby:
            return self._seen_on(claim_uid, tree)
        for known in self.enforcer.users_of(claim_uid):
            if not self._has_ended(known, tree):
                return f"{known.reported} of {known.pod}"
        return None

    def _has_ended(self, known: TrackedContainer, tree: CgroupTree | None) -> bool:
        """Whether the kernel shows that a container ended: its end may be reported late, or never.

        One that has not run counts only if its sandbox was stopped: else it may be about to start.
        """
        path = relative_path(known.reported.cgroups_path)
        if tree is None or path is None:
            return False
        over = known.ran or self.enforcer.pod_has_stopped(known.pod)
        return over and not tree.populated(path)

    def _seen_on(self, claim_uid: str, tree: CgroupTree | None) -> str | None:
        """The same by the kernel alone: an instance that stands by is not told of containers."""
        prepared_claims = self._checkpoint.prepared_claims
        entry = prepared_claims.get(claim_uid)
        held = prepared_claims.orphaned.get(claim_uid)
        if entry is None and held is None:
            return None
        own = entry.exclusive("cpu") if entry is not None else CpuSet.union((held or {}).values())
        if not own:
            unknown = "a container that cannot be ruled out (the claim's record is unreadable)"
            return None if entry is not None else unknown
        if tree is None:
            return "a container that cannot be ruled out (cgroupRoot is not set, another instance serves)"
        for path in tree.all_containers():
            cpuset = tree.cpuset(path)
            if cpuset and cpuset.cpus and cpuset.cpus <= own and tree.populated(path):
                return f"container {os.path.basename(path)}"
        return None

    async def verify(self, container_ids: Sequence[str] | None = None) -> None:
        """Compare cgroups with intent, of those containers or of all, and put right what differs."""
        if not self._synchronized or not self._options.cgroup_root:
            return
        tree = CgroupTree(self._options.cgroup_root)
        if container_ids is None:
            self._confinement.update(find_confined(self.enforcer, tree))
        drifts = find_drift(self.enforcer, tree, container_ids)
        if not drifts:
            return
        count_found(drifts, self._metrics)
        for drift in drifts:
            _LOG.log(logging.WARNING if drift.ran else logging.INFO, "drift found: %s", drift)
        self.enforcer.mark_unsent(drift.container_id for drift in drifts)
        await self.checkpoint_changed()
        left = [d for d in find_drift(self.enforcer, tree, container_ids) if d in drifts]
        write_directly(left, tree, self._metrics)

    # -- events of the runtime ---------------------------------------------------------------------------

    def connected(self, runtime: RuntimeInfo) -> None:
        """A runtime introduced itself."""
        self.enforcer.trust_cdi = runtime.features.reports_cdi_devices
        way = (
            "pushed"
            if runtime.features.unsolicited_updates
            else "sent with the next answer (its NRI is older than 0.12.1)"
        )
        _LOG.info(
            "connected to %s %s, NRI %s: claims are known by %s, updates are %s",
            runtime.name,
            runtime.version,
            runtime.nri,
            "CDI device names" if self.enforcer.trust_cdi else "checked environment variables",
            way,
        )

    def disconnected(self, end: Disconnect) -> None:
        """The connection ended, or could not be made for a new reason."""
        if self._synchronized:
            self._metrics.reconnects.inc()
        self._synchronized = False
        self._last_end = end
        if self._options.nri == "optional" and end.cause is Cause.NO_SOCKET:
            _LOG.warning("%s; going on without enforcing, as configured (nri: optional)", end)
            self.settled.set()

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[NriContainer]
    ) -> Sequence[ContainerUpdate]:
        """Take over what exists, and say what must change."""

        async def work() -> Sequence[ContainerUpdate]:
            self._checkpoint.refresh()
            self.enforcer.take_over(pods, containers)
            self._look_at_kernel()
            self._hold_for_lost()
            updates = self.enforcer.settle()
            self._synchronized = True
            self.settled.set()
            self._tend_later()
            if self.enforcer.conflicts():
                self._spawn(self._vouch_for_strangers())
            _LOG.info(
                "synchronized: %d pods, %d containers, %d to correct, %d in conflict",
                len(pods),
                len(self.enforcer.containers),
                len(updates),
                len(self.enforcer.conflicts()),
            )
            return updates

        return await self._timed("synchronize", work())

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        """A container is about to be created."""

        async def work() -> Adjustment:
            self._checkpoint.refresh()
            answer = await self._vouching(lambda: self.enforcer.create(pod, container))
            self._count_updates(answer.updates)
            try:
                await self._tend()
            except asyncio.CancelledError:
                self.undelivered(answer)
                raise
            return answer

        return await self._timed("create", work(), pod, container)

    async def update(
        self, pod: PodSandbox, container: NriContainer, resources: Resources
    ) -> Sequence[ContainerUpdate]:
        """Somebody changes a container; ours stays ours."""

        async def work() -> Sequence[ContainerUpdate]:
            self._checkpoint.refresh()
            return self._counted(
                await self._vouching(lambda: self.enforcer.update(pod, container, resources))
            )

        return await self._timed("update", work(), pod, container)

    async def stop(self, pod: PodSandbox, container: NriContainer) -> Sequence[ContainerUpdate]:
        """A container ended; others may have to change."""

        async def work() -> Sequence[ContainerUpdate]:
            self._checkpoint.refresh()
            updates = self.enforcer.stopped(container.id)
            if self._release_ended():
                updates = [*updates, *self.enforcer.settle()]
            self._tend_later()
            return self._counted(updates)

        return await self._timed("stop", work(), pod, container)

    async def starting(self, pod: PodSandbox, container: NriContainer) -> None:
        """The last moment to reject a container whose creation was missed, and to make room."""

        async def work() -> None:
            missed = self.enforcer.started(pod, container)
            self._checkpoint.refresh()
            known = self.enforcer.containers[container.id]
            if known.shows_claims:  # never start one that could not be created as it is now
                await self._vouching(lambda: self.enforcer.desired_of(known))
            self._make_room(container.id)
            if not missed:
                return
            self._metrics.drift.labels("missed-create").inc()
            unheeded = await self._vouching(lambda: self.enforcer.unenforced_claims(container.id))
            runtime = self.plugin.runtime
            if unheeded and not (runtime and runtime.features.unsolicited_updates):
                claims = ", ".join(str(use.entry) for use in unheeded)
                raise RejectedError(
                    f"{container} of {pod} would run outside of {claims}: its creation was missed "
                    f"and this runtime takes no later change; it will be created again",
                    reason="missed-create",
                )
            _LOG.warning("the creation of %s of %s was missed; it is corrected", container, pod)

        await self._timed("start", work(), pod, container)

    async def started(self, pod: PodSandbox, container: NriContainer) -> None:
        """A container runs; if it was missed, or does not look as it must, it is corrected now.

        The kernel is asked: containerd starts a container with its old limits when an update of it
        comes at the same moment (seen with 2.4.2 while it synchronized), and reports the new ones.
        """
        self._metrics.contact("runtime")
        self.enforcer.started(pod, container, runs=True)
        asyncio.get_running_loop().call_soon(self._correct_later, container.id)

    async def removed(self, pod: PodSandbox, container: NriContainer) -> None:
        """A container is gone for good."""
        self._metrics.contact("runtime")
        self.enforcer.removed(container.id)
        self._release_ended()

    async def pod_started(self, pod: PodSandbox) -> None:
        """A pod's sandbox runs."""
        self._metrics.contact("runtime")
        self.enforcer.pod_started(pod)
        await self._tend()

    async def pod_stopped(self, pod: PodSandbox) -> None:
        """A pod's sandbox was stopped: it keeps only the claims that its containers still use."""
        self._metrics.contact("runtime")
        self.enforcer.pod_stopped(pod)

    async def pod_removed(self, pod: PodSandbox) -> None:
        """A pod's sandbox is gone."""
        self._metrics.contact("runtime")
        self.enforcer.pod_removed(pod.id)
        self._release_ended()
        self._tend_later()

    def undelivered(self, answer: Adjustment | Sequence[ContainerUpdate]) -> None:
        """The runtime did not get an answer in time: its updates were not applied."""
        updates = answer.updates if isinstance(answer, Adjustment) else answer
        self.enforcer.mark_unsent(update.container_id for update in updates)
        self._spawn(self.checkpoint_changed())

    # -- inside ------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        if self.tend is not None:
            await self.tend()

    def _tend_later(self) -> None:
        if self.tend is not None:
            self._spawn(self._tend())

    def _make_room(self, container_id: str) -> None:
        """Before a container runs: nobody else on its own CPUs, nor it on others', in the kernel.

        All were told, but runtimes carry that out in their own time, log what failed, pass over a
        container that they are still creating, and may apply an older update after a newer one.
        Nothing can be pushed while an event is handled.
        """
        if not self._options.cgroup_root:
            return
        tree = CgroupTree(self._options.cgroup_root)
        drifts = find_drift(self.enforcer, tree, [container_id])
        if cpus := self.enforcer.exclusive_cpus(container_id):
            drifts += find_intruders(self.enforcer, tree, cpus, excluding=container_id)
        if drifts:
            count_found(drifts, self._metrics)
            write_directly(drifts, tree, self._metrics)

    def _correct_later(self, container_id: str) -> None:
        self._spawn(self._correct(container_id))

    async def _correct(self, container_id: str) -> None:
        await self._tend()
        await self.checkpoint_changed()
        await self.verify([container_id])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a defect; what the task was to do follows from the next event or look anyway."""
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._metrics.task_failures.labels("containers").inc()
            _LOG.error("background work for containers failed", exc_info=problem)

    async def _vouching(self, ask: Callable[[], T]) -> T:
        """Ask the enforcer; when it does not know a claim's pod, let the API server decide.

        Only where the runtime does not report CDI devices: there the marker needs a witness.
        """
        asked: set[tuple[str, str]] = set()
        while True:
            try:
                return ask()
            except ForeignClaimError as error:
                pair = (error.entry.uid, error.pod_uid)
                if pair in asked or not await self._is_reserved(error):
                    raise
                asked.add(pair)
                self.enforcer.confirm(*pair)

    async def _vouch_for_strangers(self) -> None:
        """Confirm pods met at synchronization, then serve their containers."""
        for problem in self.enforcer.unconfirmed_claims():
            if await self._is_reserved(problem):
                self.enforcer.confirm(problem.entry.uid, problem.pod_uid)
        await self.checkpoint_changed()

    async def _is_reserved(self, problem: ForeignClaimError) -> bool:
        """Whether the API server says that the claim is reserved for the pod; False if it is silent."""
        entry, pair = problem.entry, (problem.entry.uid, problem.pod_uid)
        now = time.monotonic()
        if self._source is None or now - self._denied.get(pair, -_DENIAL_SECONDS) < _DENIAL_SECONDS:
            return False
        try:
            async with asyncio.timeout(_WITNESS_SECONDS):
                document = await self._source.get(entry.namespace, entry.name)
        except (ClaimSourceError, TimeoutError) as silent:
            _LOG.warning("cannot tell whether %s is reserved for the pod: %s", entry, silent)
            return False
        same = document is not None and document.metadata.uid == entry.uid
        reserved_for = document.status.reserved_for if document is not None and same else ()
        if any(each.uid == problem.pod_uid for each in reserved_for):
            return True
        if len(self._denied) >= _MOST_DENIALS:
            self._denied.clear()
        self._denied[pair] = now
        return False

    async def _timed(
        self,
        event: str,
        work: Awaitable[T],
        pod: PodSandbox | None = None,
        container: NriContainer | None = None,
    ) -> T:
        """Do *work* for an event: measured, logged with identity, a rejection said in words."""
        begin = time.perf_counter()
        self._metrics.contact("runtime")
        identity = {"pod": f"{pod.namespace}/{pod.name}", "pod_uid": pod.uid} if pod else {}
        if container:
            identity["container"] = container.name
        with about(**identity):
            try:
                answer = await work
            except RejectedError as error:
                self._metrics.runtime_events.labels(event, "refused").inc()
                self._metrics.rejections.labels("enforce", error.reason).inc()
                _LOG.warning("refused: %s", error)
                raise ContainerRejectedError(str(error)) from error
            except Exception:
                self._metrics.runtime_events.labels(event, "error").inc()
                raise
            finally:
                self._metrics.runtime_seconds.labels(event).observe(time.perf_counter() - begin)
        self._metrics.runtime_events.labels(event, "success").inc()
        return answer

    def _counted(self, updates: Sequence[ContainerUpdate]) -> Sequence[ContainerUpdate]:
        self._count_updates(updates)
        return updates

    def _count_updates(self, updates: Sequence[ContainerUpdate]) -> None:
        if updates:
            self._metrics.container_updates.labels("answered").inc(len(updates))

    def _look_at_kernel(self) -> None:
        """Take CPUs from the kernel where the runtime reports what containers were created with."""
        runtime = self.plugin.runtime
        if runtime is None or runtime.features.reports_current_resources:
            return
        tree = CgroupTree(self._options.cgroup_root) if self._options.cgroup_root else None
        for container_id, known in self.enforcer.containers.items():
            path = relative_path(known.reported.cgroups_path)
            files = tree.cpuset(path) if tree is not None and path is not None else None
            if files is None or files.cpus is None:
                self.enforcer.mark_unsent([container_id])
            else:
                self.enforcer.observed(container_id, str(files.cpus), str(files.mems or ""))

    def _hold_for_lost(self) -> None:
        """Keep the CPUs of containers that run on a claim whose record is damaged or gone.

        They must not be given to others before these containers have ended. What counts as evidence of
        such a claim is not in the workload's hands: see :meth:`Enforcer.orphaned`.
        """
        tree = CgroupTree(self._options.cgroup_root) if self._options.cgroup_root else None
        prepared = self.prepared_before | self._checkpoint.unreadable.keys()
        lost = self.enforcer.orphaned(prepared, lambda known: self._has_ended(known, tree))
        for uid, cpus in lost.items():
            _LOG.warning(
                "claim %s has no readable record; CPUs %s are held for its containers", uid, cpus
            )
        self._checkpoint.hold_for_running({uid: {"cpu": cpus} for uid, cpus in lost.items()})

    def _release_ended(self) -> bool:
        """Stop holding CPUs for lost claims whose last container ended; says whether there were any."""
        held = self._checkpoint.held_for_running
        if not held:
            return False
        shown = self.enforcer.shown_claims()
        return self._checkpoint.hold_for_running(
            {uid: what for uid, what in held.items() if uid in shown}
        )

    def _gauges(self) -> list[Gauge]:
        claimed = sum(1 for k in self.enforcer.containers.values() if k.reported.cdi_devices)
        return [
            Gauge(
                "runtime_synchronized", "1 while the runtime is synchronized.", self._synchronized
            ),
            Gauge("containers", "Containers known.", len(self.enforcer.containers)),
            Gauge("containers_with_devices", "Containers with CDI devices.", claimed),
            Gauge(
                "containers_in_conflict",
                "Containers that cannot be served.",
                len(self.enforcer.conflicts()),
            ),
        ]
