"""The driver host: everything between a driver and the outside world.

Start order, each step only after the one before succeeded:

1. discover the machine, make the driver, serve the health endpoints;
2. load the checkpoint (repeatedly until it succeeds), restore the derived files, and serve the kubelet's
   service socket: calls are rejected until the next step is done;
3. synchronize with the container runtime, and publish slices;
4. create the registration socket: from now on the kubelet may send claims.

Stopping unlinks both sockets first, answers the calls in progress, and leaves slices and containers as
they are: a successor takes over, and the kubelet removes the slices if none starts within 30 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from drakit.core.log import get_logger
from drakit.kit.claims.binding_conditions import Binder, needs_binder
from drakit.kit.claims.cdi_specs import ClaimSpecs
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.metadata import MetadataFiles
from drakit.kit.claims.preparer import Preparer, assigned, same_devices
from drakit.kit.claims.resource_claims import ApiClaimSource
from drakit.kit.config.options import HostOptions, listen_address
from drakit.kit.driver import Claim, Discover, Driver, Offer, PreparedClaims
from drakit.kit.reconciler import PodView, Reconciler, ReconcilerRunner
from drakit.kit.runtime.nri_hooks import RuntimeHost
from drakit.kit.slices.publisher import Publisher
from drakit.kit.tasks import Task, TaskRunner
from drakit.kit.telemetry.http_server import Page, WebServer, conditions_page
from drakit.kit.telemetry.metrics import CONTENT_TYPE, Gauge, HostMetrics
from drakit.wire.kube import Client
from drakit.wire.kubelet import Health, HealthReport, KubeletPlugin

log = get_logger(__name__)
DriverGauges = Callable[[Driver, PreparedClaims], Iterable[Gauge]]
_OTHER_INSTANCE_SECONDS: Final = 2.0
_SOCKET_CHECK_SECONDS: Final = 10.0
_SHUTDOWN_SECONDS: Final = 5.0
_LOAD_AGAIN_SECONDS: Final = 2.0
_RUNTIME_SECONDS: Final = 5.0
"""How long a call waits for the runtime, which is briefly away when instances take turns."""
_RECONCILE_SECONDS: Final = 10.0
"""The kubelet rewrites its cgroups at any time, those of the QoS classes at least once a minute."""
_PUBLISHING_SECONDS: Final = 5.0
"""How long a rejection waits until the slices no longer offer what is not available."""
_HEALTH_TIMEOUT_SECONDS: Final = 60.0
"""Health reports are valid for at least this long, else for three discovery intervals."""


class Host:
    """Runs one driver on one node until it is stopped.

    *discover* makes the driver (see :data:`~drakit.kit.driver.Discover`); *client* talks to the API
    server; *gauges* are the driver's own metrics, computed at every scrape; *reconciler* writes to the
    node what the runtime cannot be asked for.
    """

    def __init__(
        self,
        discover: Discover,
        options: HostOptions,
        *,
        node: str,
        client: Client,
        gauges: DriverGauges | None = None,
        reconciler: Reconciler | None = None,
    ) -> None:
        self._discover = discover
        self._options = options
        self._node = node
        self._client = client
        self.driver = discover()
        self.offer: Offer = self.driver.offer().named(node)
        name = self.driver.name
        self._plugin_dir = options.plugin_dir(name)
        self.metrics = HostMetrics(name)
        self.tasks = TaskRunner(lambda task: self.metrics.task_failures.labels(task).inc())
        self.checkpoint = Checkpoint(options.checkpoint_dir(name))
        source = ApiClaimSource(client, self.metrics)
        self.runtime = RuntimeHost(lambda: self.driver, self.checkpoint, options, self.metrics, source)
        self.reconciler_runner = ReconcilerRunner(reconciler or Reconciler(), self, self.tasks)
        self._reconciles = reconciler is not None
        # For preparer and binder: see NodeState and BindingNode.
        self.provision = self.reconciler_runner.provision
        self.keep_reserved = self.reconciler_runner.keep_reserved
        self.evict_others = self.runtime.evict_others
        if reconciler is not None:
            self.runtime.reconcile = self.reconciler_runner.reconcile_in_event
            self.metrics.add_source(reconciler.gauges)
        self._specs = ClaimSpecs(options.cdi_dir, self.driver.cdi_kind)
        self.preparer = Preparer(
            self,
            checkpoint=self.checkpoint,
            source=source,
            cdi=self._specs,
            metadata=MetadataFiles(self._plugin_dir, name),
            metrics=self.metrics,
            ready_timeout=_RUNTIME_SECONDS,
        )
        self.plugin = KubeletPlugin(
            name,
            self.preparer,
            kubelet_root=options.kubelet_root_dir,
            instance_uid=options.pod_uid or None,
            on_call=lambda call: self.metrics.contact("kubelet"),
        )
        self.publisher = Publisher(client, driver=name, node=node, metrics=self.metrics)
        self.binder: Binder | None = None
        if needs_binder(self.offer):
            skipped = self.metrics.undecodable.labels("resourceclaims").inc
            self.binder = Binder(client, self, undecodable=skipped)
        self._web = WebServer(
            self._routes(), dropped=lambda reason: self.metrics.http_dropped.labels(reason).inc()
        )
        self._running: set[asyncio.Task[None]] = set()
        self._retrying: set[str] = set()
        self._stopped: asyncio.Future[None] | None = None
        self.port: int | None = None
        self._not_loaded: str | None = "the checkpoint has not been read yet"
        self.metrics.add_source(self._gauges)
        if gauges is not None:
            self.metrics.add_source(lambda: gauges(self.driver, self.prepared_claims))

    # -- start and stop -------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT, :meth:`stop` or cancellation; raises the error that ended it."""
        self._stopped = asyncio.get_running_loop().create_future()
        self._handle_signals()
        try:
            await self._start(self._stopped)
            await self._stopped  # set by stop(), or by the first task that fails
        finally:
            await self._shut_down()

    def stop(self) -> None:
        """Make :meth:`run` return."""
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    async def _start(self, stopped: asyncio.Future[None]) -> None:
        options, tasks = self._options, self.tasks
        if options.bind_address:
            self.port = await self._web.start(*listen_address(options.bind_address))
        await self._load(stopped)
        if stopped.done():
            return
        await self.plugin.start_service()
        self.publisher.publish(self.offer)
        self._report_health()
        # The driver cannot serve without these two: when they end, the process ends.
        serving = self.runtime.run(os.path.join(self._plugin_dir, "nri.lock"))
        self._spawn(serving if options.nri == "off" else _essential("runtime", serving))
        self._spawn(_essential("publisher", self.publisher.run()))
        # Everything else is retried when it fails.
        if self.binder is not None:
            self._spawn(tasks.forever("binding", self.binder.run))
        if self._reconciles:
            reconcile = self.reconciler_runner.reconcile
            self._spawn(tasks.every(_RECONCILE_SECONDS, "reconciliation", reconcile))
        self._spawn(tasks.until_done("registration", self._register))
        self._spawn(tasks.forever("checkpoint", self._follow_other_instances))
        self._spawn(tasks.every(_SOCKET_CHECK_SECONDS, "sockets", self._restore_sockets))
        if options.rediscover_seconds:
            self._spawn(tasks.every(options.rediscover_seconds, "discovery", self.rediscover))
        if options.verify_seconds and options.cgroup_root:
            self._spawn(tasks.every(options.verify_seconds, "verification", self.verify))

    async def _load(self, stopped: asyncio.Future[None]) -> None:
        """Read the checkpoint; while its directory cannot be used, stay alive but not ready."""
        directory = self.checkpoint.directory
        while not stopped.done():
            try:
                self.checkpoint.load()
                # Before specs without a record are removed: they are evidence of a claim.
                self.runtime.specs_at_start |= self._specs.claims()
                await self.preparer.restore()
            except OSError as error:
                self._not_loaded = f"the checkpoint {directory} cannot be used: {error}"
                log.error("cannot use checkpoint, will retry", path=directory, error=error)
                await asyncio.wait({stopped}, timeout=_LOAD_AGAIN_SECONDS)
            else:
                self._not_loaded = None
                log.info("checkpoint loaded", path=directory, claims=len(self.prepared_claims))
                return

    async def _shut_down(self) -> None:
        for task in list(self._running):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_SECONDS):
                await self.plugin.close()
                await asyncio.gather(*self._running, return_exceptions=True)
                await self.reconciler_runner.close()
                await self._web.close()
        self._client.close()
        log.info("stopped")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            # Not possible outside the main thread, where tests run hosts.
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_signal, number)
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)

    def _on_signal(self, number: int) -> None:
        if self._stopped is not None and self._stopped.done():
            os._exit(128 + number)  # the second signal: exit at once
        log.info("stopping", signal=signal.Signals(number).name)
        self.stop()

    def _on_hangup(self) -> None:
        log.info("rediscovering", signal="SIGHUP")
        self._spawn(self._rediscover_once())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled() or self._stopped is None or self._stopped.done():
            return
        if error := task.exception():
            self._stopped.set_exception(error)

    async def _register(self) -> None:
        await self.runtime.ready.wait()
        await self.plugin.register()

    # -- the node as preparer, binder and reconciler see it ------------------------------------------

    @property
    def prepared_claims(self) -> PreparedClaims:
        """The claims in the checkpoint."""
        return self.checkpoint.prepared_claims

    @property
    def not_ready(self) -> str | None:
        """Why no kubelet call can be answered now; ``None`` if calls can be answered."""
        return self.runtime.problem

    def pods(self) -> Sequence[PodView]:
        """The pods that the runtime reports."""
        return self.runtime.enforcer.pod_views()

    def user_of(self, uid: str) -> str | None:
        """A container that still uses the claim, for messages; ``None`` if there is none."""
        return self.runtime.user_of(uid)

    def claims_changed(self, prepared_claims: PreparedClaims, *, update_containers: bool) -> None:
        """Start to apply changed claims to containers and node, with retries until it succeeds."""
        if update_containers:
            self._spawn(self._apply("containers", self.runtime.checkpoint_changed))
        if self._reconciles:
            self._spawn(self._apply("reconciliation", self.reconciler_runner.reconcile))

    async def reserve(self, claim: Claim) -> None:
        """Make sure that a claim can be prepared here. Raises ``RejectedError`` or ``OSError``."""
        held = self.prepared_claims.get(claim.uid)
        if held is not None and not same_devices(held, claim):
            raise OSError(f"{claim} was reallocated; its earlier devices are still in use here")
        others = self.reconciler_runner.with_reserved(self.prepared_claims, excluding=claim.uid)
        entry = assigned(self.driver, claim, others, self.checkpoint.boot)
        await self.reconciler_runner.reserve(entry)

    async def reservation_rejected(self) -> None:
        """Publish what is really available first: the scheduler chooses again at once."""
        await self._rediscover_once()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PUBLISHING_SECONDS):
                await self.publisher.published.wait()

    async def _apply(self, name: str, task: Task) -> None:
        if not await self.tasks.once(name, task) and name not in self._retrying:
            self._retrying.add(name)
            try:
                await self.tasks.until_done(name, task)
            finally:
                self._retrying.discard(name)

    # -- periodic work ------------------------------------------------------------------------------

    async def _follow_other_instances(self) -> None:
        """Follow what another instance prepares or unprepares in the same checkpoint, within seconds."""
        unseen = self.checkpoint.unseen
        while True:
            await asyncio.sleep(_OTHER_INSTANCE_SECONDS)
            try:
                changed = self.checkpoint.refresh()
                if unseen - self.checkpoint.unseen:  # files that can be read again
                    await self.preparer.restore()
                    changed = True
            except OSError as error:
                log.error("cannot read checkpoint", path=self.checkpoint.directory, error=error)
                continue
            unseen = self.checkpoint.unseen
            if changed:
                await self.runtime.checkpoint_changed()

    async def rediscover(self) -> None:
        """Discover the machine again, and publish the offer if it changed.

        The driver is replaced in any case: equal offers may hide a change, such as one CPU of a group
        gone offline and another come online, and desired resources follow the machine, not the offer.
        """
        driver = await asyncio.to_thread(self._discover)
        offer = driver.offer().named(self._node)
        if offer != self.offer:
            log.info("machine or configuration changed, publishing the new offer")
            self.publisher.publish(offer)  # rejects what the API server would: then nothing changes
        self.driver, self.offer = driver, offer
        self._report_health()
        await self.runtime.checkpoint_changed()

    async def _rediscover_once(self) -> None:
        """Discover the machine again; if that fails, the last good state stays."""
        await self.tasks.once("discovery", self.rediscover)

    async def verify(self) -> None:
        """Compare every container's cgroup with its desired resources, and correct drift."""
        await self.runtime.verify()

    async def _restore_sockets(self) -> None:
        if missing := self.plugin.missing_sockets():
            log.warning("sockets were removed, restoring them", paths=missing)
            await self.plugin.restore_sockets()

    def _report_health(self) -> None:
        unhealthy = {(each.pool, each.device): each.message for each in self.offer.unhealthy}
        now = int(time.time())
        reports = [
            HealthReport(
                pool=pool.name,
                device=device.name,
                health=Health.UNHEALTHY if (pool.name, device.name) in unhealthy else Health.HEALTHY,
                updated=now,
                message=unhealthy.get((pool.name, device.name), ""),
            )
            for pool in self.offer.pools
            for device in pool.devices
        ]
        interval = self._options.rediscover_seconds
        timeout = max(3 * interval, _HEALTH_TIMEOUT_SECONDS) if interval else math.inf
        self.plugin.report_health(reports, timeout)

    # -- health and metrics ---------------------------------------------------------------------------

    def conditions(self) -> dict[str, str | None]:
        """The conditions of readiness: each with None, or with what is missing."""
        registered = self.plugin.registered.is_set()
        binding = {} if self.binder is None else {"binding": self.binder.problem}
        return {
            "runtime": self.runtime.problem,
            "kubelet": None if registered else self.plugin.registration_error or "not registered yet",
            "slices": self.publisher.problem,
            "checkpoint": self._not_loaded or self.checkpoint.problem,
            "tasks": self.tasks.problem,
            **binding,
        }

    def _routes(self) -> dict[str, Callable[[], Page]]:
        return {
            "/metrics": lambda: Page(200, self.metrics.exposition(), CONTENT_TYPE),
            "/livez": lambda: Page(200, b"ok\n"),
            "/readyz": lambda: conditions_page(self.conditions()),
            "/healthz": lambda: conditions_page(self.conditions()),
        }

    def _gauges(self) -> Iterable[Gauge]:
        claims, unreadable = len(self.prepared_claims), len(self.checkpoint.unreadable)
        yield Gauge("resource_claims_active", "Claims prepared on this node.", claims)
        yield Gauge("claims_unreadable", "Claims whose record is damaged.", unreadable)
        for name, problem in self.conditions().items():
            labels = (("condition", name),)
            yield Gauge("ready", "1 if a condition of readiness is met.", problem is None, labels)


async def _essential(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Run a task that must not end; if it ends, the process ends."""
    await work
    raise RuntimeError(f"the {name} task ended without a reason; the driver cannot serve without it")
