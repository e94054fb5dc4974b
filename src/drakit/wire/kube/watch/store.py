"""What we know of the server's objects: what the watch told, and what our own writes told first.

The answer to a write is news that the watch brings only later. A store that knew nothing of own
writes would have its user write again; one that forgot them after some time would err in both
directions. Here every own write is kept, by UID and resource version, until the watch (or a list
begun after the write) has caught up with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from drakit.wire.kube.resources import Object
from drakit.wire.kube.watch.decoder import EventKind, WatchEvent

T = TypeVar("T")
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """An object appeared (no ``before``), changed, or went away (no ``after``)."""

    before: Object[T] | None
    after: Object[T] | None


@dataclass(frozen=True, slots=True)
class _Own:
    """An own write the watch has not caught up with."""

    version: str
    """As the server answered; empty for a deletion, whose version it does not tell."""
    moment: int


Listener = Callable[[Change[T]], None]


class Store(Generic[T]):
    """Objects by namespace and name. Changes made by others are told to ``listener``."""

    def __init__(self, listener: Listener[T] | None = None) -> None:
        self._objects: dict[Key, Object[T]] = {}
        self._own: dict[str, _Own] = {}
        self._moment = 0
        self._listed = 0
        self._floor = ""
        self._seen = ""
        self._listener = listener

    # -- reading --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._objects)

    def objects(self) -> tuple[Object[T], ...]:
        """All objects, ordered by namespace and name."""
        return tuple(self._objects[key] for key in sorted(self._objects))

    def get(self, name: str, namespace: str = "") -> Object[T] | None:
        """The object of that name."""
        return self._objects.get((namespace, name))

    @property
    def unconfirmed(self) -> int:
        """How many own writes the watch has not shown yet."""
        return len(self._own)

    # -- own writes -----------------------------------------------------------------------------

    def wrote(self, answer: Object[T]) -> None:
        """Take over the server's answer to an own create or update. Tells nobody."""
        if _reached(answer.resource_version, self._seen):
            return  # the watch was quicker, and has perhaps seen the object go away again
        self._moment += 1
        self._objects[answer.key] = answer
        self._own[answer.uid] = _Own(answer.resource_version, self._moment)

    def deleted(self, gone: Object[T]) -> None:
        """Forget an object after its own deletion, or after finding it gone. Tells nobody."""
        known = self._objects.get(gone.key)
        if known is not None and known.uid == gone.uid:
            del self._objects[gone.key]
            self._moment += 1
            self._own[gone.uid] = _Own("", self._moment)

    # -- what the server tells ------------------------------------------------------------------

    def begin(self) -> int:
        """A mark to take before a list is asked for, and to give to the method that takes it over."""
        self._moment += 1
        return self._moment

    def merge(self, items: Iterable[Object[T]], version: str, began: int) -> None:
        """Take over a complete list, made beside a watch that goes on.

        The watch may have told more by now than the list knows: then there is nothing to learn.
        """
        if not _reached(version, self._seen):
            self.replace(items, version, began)

    def replace(self, items: Iterable[Object[T]], version: str, began: int) -> None:
        """Take over a complete list that was asked for at *began* and is as of *version*.

        It is believed even when its version is lower than what was seen: after a restore of etcd
        it is. Own writes the list cannot contain yet stay. A list asked for before another one that
        was taken over already is ignored.
        """
        if began < self._listed:
            return
        self._listed = began
        listed = {item.key: item for item in items}
        self._own = {
            uid: own
            for uid, own in self._own.items()
            if own.moment > began and not _reached(own.version, version)
        }
        ahead = {o.uid for o in self._objects.values()} & self._own.keys()
        for key, known in list(self._objects.items()):
            if known.uid not in ahead:
                item = listed.get(key)
                if item is None or item.uid != known.uid:
                    self._remove(key)
        self._floor = self._seen = version
        for item in listed.values():
            if item.uid not in self._own:
                self._put(item)

    def observe(self, event: WatchEvent[T]) -> None:
        """Take over one event of the watch."""
        item = event.object
        if not _reached(item.resource_version, self._seen):
            self._seen = item.resource_version
        if event.kind is EventKind.DELETED:
            self._own.pop(item.uid, None)  # also if a list was quicker: no UID ever comes back
        if event.kind is EventKind.BOOKMARK or self._outdated(item):
            return
        if event.kind is EventKind.DELETED:
            known = self._objects.get(item.key)
            if known is not None and known.uid == item.uid:
                self._remove(item.key)
            return
        own = self._own.get(item.uid)
        if own is not None:
            if not own.version or not _reached(own.version, item.resource_version):
                return  # an echo from before our write
            del self._own[item.uid]
        self._put(item)

    def _outdated(self, item: Object[T]) -> bool:
        """Whether an event tells of a time before the last list."""
        return _reached(item.resource_version, self._floor)

    def _put(self, item: Object[T]) -> None:
        known = self._objects.get(item.key)
        if known is not None and known.uid != item.uid:
            self._remove(item.key)
            known = None
        if known is not None and known.resource_version == item.resource_version:
            return
        self._objects[item.key] = item
        self._tell(Change(known, item))

    def _remove(self, key: Key) -> None:
        self._tell(Change(self._objects.pop(key), None))

    def _tell(self, change: Change[T]) -> None:
        if self._listener is not None:
            self._listener(change)


def _reached(version: str, by: str) -> bool:
    """Whether the state *by* includes the write that made *version*.

    Resource versions are etcd revisions: ordered numbers (promised since Kubernetes 1.35, true
    before). Should a server use something else only equality is believed.
    """
    if version.isdecimal() and by.isdecimal():
        return int(version) <= int(by)
    return version == by and version != ""
