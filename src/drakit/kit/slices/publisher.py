"""Keeps the ResourceSlices of a driver on a node equal to what the driver offers.

The publisher compares the offer with a live view of its own slices and writes the difference, at
once when the offer changes and shortly after anybody else touched a slice: a restarting kubelet
deletes all slices of its node and does not say so. Nothing is ever written that is there already,
and nothing is touched that is not selected by driver and node.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drakit.core.objects import (
    ObjectMeta,
    OwnerReference,
    ResourceSlice,
    ResourceSliceSpec,
    to_builtins,
)
from drakit.kit.driver import Offer, PoolOffer
from drakit.kit.slices.dropped_fields import Dropped, find_dropped, hint_for_rejected
from drakit.kit.slices.layout import (
    Content,
    Create,
    Identity,
    Plan,
    Slice,
    Update,
    cuts_of,
    lay_out,
    plan_pool,
    stand,
)
from drakit.kit.slices.limits import OfferError, check_offer
from drakit.kit.telemetry.metrics import Gauge, Metrics
from drakit.wire.kube import (
    NODES,
    SLICES,
    Backoff,
    Change,
    Client,
    ConflictError,
    ConnectionFailedError,
    InvalidError,
    KubeError,
    NotFoundError,
    ProtocolError,
    Reflector,
    Selection,
)

_LOG = logging.getLogger(__name__)

OnDropped = Callable[[Dropped], None]
OnRejected = Callable[[str, KubeError], None]


@dataclass(frozen=True, slots=True)
class RepairDelays:
    """Seconds between somebody else touching a slice and our looking at it.

    Each repair within ``window`` doubles the delay: two publishers must not fight at full speed.
    """

    deleted: float = 0.1
    """A kubelet's wipe comes as one deletion after the other."""
    changed: float = 2.0
    """During a rolling update it is our other instance that changes slices."""
    longest: float = 30.0
    window: float = 60.0


class NodeMissing(KubeError):  # noqa: N818 - a state of the cluster
    """The Node object that shall own the slices does not exist."""

    transient = True


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """Where publishing stands."""

    published: bool = False
    """Whether the server has what was last offered, as far as it takes it."""
    generations: Mapping[str, int] = field(default_factory=dict)
    slices: int = 0
    created: int = 0
    updated: int = 0
    deleted: int = 0
    errors: int = 0
    last_error: KubeError | None = None
    """What keeps the server from having it; ``None`` while all is well."""


@dataclass(frozen=True, slots=True)
class _Adoption:
    """The server keeps *got* when told *sent*: no reason to tell it again."""

    sent: Content
    got: Content


@dataclass(frozen=True, slots=True)
class _RejectedError:
    """The server calls *contents* invalid: no reason to ask again before something changes."""

    contents: tuple[Content, ...]
    error: InvalidError


class Publisher:
    """Publishes one driver's offer for one node.

    :meth:`publish` may be called at any time, from the event loop's thread; :meth:`run` does the
    work until cancelled and survives everything the API server and the network do. *on_dropped* is
    told of each field the server did not keep, once per content; *on_rejected* of each pool the
    server calls invalid, which does not heal by itself and is tried again only when something
    changes. Slices are left in place on exit: a successor takes over.
    """

    def __init__(
        self,
        client: Client,
        *,
        driver: str,
        node: str,
        metrics: Metrics | None = None,
        on_dropped: OnDropped | None = None,
        on_rejected: OnRejected | None = None,
        backoff: Callable[[], Backoff] = Backoff,
        delays: RepairDelays | None = None,
    ) -> None:
        self._client = client
        self._identity = Identity(driver, node)
        self._metrics = metrics
        self._on_dropped = on_dropped
        self._on_rejected = on_rejected
        self._backoff = backoff()
        self._delays = delays or RepairDelays()
        self._offer: Offer | None = None
        self._reflector = Reflector(
            client,
            SLICES,
            Selection(fields=self._identity.selector),
            listener=self._noticed,
            backoff=backoff(),
        )
        self._owner: OwnerReference | None = None
        self._owner_known = False
        self._uncertain = False
        self._repairing = False
        self._repairs: deque[float] = deque()
        self._adopted: dict[tuple[str, int], _Adoption] = {}
        self._rejected: dict[str, _RejectedError] = {}
        self._floors: dict[str, int] = {}
        self._due: float | None = None
        self._wake = asyncio.Event()
        self.published = asyncio.Event()
        """Set while the server has what was last offered."""
        self.status = PublisherStatus()
        if metrics is not None:
            metrics.add_source(self._gauges)

    # -- for the driver ---------------------------------------------------------------------------

    def publish(self, offer: Offer) -> None:
        """Make *offer* the desired state; pools without a name get the node's.

        Raises :class:`~drakit.kit.slices.limits.OfferError`, and keeps the last good offer, when the API
        server would reject it. Offering the same again does nothing.
        """
        named = offer.named(self._identity.node)
        check_offer(self._identity.driver, named)
        if named == self._offer:
            return
        self._offer = named
        self._rejected.clear()
        self.published.clear()
        self.status = replace(self.status, published=False)
        self._schedule(0)

    @property
    def problem(self) -> str | None:
        """Why the server does not have what was offered; ``None`` when it has."""
        if self.published.is_set():
            return None
        error = self.status.last_error or self._reflector.last_error
        return str(error) if error is not None else "slices are being written"

    # -- the loop ---------------------------------------------------------------------------------

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
        """Have the slices looked at in *delay* seconds, or earlier if that is planned already."""
        try:
            due = asyncio.get_running_loop().time() + delay
        except RuntimeError:  # before the loop runs: at its first turn
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

    def _noticed(self, change: Change[ResourceSlice]) -> None:
        """Somebody else touched a slice of ours."""
        if self._offer is None:
            return
        now = asyncio.get_running_loop().time()
        while self._repairs and self._repairs[0] < now - self._delays.window:
            self._repairs.popleft()
        first = self._delays.changed
        if change.after is None:
            first = self._delays.deleted
            self._rejected.clear()  # the cluster is another one perhaps: worth asking again
            self._owner_known = False  # perhaps the garbage collector: the Node is another one
            self.published.clear()
            self.status = replace(self.status, published=False)
        else:
            # Not all of them: the event of our own write may overtake its answer.
            self._rejected.pop(_pool_of(change.after), None)
        self._repairing = True
        self._schedule(min(first * 2 ** len(self._repairs), self._delays.longest))

    # -- one look -----------------------------------------------------------------------------------

    async def _sync(self, offer: Offer) -> None:
        """Write what differs, pool by pool; raises an error after trying every pool."""
        if self._uncertain:
            await self._reflector.refresh()
            self._uncertain = False
        repairing, self._repairing = self._repairing, False
        owner = await self._find_owner()
        before = self._writes()
        stored = self._stored()
        gone = sorted(stored.keys() - {pool.name for pool in offer.pools})
        failures = [
            *[await _failure_of(self._remove_pool(name, stored[name], owner)) for name in gone],
            *[
                await _failure_of(
                    self._sync_pool(pool, offer, stored.get(pool.name or "", ()), owner)
                )
                for pool in offer.pools
            ],
        ]
        if repairing and self._writes() != before:
            self._repairs.append(asyncio.get_running_loop().time())
        failed = [error for error in failures if error is not None]
        if failed:
            # What heals is tried again, so it must not hide behind what does not.
            raise min(failed, key=lambda error: isinstance(error, InvalidError))
        if self._offer is offer:
            self._succeeded()

    async def _remove_pool(self, name: str, items: Sequence[Slice], owner: OwnerReference) -> None:
        await self._write(name, Plan(0, deletes=tuple(items)), (), owner)
        self._floors.pop(name, None)
        for key in [key for key in self._adopted if key[0] == name]:
            del self._adopted[key]
        generations = {k: v for k, v in self.status.generations.items() if k != name}
        self.status = replace(self.status, generations=generations)

    def _stored(self) -> dict[str, list[Slice]]:
        pools: dict[str, list[Slice]] = {}
        for item in self._reflector.store.objects():
            if self._identity.owns(item):
                pools.setdefault(_pool_of(item), []).append(item)
        return pools

    async def _find_owner(self) -> OwnerReference:
        if self._owner is None or not self._owner_known:
            self._owner_known = True
            node = self._identity.node
            try:
                found = await self._client.get(NODES, node)
            except NotFoundError as error:
                self._owner_known = False
                raise NodeMissing(
                    f"Node {node} does not exist: slices are published once it does. "
                    "If it never will, the node name is wrong"
                ) from error
            except KubeError:
                self._owner_known = False
                raise
            self._owner = OwnerReference(
                api_version="v1", kind="Node", name=node, uid=found.uid, controller=True
            )
        return self._owner

    async def _sync_pool(
        self, pool: PoolOffer, offer: Offer, items: Sequence[Slice], owner: OwnerReference
    ) -> None:
        name = pool.name or ""
        cuts = cuts_of(stand(items))
        contents = lay_out(pool, may_taint=offer.may_taint, current=cuts)
        rejection = self._rejected.get(name)
        if rejection is not None and rejection.contents == contents:
            raise rejection.error
        standing = stand(items, len(contents))
        plan = plan_pool(
            self._identity,
            name,
            contents,
            standing,
            owner=owner,
            adopted=lambda index, content: self._as_kept(name, index, content),
            generation_floor=self._floors.get(name, 0),
        )
        try:
            await self._write(name, plan, contents, owner)
        except InvalidError as error:
            self._rejected[name] = _RejectedError(contents, error)
            _LOG.error("pool %s: %s; %s", name, error, _hint(contents))
            if self._on_rejected is not None:
                self._on_rejected(name, error)
            raise
        generations = {**self.status.generations, name: plan.generation}
        self.status = replace(self.status, generations=generations)

    def _as_kept(self, pool: str, index: int, content: Content) -> Content:
        adoption = self._adopted.get((pool, index))
        return adoption.got if adoption is not None and adoption.sent == content else content

    # -- writing --------------------------------------------------------------------------------------

    async def _write(
        self, pool: str, plan: Plan, contents: Sequence[Content], owner: OwnerReference
    ) -> None:
        if plan.empty:
            return
        try:
            for item in plan.deletes:
                await self._delete(item)
            for update in plan.updates:
                answer = await self._update(update, owner)
                self._keep(pool, update.index, contents[update.index], answer)
            for create in plan.creates:
                answer = await self._create(create, owner)
                self._keep(pool, create.index, contents[create.index], answer)
        except (ConflictError, NotFoundError, ConnectionFailedError, ProtocolError):
            # Our view is old, or nobody knows whether the write was carried out: look first.
            self._uncertain = True
            raise
        _LOG.info(
            "pool %s: generation %d, %d slices, %d devices (created %d, updated %d, deleted %d)",
            pool,
            plan.generation,
            len(contents),
            sum(len(content.devices) for content in contents),
            len(plan.creates),
            len(plan.updates),
            len(plan.deletes),
        )

    async def _delete(self, item: Slice) -> None:
        try:
            await self._counted(
                "delete",
                self._client.delete(
                    SLICES, item.name, uid=item.uid, resource_version=item.resource_version
                ),
            )
        except NotFoundError:
            pass
        else:
            self.status = replace(self.status, deleted=self.status.deleted + 1)
        self._reflector.store.deleted(item)

    async def _update(self, update: Update, owner: OwnerReference) -> Slice:
        answer: Slice = await self._counted(
            "update",
            self._client.update(
                SLICES, _document(update.stored, update.spec, owner), name=update.stored.name
            ),
        )
        self.status = replace(self.status, updated=self.status.updated + 1)
        self._reflector.store.wrote(answer)
        return answer

    async def _create(self, create: Create, owner: OwnerReference) -> Slice:
        metadata = ObjectMeta(generate_name=create.generate_name, owner_references=(owner,))
        answer: Slice = await self._counted(
            "create",
            self._client.create(SLICES, ResourceSlice(metadata=metadata, spec=create.spec)),
        )
        self.status = replace(self.status, created=self.status.created + 1)
        self._reflector.store.wrote(answer)
        return answer

    async def _counted(self, operation: str, request: Any) -> Any:
        result = "error"
        try:
            answer = await request
            result = "success"
        finally:
            if self._metrics is not None:
                self._metrics.slice_writes.labels(operation, result).inc()
        return answer

    def _keep(self, pool: str, index: int, sent: Content, answer: Slice) -> None:
        """Compare the server's answer with what was sent, and live with what it dropped."""
        spec = answer.typed.spec
        self._floors[pool] = max(self._floors.get(pool, 0), spec.pool.generation)
        got = Content(devices=spec.devices, shared_counters=spec.shared_counters)
        dropped = find_dropped(pool, sent, got)
        if not dropped:
            self._adopted.pop((pool, index), None)
            return
        known = self._adopted.get((pool, index))
        self._adopted[(pool, index)] = _Adoption(sent, got)
        if known is not None and known.sent == sent:
            return
        for item in dropped:
            _LOG.warning("%s", item)
            if self._on_dropped is not None:
                self._on_dropped(item)

    # -- what is told ---------------------------------------------------------------------------------

    def _writes(self) -> tuple[int, int, int]:
        return self.status.created, self.status.updated, self.status.deleted

    def _failed(self, error: KubeError) -> None:
        if self.status.last_error is None or str(self.status.last_error) != str(error):
            _LOG.warning("slices are not as offered: %s", error)
        self.published.clear()
        self.status = replace(
            self.status, published=False, last_error=error, errors=self.status.errors + 1
        )

    def _succeeded(self) -> None:
        if self.status.last_error is not None:
            _LOG.info("slices are as offered again")
        # What somebody touched while we were at it is looked at next, and only then all is well.
        settled = self._due is None
        self.status = replace(
            self.status, published=settled, last_error=None, slices=len(self._reflector.store)
        )
        if settled:
            self.published.set()
        if self._metrics is not None:
            self._metrics.contact("apiserver")

    def _gauges(self) -> Sequence[Gauge]:
        status = self.status
        return [
            Gauge(
                "slices_published", "1 while the API server has what is offered.", status.published
            ),
            Gauge("slices", "ResourceSlices of this driver on this node.", status.slices),
            *(
                Gauge("pool_generation", "Generation of a pool.", generation, (("pool", pool),))
                for pool, generation in sorted(status.generations.items())
            ),
        ]


async def _failure_of(work: Coroutine[Any, Any, None]) -> KubeError | None:
    """Do the work for one pool; what fails there concerns that pool alone.

    Except when the server cannot be talked to: the other pools would fare no better.
    """
    try:
        await work
    except (ConnectionFailedError, ProtocolError):
        raise
    except KubeError as error:
        return error
    return None


def _pool_of(item: Slice) -> str:
    """The pool a stored slice is in, read without trusting the rest of it to be readable."""
    pool = item.raw["spec"].get("pool")
    name = pool.get("name") if isinstance(pool, dict) else None
    return name if isinstance(name, str) else ""


def _document(stored: Slice, spec: ResourceSliceSpec, owner: OwnerReference) -> dict[str, Any]:
    """The stored slice with another spec and our owner; what others put into its metadata stays."""
    metadata = {
        key: value for key, value in stored.raw["metadata"].items() if key != "managedFields"
    }
    others = [
        reference
        for reference in metadata.get("ownerReferences") or ()
        if not (isinstance(reference, dict) and reference.get("kind") == "Node")
    ]
    return {
        **stored.raw,
        "metadata": {**metadata, "ownerReferences": [*others, to_builtins(owner)]},
        "spec": to_builtins(spec),
    }


def _hint(contents: Sequence[Content]) -> str:
    hints = (hint_for_rejected(content) for content in contents)
    return max(hints, key=lambda text: "gate" in text, default="")


__all__ = [
    "Dropped",
    "NodeMissing",
    "OfferError",
    "Publisher",
    "PublisherStatus",
    "RepairDelays",
]
