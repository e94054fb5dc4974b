"""Reflector: lists and watches continuously to keep a :class:`Store` current."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Generic, TypeVar

from drakit.core.log import get_logger
from drakit.wire.kube.backoff import Backoff
from drakit.wire.kube.client import EVERYTHING, WATCH_SECONDS, Client, Selection
from drakit.wire.kube.errors import (
    ApiError,
    DecodeError,
    GoneError,
    KubeError,
    ServerBusyError,
    UnauthorizedError,
)
from drakit.wire.kube.resources import Object, Resource
from drakit.wire.kube.watch.decoder import EventKind, WatchEvent
from drakit.wire.kube.watch.store import Listener, Store

T = TypeVar("T")
_SHORT_WATCH: Final = 1.0
"""A watch that ends earlier without an event counts as a failure."""

log = get_logger(__name__)


class Reflector(Generic[T]):
    """Lists, then watches from there on; lists again on 410.

    ``store`` is complete once ``synced`` is set, and keeps the last known state while the server is
    unreachable. *wanted* filters objects where no selector can; an object that no longer matches is
    removed like a deleted one. An object that cannot be decoded is skipped: it is logged once and
    *undecodable* is called.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        selection: Selection = EVERYTHING,
        *,
        wanted: Callable[[T], bool] | None = None,
        listener: Listener[T] | None = None,
        backoff: Backoff | None = None,
        watch_seconds: int = WATCH_SECONDS,
        undecodable: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._selection = selection
        self._wanted = wanted
        self._backoff = backoff or Backoff()
        self._watch_seconds = watch_seconds
        self._version = ""
        self._failing = False
        self._undecodable = undecodable
        self._skipped: set[str] = set()
        """UIDs of undecodable objects that were logged."""
        self.store: Store[T] = Store(listener)
        self.synced = asyncio.Event()
        self.last_error: KubeError | None = None
        """Why the store may be stale; ``None`` while it is current."""
        self.lists = 0
        self.watches = 0

    async def run(self) -> None:
        """Run until cancelled; server and network errors are retried."""
        while True:
            try:
                if not self._version:
                    await self.refresh()
                healthy = await self._watch()
            except KubeError as error:
                self._failed(error)
            else:
                if healthy:
                    self._backoff.reset()
                    continue
            asked = self.last_error.retry_after if self.last_error else None
            await asyncio.sleep(self._backoff.next(asked))

    async def refresh(self) -> None:
        """List now and update the store; a running watch continues."""
        began = self.store.begin()
        listing = await self._client.list(self._resource, self._selection)
        self.lists += 1
        self._skipped &= {item.uid for item in listing.items}
        items = [item for item in listing.items if self._keeps(item)]
        if self._version:
            self.store.merge(items, listing.resource_version, began)
        else:
            self.store.replace(items, listing.resource_version, began)
            self._version = listing.resource_version
        self._succeeded()
        self.synced.set()

    async def _watch(self) -> bool:
        """Process one watch until it ends; returns whether it was useful."""
        loop = asyncio.get_running_loop()
        began, events = loop.time(), 0
        # The nodes of a cluster should not reconnect at the same time.
        seconds = self._watch_seconds + int(self._watch_seconds * random.random())  # noqa: S311
        self.watches += 1
        stream = self._client.watch(
            self._resource,
            self._selection,
            resource_version=self._version,
            seconds=seconds,
            opened=self._succeeded,
        )
        async with contextlib.aclosing(stream) as following:
            async for event in following:
                if not events:
                    self._backoff.reset()
                events += 1
                self.store.observe(self._seen(event))
                self._version = event.object.resource_version or self._version
        if not events:
            # The server sends a bookmark every minute. Without any event the resource version may be
            # from the future, as after a restore of etcd: the server is silent until it reaches it.
            self._version = ""
        return events > 0 or loop.time() - began >= _SHORT_WATCH

    def _seen(self, event: WatchEvent[T]) -> WatchEvent[T]:
        """The event for the store; an object that is not wanted becomes a deletion."""
        if event.kind is EventKind.DELETED:
            self._skipped.discard(event.object.uid)
        present = event.kind in (EventKind.ADDED, EventKind.MODIFIED)
        if present and not self._keeps(event.object):
            return replace(event, kind=EventKind.DELETED)
        return event

    def _keeps(self, item: Object[T]) -> bool:
        """Whether *item* belongs into the store."""
        if self._wanted is None:
            return True
        try:
            return self._wanted(item.typed)
        except DecodeError as error:
            self._undecodable()
            if item.uid not in self._skipped:
                self._skipped.add(item.uid)
                log.warning("skipped undecodable object", resource=self._resource, error=error)
            return False

    def _failed(self, error: KubeError) -> None:
        # The server may reject our resource version (410, or unknown), so list again; only 429,
        # 503 and 401 do not depend on it.
        if isinstance(error, ApiError) and not isinstance(error, ServerBusyError | UnauthorizedError):
            self._version = ""
        self.last_error = error
        if isinstance(error, GoneError):
            log.info("watch expired, listing again", resource=self._resource, error=error)
        elif not self._failing:
            self._failing = True
            log.warning("cannot watch, retrying", resource=self._resource, error=error)

    def _succeeded(self) -> None:
        self.last_error = None
        if self._failing:
            self._failing = False
            log.info("watching again", resource=self._resource)
