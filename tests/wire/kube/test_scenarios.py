"""The scenarios against the fake; ``tests/e2e/test_apiserver.py`` runs them against a real server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from drakit.testing.apiserver import FakeApiServer
from drakit.wire.kube import Client
from tests.wire.kube.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario(scenario: Callable[[Client, str], Awaitable[None]]) -> None:
    async with FakeApiServer() as server, Client(server.cluster()) as client:
        await scenario(client, scenario.__name__.replace("_", "-"))
