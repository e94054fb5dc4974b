"""The store under every interleaving of own writes, watch events and lists."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drakit.core.objects import ResourceSlice
from drakit.wire.kube import SLICES, EventKind, Object, ObjectChange, Store, WatchEvent

Item = Object[ResourceSlice]


def item(name: str, uid: str, version: int) -> Item:
    metadata = {"name": name, "uid": uid, "resourceVersion": str(version)}
    return Object(SLICES, {"metadata": metadata})


class StoreMachine(RuleBasedStateMachine):
    """A server with a log, a watch that lags behind it, and answers to writes that lag, too."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[ObjectChange[ResourceSlice]] = []
        self.store: Store[ResourceSlice] = Store(self.changes.append)
        self.revision = 10
        self.server: dict[str, Item] = {}
        self.log: list[WatchEvent[ResourceSlice]] = []
        self.watched = 0
        self.answers: list[tuple[str, Item]] = []
        self.lists: list[tuple[list[Item], int, int]] = []
        self.uids: Iterator[int] = iter(range(10**9))
        self.seen: dict[str, int] = {}
        self.gone: set[str] = set()

    @initialize()
    def first_list(self) -> None:
        self.store.replace((), str(self.revision), self.store.begin())

    def _put(self, name: str) -> Item:
        self.revision += 1
        old = self.server.get(name)
        uid = old.uid if old else f"u{next(self.uids)}"
        new = item(name, uid, self.revision)
        self.server[name] = new
        kind = EventKind.MODIFIED if old else EventKind.ADDED
        self.log.append(WatchEvent(kind, new))
        return new

    def _delete(self, name: str) -> Item:
        self.revision += 1
        old = self.server.pop(name)
        self.log.append(WatchEvent(EventKind.DELETED, item(name, old.uid, self.revision)))
        return old

    @rule(name=st.sampled_from("abc"))
    def somebody_writes(self, name: str) -> None:
        self._put(name)

    @rule(name=st.sampled_from("abc"))
    def somebody_deletes(self, name: str) -> None:
        if name in self.server:
            self._delete(name)

    @rule(name=st.sampled_from("abc"))
    def we_write(self, name: str) -> None:
        self.answers.append(("write", self._put(name)))

    @rule(name=st.sampled_from("abc"))
    def we_delete(self, name: str) -> None:
        """Only what we know, and with its UID as precondition."""
        known = self.store.get(name)
        if known is not None and name in self.server and self.server[name].uid == known.uid:
            self.answers.append(("delete", self._delete(name)))

    @precondition(lambda self: self.answers)
    @rule()
    def the_answer_arrives(self) -> None:
        kind, thing = self.answers.pop(0)
        if kind == "write":
            self.store.wrote(thing)
        else:
            self.store.deleted(thing)
            self.gone.add(thing.uid)

    @precondition(lambda self: self.watched < len(self.log))
    @rule()
    def the_watch_tells(self) -> None:
        self.store.observe(self.log[self.watched])
        self.watched += 1

    @rule()
    def a_list_is_asked_for_and_made(self) -> None:
        self.lists.append((list(self.server.values()), self.revision, self.store.begin()))

    @precondition(lambda self: self.lists)
    @rule()
    def the_list_arrives(self) -> None:
        """Beside the watch that goes on, in any order with other lists."""
        at = self.revision % len(self.lists)
        items, revision, began = self.lists.pop(at)
        self.store.merge(items, str(revision), began)

    @rule()
    def the_watch_is_lost_and_everything_listed_anew(self) -> None:
        began = self.store.begin()
        self.store.replace(list(self.server.values()), str(self.revision), began)
        self.watched = len(self.log)

    @invariant()
    def what_was_seen_never_gets_older(self) -> None:
        for thing in self.store.objects():
            version = int(thing.resource_version)
            assert version >= self.seen.get(thing.uid, 0)
            self.seen[thing.uid] = version

    @invariant()
    def what_we_deleted_never_comes_back(self) -> None:
        assert not {thing.uid for thing in self.store.objects()} & self.gone

    def teardown(self) -> None:
        while self.answers:
            self.the_answer_arrives()
        self.lists.clear()
        while self.watched < len(self.log):
            self.the_watch_tells()
        known = {thing.name: (thing.uid, thing.resource_version) for thing in self.store.objects()}
        assert known == {n: (o.uid, o.resource_version) for n, o in self.server.items()}
        assert len(self.store._own) == 0


TestStore = StoreMachine.TestCase
TestStore.settings = settings(stateful_step_count=40)


def test_after_a_restore_a_lower_version_is_accepted() -> None:
    store: Store[ResourceSlice] = Store()
    store.replace((item("a", "u1", 90), item("b", "u2", 95)), "100", store.begin())
    store.replace((item("a", "u1", 40),), "50", store.begin())
    assert [(o.name, o.resource_version) for o in store.objects()] == [("a", "40")]
    store.observe(WatchEvent(EventKind.MODIFIED, item("a", "u1", 51)))
    assert [(o.name, o.resource_version) for o in store.objects()] == [("a", "51")]


def test_a_list_overtaken_by_a_later_one_is_ignored() -> None:
    store: Store[ResourceSlice] = Store()
    first, second = store.begin(), store.begin()
    store.replace((item("a", "u1", 20),), "20", second)
    store.replace((), "10", first)
    assert len(store) == 1


def test_own_writes_do_not_notify_the_listener() -> None:
    changes: list[ObjectChange[ResourceSlice]] = []
    store: Store[ResourceSlice] = Store(changes.append)
    store.replace((), "10", store.begin())
    mine = item("a", "u", 11)
    store.wrote(mine)
    store.observe(WatchEvent(EventKind.ADDED, mine))
    store.deleted(mine)
    store.observe(WatchEvent(EventKind.DELETED, item("a", "u", 12)))
    assert changes == []
    assert len(store) == 0
    assert len(store._own) == 0


def test_an_object_deleted_before_its_create_response_stays_deleted() -> None:
    store: Store[ResourceSlice] = Store()
    store.replace((), "10", store.begin())
    mine = item("a", "u", 11)
    store.observe(WatchEvent(EventKind.ADDED, mine))
    store.observe(WatchEvent(EventKind.DELETED, item("a", "u", 12)))
    store.wrote(mine)
    assert len(store) == 0


def test_a_recreated_object_is_a_removal_and_an_addition() -> None:
    changes: list[ObjectChange[ResourceSlice]] = []
    store: Store[ResourceSlice] = Store(changes.append)
    old, new = item("a", "u1", 11), item("a", "u2", 13)
    store.replace((old,), "11", store.begin())
    store.replace((new,), "13", store.begin())
    assert [(c.before, c.after) for c in changes] == [(None, old), (old, None), (None, new)]
    assert store.get("a") is new


@given(st.sampled_from(["x", "v1", ""]))
def test_versions_that_are_not_numbers_are_compared_for_equality(version: str) -> None:
    store: Store[ResourceSlice] = Store()
    store.replace((), version, store.begin())
    metadata = {"name": "a", "uid": "u", "resourceVersion": "w"}
    mine: Item = Object(SLICES, {"metadata": metadata})
    store.wrote(mine)
    assert len(store._own) == 1
    store.observe(WatchEvent(EventKind.ADDED, mine))
    assert len(store._own) == 0
    assert len(store) == 1


def test_a_deletion_seen_in_a_list_is_confirmed_by_its_event() -> None:
    store: Store[ResourceSlice] = Store()
    store.replace([item("a", "u", 12)], "12", store.begin())
    began = store.begin()
    store.deleted(item("a", "u", 12))
    store.merge([], "13", began)
    store.observe(WatchEvent(EventKind.DELETED, item("a", "u", 13)))
    assert len(store._own) == 0
