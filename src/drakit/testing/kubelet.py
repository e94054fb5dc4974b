"""A kubelet for tests: what a DRA driver sees of the real one, on a directory of your own.

It finds drivers by their registration sockets, calls them for pods with the real time limits and
in the real order, remembers what the real one remembers (and forgets what it forgets when it is
restarted), checks answers as the real one does, and keeps account of every call.

::

    async with FakeKubelet(root, node="node-1", wipe=server.wipe_slices) as kubelet:
        await kubelet.registered("dra.example.com")
        pod = FakePod("web", claims=(PodClaim("cpus", "my-claim"),), containers={"app": (ContainerClaim("cpus"),)})
        running = await kubelet.run_pod(pod, [claim])
        running.cdi_devices["app"]
        await kubelet.stop_pod(pod.uid)

Time passes only where it must: a failed prepare is tried again by :meth:`FakeKubelet.sync_pod` and
not after a minute, and what the kubelet does every minute is :meth:`FakeKubelet.reconcile`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from drakit.core.objects import ResourceClaim
from drakit.testing.kubelet_claims import (
    ClaimInfo,
    cached_device,
    read_checkpoint,
    write_checkpoint,
)
from drakit.testing.kubelet_connection import CALL_FAILURES
from drakit.testing.kubelet_plugin_manager import (
    QUICK,
    RELEASES,
    PluginManager,
    RegisteredPlugin,
    Timing,
)

__all__ = [
    "QUICK",
    "ContainerClaim",
    "DriverCall",
    "FakeKubelet",
    "FakePod",
    "PodClaim",
    "PodStuckError",
    "PrepareError",
    "Running",
    "Timing",
    "UnprepareError",
]

_POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"

GetClaim = Callable[[str, str], Awaitable[ResourceClaim | None]]


class PodStuckError(Exception):
    """What the event on the pod says."""


class PrepareError(PodStuckError):
    """The pod stays Pending; :meth:`FakeKubelet.sync_pod` tries again."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Failed to prepare dynamic resources: prepare dynamic resources: {text}")


class UnprepareError(PodStuckError):
    """The pod stays Terminating; :meth:`FakeKubelet.stop_pod` tries again."""

    def __init__(self, text: str) -> None:
        super().__init__(f"unprepare dynamic resources: {text}")


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of ``pod.spec.resourceClaims``: a name in the pod, and the claim it stands for."""

    name: str
    claim: str


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """An entry of ``containers[].resources.claims``: a whole claim, or one request of it."""

    claim: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class FakePod:
    """As much of a pod as matters here."""

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
    """A pod whose sandbox could be made: the CDI devices of each container, in order."""

    pod: FakePod
    cdi_devices: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class DriverCall:
    """A call the kubelet made to a driver."""

    method: str
    driver: str
    service: str
    api: str
    uids: tuple[str, ...]


class FakeKubelet:
    """One kubelet on *root* (``plugins_registry`` and ``plugins`` are made below it).

    *wipe* removes ResourceSlices: called with the node's name, and the name of a driver or None
    for all. *get_claim* reads claims that are not given to :meth:`run_pod`.
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

    # -- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start: remove all slices of the node, read the checkpoint, look for drivers."""
        self._wipe(self.node, None)
        for info in read_checkpoint(self._checkpoint):
            self._claims[info.namespace, info.name] = info
        await self.plugins.start()
        self._reconciler = asyncio.create_task(self._reconcile_for_ever())

    async def stop(self) -> None:
        """Go down: connections end, what was only in memory is forgotten, pods run on."""
        if self._reconciler is not None:
            self._reconciler.cancel()
            await asyncio.gather(self._reconciler, return_exceptions=True)
            self._reconciler = None
        await self.plugins.stop()
        self._claims.clear()
        self.plugins = self._plugin_manager()

    async def restart(self) -> None:
        """Down and up again; containers keep running, drivers notice a new connection."""
        await self.stop()
        await self.start()

    async def reboot(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Everything on the node ends; *meanwhile* does what else a reboot does (empty ``/run``).

        Pods stay assigned to the node: :meth:`sync_pod` makes their sandboxes anew.
        """
        await self.stop()
        meanwhile()
        await self.start()

    def _plugin_manager(self) -> PluginManager:
        return PluginManager(
            self._registry,
            self._timing,
            RELEASES[self._version],
            self._wipe_driver,
        )

    def _wipe_driver(self, driver: str) -> None:
        self._wipe(self.node, driver)

    # -- drivers ---------------------------------------------------------------------------------

    async def registered(
        self, driver: str, instances: int = 1, seconds: float = 60.0
    ) -> list[RegisteredPlugin]:
        """Wait until so many instances of *driver* are registered and connected."""

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

    # -- pods ------------------------------------------------------------------------------------

    async def run_pod(self, pod: FakePod, claims: Iterable[ResourceClaim] = ()) -> Running:
        """Make the pod's sandbox: prepare its claims, and say what each container gets.

        Raises :class:`PrepareError`; the pod then stays, Pending.
        """
        self._pods[pod.uid] = pod
        return await self._prepare(pod, claims)

    async def sync_pod(self, uid: str, claims: Iterable[ResourceClaim] = ()) -> Running:
        """What happens at the pod's next turn, or when its sandbox has to be made anew."""
        return await self._prepare(self._pods[uid], claims)

    async def stop_pod(self, uid: str) -> None:
        """End the pod: its containers have stopped, its claims are unprepared if it was the last.

        Raises :class:`UnprepareError`; the pod then stays, Terminating.
        """
        pod = self._pods[uid]
        await self._unprepare(uid, [info for info in self._claims.values() if uid in info.pods])
        del self._pods[pod.uid]

    def forget_pod(self, uid: str) -> None:
        """The pod is gone without a farewell: force-deleted, or deleted while we were down."""
        del self._pods[uid]

    async def reconcile(self) -> None:
        """Unprepare the claims of pods that no longer exist; what cannot be is left for later."""
        gone = {pod for info in self._claims.values() for pod in info.pods} - self._pods.keys()
        for uid in sorted(gone):
            with contextlib.suppress(UnprepareError):
                await self._unprepare(uid, [i for i in self._claims.values() if uid in i.pods])

    def cdi_devices(self, uid: str) -> dict[str, tuple[str, ...]]:
        """What each container of the pod gets if it is started again now; no driver is asked."""
        pod = self._pods[uid]
        return {
            name: tuple(cdi for use in uses for cdi in self._cdi_of(pod, use))
            for name, uses in pod.containers.items()
        }

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """State and message of a device as they would stand in a pod's status."""
        return self.plugins.health(driver, pool, device)

    def knows(self, claim_uid: str) -> bool:
        """Whether the claim is in the kubelet's cache: prepared, or tried to be."""
        return any(info.uid == claim_uid for info in self._claims.values())

    # -- preparing -------------------------------------------------------------------------------

    async def _prepare(self, pod: FakePod, claims: Iterable[ResourceClaim]) -> Running:
        given = {(c.metadata.namespace, c.metadata.name): c for c in claims}
        infos = []
        for pod_claim in pod.claims:
            document = given.get((pod.namespace, pod_claim.claim))
            if document is None and self._get_claim is not None:
                document = await self._get_claim(pod.namespace, pod_claim.claim)
            infos.append(self._check(pod, pod_claim, document))
        # Another pod's prepare of the same claim may have come first while claims were read.
        infos = [self._claims.setdefault((info.namespace, info.name), info) for info in infos]
        for info in infos:
            info.pods.add(pod.uid)
        write_checkpoint(self._checkpoint, self._claims.values())
        waiting = [info for info in infos if not info.prepared]
        for driver in dict.fromkeys(d for info in waiting for d in info.drivers):
            wanted = [
                info
                for info in waiting
                if driver in info.drivers and (driver, "NodePrepareResources") not in info.skipped
            ]
            if wanted:
                await self._prepare_with(driver, wanted)
        for info in waiting:
            info.prepared = True
        write_checkpoint(self._checkpoint, self._claims.values())
        return Running(pod, self.cdi_devices(pod.uid))

    def _check(
        self, pod: FakePod, pod_claim: PodClaim, document: ResourceClaim | None
    ) -> ClaimInfo:
        """All that is checked before any driver is called and anything is written down."""
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
            if (driver, "NodePrepareResources") in skipped:
                continue
            if self.plugins.pick(driver) is None:
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

    async def _prepare_with(self, driver: str, infos: list[ClaimInfo]) -> None:
        endpoint = self.plugins.pick(driver)
        if endpoint is None:
            raise PrepareError(f"DRA driver {driver} is not registered")
        response = await self._call(endpoint, "Prepare", infos, PrepareError)
        by_uid: dict[str, ClaimInfo | None] = {info.uid: info for info in infos}
        for uid, entry in response.claims.items():
            info = by_uid.get(uid)
            if info is None:
                raise PrepareError(
                    f"NodePrepareResources returned result for unknown claim UID {uid}"
                )
            if entry.error:
                raise PrepareError(
                    f"NodePrepareResources failed for ResourceClaim {info.name}: {entry.error}"
                )
            info.drivers[driver] = [cached_device(device) for device in entry.devices]
        if missing := len(infos) - len(response.claims):
            raise PrepareError(f"NodePrepareResources skipped {missing} ResourceClaims")

    async def _call(
        self,
        endpoint: RegisteredPlugin,
        verb: str,
        infos: list[ClaimInfo],
        failure: Callable[[str], PodStuckError],
    ) -> Any:
        method = f"Node{verb}Resources"
        self.calls.append(
            DriverCall(
                method=method,
                driver=endpoint.driver,
                service=endpoint.service,
                api=endpoint.api,
                uids=tuple(info.uid for info in infos),
            )
        )
        claims = [(info.namespace, info.name, info.uid) for info in infos]
        try:
            return await endpoint.call(verb, claims, self._timing.call)
        except CALL_FAILURES as error:
            raise failure(f"{method}: {type(error).__name__} {error}") from error

    # -- unpreparing -----------------------------------------------------------------------------

    async def _unprepare(self, pod_uid: str, infos: list[ClaimInfo]) -> None:
        last = [info for info in infos if info.pods <= {pod_uid}]
        for info in infos:
            if info not in last:
                info.pods.discard(pod_uid)
        for info in last:
            info.unpreparing = True
        try:
            for driver in dict.fromkeys(d for info in last for d in info.drivers):
                wanted = [
                    info
                    for info in last
                    if driver in info.drivers
                    and (driver, "NodeUnprepareResources") not in info.skipped
                ]
                if wanted:
                    await self._unprepare_with(driver, wanted)
        finally:
            for info in last:
                info.unpreparing = False
        for info in last:
            del self._claims[info.namespace, info.name]
        write_checkpoint(self._checkpoint, self._claims.values())

    async def _unprepare_with(self, driver: str, infos: list[ClaimInfo]) -> None:
        for each in infos:
            each.prepared = False
        endpoint = self.plugins.pick(driver)
        if endpoint is None:
            raise UnprepareError(f"DRA driver {driver} is not registered")
        response = await self._call(endpoint, "Unprepare", infos, UnprepareError)
        by_uid = {info.uid: info for info in infos}
        for uid, entry in response.claims.items():
            info = by_uid.get(uid)
            if info is None:
                raise UnprepareError(
                    f"NodeUnprepareResources returned result for unknown claim UID {uid}"
                )
            if entry.error:
                raise UnprepareError(
                    f"NodeUnprepareResources failed for ResourceClaim {info.name}: {entry.error}"
                )
        if missing := len(infos) - len(response.claims):
            raise UnprepareError(f"NodeUnprepareResources skipped {missing} ResourceClaims")

    async def _reconcile_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._timing.reconcile)
            await self.reconcile()

    # -- containers ------------------------------------------------------------------------------

    def _cdi_of(self, pod: FakePod, use: ContainerClaim) -> Iterable[str]:
        (claim,) = (entry.claim for entry in pod.claims if entry.name == use.claim)
        info = self._claims[pod.namespace, claim]
        for devices in info.drivers.values():
            for device in devices:
                # An exact match of names: a driver that answers "main/sub" reaches nobody.
                if not use.request or not device.requests or use.request in device.requests:
                    yield from device.cdi
