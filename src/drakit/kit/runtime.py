"""The host's side towards the container runtime: NRI events in, enforcement out.

The thinking is in :mod:`drakit.kit.enforcement`; this module feeds it. It keeps one promise of its
own: claims are served only while the runtime is synchronised (or another instance of this driver
is), so :attr:`RuntimeHost.problem` says what stands in the way, for readiness and registration.

Changes that come from elsewhere than the runtime – a claim ended, another instance prepared one –
go out by the best way this runtime allows: pushed where its NRI is 0.12.1 or newer, else with the
answer to the next event, and, where cgroups are writable, by the comparison with the kernel
(:mod:`drakit.kit.verification`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from drakit.core.cpuset import CpuSet
from drakit.core.filelock import FileLock
from drakit.kit import names
from drakit.kit.cgroups import CgroupTree, relative_path
from drakit.kit.confinement import ConfinementReport, find_confined
from drakit.kit.driver import Driver, Refused
from drakit.kit.enforcement import Enforcer, ForeignClaimError
from drakit.kit.ledger import Ledger
from drakit.kit.logs import about
from drakit.kit.metrics import Gauge, Metrics
from drakit.kit.names import claims_shown
from drakit.kit.options import HostOptions
from drakit.kit.preparer import ClaimSource, ClaimSourceError
from drakit.kit.verification import count_found, find_drift, write_directly
from drakit.wire.nri.handler import Cause, Disconnect, Handler, Refusal, RuntimeInfo
from drakit.wire.nri.options import PluginOptions
from drakit.wire.nri.plugin import NriPlugin, PushFailedError, PushRefusedError
from drakit.wire.nri.values import Adjustment, Container, Pod, Resources, Update
from drakit.wire.nri.versions import PINNING_EVENTS, Event

_LOG = logging.getLogger(__name__)
_STANDBY_POLL = 0.1
_WITNESS_SECONDS = 1.0
"""How long the API server may take to confirm a pod; the runtime waits two seconds in all."""
T = TypeVar("T")

EVENTS = PINNING_EVENTS | {Event.RUN_POD_SANDBOX, Event.STOP_POD_SANDBOX}


class RuntimeHost(Handler):
    """Keeps the runtime's containers in the shapes the driver wants.

    Only one instance per node talks to the runtime: two plugins of one name would contradict each
    other in every container. During a rolling update the newer one waits for the lock of the
    older; meanwhile it counts as *standby*, which is as good as synchronised for serving claims,
    because the active instance reads the same ledger before each answer.
    """

    def __init__(
        self,
        driver: Callable[[], Driver],
        ledger: Ledger,
        options: HostOptions,
        metrics: Metrics,
        source: ClaimSource | None = None,
    ) -> None:
        """*source* is asked whether a claim is reserved for a pod that the kubelet did not name."""
        self._ledger = ledger
        self._source = source
        self._options = options
        self._metrics = metrics
        self._driver = driver
        self.enforcer = Enforcer(driver, lambda: ledger.holdings)
        self.plugin = NriPlugin(
            PluginOptions(
                name=driver().name,
                index=options.nri_index,
                socket_path=options.nri_socket,
                events=EVENTS,
                variables=(names.MARKER_PREFIX,),
            ).with_environment(os.environ)
        )
        self.tend: Callable[[], Awaitable[None]] | None = None
        """What else follows a change of pods (:mod:`drakit.kit.tending`), before the answer."""
        self.settled = asyncio.Event()
        """Set once claims can be served: synchronised, standby, or NRI known to be off and optional."""
        self._standby = False
        self._synchronised = False
        self._last_end: Disconnect | None = None
        self._pushing = asyncio.Lock()
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
            self._synchronised = False
            lock.release()

    @property
    def problem(self) -> str | None:
        """Why containers cannot be shaped now; None when they can (or it is allowed not to)."""
        if self._synchronised or self._standby or self._options.nri == "off":
            return None
        if self._last_end is None:
            return "not yet synchronised with the container runtime"
        if self._options.nri == "optional" and self._last_end.cause is Cause.NO_SOCKET:
            return None
        return str(self._last_end)

    @property
    def state(self) -> str:
        """In one word: ``synchronised``, ``standby``, ``off`` or ``disconnected``."""
        if self._options.nri == "off":
            return "off"
        if self._standby:
            return "standby"
        return "synchronised" if self._synchronised else "disconnected"

    # -- changes from elsewhere ------------------------------------------------------------------------

    async def ledger_changed(self) -> None:
        """The ledger changed: bring all containers in line, by the best way there is."""
        if not self._synchronised:
            return  # synchronising will do it
        async with self._pushing:
            while await self._push_once():
                pass

    def user_of(self, claim_uid: str) -> str | None:
        """A container that has not ended and was created with a claim, in words; None without one."""
        tree = CgroupTree(self._options.cgroup_root) if self._options.cgroup_root else None
        if self._standby:
            return self._seen_on(claim_uid, tree) if tree is not None else None
        for known in self.enforcer.users_of(claim_uid):
            path = relative_path(known.reported.cgroups_path)
            # Its end may not have been told yet, or never was.
            ended = known.ran and tree is not None and path and not tree.populated(path)
            if not ended:
                return f"{known.reported} of {known.pod}"
        return None

    def _seen_on(self, claim_uid: str, tree: CgroupTree) -> str | None:
        """The same by the kernel alone: an instance that stands by is not told of containers."""
        entry = self._ledger.holdings.get(claim_uid)
        own = entry.exclusive("cpu") if entry is not None else CpuSet()
        for pod in entry.consumers if entry is not None and own else ():
            for path in tree.containers_of(pod):
                cpuset = tree.cpuset(path)
                if cpuset and cpuset.cpus and cpuset.cpus <= own and tree.populated(path):
                    return f"{os.path.basename(path)} of pod {pod}"
        return None

    async def verify(self, container_ids: Sequence[str] | None = None) -> None:
        """Compare cgroups with intent, of those containers or of all, and put right what differs."""
        if not self._synchronised or not self._options.cgroup_root:
            return
        tree = CgroupTree(self._options.cgroup_root)
        if container_ids is None:
            self._confinement.update(find_confined(self.enforcer, tree))
        drifts = find_drift(self.enforcer, tree, container_ids)
        if not drifts:
            return
        count_found(drifts, self._metrics)
        self.enforcer.untold(drift.container_id for drift in drifts)
        await self.ledger_changed()
        left = [d for d in find_drift(self.enforcer, tree, container_ids) if d in drifts]
        write_directly(left, tree, self._metrics)

    async def _push_once(self) -> bool:
        """Push what is to change; says whether an event's answer came between and it must be redone.

        A pushed update waits in the runtime while an event is handled, so it may be applied after
        the answer to that event although it is older: then it would undo what the answer said.
        """
        runtime = self.plugin.runtime
        if runtime is None or not runtime.features.unsolicited_updates:
            return False  # the next event's answer carries it
        updates = self.enforcer.settle()
        if not updates:
            return False
        containers = self.enforcer.containers
        said = {each.container_id: containers[each.container_id].told for each in updates}
        try:
            await self.plugin.push(updates)
        except PushFailedError as problem:
            self.enforcer.untold(problem.failed)
            _LOG.warning("%s; it will be tried again", problem)
            return False
        except PushRefusedError as problem:
            self.enforcer.untold(said)
            _LOG.info("%s", problem)
            return False
        self._metrics.container_updates.labels("pushed").inc(len(updates))
        overtaken = [
            c for c, told in said.items() if c in containers and containers[c].told != told
        ]
        self.enforcer.untold(overtaken)
        return bool(overtaken)

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
        if self._synchronised:
            self._metrics.reconnects.inc()
        self._synchronised = False
        self._last_end = end
        if self._options.nri == "optional" and end.cause is Cause.NO_SOCKET:
            _LOG.warning("%s; going on without enforcing, as configured (nri: optional)", end)
            self.settled.set()

    async def synchronize(
        self, pods: Sequence[Pod], containers: Sequence[Container]
    ) -> Sequence[Update]:
        """Take over what exists, and say what must change."""

        async def work() -> Sequence[Update]:
            self._ledger.refresh()
            updates = self.enforcer.synchronize(pods, containers)
            if self._hold_for_lost():
                updates = [*updates, *self.enforcer.settle()]
            self._synchronised = True
            self.settled.set()
            self._tend_later()
            if self.enforcer.conflicts():
                self._spawn(self._vouch_for_strangers())
            _LOG.info(
                "synchronised: %d pods, %d containers, %d to correct, %d in conflict",
                len(pods),
                len(self.enforcer.containers),
                len(updates),
                len(self.enforcer.conflicts()),
            )
            return _last_per_container(updates)

        return await self._timed("synchronize", work())

    async def create(self, pod: Pod, container: Container) -> Adjustment:
        """A container is about to be created."""

        async def work() -> Adjustment:
            self._ledger.refresh()
            answer = await self._vouching(lambda: self.enforcer.create(pod, container))
            self._count_updates(answer.updates)
            await self._tend()
            return answer

        return await self._timed("create", work(), pod, container)

    async def update(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """Somebody changes a container; ours stays ours."""

        async def work() -> Sequence[Update]:
            self._ledger.refresh()
            return self._counted(
                await self._vouching(lambda: self.enforcer.update(pod, container, resources))
            )

        return await self._timed("update", work(), pod, container)

    async def stop(self, pod: Pod, container: Container) -> Sequence[Update]:
        """A container ended; others may have to change."""

        async def work() -> Sequence[Update]:
            self._ledger.refresh()
            updates = self.enforcer.stopped(container.id)
            self._tend_later()
            return self._counted(updates)

        return await self._timed("stop", work(), pod, container)

    async def starting(self, pod: Pod, container: Container) -> None:
        """The last moment to refuse a container whose creation was missed, and to make room."""

        async def work() -> None:
            missed = self.enforcer.started(pod, container)
            self._ledger.refresh()
            self._make_room(container.id)
            if not missed:
                return
            self._metrics.drift.labels("missed-create").inc()
            unheeded = await self._vouching(lambda: self.enforcer.unheeded_claims(container.id))
            runtime = self.plugin.runtime
            if unheeded and not (runtime and runtime.features.unsolicited_updates):
                claims = ", ".join(str(use.entry) for use in unheeded)
                raise Refused(
                    f"{container} of {pod} would run outside of {claims}: its creation was missed "
                    f"and this runtime takes no later change; it will be created again",
                    reason="missed-create",
                )
            _LOG.warning("the creation of %s of %s was missed; it is corrected", container, pod)

        await self._timed("start", work(), pod, container)

    async def started(self, pod: Pod, container: Container) -> None:
        """A container runs; if it was missed, or does not look as it must, it is corrected now.

        The kernel is asked: containerd starts a container with its old limits when an update of it
        comes at the same moment (seen with 2.4.2 while it synchronised), and reports the new ones.
        """
        self._metrics.contact("runtime")
        self.enforcer.started(pod, container, runs=True)
        asyncio.get_running_loop().call_soon(self._correct_later, container.id)

    async def removed(self, pod: Pod, container: Container) -> None:
        """A container is gone for good."""
        self._metrics.contact("runtime")
        self.enforcer.containers.pop(container.id, None)

    async def pod_started(self, pod: Pod) -> None:
        """A pod's sandbox runs."""
        self._metrics.contact("runtime")
        self.enforcer.pods[pod.id] = pod
        await self._tend()

    async def pod_removed(self, pod: Pod) -> None:
        """A pod's sandbox is gone."""
        self._metrics.contact("runtime")
        self.enforcer.pod_removed(pod.id)
        self._tend_later()

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
            others = [each for each in self.enforcer.containers if each != container_id]
            drifts += [
                drift
                for drift in find_drift(self.enforcer, tree, others)
                if drift.file == "cpuset.cpus" and (drift.found is None or drift.found & cpus)
            ]
        if drifts:
            count_found(drifts, self._metrics)
            write_directly(drifts, tree, self._metrics)

    def _correct_later(self, container_id: str) -> None:
        self._spawn(self._correct(container_id))

    async def _correct(self, container_id: str) -> None:
        await self._tend()
        await self.ledger_changed()
        await self.verify([container_id])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _vouching(self, ask: Callable[[], T]) -> T:
        """Ask the enforcer; when it does not know a claim's pod, let the API server decide.

        Only where the runtime does not report CDI devices: there the marker needs a witness.
        """
        asked: set[tuple[str, str]] = set()
        while True:
            try:
                return ask()
            except ForeignClaimError as problem:
                pair = (problem.entry.uid, problem.pod_uid)
                if pair in asked or not await self._is_reserved(problem):
                    raise
                asked.add(pair)
                self.enforcer.vouched.add(pair)

    async def _vouch_for_strangers(self) -> None:
        """Confirm pods met at synchronisation, then serve their containers."""
        for problem in self.enforcer.strangers():
            if await self._is_reserved(problem):
                self.enforcer.vouched.add((problem.entry.uid, problem.pod_uid))
        await self.ledger_changed()

    async def _is_reserved(self, problem: ForeignClaimError) -> bool:
        """Whether the API server says that the claim is reserved for the pod; False if it is silent."""
        entry = problem.entry
        if self._source is None:
            return False
        try:
            async with asyncio.timeout(_WITNESS_SECONDS):
                document = await self._source.get(entry.namespace, entry.name)
        except (ClaimSourceError, TimeoutError) as silent:
            _LOG.warning("cannot tell whether %s is reserved for the pod: %s", entry, silent)
            return False
        if document is None or document.metadata.uid != entry.uid:
            return False
        return any(each.uid == problem.pod_uid for each in document.status.reserved_for)

    async def _timed(
        self,
        event: str,
        work: Awaitable[T],
        pod: Pod | None = None,
        container: Container | None = None,
    ) -> T:
        """Do *work* for an event: measured, logged with identity, a refusal said in words."""
        begin = time.perf_counter()
        self._metrics.contact("runtime")
        identity = {"pod": f"{pod.namespace}/{pod.name}", "pod_uid": pod.uid} if pod else {}
        if container:
            identity["container"] = container.name
        with about(**identity):
            try:
                answer = await work
            except Refused as problem:
                self._metrics.runtime_events.labels(event, "refused").inc()
                self._metrics.refusals.labels("enforce", problem.reason).inc()
                _LOG.warning("refused: %s", problem)
                raise Refusal(str(problem)) from problem
            except Exception:
                self._metrics.runtime_events.labels(event, "error").inc()
                raise
            finally:
                self._metrics.runtime_seconds.labels(event).observe(time.perf_counter() - begin)
        self._metrics.runtime_events.labels(event, "success").inc()
        return answer

    def _counted(self, updates: Sequence[Update]) -> Sequence[Update]:
        self._count_updates(updates)
        return updates

    def _count_updates(self, updates: Sequence[Update]) -> None:
        if updates:
            self._metrics.container_updates.labels("answered").inc(len(updates))

    def _hold_for_lost(self) -> bool:
        """Keep the CPUs of containers that run on a claim whose record is damaged or gone.

        The device or marker they were created with names the claim; its CPUs must not be given to
        others before the kubelet says that the claim has ended. Says whether there are any.
        """
        kind, held = self._driver().cdi_kind, False
        for known in self.enforcer.containers.values():
            reported = known.reported
            for uid in claims_shown(kind, reported.cdi_devices, reported.env):
                if self._ledger.holdings.get(uid) is None and reported.resources.cpus:
                    cpus = CpuSet.parse(reported.resources.cpus)
                    self._ledger.hold_for_ghost(uid, "cpu", cpus)
                    held = True
        return held

    def _gauges(self) -> list[Gauge]:
        claimed = sum(1 for k in self.enforcer.containers.values() if k.reported.cdi_devices)
        return [
            Gauge(
                "runtime_synchronised", "1 while the runtime is synchronised.", self._synchronised
            ),
            Gauge("containers", "Containers known.", len(self.enforcer.containers)),
            Gauge("containers_with_devices", "Containers with CDI devices.", claimed),
            Gauge(
                "containers_in_conflict",
                "Containers that cannot be served.",
                len(self.enforcer.conflicts()),
            ),
        ]


def _last_per_container(updates: Sequence[Update]) -> list[Update]:
    """At most one update per container: a second would make the runtime refuse them all."""
    return list({update.container_id: update for update in updates}.values())
