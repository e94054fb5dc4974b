"""Who writes memory files, told on the Node: once, in time, and without holding anything up."""

from __future__ import annotations

import asyncio
from typing import Any, Self, cast

import pytest

from drakit.drivers.cpumem.qos.events import OwnershipEvents, node_event
from drakit.drivers.cpumem.qos.ownership import Ownership
from drakit.kit.driver import Driver, PreparedClaims
from drakit.wire.kube import EVENTS, AlreadyExistsError, Client, KubeError
from drakit.wire.kube.errors import Failure

YIELDS = Ownership(reasons=("memory.high is the kubelet's",))
TAKEN = AlreadyExistsError(Failure("create", "event", 409, "AlreadyExists", "taken", {}))


class Server:
    """A client and the server behind it."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.tries = 0
        self.rejection: KubeError | None = None

    async def create(self, resource: Any, body: dict[str, Any], *, namespace: str) -> None:
        self.tries += 1
        assert (resource, namespace) == (EVENTS, "default")
        if self.rejection is not None:
            raise self.rejection
        self.events.append(body)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


class Bed:
    """The reconciler with a server, a clock and an ownership that the test sets."""

    def __init__(self) -> None:
        self.server, self.now, self.ownership = Server(), 0.0, Ownership()
        self.reconciler = OwnershipEvents(
            lambda: cast("Client", self.server), "node-1", lambda: self.ownership, lambda: self.now
        )

    async def settle(self) -> None:
        await self.reconciler.reconcile(cast("Driver", None), (), PreparedClaims())
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})


@pytest.fixture
def bed() -> Bed:
    return Bed()


async def test_each_sentence_is_told_once(bed: Bed) -> None:
    await bed.settle()
    assert bed.server.tries == 0
    bed.ownership = YIELDS
    for _ in range(3):
        await bed.settle()
    (event,) = bed.server.events
    assert (event["type"], event["reason"]) == ("Normal", "MemoryQoSYielded")
    assert event["message"] == "memory.high is the kubelet's"
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}


async def test_a_contradiction_is_a_warning(bed: Bed) -> None:
    bed.ownership = Ownership(conflicts=("both write cpuset.mems",))
    await bed.settle()
    assert [(e["type"], e["reason"]) for e in bed.server.events] == [("Warning", "MemoryQoSConflict")]


async def test_a_server_that_is_away_is_asked_again_in_a_minute(bed: Bed) -> None:
    bed.ownership, bed.server.rejection = YIELDS, KubeError("away")
    for _ in range(5):
        await bed.settle()
    assert bed.server.tries == 1
    bed.now, bed.server.rejection = 61.0, None
    await bed.settle()
    assert len(bed.server.events) == 1


async def test_nobody_waits_for_a_server_that_hangs(bed: Bed) -> None:
    answer = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        bed.server.tries += 1
        await answer.wait()

    bed.ownership, bed.server.create = YIELDS, hang  # type: ignore[method-assign]
    for _ in range(3):
        await bed.reconciler.reconcile(cast("Driver", None), (), PreparedClaims())
        await asyncio.sleep(0)
    assert bed.server.tries == 1
    answer.set()


async def test_what_an_earlier_instance_told_is_not_told_again(bed: Bed) -> None:
    bed.ownership, bed.server.rejection = YIELDS, TAKEN
    for _ in range(3):
        bed.now += 100.0
        await bed.settle()
    assert bed.server.tries == 1


def test_equal_events_have_one_name_and_others_another() -> None:
    first, again = (node_event("n", "Normal", "R", "words") for _ in range(2))
    assert first["metadata"]["name"] == again["metadata"]["name"]
    assert first["metadata"]["name"] != node_event("n", "Normal", "R", "else")["metadata"]["name"]
