"""Fake kubelet: the behavior of the kubelet that a DRA driver observes, in any directory.

It finds drivers by their registration sockets, calls them for pods with the real deadlines and order,
keeps the same state across restarts, validates responses like the real one, and records every call.

::

    async with FakeKubelet(root, node="node-1", wipe=server.wipe_slices) as kubelet:
        await kubelet.registered("dra.example.com")
        uses = {"app": (ContainerClaim("cpus"),)}
        pod = FakePod("web", claims=(PodClaim("cpus", "my-claim"),), containers=uses)
        running = await kubelet.run_pod(pod, [claim])
        running.cdi_devices["app"]
        await kubelet.stop_pod(pod.uid)

Nothing is retried by itself: :meth:`FakeKubelet.sync_pod` retries a failed prepare, and
:meth:`FakeKubelet.reconcile` does what the kubelet does every minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from drakit.core.objects import ResourceClaim
from drakit.testing.kubelet_claims import ClaimInfo, cached_device, read_checkpoint, write_checkpoint
from drakit.testing.kubelet_connection import CALL_FAILURES
from drakit.testing.kubelet_plugin_manager import QUICK, RELEASES, PluginManager, RegisteredPlugin, Timing

_POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"

GetClaim = Callable[[str, str], Awaitable[ResourceClaim | None]]


class PodStuckError(Exception):
    """The message of an event on the pod."""


class PrepareError(PodStuckError):
    """The pod stays Pending; :meth:`FakeKubelet.sync_pod` retries."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Failed to prepare dynamic resources: prepare dynamic resources: {text}")


class UnprepareError(PodStuckError):
    """The pod stays Terminating; :meth:`FakeKubelet.stop_pod` retries."""

    def __init__(self, text: str) -> None:
        super().__init__(f"unprepare dynamic resources: {text}")


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of ``pod.spec.resourceClaims``: the name in the pod, and the ResourceClaim."""

    name: str
    claim: str


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """An entry of ``containers[].resources.claims``: a whole claim, or one request of it."""

    claim: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class FakePod:
    """The fields of a pod that the fake kubelet uses."""

    name: str
    uid: str = ""
    namespace: str = "default"
    claims: tuple[PodClaim, ...] = ()
    containers: Mapping[str, tuple[ContainerClaim, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.uid:
            object.__setattr__(self, "uid", f"uid-of-{self.name}")


@dataclass(frozen=True, slots=True)
class Running:
    """A pod with a sandbox: the CDI devices of each container, in order."""

    pod: FakePod
    cdi_devices: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class DriverCall:
    """A call to a driver."""

    method: str
    driver: str
    service: str
    api: str
    uids: tuple[str, ...]


class FakeKubelet:
    """A kubelet with the root directory *root*.

    *wipe* deletes ResourceSlices of a node: those of a driver, or all if it is ``None``. *get_claim*
    reads claims that are not passed to :meth:`run_pod`.
    """

    def __init__(
        self,
        root: str,
        *,
        node: str = "node-1",
        version: str = "1.37",
        timing: Timing = QUICK,
        wipe: Callable[[str, str | None], object] = lambda node, driver: None,
        get_claim: GetClaim | None = None,
    ) -> None:
        self.root = root
        self.node = node
        self.calls: list[DriverCall] = []
        self._version = version
        self._timing = timing
        self._wipe = wipe
        self._get_claim = get_claim
        self._registry = os.path.join(root, "plugins_registry")
        self._checkpoint = os.path.join(root, "dra_manager_state")
        self._pods: dict[str, FakePod] = {}
        self._claims: dict[tuple[str, str], ClaimInfo] = {}
        self._reconciler: asyncio.Task[None] | None = None
        os.makedirs(self._registry, exist_ok=True)
        os.makedirs(os.path.join(root, "plugins"), exist_ok=True)
        self.plugins = self._plugin_manager()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Delete all slices of the node, read the checkpoint, find drivers."""
        self._wipe(self.node, None)
        for info in read_checkpoint(self._checkpoint):
            self._claims[info.namespace, info.name] = info
        await self.plugins.start()
        self._reconciler = asyncio.create_task(self._reconcile_forever())

    async def stop(self) -> None:
        """Stop: connections end and state in memory is lost; pods keep running."""
        if self._reconciler is not None:
            self._reconciler.cancel()
            await asyncio.gather(self._reconciler, return_exceptions=True)
            self._reconciler = None
        await self.plugins.stop()
        self._claims.clear()
        self.plugins = self._plugin_manager()

    async def restart(self) -> None:
        """Stop and start; containers keep running, drivers get a new connection."""
        await self.reboot()

    async def reboot(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Reboot the node; *meanwhile* does the rest of a reboot (empty ``/run``).

        Pods stay assigned to the node: :meth:`sync_pod` creates their sandboxes again.
        """
        await self.stop()
        meanwhile()
        await self.start()

    def _plugin_manager(self) -> PluginManager:
        release = RELEASES[self._version]
        return PluginManager(self._registry, self._timing, release, lambda d: self._wipe(self.node, d))

    async def registered(
        self, driver: str, instances: int = 1, seconds: float = 60.0
    ) -> list[RegisteredPlugin]:
        """Wait until *instances* of *driver* are registered and connected."""

        def there() -> bool:
            found = self.plugins.instances(driver)
            return len(found) == instances and all(e.connection.connected for e in found)

        what = f"registration of {instances} instance(s) of {driver}"
        await self.plugins.changed.until(there, what, seconds)
        return self.plugins.instances(driver)

    async def unregistered(self, driver: str, seconds: float = 60.0) -> None:
        """Wait until no instance of *driver* is registered."""
        await self.plugins.changed.until(
            lambda: not self.plugins.instances(driver), f"the end of {driver}", seconds
        )

    async def run_pod(self, pod: FakePod, claims: Iterable[ResourceClaim] = ()) -> Running:
        """Create the pod's sandbox: prepare its claims and return the CDI devices.

        Raises :class:`PrepareError`; the pod then stays Pending.
        """
        self._pods[pod.uid] = pod
        return await self._prepare(pod, claims)

    async def sync_pod(self, uid: str, claims: Iterable[ResourceClaim] = ()) -> Running:
        """Retry the pod, or create its sandbox again."""
        return await self._prepare(self._pods[uid], claims)

    async def stop_pod(self, uid: str) -> None:
        """End the pod: unprepare the claims that no other pod uses.

        Raises :class:`UnprepareError`; the pod then stays Terminating.
        """
        pod = self._pods[uid]
        await self._unprepare(pod.uid)
        del self._pods[uid]

    def forget_pod(self, uid: str) -> None:
        """Remove a pod without unpreparing: force-deleted, or deleted while the kubelet was down."""
        del self._pods[uid]

    async def reconcile(self) -> None:
        """Unprepare the claims of pods that no longer exist; failures are retried the next time."""
        gone = {pod for info in self._claims.values() for pod in info.pods} - self._pods.keys()
        for uid in sorted(gone):
            with contextlib.suppress(UnprepareError):
                await self._unprepare(uid)

    def cdi_devices(self, uid: str) -> dict[str, tuple[str, ...]]:
        """The CDI devices of each container of the pod, from the cache."""
        pod = self._pods[uid]
        return {
            name: tuple(cdi for use in uses for cdi in self._cdi_of(pod, use))
            for name, uses in pod.containers.items()
        }

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """State and message of a device, as in a pod's status."""
        return self.plugins.health(driver, pool, device)

    def knows(self, claim_uid: str) -> bool:
        """Whether the claim is in the cache, prepared or not."""
        return any(info.uid == claim_uid for info in self._claims.values())

    async def _prepare(self, pod: FakePod, claims: Iterable[ResourceClaim]) -> Running:
        given = {(c.metadata.namespace, c.metadata.name): c for c in claims}
        infos = []
        for pod_claim in pod.claims:
            document = given.get((pod.namespace, pod_claim.claim))
            if document is None and self._get_claim is not None:
                document = await self._get_claim(pod.namespace, pod_claim.claim)
            infos.append(self._check(pod, pod_claim, document))
        # Another pod may have prepared the same claim while claims were read.
        infos = [self._claims.setdefault((info.namespace, info.name), info) for info in infos]
        for info in infos:
            info.pods.add(pod.uid)
        write_checkpoint(self._checkpoint, self._claims.values())
        waiting = [info for info in infos if not info.prepared]
        for driver, wanted in _by_driver(waiting, "NodePrepareResources"):
            response = await self._call(driver, "NodePrepareResources", wanted, PrepareError)
            for info in wanted:
                devices = response.claims[info.uid].devices
                info.drivers[driver] = [cached_device(device) for device in devices]
        for info in waiting:
            info.prepared = True
        write_checkpoint(self._checkpoint, self._claims.values())
        return Running(pod, self.cdi_devices(pod.uid))

    def _check(self, pod: FakePod, pod_claim: PodClaim, document: ResourceClaim | None) -> ClaimInfo:
        """All checks before a driver is called."""
        name = f"{pod.namespace}/{pod_claim.claim}"
        if document is None:
            raise PrepareError(f"failed to fetch ResourceClaim {pod_claim.claim}: not found")
        meta, status = document.metadata, document.status
        if _POD_CLAIM_NAME in meta.annotations and not any(
            owner.uid == pod.uid for owner in meta.owner_references
        ):
            raise PrepareError(f"ResourceClaim {name} is not owned by pod {pod.name}")
        if not any(c.resource == "pods" and c.uid == pod.uid for c in status.reserved_for):
            raise PrepareError(f"pod {pod.name} ({pod.uid}) is not allowed to use {name}")
        if status.allocation is None:
            raise PrepareError(f"ResourceClaim {name} not allocated")
        results = status.allocation.devices.results
        drivers = dict.fromkeys(result.driver for result in results)
        skipped = frozenset(
            (driver, operation)
            for driver in drivers
            for operation in ("NodePrepareResources", "NodeUnprepareResources")
            if all(
                {operation, "*"} & set(result.skip_node_operations)
                for result in results
                if result.driver == driver
            )
        )
        for driver in drivers:
            if (driver, "NodePrepareResources") not in skipped and self.plugins.pick(driver) is None:
                raise PrepareError(f"DRA driver {driver} is not registered")
        known = self._claims.get((meta.namespace, meta.name))
        if known is not None and known.uid != meta.uid:
            raise PrepareError(
                f"old ResourceClaim with same name {meta.name} and different UID {known.uid} "
                f"still exists (previous pod force-deleted?!)"
            )
        if known is not None and known.unpreparing:
            raise PrepareError(f"ResourceClaim {name} is being unprepared")
        return known or ClaimInfo(
            uid=meta.uid,
            name=meta.name,
            namespace=meta.namespace,
            pods=set(),
            drivers={driver: [] for driver in drivers},
            skipped=skipped,
        )

    async def _call(
        self, driver: str, method: str, infos: list[ClaimInfo], failure: Callable[[str], PodStuckError]
    ) -> Any:
        """Call *method* for *infos*; raises *failure* unless the response is right for all of them."""
        endpoint = self.plugins.pick(driver)
        if endpoint is None:
            raise failure(f"DRA driver {driver} is not registered")
        names = {info.uid: info.name for info in infos}
        self.calls.append(DriverCall(method, driver, endpoint.service, endpoint.api, uids=tuple(names)))
        claims = [(info.namespace, info.name, info.uid) for info in infos]
        try:
            response = await endpoint.call(method, claims, self._timing.call)
        except CALL_FAILURES as error:
            raise failure(f"{method}: {type(error).__name__} {error}") from error
        for uid, entry in response.claims.items():
            if uid not in names:
                raise failure(f"{method} returned result for unknown claim UID {uid}")
            if entry.error:
                raise failure(f"{method} failed for ResourceClaim {names[uid]}: {entry.error}")
        if missing := len(infos) - len(response.claims):
            raise failure(f"{method} skipped {missing} ResourceClaims")
        return response

    async def _unprepare(self, pod_uid: str) -> None:
        infos = [info for info in self._claims.values() if pod_uid in info.pods]
        last = [info for info in infos if info.pods == {pod_uid}]
        for info in infos:
            if info in last:
                info.unpreparing = True
            else:
                info.pods.discard(pod_uid)
        try:
            for driver, wanted in _by_driver(last, "NodeUnprepareResources"):
                for info in wanted:
                    info.prepared = False
                await self._call(driver, "NodeUnprepareResources", wanted, UnprepareError)
        finally:
            for info in last:
                info.unpreparing = False
        for info in last:
            del self._claims[info.namespace, info.name]
        write_checkpoint(self._checkpoint, self._claims.values())

    async def _reconcile_forever(self) -> None:
        while True:
            await asyncio.sleep(self._timing.reconcile)
            await self.reconcile()

    def _cdi_of(self, pod: FakePod, use: ContainerClaim) -> Iterable[str]:
        (claim,) = (entry.claim for entry in pod.claims if entry.name == use.claim)
        info = self._claims[pod.namespace, claim]
        for devices in info.drivers.values():
            for device in devices:
                # Names must match exactly: "main/sub" matches no request of a container.
                if not use.request or not device.requests or use.request in device.requests:
                    yield from device.cdi


def _by_driver(infos: list[ClaimInfo], operation: str) -> Iterator[tuple[str, list[ClaimInfo]]]:
    """The claims for which each driver must be called for *operation*."""
    for driver in dict.fromkeys(driver for info in infos for driver in info.drivers):
        wanted = [
            info for info in infos if driver in info.drivers and (driver, operation) not in info.skipped
        ]
        if wanted:
            yield driver, wanted
