"""What a driver may do is asked of the API server before it serves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from drakit.kit.config.options import HostOptions
from drakit.kit.preflight import CheckResult, check_api
from drakit.testing.apiserver import FakeApiServer

SLICES = [f"may {verb} resourceslices" for verb in ("list", "watch", "create", "update", "delete")]


def rights(tmp_path: Path, server: FakeApiServer, *, binding: bool) -> list[CheckResult]:
    with server.in_thread():
        server.add("nodes", {"metadata": {"name": "n"}})
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        options = HostOptions(kubeconfig=str(config))
        found = asyncio.run(check_api(options, "n", binding=binding))
    return [each for each in found if each.subject == "rights"]


def test_every_right_that_is_used_is_asked_for(tmp_path: Path) -> None:
    few = rights(tmp_path, FakeApiServer(), binding=False)
    assert [each.detail for each in few] == [*SLICES, "may get resourceclaims"]
    more = rights(tmp_path, FakeApiServer(), binding=True)
    assert [each.detail for each in more] == [
        *SLICES,
        *(f"may {verb} resourceclaims" for verb in ("get", "list", "watch")),
        "may patch resourceclaims/status",
    ]


@pytest.mark.parametrize(("binding", "lacking"), [(True, ["may not watch resourceclaims"]), (False, [])])
def test_a_missing_right_is_named_with_the_way_out(tmp_path: Path, binding: bool, lacking: list[str]) -> None:
    server = FakeApiServer()
    server.forbidden.add(("watch", "resourceclaims"))
    found = [each for each in rights(tmp_path, server, binding=binding) if each.problem]
    assert [each.problem for each in found] == lacking
    assert all("ClusterRole" in each.remedy for each in found)
