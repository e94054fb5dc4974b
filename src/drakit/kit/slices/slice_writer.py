"""Writes of ResourceSlices, with detection of the fields that the API server drops."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from drakit.core.log import get_logger
from drakit.core.objects import ObjectMeta, OwnerReference, ResourceSlice, ResourceSliceSpec, to_builtins
from drakit.kit.slices.dropped_fields import find_dropped
from drakit.kit.slices.layout import Content, Slice
from drakit.kit.slices.pool_plan import PoolPlan
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.kube import SLICES, Client, NotFoundError, Store

log = get_logger(__name__)

T = TypeVar("T")


class SliceWriter:
    """Executes plans, and records what the server makes of the slices it is sent."""

    def __init__(self, client: Client, store: Store[ResourceSlice], metrics: HostMetrics | None) -> None:
        self._client = client
        self._store = store
        self._metrics = metrics
        self._altered: dict[tuple[str, int], tuple[Content, Content]] = {}
        """By pool and index: content that was sent, and what the server stored instead."""
        self._generations: dict[str, int] = {}
        self.writes: Counter[str] = Counter()
        """Successful writes by operation: create, update, delete."""

    def expected(self, pool: str, index: int, content: Content) -> Content:
        """What the server stores for *content*, as far as known: without the fields it drops."""
        sent, got = self._altered.get((pool, index), (content, content))
        return got if sent == content else content

    def highest_generation(self, pool: str) -> int:
        """The highest generation of *pool* that was written, even if it was deleted since."""
        return self._generations.get(pool, 0)

    def forget(self, pool: str) -> None:
        """Drop everything known about a pool that is no longer offered."""
        self._generations.pop(pool, None)
        for key in [key for key in self._altered if key[0] == pool]:
            del self._altered[key]

    async def write(
        self, pool: str, plan: PoolPlan, contents: Sequence[Content], owner: OwnerReference
    ) -> None:
        """Execute *plan*; raises the first error."""
        if plan.empty:
            return
        for item in plan.deletes:
            await self._delete(item)
        for update in plan.updates:
            body = _updated(update.stored, update.spec, owner)
            request = self._client.update(SLICES, body, name=update.stored.name)
            self._record(pool, update.index, contents, await self._counted("update", request))
        for create in plan.creates:
            metadata = ObjectMeta(generate_name=create.generate_name, owner_references=(owner,))
            request = self._client.create(SLICES, ResourceSlice(metadata=metadata, spec=create.spec))
            self._record(pool, create.index, contents, await self._counted("create", request))
        log.info(
            "published ResourceSlices",
            pool=pool,
            generation=plan.generation,
            slices=len(contents),
            devices=sum(len(content.devices) for content in contents),
            created=len(plan.creates),
            updated=len(plan.updates),
            deleted=len(plan.deletes),
        )

    async def _delete(self, item: Slice) -> None:
        request = self._client.delete(SLICES, item.name, uid=item.uid, resource_version=item.resource_version)
        with contextlib.suppress(NotFoundError):
            await self._counted("delete", request)
        self._store.deleted(item)

    async def _counted(self, operation: str, request: Awaitable[T]) -> T:
        result = "error"
        try:
            answer = await request
            result = "success"
            self.writes[operation] += 1
        finally:
            if self._metrics is not None:
                self._metrics.slice_writes.labels(operation, result).inc()
        return answer

    def _record(self, pool: str, index: int, contents: Sequence[Content], answer: Slice) -> None:
        """Compare the server's response with what was sent; report dropped fields once."""
        self._store.wrote(answer)
        sent, spec = contents[index], answer.typed.spec
        self._generations[pool] = max(self.highest_generation(pool), spec.pool.generation)
        got = Content(devices=spec.devices, shared_counters=spec.shared_counters)
        dropped = find_dropped(pool, sent, got)
        known = self._altered.pop((pool, index), None)
        if not dropped:
            return
        self._altered[(pool, index)] = (sent, got)
        if known is not None and known[0] == sent:
            return
        for item in dropped:
            log.warning(
                "API server dropped a ResourceSlice field",
                pool=pool,
                field=item.field,
                gate=item.gate,
                count=len(item.devices),
                devices=", ".join(item.devices[:3]),
                reason=item.reason,
            )


def _updated(stored: Slice, spec: ResourceSliceSpec, owner: OwnerReference) -> dict[str, Any]:
    """The stored slice with another spec and our owner; other metadata is kept."""
    metadata = {key: value for key, value in stored.raw["metadata"].items() if key != "managedFields"}
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
