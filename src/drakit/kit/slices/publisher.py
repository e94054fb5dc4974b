"""Publisher: keeps the ResourceSlices of a driver on a node equal to the driver's offer.

It compares the offer with a watched view of its own slices and writes only the difference, at once
when the offer changes and shortly after another client changed a slice: a restarting kubelet deletes
all slices of its node without notice. Slices of other drivers and nodes are never touched.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from drakit.core.log import get_logger
from drakit.core.objects import OwnerReference, ResourceSlice
from drakit.kit.driver import Offer, PoolOffer
from drakit.kit.slices.dropped_fields import hint_for_rejected
from drakit.kit.slices.layout import Content, Identity, Slice, lay_out
from drakit.kit.slices.limits import check_offer
from drakit.kit.slices.pool_plan import PoolPlan, devices_by_slice, match_slices, plan_pool
from drakit.kit.slices.slice_writer import SliceWriter
from drakit.kit.telemetry.metrics import Gauge, HostMetrics
from drakit.wire.kube import (
    NODES,
    SLICES,
    Backoff,
    Client,
    ConflictError,
    ConnectionFailedError,
    InvalidError,
    KubeError,
    NotFoundError,
    ObjectChange,
    ProtocolError,
    Reflector,
    Selection,
)

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RepairDelays:
    """Seconds between a change of a slice by another client and its repair.

    Each repair within ``window`` doubles the delay: two publishers must not overwrite each other
    at full speed.
    """

    deleted: float = 0.1
    """A restarting kubelet deletes the slices one after the other."""
    changed: float = 2.0
    """During a rolling update the driver's other instance changes slices."""
    longest: float = 30.0
    window: float = 60.0


class NodeMissingError(KubeError):
    """The Node object that owns the slices does not exist."""


@dataclass(slots=True)
class PublisherStatus:
    """Progress of publishing."""

    published: bool = False
    """Whether the server stores the latest offer, except for fields that it drops."""
    generations: dict[str, int] = field(default_factory=dict)
    slices: int = 0
    last_error: KubeError | None = None
    """Why the latest offer is not published; ``None`` after a success."""


class Publisher:
    """Publishes one driver's offer for one node.

    :meth:`publish` may be called at any time from the event loop's thread; :meth:`run` works until
    cancelled and retries after every error of the API server and the network. A pool that the server
    rejects as invalid is retried only when something changes. Slices stay in place on exit, for the
    next instance of the driver.
    """

    def __init__(
        self,
        client: Client,
        *,
        driver: str,
        node: str,
        metrics: HostMetrics | None = None,
        backoff: Callable[[], Backoff] = Backoff,
        delays: RepairDelays | None = None,
    ) -> None:
        self._client = client
        self._identity = Identity(driver, node)
        self._metrics = metrics
        self._backoff = backoff()
        self._delays = delays or RepairDelays()
        self._offer: Offer | None = None
        self._reflector = Reflector(
            client,
            SLICES,
            Selection(fields=self._identity.selector),
            listener=self._slice_changed,
            backoff=backoff(),
        )
        self.writer = SliceWriter(client, self._reflector.store, metrics)
        self._owner: OwnerReference | None = None
        self._owner_current = False
        self._stale = False
        self._repairing = False
        self._repairs: deque[float] = deque()
        self._rejected: dict[str, tuple[tuple[Content, ...], InvalidError]] = {}
        self._due: float | None = None
        self._wake = asyncio.Event()
        self.published = asyncio.Event()
        """Set while the server stores the latest offer."""
        self.status = PublisherStatus()
        if metrics is not None:
            metrics.add_source(self._gauges)

    def publish(self, offer: Offer) -> None:
        """Make *offer* the desired state; pools without a name are named after the node.

        Raises :class:`~drakit.kit.slices.limits.OfferError`, and keeps the previous offer, when the API
        server would reject it. An unchanged offer has no effect.
        """
        named = offer.named(self._identity.node)
        check_offer(self._identity.driver, named)
        if named == self._offer:
            return
        self._offer = named
        self._rejected.clear()
        self._set_published(False)
        self._schedule(0)

    @property
    def problem(self) -> str | None:
        """Why the server does not store the latest offer; ``None`` when it does."""
        if self.published.is_set():
            return None
        error = self.status.last_error or self._reflector.last_error
        return str(error) if error is not None else "slices are being written"

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        await self._reflector.synced.wait()
        while True:
            await self._until_due()
            if self._offer is None:
                continue
            try:
                await self._sync(self._offer)
            except KubeError as error:
                self._failed(error)
                if not isinstance(error, InvalidError):
                    self._schedule(self._backoff.next(error.retry_after))
            else:
                self._backoff.reset()

    def _schedule(self, delay: float) -> None:
        """Compare offer and slices in *delay* seconds, or earlier if already scheduled."""
        try:
            due = asyncio.get_running_loop().time() + delay
        except RuntimeError:  # before the loop runs: at its first iteration
            due = 0.0
        self._due = due if self._due is None else min(due, self._due)
        self._wake.set()

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while self._due is None or self._due > loop.time():
            self._wake.clear()
            try:
                async with asyncio.timeout_at(self._due):
                    await self._wake.wait()
            except TimeoutError:
                break
        self._due = None

    def _slice_changed(self, change: ObjectChange[ResourceSlice]) -> None:
        """Schedule a repair after another client changed one of our slices."""
        if self._offer is None:
            return
        now = asyncio.get_running_loop().time()
        while self._repairs and self._repairs[0] < now - self._delays.window:
            self._repairs.popleft()
        first = self._delays.changed
        if change.after is None:
            # Possibly another cluster, or the garbage collector removed the slices of an old Node.
            first = self._delays.deleted
            self._rejected.clear()
            self._owner_current = False
            self._set_published(False)
        else:
            # Only this pool: the event of our own write may arrive before its response.
            self._rejected.pop(_pool_of(change.after), None)
        self._repairing = True
        self._schedule(min(first * 2 ** len(self._repairs), self._delays.longest))

    async def _sync(self, offer: Offer) -> None:
        """Write all differences, pool by pool; raises an error after trying every pool."""
        if self._stale:
            await self._reflector.refresh()
            self._stale = False
        repairing, self._repairing = self._repairing, False
        owner = await self._find_owner()
        before = self.writer.writes.total()
        stored = self._stored()
        gone = sorted(stored.keys() - {pool.name for pool in offer.pools})
        work = [self._remove_pool(name, stored[name], owner) for name in gone]
        work += [self._sync_pool(pool, offer, stored.get(pool.name, ()), owner) for pool in offer.pools]
        failed = await _errors_of(work)
        if repairing and self.writer.writes.total() != before:
            self._repairs.append(asyncio.get_running_loop().time())
        if failed:
            # Errors that are retried take precedence over those that are not.
            raise min(failed, key=lambda error: isinstance(error, InvalidError))
        if self._offer is offer:
            self._succeeded()

    async def _remove_pool(self, name: str, items: Sequence[Slice], owner: OwnerReference) -> None:
        await self._write(name, PoolPlan(0, deletes=tuple(items)), (), owner)
        self.writer.forget(name)
        self.status.generations.pop(name, None)

    def _stored(self) -> dict[str, list[Slice]]:
        pools: dict[str, list[Slice]] = {}
        for item in self._reflector.store.objects():
            if self._identity.owns(item):
                pools.setdefault(_pool_of(item), []).append(item)
        return pools

    async def _find_owner(self) -> OwnerReference:
        if self._owner is not None and self._owner_current:
            return self._owner
        node = self._identity.node
        self._owner_current = True  # before the request: a deletion meanwhile resets it
        try:
            found = await self._client.get(NODES, node)
        except KubeError as error:
            self._owner_current = False
            if not isinstance(error, NotFoundError):
                raise
            raise NodeMissingError(
                f"Node {node} does not exist; slices are published as soon as it does. "
                "Check the node name if it is never created"
            ) from error
        self._owner = OwnerReference(api_version="v1", kind="Node", name=node, uid=found.uid, controller=True)
        return self._owner

    async def _sync_pool(
        self, pool: PoolOffer, offer: Offer, items: Sequence[Slice], owner: OwnerReference
    ) -> None:
        name = pool.name
        current = devices_by_slice(match_slices(items))
        contents = lay_out(pool, may_taint=offer.may_taint, current=current)
        rejected, reason = self._rejected.get(name, (None, None))
        if reason is not None and rejected == contents:
            raise reason
        plan = plan_pool(
            self._identity,
            name,
            contents,
            match_slices(items, len(contents)),
            owner=owner,
            adopted=lambda index, content: self.writer.expected(name, index, content),
            generation_floor=self.writer.highest_generation(name),
        )
        try:
            await self._write(name, plan, contents, owner)
        except InvalidError as error:
            self._rejected[name] = (contents, error)
            log.warning("API server rejected pool", pool=name, error=error, hint=_hint(contents))
            raise
        self.status.generations[name] = plan.generation

    async def _write(
        self, pool: str, plan: PoolPlan, contents: Sequence[Content], owner: OwnerReference
    ) -> None:
        try:
            await self.writer.write(pool, plan, contents, owner)
        except (ConflictError, NotFoundError, ConnectionFailedError, ProtocolError):
            # Our view is stale, or the write may or may not have happened: list again first.
            self._stale = True
            raise

    def _set_published(self, published: bool) -> None:
        self.status.published = published
        if published:
            self.published.set()
        else:
            self.published.clear()

    def _failed(self, error: KubeError) -> None:
        if str(self.status.last_error) != str(error):
            log.warning("cannot publish ResourceSlices", error=error)
        self._set_published(False)
        self.status.last_error = error

    def _succeeded(self) -> None:
        if self.status.last_error is not None:
            log.info("ResourceSlices are published again")
        self.status.last_error = None
        self.status.slices = len(self._reflector.store)
        if self._due is None:  # otherwise a slice was changed meanwhile
            self._set_published(True)
        if self._metrics is not None:
            self._metrics.contact("apiserver")

    def _gauges(self) -> Sequence[Gauge]:
        status = self.status
        return [
            Gauge("slices_published", "1 while the API server stores the current offer.", status.published),
            Gauge("slices", "ResourceSlices of this driver on this node.", status.slices),
            *(
                Gauge("pool_generation", "Generation of a pool.", generation, (("pool", pool),))
                for pool, generation in sorted(status.generations.items())
            ),
        ]


async def _errors_of(work: Sequence[Coroutine[Any, Any, None]]) -> list[KubeError]:
    """Do the work for each pool; an error of one pool does not affect the others.

    Connection errors are raised: the other pools would fail the same way.
    """
    errors: list[KubeError] = []
    waiting = deque(work)
    try:
        while waiting:
            try:
                await waiting.popleft()
            except (ConnectionFailedError, ProtocolError):
                raise
            except KubeError as error:
                errors.append(error)
    finally:
        for rest in waiting:
            rest.close()
    return errors


def _pool_of(item: Slice) -> str:
    """The pool of a stored slice, which may otherwise be malformed."""
    pool = item.raw["spec"].get("pool")
    name = pool.get("name") if isinstance(pool, dict) else None
    return name if isinstance(name, str) else ""


def _hint(contents: Sequence[Content]) -> str:
    hints = (hint_for_rejected(content) for content in contents)
    return max(hints, key=lambda text: "gate" in text, default="")
