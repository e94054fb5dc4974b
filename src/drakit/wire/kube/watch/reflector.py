"""Keeps a :class:`~drakit.wire.kube.watch.store.Store` equal to what the server has, for ever."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Generic, TypeVar

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
"""A watch that ends in less time than this and told nothing counts as a failure."""

log = logging.getLogger(__name__)


class Reflector(Generic[T]):
    """List, then watch, then watch on from where the last one ended; list again on 410.

    ``store`` is complete once ``synced`` is set, and stays as last known while the server is away.
    *wanted* keeps only such objects, for what no selector of the server can say: one that is not
    wanted any more goes away like one that was deleted. An object that does not decode is not
    wanted: it is logged once, *undecodable* is called, and the others are kept as if it were not
    there.
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
        """UIDs of the objects that were logged as not decodable."""
        self.store: Store[T] = Store(listener)
        self.synced = asyncio.Event()
        self.last_error: KubeError | None = None
        """What keeps us from knowing the present state; ``None`` while all is well."""
        self.lists = 0
        self.watches = 0

    async def run(self) -> None:
        """Reflect until cancelled. Server and network errors never end it."""
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
        """List now and take the result over; a watch under way goes on from where it is."""
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
        """Follow one watch to its end; true when it was of use."""
        loop = asyncio.get_running_loop()
        began, events = loop.time(), 0
        # Not all nodes of a cluster should come back in the same second.
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
            # The server sends a bookmark every minute. A watch that told nothing at all may be one
            # from the future, as after a restore of etcd: the server is silent until it gets there.
            self._version = ""
        return events > 0 or loop.time() - began >= _SHORT_WATCH

    def _seen(self, event: WatchEvent[T]) -> WatchEvent[T]:
        """The event as the store shall take it."""
        if event.kind is EventKind.DELETED:
            self._skipped.discard(event.object.uid)
        present = event.kind in (EventKind.ADDED, EventKind.MODIFIED)
        if present and not self._keeps(event.object):
            return replace(event, kind=EventKind.DELETED)
        return event

    def _keeps(self, item: Object[T]) -> bool:
        """Whether the store shall have *item*."""
        if self._wanted is None:
            return True
        try:
            return self._wanted(item.typed)
        except DecodeError as error:
            self._undecodable()
            if item.uid not in self._skipped:
                self._skipped.add(item.uid)
                log.warning(
                    "%s: skipping an object that does not decode: %s", self._resource, error
                )
            return False

    def _failed(self, error: KubeError) -> None:
        # Whatever the server itself objects to may be our version: too old (410), or
        # none it knows. Only "not now" and "not you" leave it as good as it was.
        if isinstance(error, ApiError) and not isinstance(
            error, ServerBusyError | UnauthorizedError
        ):
            self._version = ""
        self.last_error = error
        if isinstance(error, GoneError):
            log.info("%s: listing again: %s", self._resource, error)
        elif not self._failing:
            self._failing = True
            log.warning("%s: cannot follow, will keep trying: %s", self._resource, error)

    def _succeeded(self) -> None:
        self.last_error = None
        if self._failing:
            self._failing = False
            log.info("%s: following again", self._resource)
