"""Local copy of the server's objects, from watch events and from the responses to own writes.

The watch shows an own write only some time after its response. Without the response, the caller would
write again. Every own write is therefore kept, by UID and resource version, until the watch, or a list
begun after the write, includes it.
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
class ObjectChange(Generic[T]):
    """An object was added (no ``before``), changed, or removed (no ``after``)."""

    before: Object[T] | None
    after: Object[T] | None


@dataclass(frozen=True, slots=True)
class _Own:
    """An own write that the watch does not include yet."""

    version: str
    """From the response; empty for a deletion, whose version is unknown."""
    moment: int


Listener = Callable[[ObjectChange[T]], None]


class Store(Generic[T]):
    """Objects by namespace and name; ``listener`` is called for changes by other clients."""

    def __init__(self, listener: Listener[T] | None = None) -> None:
        self._objects: dict[Key, Object[T]] = {}
        self._own: dict[str, _Own] = {}
        self._moment = 0
        self._listed = 0
        self._floor = ""
        self._seen = ""
        self._listener = listener

    def __len__(self) -> int:
        return len(self._objects)

    def objects(self) -> tuple[Object[T], ...]:
        """All objects, ordered by namespace and name."""
        return tuple(self._objects[key] for key in sorted(self._objects))

    def get(self, name: str, namespace: str = "") -> Object[T] | None:
        """The object of that name."""
        return self._objects.get((namespace, name))

    def wrote(self, answer: Object[T]) -> None:
        """Store the response to an own create or update. Does not notify the listener."""
        if _reached(answer.resource_version, self._seen):
            return  # the watch was faster, and the object may be deleted again
        self._moment += 1
        self._objects[answer.key] = answer
        self._own[answer.uid] = _Own(answer.resource_version, self._moment)

    def deleted(self, gone: Object[T]) -> None:
        """Remove an object that was deleted or not found. Does not notify the listener."""
        known = self._objects.get(gone.key)
        if known is not None and known.uid == gone.uid:
            del self._objects[gone.key]
            self._moment += 1
            self._own[gone.uid] = _Own("", self._moment)

    def begin(self) -> int:
        """A mark to get before a list request, for :meth:`merge` and :meth:`replace`."""
        self._moment += 1
        return self._moment

    def merge(self, items: Iterable[Object[T]], version: str, began: int) -> None:
        """Like :meth:`replace`, unless a concurrent watch has seen newer changes."""
        if not _reached(version, self._seen):
            self.replace(items, version, began)

    def replace(self, items: Iterable[Object[T]], version: str, began: int) -> None:
        """Replace all objects by a complete list, requested at *began*, as of *version*.

        Its version may be lower than the latest seen, as after a restore of etcd. Own writes that the
        list cannot contain are kept. A list older than the last one is ignored.
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
        """Apply a watch event."""
        item = event.object
        if not _reached(item.resource_version, self._seen):
            self._seen = item.resource_version
        if event.kind is EventKind.DELETED:
            self._own.pop(item.uid, None)  # UIDs are never reused
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
                return  # from before our write
            del self._own[item.uid]
        self._put(item)

    def _outdated(self, item: Object[T]) -> bool:
        """Whether an event is older than the last list."""
        return _reached(item.resource_version, self._floor)

    def _put(self, item: Object[T]) -> None:
        known = self._objects.get(item.key)
        if known is not None and known.uid != item.uid:
            self._remove(item.key)
            known = None
        if known is not None and known.resource_version == item.resource_version:
            return
        self._objects[item.key] = item
        self._notify(ObjectChange(known, item))

    def _remove(self, key: Key) -> None:
        self._notify(ObjectChange(self._objects.pop(key), None))

    def _notify(self, change: ObjectChange[T]) -> None:
        if self._listener is not None:
            self._listener(change)


def _reached(version: str, by: str) -> bool:
    """Whether the state *by* includes *version*.

    Resource versions are ordered numbers (guaranteed since Kubernetes 1.35, true before). For anything
    else only equality counts.
    """
    if version.isdecimal() and by.isdecimal():
        return int(version) <= int(by)
    return version == by and version != ""
