"""The names that ``drakit.testing`` exports to driver authors."""

from __future__ import annotations

import inspect

import pytest

import drakit.testing

PUBLIC = {
    "EVERY_RELEASE",
    "ContainerClaim",
    "FakeApiServer",
    "FakeContainer",
    "FakeKubelet",
    "FakePod",
    "FakeRuntime",
    "Fault",
    "PodClaim",
    "PrepareError",
    "RunningPod",
    "FakeRuntimeError",
    "FakeRuntimeRelease",
    "SimulatedNode",
    "Trouble",
    "UnprepareError",
    "build_machine",
    "write_tree",
}


def test_the_public_names_are_exactly_these() -> None:
    assert set(drakit.testing.__all__) == PUBLIC


def test_the_public_names_are_sorted() -> None:
    def kind(name: str) -> int:
        return 0 if name.isupper() else 1 if name[0].isupper() else 2

    assert drakit.testing.__all__ == sorted(PUBLIC, key=lambda name: (kind(name), name))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(drakit.testing, name)
    assert name == "EVERY_RELEASE" or inspect.getdoc(value)
