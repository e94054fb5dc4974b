from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from drakit.core.objects import ResourceSlice, to_builtins
from drakit.testing import apiserver
from drakit.testing.apiserver import FakeApiServer, Fault, Trouble
from drakit.wire.kube import CLAIMS, SLICES, Backoff, Client, GoneError, ObjectChange, Reflector
from tests.wire.kube.scenarios import selection_of, slice_of

WORD = "w"


class Watcher:
    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.changes: list[ObjectChange[ResourceSlice]] = []
        self.changed = asyncio.Event()
        self.reflector = Reflector(
            client, SLICES, selection_of(WORD), listener=self._told, backoff=Backoff(0.001, 0.01)
        )

    def _told(self, change: ObjectChange[ResourceSlice]) -> None:
        self.changes.append(change)
        self.changed.set()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():
                await asyncio.sleep(0.002)

    def add(self, *names: str) -> str:
        document = to_builtins(slice_of(WORD, *names))
        name: str = self.server.add("resourceslices", document)["metadata"]["name"]
        return name

    def equal(self) -> bool:
        known = {o.name: o.resource_version for o in self.reflector.store.objects()}
        there = self.server.objects("resourceslices", fields=f"spec.driver={WORD}.example.com")
        return known == {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in there}


@contextlib.asynccontextmanager
async def reflecting(server: FakeApiServer) -> AsyncIterator[Watcher]:
    async with server, Client(server.cluster()) as client:
        watcher = Watcher(server, client)
        task = asyncio.create_task(watcher.reflector.run())
        try:
            yield watcher
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_it_lists_and_then_watches() -> None:
    server = FakeApiServer()
    name = server.add("resourceslices", to_builtins(slice_of(WORD, "a")))["metadata"]["name"]
    async with reflecting(server) as watcher:
        await watcher.reflector.synced.wait()
        assert watcher.reflector.store.get(name) is not None
        other = watcher.add("b")
        await watcher.until(watcher.equal)
        server.remove("resourceslices", other)
        server.change("resourceslices", name, {"metadata": {"labels": {"x": "y"}}})
        await watcher.until(watcher.equal)
        assert watcher.reflector.lists == 1
        assert [(c.before is None, c.after is None) for c in watcher.changes] == [
            (True, False),
            (True, False),
            (False, True),
            (False, False),
        ]


async def test_a_broken_watch_continues_at_its_version() -> None:
    server = FakeApiServer()
    async with reflecting(server) as watcher:
        await watcher.reflector.synced.wait()
        watcher.add("a")
        await watcher.until(watcher.equal)
        await watcher.until(lambda: server.watching == 1)
        server.disconnect()
        watcher.add("b")
        await watcher.until(watcher.equal)
        assert watcher.reflector.lists == 1
        assert len(watcher.changes) == 2


async def test_an_expired_watch_continues_at_its_version() -> None:
    server = FakeApiServer()
    async with reflecting(server) as watcher:
        await watcher.until(lambda: server.watching == 1)
        for name in ("a", "b", "c"):
            watcher.add(name)
            await watcher.until(watcher.equal)
            before = watcher.reflector.watches
            server.end_watches()
            await watcher.until(lambda before=before: watcher.reflector.watches > before)
        watcher.add("d")
        await watcher.until(watcher.equal)
        assert watcher.reflector.lists == 1


async def test_a_bookmark_advances_the_version_past_foreign_changes() -> None:
    server = FakeApiServer()
    async with reflecting(server) as watcher:
        await watcher.until(lambda: server.watching == 1)
        for i in range(5):
            server.add("nodes", {"metadata": {"name": f"n{i}"}})
        server.bookmark()
        await watcher.until(lambda: watcher.reflector._version == str(server.table.revision))
        server.compact()
        server.disconnect()
        watcher.add("a")
        await watcher.until(watcher.equal)
        assert watcher.reflector.lists == 1


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_compacted_history_is_listed_again(as_event: bool) -> None:
    server = FakeApiServer()
    async with reflecting(server) as watcher:
        server.gone_as_event = as_event
        name = watcher.add("a")
        await watcher.until(lambda: server.watching == 1 and watcher.equal())
        server.plan(Fault(Trouble.CUT_BEFORE), times=3)
        server.disconnect()
        server.remove("resourceslices", name)
        watcher.add("b")
        server.add("nodes", {"metadata": {"name": "n"}})
        server.compact()
        await watcher.until(watcher.equal)
        assert watcher.reflector.lists == 2
        assert [(c.before is None, c.after is None) for c in watcher.changes] == [
            (True, False),
            (False, True),
            (True, False),
        ]


async def test_a_history_compacted_during_a_watch() -> None:
    server = FakeApiServer()
    async with reflecting(server) as watcher:
        await watcher.until(lambda: server.watching == 1)
        server.add("nodes", {"metadata": {"name": "n"}})
        watcher.add("a")
        server.compact()
        await watcher.until(watcher.equal)
        assert watcher.reflector.lists == 2
        assert watcher.reflector.last_error is None or isinstance(watcher.reflector.last_error, GoneError)


async def test_a_silent_watch_is_not_trusted() -> None:
    """After a restore of etcd a watch from our version says nothing, and no error either."""
    server = FakeApiServer()
    async with reflecting(server) as watcher:
        watcher.add("a")
        await watcher.until(lambda: server.watching == 1 and watcher.equal())
        server.table.revision = 1
        server.table.history.clear()
        for document in server.objects("resourceslices"):
            server.table._objects.pop(("resourceslices", "", document["metadata"]["name"]))
        server.disconnect()
        watcher.add("b")

        def when_watches_end() -> bool:
            server.end_watches()
            return watcher.equal()

        await watcher.until(when_watches_end)


async def test_watching_recovers_after_a_long_outage() -> None:
    server = FakeApiServer()
    async with reflecting(server) as watcher:
        name = watcher.add("a")
        await watcher.until(watcher.equal)
        await server.stop()
        server.remove("resourceslices", name)
        watcher.add("b")
        await watcher.until(lambda: watcher.reflector.last_error is not None)
        assert watcher.reflector.store.get(name) is not None  # as last known
        await server.start()
        await watcher.until(watcher.equal)
        await watcher.until(lambda: watcher.reflector.last_error is None)


async def test_a_forbidden_list_is_retried() -> None:
    server = FakeApiServer()
    server.forbidden.add(("list", "resourceslices"))
    async with reflecting(server) as watcher:
        await watcher.until(lambda: watcher.reflector.last_error is not None)
        assert not watcher.reflector.synced.is_set()
        server.forbidden.clear()
        await watcher.reflector.synced.wait()


async def test_retry_after_is_respected() -> None:
    server = FakeApiServer()
    server.plan(Fault(Trouble.ANSWER, status=503, retry_after=3600), times=1)
    async with reflecting(server) as watcher:
        await watcher.until(lambda: watcher.reflector.last_error is not None)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert len(server.requests) == 1


async def test_a_refresh_during_a_watch_loses_nothing() -> None:
    server = FakeApiServer()
    async with reflecting(server) as watcher:
        await watcher.until(lambda: server.watching == 1)
        for i in range(20):
            name = watcher.add(f"d{i}")
            if i % 3 == 0:
                await watcher.reflector.refresh()
            if i % 4 == 0:
                server.remove("resourceslices", name)
        await watcher.until(watcher.equal)


async def test_with_random_faults_the_store_converges(scale: int) -> None:
    """Anything may go wrong at any request; once it stops, the store is what the server has."""
    for seed in range(6 * scale):
        rng = random.Random(seed)
        server = FakeApiServer(seed=seed)

        def chance(_: object, rng: random.Random = rng) -> Fault | None:
            if rng.random() < 0.5:
                return None
            trouble = rng.choice(list(Trouble))
            return Fault(trouble, status=rng.choice([429, 500, 503]), seconds=0.002)

        async with reflecting(server) as watcher:
            server.chance = chance
            names: list[str] = []
            for _ in range(60):
                what = rng.random()
                if what < 0.4:
                    names.append(watcher.add("a"))
                elif what < 0.6 and names:
                    server.remove("resourceslices", names.pop(rng.randrange(len(names))))
                elif what < 0.7 and names:
                    labels = {"metadata": {"labels": {"r": str(rng.random())}}}
                    server.change("resourceslices", rng.choice(names), labels)
                elif what < 0.8:
                    server.disconnect()
                elif what < 0.85:
                    server.compact()
                elif what < 0.9:
                    server.bookmark()
                await asyncio.sleep(rng.choice([0, 0, 0.002]))
            server.chance = None
            await watcher.until(watcher.equal)


async def test_objects_that_are_not_wanted_are_invisible() -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        told: list[ObjectChange[ResourceSlice]] = []
        reflector = Reflector(
            client,
            SLICES,
            wanted=lambda each: each.metadata.labels.get("whose") == "ours",
            listener=told.append,
            backoff=Backoff(0.001, 0.01),
        )
        names = [
            server.add("resourceslices", to_builtins(slice_of(WORD, "d")))["metadata"]["name"]
            for _ in range(3)
        ]
        first, second, third = names

        def move(name: str, whose: str) -> None:
            server.change("resourceslices", name, {"metadata": {"labels": {"whose": whose}}})

        def known() -> set[str]:
            return {each.name for each in reflector.store.objects()}

        move(first, "ours")
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(60):
                await reflector.synced.wait()
                assert known() == {first}
                move(second, "ours")
                while known() != {first, second}:
                    await asyncio.sleep(0.002)
                move(first, "theirs")
                server.remove("resourceslices", third)
                while known() != {second}:
                    await asyncio.sleep(0.002)
                server.compact()
                server.end_watches()
                move(third_again(server), "ours")
                while len(known()) != 2:
                    await asyncio.sleep(0.002)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        gone = [change.before.name for change in told if change.before and not change.after]
        assert gone == [first], "gone like a deleted one; others were never there"


def third_again(server: FakeApiServer) -> str:
    name: str = server.add("resourceslices", to_builtins(slice_of(WORD, "d")))["metadata"]["name"]
    return name


DEEP = "@" * 8
"""Stands for parameters that are nested 1500 levels deep: the server's own encoder cannot."""


def claim_of(name: str, **spec: object) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def odd_claims() -> dict[str, dict[str, Any]]:
    opaque = {"driver": "nobody.example.com", "parameters": {"a": DEEP}}
    return {
        "deep": claim_of("deep", devices={"config": [{"opaque": opaque}]}),
        "malformed": claim_of("malformed", devices="none"),
    }


@pytest.fixture
def deep_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fake server sends has the levels in it, in lists and in events."""
    levels = "[" * 1500 + "]" * 1500

    def dumps(document: Any) -> str:
        return json.dumps(document).replace(f'"{DEEP}"', levels)

    monkeypatch.setattr(apiserver, "json", SimpleNamespace(dumps=dumps, loads=json.loads))


@pytest.mark.usefixtures("deep_answers")
@pytest.mark.parametrize("odd", ["deep", "malformed"])
async def test_an_undecodable_claim_does_not_hide_others(odd: str, caplog: pytest.LogCaptureFixture) -> None:
    skipped = itertools.count(1)
    server = FakeApiServer()
    server.add("resourceclaims", odd_claims()[odd], namespace="default")
    server.add("resourceclaims", claim_of("first"), namespace="default")
    async with server, Client(server.cluster()) as client:
        reflector = Reflector(
            client,
            CLAIMS,
            wanted=lambda claim: True,
            backoff=Backoff(0.001, 0.01),
            undecodable=lambda: next(skipped),
        )
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(60):
                await reflector.synced.wait()
                assert [each.name for each in reflector.store.objects()] == ["first"]
                assert reflector.last_error is None
                while not server.watching:
                    await asyncio.sleep(0.002)
                label = {"metadata": {"labels": {"x": "y"}}}
                server.change("resourceclaims", odd, label, namespace="default")
                server.add("resourceclaims", claim_of("second"), namespace="default")
                while len(reflector.store) < 2:
                    await asyncio.sleep(0.002)
            assert [each.name for each in reflector.store.objects()] == ["first", "second"]
            assert reflector.lists == 1, "the watch went on"
            assert next(skipped) == 3, "once in the list, once in an event"
            warnings = [r for r in caplog.records if "undecodable" in r.getMessage()]
            assert len(warnings) == 1
            assert f"default/{odd}" in warnings[0].getMessage()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_claim_that_no_longer_decodes_goes_away_and_comes_back() -> None:
    server = FakeApiServer()
    server.add("resourceclaims", claim_of("one", devices={}), namespace="default")
    async with server, Client(server.cluster()) as client:
        reflector = Reflector(client, CLAIMS, wanted=lambda claim: True, backoff=Backoff(0.001, 0.01))
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(60):
                await reflector.synced.wait()
                assert len(reflector.store) == 1
                for devices, there in (("none", 0), ({}, 1)):
                    changed = {"spec": {"devices": devices}}
                    server.change("resourceclaims", "one", changed, namespace="default")
                    while len(reflector.store) != there:
                        await asyncio.sleep(0.002)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
