"""Binding conditions (KEP-5007): whether the node can provide what the scheduler allocated.

The scheduler binds a pod to a node with such a device only when all *binding conditions* of the device are
true in the claim's status; when a *binding failure condition* is true, it drops the allocation and tries
another node. The binder watches the claims that wait for this node, has their devices reserved, and writes
the result into their status. It stores nothing: reservations follow from the claims, so they are repeated
after a restart. A prepared claim no longer needs a reservation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from drakit.core.log import get_logger
from drakit.core.objects import DeviceRequestAllocationResult, ResourceClaim, true_conditions
from drakit.kit.claims.resource_claims import claim_for
from drakit.kit.driver import Claim, Driver, Offer, PreparedClaims, RejectedError
from drakit.kit.telemetry.logs import about
from drakit.wire.kube import (
    CLAIMS,
    Backoff,
    Client,
    ConflictError,
    InvalidError,
    KubeError,
    NotFoundError,
    Object,
    Reflector,
)

log = get_logger(__name__)
_MESSAGE_BYTES: Final = 32768
"""The longest message a condition may have (``metav1.Condition``)."""
_DeviceIds = tuple[tuple[str, str, str, str | None], ...]
"""The devices of an allocation: a claim that is reallocated is decided again."""
_Results = list[DeviceRequestAllocationResult]


def needs_binder(offer: Offer) -> bool:
    """Whether any device of *offer* has binding conditions."""
    return any(device.binding_conditions for pool in offer.pools for device in pool.devices)


class BindingNode(Protocol):
    """The rest of the driver on this node, as the binder needs it; see ``Host``."""

    driver: Driver
    """The driver for the machine as last discovered."""
    offer: Offer
    """The driver's current offer, with named pools."""

    @property
    def prepared_claims(self) -> PreparedClaims:
        """The claims in the checkpoint: they need no reservation."""

    async def reserve(self, claim: Claim) -> None:
        """Make sure that the claim can be prepared. Raises ``RejectedError`` or ``OSError``."""

    def keep_reserved(self, uids: Collection[str]) -> None:
        """Drop all reservations except those of these claims."""

    async def reservation_rejected(self) -> None:
        """Called before a rejection is written: what is not available should no longer be offered."""


class Binder:
    """Sets the binding conditions of one driver's devices in the node's pools.

    Survives all errors of the API server. Two instances on one node may run at once: both write the same.
    *undecodable* is called for each claim that is skipped because it cannot be decoded.
    """

    def __init__(
        self,
        client: Client,
        node: BindingNode,
        *,
        backoff: Callable[[], Backoff] = Backoff,
        undecodable: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._node = node
        self._driver = node.driver.name
        self._backoff = backoff()
        self._reflector: Reflector[ResourceClaim] = Reflector(
            client,
            CLAIMS,
            wanted=lambda claim: any(True for _ in self._results(claim)),
            listener=lambda change: self._wake.set(),
            backoff=backoff(),
            undecodable=undecodable,
        )
        self._reserved: dict[str, _DeviceIds] = {}
        self._unavailable: dict[str, _DeviceIds] = {}
        """Bound already but no longer available: every prepare will report it."""
        self._wake = asyncio.Event()
        self._error: str | None = None

    @property
    def problem(self) -> str | None:
        """Why pods cannot be bound to this node; ``None`` if they can."""
        if self._reflector.last_error is not None:
            return str(self._reflector.last_error)
        if not self._reflector.synced.is_set():
            return "claims are being listed"
        return self._error

    async def run(self) -> None:
        """Decide about claims until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        await self._reflector.synced.wait()
        while True:
            self._wake.clear()
            pause: float | None = None
            try:
                await self._decide_all()
            except (KubeError, OSError) as error:
                if self._error != str(error):
                    log.warning("cannot set binding conditions, will retry", error=error)
                self._error = str(error)
                pause = self._backoff.next(getattr(error, "retry_after", None))
            else:
                self._error = None
                self._backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    def _results(self, claim: ResourceClaim) -> Iterable[DeviceRequestAllocationResult]:
        """The devices of *claim* that wait for this node."""
        allocation, pools = claim.status.allocation, {pool.name for pool in self._node.offer.pools}
        for result in allocation.devices.results if allocation is not None else ():
            if result.driver == self._driver and result.pool in pools and result.binding_conditions:
                yield result

    async def _decide_all(self) -> None:
        """Decide about every claim; raises the first error after all were tried."""
        claims = {item.uid: item for item in self._reflector.store.objects()}
        self._forget_all_but({uid: self._device_ids(item) for uid, item in claims.items()})
        errors: list[KubeError | OSError] = []
        for uid, item in claims.items():
            with about(claim=f"{item.namespace}/{item.name}", uid=uid):
                try:
                    await self._decide(item, list(self._results(item.typed)))
                except (KubeError, OSError) as error:
                    errors.append(error)
                except Exception:  # a driver's defect with one claim must not affect the others
                    log.exception("cannot decide whether the pod can be bound to this node")
        if errors:
            raise errors[0]

    def _device_ids(self, item: Object[ResourceClaim]) -> _DeviceIds:
        results = self._results(item.typed)
        return tuple((each.request, each.pool, each.device, each.share_id) for each in results)

    def _forget_all_but(self, current: dict[str, _DeviceIds]) -> None:
        """Keep decisions about claims that still have the same devices."""
        for decided in (self._reserved, self._unavailable):
            for uid in [uid for uid, devices in decided.items() if current.get(uid) != devices]:
                del decided[uid]
        self._node.keep_reserved(frozenset(self._reserved))

    async def _decide(self, item: Object[ResourceClaim], results: _Results) -> None:
        true = [(result, true_conditions(item.typed, result).keys()) for result in results]
        if any(conditions & set(each.binding_failure_conditions) for each, conditions in true):
            return  # the scheduler drops the allocation
        bound = all(conditions >= set(each.binding_conditions) for each, conditions in true)
        prepared = item.uid in self._node.prepared_claims.entries
        if item.uid in self._unavailable or (bound and prepared):
            return
        if item.uid not in self._reserved:
            try:
                await self._node.reserve(claim_for(self._driver, item.typed, item.uid))
            except RejectedError as error:
                if bound:
                    self._unavailable[item.uid] = self._device_ids(item)
                    log.error("reserved devices are no longer available", error=error)
                    return
                log.warning("pod cannot be bound to this node", error=error)
                await self._node.reservation_rejected()
                await self._write(item, results, str(error), failed=True)
                return
            self._reserved[item.uid] = self._device_ids(item)
        if not bound:
            log.info("devices reserved, pod can be bound to this node")
            await self._write(item, results, "the node has what was allocated", failed=False)

    async def _write(
        self, item: Object[ResourceClaim], results: _Results, message: str, *, failed: bool
    ) -> None:
        """Set the conditions, but only on this claim and while it has these devices."""
        body = {
            "apiVersion": CLAIMS.api_version,
            "kind": CLAIMS.kind,
            "metadata": {"name": item.name, "namespace": item.namespace, "uid": item.uid},
            "status": {"devices": [_device_status(each, message, failed=failed) for each in results]},
        }
        try:
            await self._client.apply(
                CLAIMS,
                body,
                name=item.name,
                namespace=item.namespace,
                subresource="status",
                field_manager=f"{self._driver}-binding",
                force=True,
            )
        except (NotFoundError, ConflictError, InvalidError) as error:
            log.info("claim changed meanwhile, conditions not written", error=error)


def _device_status(result: DeviceRequestAllocationResult, message: str, *, failed: bool) -> dict[str, Any]:
    conditions = result.binding_failure_conditions if failed else result.binding_conditions
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"driver": result.driver, "pool": result.pool, "device": result.device}
    if result.share_id:
        status["shareID"] = result.share_id
    return status | {
        "conditions": [
            {
                "type": each,
                "status": "True",
                "reason": "Refused" if failed else "Provided",
                "message": message.encode()[:_MESSAGE_BYTES].decode(errors="ignore"),
                "lastTransitionTime": now,
            }
            for each in conditions
        ]
    }
