"""Before a pod is bound: whether the node can give what the scheduler chose (KEP-5007).

A device may be published with *binding conditions*. A scheduler that chooses it writes the
allocation into the claim, and binds the pod only when all of them are true in the claim's status;
when one of the *binding failure conditions* is, it drops the allocation and looks for another place.
So what may fail on the node fails while the pod can still go elsewhere.

The binder follows the claims that wait for this node, has their devices promised, and writes which
of the two it is. It keeps no books: what was promised follows from the claims themselves, so after a
restart it is promised again. A claim that is prepared needs no promise any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from drakit.core.conditions import true_conditions
from drakit.core.objects import AllocationResult, ResourceClaim
from drakit.kit.claims.resource_claims import claim_for
from drakit.kit.driver import Claim, Offer, PreparedClaims, RejectedError
from drakit.kit.telemetry.logs import about
from drakit.wire.kube import (
    CLAIMS,
    Backoff,
    Change,
    Client,
    ConflictError,
    InvalidError,
    KubeError,
    NotFoundError,
    Object,
    Reflector,
)

_LOG = logging.getLogger(__name__)
_MESSAGE_BYTES: Final = 32768
"""The longest message a condition may have (``metav1.Condition``)."""
_Allotted = tuple[tuple[str, str, str, str | None], ...]
"""Which devices an allocation gives: a claim that is allocated anew is another case."""


def needs_binder(offer: Offer) -> bool:
    """Whether any device of *offer* needs somebody who fulfills its conditions."""
    return any(device.binding_conditions for pool in offer.pools for device in pool.devices)


@dataclass(frozen=True, slots=True)
class Promises:
    """What the binder asks of the node's side."""

    prepared: Callable[[], PreparedClaims]
    """The claims that are written down: they have what they were promised."""
    make: Callable[[Claim], Awaitable[None]]
    """Make sure the node can give the claim its devices. Raises ``RejectedError``, or ``OSError``."""
    keep_only: Callable[[Collection[str]], None]
    """Forget all promises but those to these claims."""
    rejected: Callable[[], Awaitable[None]]
    """Hears of a rejection before the scheduler does: what cannot be had should not be offered."""


class Binder:
    """Fulfills, or fails, the binding conditions of one driver's devices in the node's pools.

    :meth:`run` does the work until cancelled and survives everything the API server does. Two
    instances on one node may run at once: both write the same. *undecodable* is called for each
    claim that is skipped because it does not decode.
    """

    def __init__(
        self,
        client: Client,
        promises: Promises,
        *,
        driver: str,
        pools: Callable[[], Collection[str]],
        backoff: Callable[[], Backoff] = Backoff,
        undecodable: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._promises = promises
        self._driver = driver
        self._pools = pools
        self._backoff = backoff()
        self._reflector: Reflector[ResourceClaim] = Reflector(
            client,
            CLAIMS,
            wanted=self._is_ours,
            listener=self._noticed,
            backoff=backoff(),
            undecodable=undecodable,
        )
        self._promised: dict[str, _Allotted] = {}
        self._hopeless: dict[str, _Allotted] = {}
        """Bound already and not to be had: prepare will say so, again and again."""
        self._wake = asyncio.Event()
        self._error: str | None = None

    @property
    def problem(self) -> str | None:
        """Why pods cannot be bound to this node; ``None`` while they can."""
        if self._reflector.last_error is not None:
            return str(self._reflector.last_error)
        if not self._reflector.synced.is_set():
            return "claims are being listed"
        return self._error

    async def run(self) -> None:
        """Answer for claims until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        await self._reflector.synced.wait()
        while True:
            self._wake.clear()
            pause: float | None = None
            try:
                await self._look()
            except (KubeError, OSError) as error:
                if self._error != str(error):
                    _LOG.warning("pods wait to be bound to this node: %s; trying again", error)
                self._error = str(error)
                pause = self._backoff.next(getattr(error, "retry_after", None))
            else:
                self._error = None
                self._backoff.reset()
            await self._until_something_changes(pause)

    async def _until_something_changes(self, limit: float | None) -> None:
        try:
            async with asyncio.timeout(limit):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _noticed(self, change: Change[ResourceClaim]) -> None:
        self._wake.set()

    def _is_ours(self, claim: ResourceClaim) -> bool:
        return any(True for _ in self._results(claim))

    def _results(self, claim: ResourceClaim) -> Iterable[AllocationResult]:
        """The devices of *claim* that wait for this node."""
        allocation, pools = claim.status.allocation, self._pools()
        for result in allocation.devices.results if allocation is not None else ():
            if result.driver == self._driver and result.pool in pools and result.binding_conditions:
                yield result

    # -- one look -----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """See to every claim; raises the first error after all were tried."""
        claims = {item.uid: item for item in self._reflector.store.objects()}
        self._forget_all_but({uid: self._allotted(item) for uid, item in claims.items()})
        problems: list[KubeError | OSError] = []
        for uid, item in claims.items():
            try:
                with about(claim=f"{item.namespace}/{item.name}", uid=uid):
                    await self._answer(item, list(self._results(item.typed)))
            except (KubeError, OSError) as error:
                problems.append(error)
            except Exception:  # one claim that a driver stumbles over must not end it for all
                _LOG.exception("cannot tell whether the pod can be bound to this node")
        if problems:
            raise problems[0]

    def _allotted(self, item: Object[ResourceClaim]) -> _Allotted:
        results = self._results(item.typed)
        return tuple((each.request, each.pool, each.device, each.share_id) for each in results)

    def _forget_all_but(self, there: dict[str, _Allotted]) -> None:
        """Keep what was decided of claims that still have the same devices."""
        for decided in (self._promised, self._hopeless):
            for uid in [uid for uid, devices in decided.items() if there.get(uid) != devices]:
                del decided[uid]
        self._promises.keep_only(frozenset(self._promised))

    async def _answer(self, item: Object[ResourceClaim], results: list[AllocationResult]) -> None:
        standing = [true_conditions(item.typed, result).keys() for result in results]
        if any(
            true & set(result.binding_failure_conditions)
            for result, true in zip(results, standing, strict=True)
        ):
            return  # the scheduler takes it away
        told = all(
            true >= set(result.binding_conditions)
            for result, true in zip(results, standing, strict=True)
        )
        prepared = item.uid in self._promises.prepared().entries
        if item.uid in self._hopeless or (told and prepared):
            return
        if item.uid not in self._promised:
            try:
                await self._promises.make(claim_for(self._driver, item.typed, item.uid))
            except RejectedError as reason:
                await self._reject(item, results, reason, told=told)
                return
            self._promised[item.uid] = self._allotted(item)
        if not told:
            _LOG.info("promised: the pod can be bound to this node")
            await self._write(item, results, "Provided", "the node has what was allocated")

    async def _reject(
        self,
        item: Object[ResourceClaim],
        results: list[AllocationResult],
        reason: RejectedError,
        *,
        told: bool,
    ) -> None:
        if told:
            self._hopeless[item.uid] = self._allotted(item)
            _LOG.error("what was promised to a claim cannot be had any more: %s", reason)
            return
        _LOG.warning("the pod cannot be bound to this node: %s", reason)
        await self._promises.rejected()
        await self._write(item, results, "Refused", str(reason), failed=True)

    async def _write(
        self,
        item: Object[ResourceClaim],
        results: list[AllocationResult],
        reason: str,
        message: str,
        *,
        failed: bool = False,
    ) -> None:
        """Set the conditions, of this very claim and only while it has these devices."""
        body = {
            "apiVersion": CLAIMS.api_version,
            "kind": CLAIMS.kind,
            "metadata": {"name": item.name, "namespace": item.namespace, "uid": item.uid},
            "status": {
                "devices": [
                    _device_status(
                        result,
                        result.binding_failure_conditions if failed else result.binding_conditions,
                        reason,
                        message,
                    )
                    for result in results
                ]
            },
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
            _LOG.info("the claim is another one by now: %s", error)


def _device_status(
    result: AllocationResult, conditions: Iterable[str], reason: str, message: str
) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"driver": result.driver, "pool": result.pool, "device": result.device}
    if result.share_id:
        status["shareID"] = result.share_id
    return status | {
        "conditions": [
            {
                "type": each,
                "status": "True",
                "reason": reason,
                "message": message.encode()[:_MESSAGE_BYTES].decode(errors="ignore"),
                "lastTransitionTime": now,
            }
            for each in conditions
        ]
    }
