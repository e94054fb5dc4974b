"""The driver host: everything between a driver's three verbs and the outside world.

Start order, each step only when the one before holds:

1. discover the machine, make the driver, serve health pages;
2. load the checkpoint (again and again until that succeeds), make the derived files true, and serve the
   kubelet's service socket: calls are rejected until the next step is done;
3. synchronize with the container runtime, and publish slices;
4. only then create the registration socket: from now on the kubelet may send claims.

Stopping unlinks both sockets first, answers what is in progress, and leaves slices and containers
as they are: a successor takes over, and the kubelet removes the slices if none comes within 30 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from drakit.kit.claims.binding_conditions import Binder, Promises, needs_binder
from drakit.kit.claims.cdi_specs import ClaimSpecs
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.claim_source import ApiClaimSource
from drakit.kit.claims.metadata import MetadataFiles
from drakit.kit.claims.preparer import Preparer, assigned, same_devices
from drakit.kit.config.options import HostOptions, listen_address
from drakit.kit.driver import Claim, Discover, Driver, Offer, PreparedClaims
from drakit.kit.reconciler import Reconciler
from drakit.kit.reconciling import ReconcilerRunner
from drakit.kit.runtime.nri_hooks import RuntimeHost
from drakit.kit.slices.publisher import Publisher
from drakit.kit.tasks import Task, Work
from drakit.kit.telemetry.http_server import Page, WebServer, conditions_page
from drakit.kit.telemetry.metrics import CONTENT_TYPE, Gauge, HostMetrics
from drakit.wire.kube import Client
from drakit.wire.kubelet import Health, HealthReport, KubeletCall, KubeletPlugin

_LOG = logging.getLogger(__name__)

DriverGauges = Callable[[Driver, PreparedClaims], Iterable[Gauge]]
_OTHER_INSTANCE_SECONDS: Final = 2.0
_SOCKET_CHECK_SECONDS: Final = 10.0
_SHUTDOWN_SECONDS: Final = 5.0
_LOAD_AGAIN_SECONDS: Final = 2.0
_RUNTIME_SECONDS: Final = 5.0
"""How long a call waits for the runtime: it is away for a moment when instances take turns."""
_TEND_SECONDS: Final = 10.0
"""The kubelet rewrites its cgroups on its own time, at the latest every minute for the QoS classes."""
_PUBLISHING_SECONDS: Final = 5.0
"""How long a rejection waits until the slices no longer offer what cannot be had."""
_HEALTH_HOLDS_SECONDS: Final = 60.0
"""Health is told for at least that long after the last look, else for three times the pause of looks."""


class Host:
    """Runs one driver on one node until told to stop.

    *discover* makes the driver (see :data:`~drakit.kit.driver.Discover`); *client* talks to the API
    server; *gauges* are the driver's own metrics, computed at every scrape; *reconciler* does what the
    runtime cannot be asked for.
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
        self.checkpoint = Checkpoint(options.checkpoint_dir(name))
        source = ApiClaimSource(client, self.metrics)
        self.runtime = RuntimeHost(
            lambda: self.driver, self.checkpoint, options, self.metrics, source
        )
        self.work = Work(lambda name: self.metrics.task_failures.labels(name).inc())
        self._repeating: set[str] = set()
        self.reconciler_runner = (
            self._reconciler_runner(reconciler) if reconciler is not None else None
        )
        self._specs = ClaimSpecs(options.cdi_dir, self.driver.cdi_kind)
        self.preparer = Preparer(
            driver=lambda: self.driver,
            offer=lambda: self.offer,
            checkpoint=self.checkpoint,
            source=source,
            cdi=self._specs,
            metadata=MetadataFiles(self._plugin_dir, name),
            changed=self._checkpoint_changed,
            provide=self.reconciler_runner.provide if self.reconciler_runner is not None else None,
            in_line=self.runtime.evict_others,
            user_of=self.runtime.user_of,
            not_ready=lambda: self.runtime.problem,
            patience=_RUNTIME_SECONDS,
            metrics=self.metrics,
        )
        self.plugin = KubeletPlugin(
            name,
            self.preparer,
            kubelet_root=options.kubelet_root_dir,
            instance_uid=options.pod_uid or None,
            on_call=self._on_call,
        )
        self.publisher = Publisher(client, driver=name, node=node, metrics=self.metrics)
        self.binder = self._binder() if needs_binder(self.offer) else None
        self._web = WebServer(
            self._routes(), dropped=lambda reason: self.metrics.http_dropped.labels(reason).inc()
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None
        self.port: int | None = None
        self._not_loaded: str | None = "the checkpoint has not been read yet"
        self.metrics.add_source(self._gauges)
        if gauges is not None:
            self.metrics.add_source(lambda: gauges(self.driver, self.checkpoint.prepared_claims))

    def _reconciler_runner(self, reconciler: Reconciler) -> ReconcilerRunner:
        reconciler_runner = ReconcilerRunner(
            reconciler,
            lambda: self.driver,
            self.runtime.enforcer.pod_views,
            lambda: self.checkpoint.prepared_claims,
            self.work,
        )
        self.runtime.tend = reconciler_runner.before_answering
        self.metrics.add_source(reconciler.gauges)
        return reconciler_runner

    def _binder(self) -> Binder:
        promises = Promises(
            prepared=lambda: self.checkpoint.prepared_claims,
            make=self._promise,
            keep_only=self.reconciler_runner.keep_only
            if self.reconciler_runner is not None
            else lambda uids: None,
            rejected=self._rejected_to_bind,
        )
        return Binder(
            self._client,
            promises,
            driver=self.driver.name,
            pools=lambda: {pool.name or self._node for pool in self.offer.pools},
            undecodable=self.metrics.undecodable.labels("resourceclaims").inc,
        )

    # -- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT, :meth:`stop` or cancellation; raises what made it fail."""
        self._failed = asyncio.get_running_loop().create_future()
        self._handle_signals()
        try:
            await self._start(self._failed)
            await self._failed  # settled by stop(), or by the first task that fails
        finally:
            await self._shut_down()

    def stop(self) -> None:
        """Make :meth:`run` return."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(None)

    async def _start(self, stopped: asyncio.Future[None]) -> None:
        if self._options.bind_address:
            self.port = await self._web.start(*listen_address(self._options.bind_address))
        await self._load(stopped)
        if stopped.done():
            return
        await self.plugin.start_service()
        self.publisher.publish(self.offer)
        self._report_health()
        # Without these two nothing is served: when they end, so does the process.
        serving = self.runtime.run(os.path.join(self._plugin_dir, "nri.lock"))
        self._spawn(serving if self._options.nri == "off" else _essential("runtime", serving))
        self._spawn(_essential("publisher", self.publisher.run()))
        # Everything else is done again when it fails.
        work = self.work
        if self.binder is not None:
            self._spawn(work.forever("binding", self.binder.run))
        if self.reconciler_runner is not None:
            self._spawn(work.every(_TEND_SECONDS, "tending", self.reconciler_runner.now))
        self._spawn(work.until_done("registration", self._register_when_true))
        self._spawn(work.forever("checkpoint", self._notice_other_instance))
        self._spawn(work.every(_SOCKET_CHECK_SECONDS, "sockets", self._mend_sockets))
        if self._options.rediscover_seconds:
            self._spawn(work.every(self._options.rediscover_seconds, "discovery", self.rediscover))
        if self._options.verify_seconds and self._options.cgroup_root:
            self._spawn(work.every(self._options.verify_seconds, "verification", self.verify))

    async def _load(self, stopped: asyncio.Future[None]) -> None:
        """Read the checkpoint; while its directory cannot be used, stay alive, not ready, and try again."""
        while not stopped.done():
            try:
                self.checkpoint.load()
                # Before specs without a record are removed: they are evidence of a claim.
                self.runtime.prepared_before |= self._specs.claims()
                await self.preparer.restore()
            except OSError as error:
                self._not_loaded = (
                    f"the checkpoint {self.checkpoint.directory} cannot be used: {error}"
                )
                _LOG.error("%s; trying again in %g s", self._not_loaded, _LOAD_AGAIN_SECONDS)
                await asyncio.wait({stopped}, timeout=_LOAD_AGAIN_SECONDS)
            else:
                self._not_loaded = None
                break
        _LOG.info(
            "checkpoint %s: %d claims",
            self.checkpoint.directory,
            len(self.checkpoint.prepared_claims),
        )

    async def _shut_down(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_SECONDS):
                await self.plugin.close()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                if self.reconciler_runner is not None:
                    await self.reconciler_runner.close()
                await self._web.close()
        self._client.close()
        _LOG.info("stopped")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            # Not possible outside the main thread, where tests run hosts.
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_signal, number)
            loop.add_signal_handler(signal.SIGHUP, self._spawn_rediscover)

    def _on_signal(self, number: int) -> None:
        if self._failed is not None and self._failed.done():
            os._exit(128 + number)  # asked twice: at once
        _LOG.info("stopping: %s", signal.Signals(number).name)
        self.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._failed is None or self._failed.done():
            return
        problem = task.exception()
        if problem is not None:
            self._failed.set_exception(problem)

    async def _register_when_true(self) -> None:
        await self.runtime.settled.wait()
        await self.plugin.register()

    # -- what changes ------------------------------------------------------------------------------

    def _checkpoint_changed(self, prepared_claims: PreparedClaims) -> None:
        self._spawn(self._derive("containers", self.runtime.checkpoint_changed))
        if self.reconciler_runner is not None:
            self._spawn(self._derive("tending", self.reconciler_runner.now))

    async def _derive(self, name: str, task: Task) -> None:
        """Bring something in line with the checkpoint; what fails is tried until it succeeds."""
        if not await self.work.once(name, task) and name not in self._repeating:
            self._repeating.add(name)
            try:
                await self.work.until_done(name, task)
            finally:
                self._repeating.discard(name)

    async def _promise(self, claim: Claim) -> None:
        """Make sure that a claim could be prepared here. Raises ``RejectedError``, or ``OSError``."""
        prepared_claims = self.checkpoint.prepared_claims
        held = prepared_claims.get(claim.uid)
        if held is not None and not same_devices(held, claim):
            raise OSError(f"{claim} was allocated anew; what it had here has not ended")
        owed = (
            self.reconciler_runner.owed(prepared_claims, claim.uid)
            if self.reconciler_runner is not None
            else prepared_claims
        )
        entry = assigned(self.driver, claim, owed, self.checkpoint.boot)
        if self.reconciler_runner is not None:
            await self.reconciler_runner.promise(entry)

    async def _rejected_to_bind(self) -> None:
        """Offer what there really is first: the scheduler chooses again at once."""
        await self._rediscover_once()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PUBLISHING_SECONDS):
                await self.publisher.published.wait()

    async def _notice_other_instance(self) -> None:
        """Another instance may prepare or unprepare on the same checkpoint: follow within seconds."""
        unseen = self.checkpoint.unseen
        while True:
            await asyncio.sleep(_OTHER_INSTANCE_SECONDS)
            try:
                changed = self.checkpoint.refresh()
                if unseen - self.checkpoint.unseen:  # files that are understood again
                    await self.preparer.restore()
                    changed = True
            except OSError as error:
                _LOG.error("cannot read the checkpoint: %s", error)
                continue
            unseen = self.checkpoint.unseen
            if changed:
                await self.runtime.checkpoint_changed()

    async def rediscover(self) -> None:
        """Look at the machine again; when it offers something else, publish that.

        The driver is replaced in any case: equal offers may hide an exchange, such as one CPU of a
        group gone offline and another come online, and shapes follow the machine, not the offer.
        """
        driver = await asyncio.to_thread(self._discover)
        offer = driver.offer().named(self._node)
        if offer != self.offer:
            _LOG.info("the machine or its configuration changed: publishing anew")
            self.publisher.publish(offer)  # rejects what the API server would: then all stays
        self.driver, self.offer = driver, offer
        self._report_health()
        await self.runtime.checkpoint_changed()

    def _spawn_rediscover(self) -> None:
        _LOG.info("SIGHUP: looking at the machine again")
        self._spawn(self._rediscover_once())

    async def _rediscover_once(self) -> None:
        """Look at the machine again; when that fails, the last good state stays."""
        await self.work.once("discovery", self.rediscover)

    async def verify(self) -> None:
        """Compare every container's cgroup with intent, and put right what differs."""
        await self.runtime.verify()

    async def _mend_sockets(self) -> None:
        if self.plugin.missing_sockets():
            _LOG.warning("somebody removed our sockets: %s", self.plugin.missing_sockets())
            await self.plugin.restore_sockets()

    def _report_health(self) -> None:
        bad = {(h.pool or self._node, h.device): h for h in self.offer.health}
        now = int(time.time())
        reports = []
        for pool in self.offer.pools:
            for device in pool.devices:
                found = bad.get((pool.name or self._node, device.name))
                healthy = found is None or found.healthy
                reports.append(
                    HealthReport(
                        pool=pool.name or self._node,
                        device=device.name,
                        health=Health.HEALTHY if healthy else Health.UNHEALTHY,
                        updated=now,
                        message=found.message if found else "",
                    )
                )
        looks_again = self._options.rediscover_seconds
        holds = max(3 * looks_again, _HEALTH_HOLDS_SECONDS) if looks_again else math.inf
        self.plugin.report_health(reports, holds)

    # -- what is told ------------------------------------------------------------------------------

    def conditions(self) -> dict[str, str | None]:
        """What readiness consists of: each with None, or what is missing."""
        registered = self.plugin.registered.is_set()
        binding = {} if self.binder is None else {"binding": self.binder.problem}
        return {
            "runtime": self.runtime.problem,
            "kubelet": None if registered else self.plugin.state.error or "not registered yet",
            "slices": self.publisher.problem,
            "checkpoint": self._not_loaded or self.checkpoint.problem,
            "tasks": self.work.problem,
            **binding,
        }

    def _routes(self) -> dict[str, Callable[[], Page]]:
        return {
            "/metrics": lambda: Page(200, self.metrics.exposition(), CONTENT_TYPE),
            "/livez": lambda: Page(200, b"ok\n"),
            "/readyz": lambda: conditions_page(self.conditions()),
            "/healthz": lambda: conditions_page(self.conditions()),
        }

    def _on_call(self, call: KubeletCall) -> None:
        self.metrics.contact("kubelet")

    def _gauges(self) -> Iterable[Gauge]:
        yield Gauge(
            "resource_claims_active",
            "Claims prepared on this node.",
            len(self.checkpoint.prepared_claims),
        )
        yield Gauge(
            "claims_unreadable", "Claims whose record is damaged.", len(self.checkpoint.unreadable)
        )
        for name, problem in self.conditions().items():
            yield Gauge(
                "ready",
                "1 while a condition of readiness holds.",
                problem is None,
                (("condition", name),),
            )


async def _essential(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Do what must not end; when it does, the process does."""
    await work
    raise RuntimeError(
        f"the {name} task ended without a reason; the driver cannot serve without it"
    )
