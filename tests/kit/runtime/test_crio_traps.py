"""Where CRI-O differs from containerd, one test for each trap a double can show.

The real CRI-O is held against the same statements in ``tests/e2e/test_crio.py``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import ContainerView, DesiredResources, PreparedClaims
from drakit.kit.runtime.enforcer import Enforcer
from drakit.testing.runtime import FakeRuntimeError
from drakit.testing.runtime_releases import EVERY_RELEASE, FakeRuntimeRelease
from drakit.wire.nri import nri_pb2
from drakit.wire.nri.values import (
    NOTHING,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    Resources,
    State,
    update_to,
)
from tests.kit.runtime import test_nri_hooks as test_runtime
from tests.kit.runtime.test_enforcer import synchronize
from tests.kit.runtime.test_nri_hooks import ALL, KIND, POD, Pinner, world

CRIO = [release for release in EVERY_RELEASE if release.name == "cri-o"]
directory = test_runtime.directory
MI = 1 << 20


def marker(uid: str) -> str:
    """The variable by which a container of the claim *uid* is known."""
    return f"{names.marker_variable(names.ClaimRequest(uid, 'r'))}={KIND}"


@pytest.mark.parametrize("release", CRIO, ids=str)
async def test_nothing_is_pushed_while_events_and_claims_cross(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    """A pushed update that meets an event deadlocks CRI-O for good; the fake hangs in the same way."""
    async with world(directory, release) as it:
        shared_pod = await it.runtime.run_pod("web")
        shared = await it.runtime.run(shared_pod.id, "app")

        async def claims() -> None:
            for turn in range(20):
                await it.prepare(f"c{turn}", "2-3")
                await it.host.checkpoint_changed()
                await it.unprepare(f"c{turn}")
                await it.host.checkpoint_changed()

        async def events() -> None:
            for turn in range(20):
                container = await it.runtime.run(shared_pod.id, f"e{turn}")
                await it.runtime.remove(container.id)

        await asyncio.wait_for(asyncio.gather(claims(), events()), 60)
        assert not it.runtime.wedged
        await it.prepare("last", "2-3")
        await it.host.checkpoint_changed()
        assert shared.cpus == "0-7", "it was told without an event: pushed"
        await it.runtime.run(shared_pod.id, "next")
        assert shared.cpus == "0-1,4-7"


@pytest.mark.parametrize("release", CRIO, ids=str)
async def test_a_claim_is_found_although_no_cdi_device_name_is_reported(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    async with world(directory, release) as it:
        devices = await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        pinned = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        assert pinned.cpus == "2-3"
        created = [call for call in it.runtime.calls if call.method == "CreateContainer"]
        assert created, "the fake runtime was called"


@pytest.mark.parametrize("release", CRIO, ids=str)
async def test_a_forged_marker_is_rejected_and_blocks_no_other_pod(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    async with world(directory, release) as it:
        await it.prepare("a", "2-3")
        thief = await it.runtime.run_pod("thief", uid="another-pod")
        with pytest.raises(FakeRuntimeError, match="not reserved for its pod"):
            await it.runtime.create(thief.id, "main", env=[marker("a")])
        honest = await it.runtime.run(thief.id, "honest")
        assert honest.cpus == "0-1,4-7"
        assert it.exclusive_is_exclusive()


@pytest.mark.parametrize("release", CRIO, ids=str)
async def test_containers_get_their_cpus_again_although_cri_o_reports_them_as_created(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    """The sharer is reported as it should be now, and is not: the kernel has its last update."""
    async with world(directory, release, verify_seconds=86400) as it:
        await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("web")
        sharer = await it.runtime.run(pod.id, "sharer")
        assert sharer.cpus == "0-1,4-7"
        await it.unprepare("a")
        await it.runtime.run(pod.id, "next")
        assert it.cpuset_file(sharer).read_text().strip() == "0-7"
        await it.prepare("b", "2-3")
        before = len(it.runtime.calls)
        await it.runtime.restart()
        await it.runtime.plugin_ready()
        assert "Synchronize" in [call.method for call in list(it.runtime.calls)[before:]]
        assert it.cpuset_file(sharer).read_text().strip() == "0-1,4-7"


@pytest.mark.parametrize("release", CRIO, ids=str)
async def test_a_container_that_died_while_cri_o_was_down_holds_no_claim(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    async with world(directory, release) as it:
        devices = await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("db", uid=POD)
        pinned = await it.runtime.run(pod.id, "main", cdi_devices=devices)
        assert it.host.user_of("a") is not None
        await it.runtime.down()
        pinned.set_state(State.STOPPED)
        pinned.remove_cgroup()
        await it.runtime.up()
        await it.runtime.plugin_ready()
        assert it.host.user_of("a") is None
        assert pinned.id not in it.host.enforcer.containers


@pytest.mark.parametrize("release", CRIO, ids=str)
async def test_a_container_that_synchronize_missed_is_corrected_once_it_starts(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    """One that is being created while the driver connects is in no list, and first seen at its start."""
    async with world(directory, release) as it:
        await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("web")
        missed = await it.runtime.create_unnoticed(pod.id, "missed")
        await it.runtime.start(missed.id)
        await asyncio.wait_for(
            test_runtime.until(lambda: it.cpuset_file(missed).read_text().strip() == "0-1,4-7"), 30
        )


@pytest.mark.parametrize("release", CRIO, ids=str)
async def test_a_container_that_must_not_start_and_does_is_confined_at_once(
    directory: Path, release: FakeRuntimeRelease
) -> None:
    """CRI-O starts a container although a plugin returned an error; only its creation can be rejected."""
    async with world(directory, release, verify_seconds=86400) as it:
        await it.prepare("a", "2-3")
        pod = await it.runtime.run_pod("thief", uid="another-pod")
        missed = await it.runtime.create_unnoticed(pod.id, "missed", env=[marker("a")])
        await it.runtime.start(missed.id)
        assert missed.state is State.RUNNING
        await asyncio.wait_for(
            test_runtime.until(lambda: it.cpuset_file(missed).read_text().strip() == "0-1,4-7"), 30
        )


@dataclass(frozen=True)
class Grower(Pinner):
    """Adds two hugepages to what the kubelet asked for."""

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        before = container.hugepage_limits.get("2MB", 0)
        return DesiredResources(cpus=ALL, hugepage_limits={"2MB": before + 4 * MI})


FORGED = {"drakit.dev/wanted": '{"memory_added":0,"hugepages":{"2MB":1099511627776}}'}


def test_a_forged_note_of_the_kubelets_limits_is_not_believed() -> None:
    """CRI-O copies a pod's annotations to its containers; the driver keeps such a note there itself."""
    enforcer = Enforcer(Grower, PreparedClaims, trust_cdi=False)
    pod = PodSandbox(id="p", uid=POD, name="forger", namespace="ns", annotations=FORGED)
    container = NriContainer(
        id="c", pod_id="p", name="main", state=State.RUNNING, annotations=FORGED,
        resources=Resources(cpus="0-7", hugepage_limits={"2MB": 0}),
    )  # fmt: skip
    (update,) = synchronize(enforcer, [pod], [container])
    assert update.resources.hugepage_limits == {"2MB": 4 * MI}


def test_an_update_always_carries_resources() -> None:
    """CRI-O dereferences them without a look and would crash."""
    message = update_to(ContainerUpdate(container_id="c", resources=NOTHING))
    parsed = nri_pb2.ContainerUpdate.FromString(message.SerializeToString())
    assert parsed.HasField("linux")
    assert parsed.linux.HasField("resources")


@dataclass(frozen=True)
class Indifferent(Pinner):
    """Limits nothing."""

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        return DesiredResources()


def test_a_container_without_limits_of_ours_is_never_updated() -> None:
    enforcer = Enforcer(Indifferent, PreparedClaims, trust_cdi=False)
    pod = PodSandbox(id="p", uid=POD, name="web", namespace="ns")
    container = NriContainer(id="c", pod_id="p", name="main", state=State.RUNNING)
    assert synchronize(enforcer, [pod], [container]) == []
    enforcer.mark_unsent(["c"])
    assert enforcer.collect_updates() == []
    assert enforcer.update(pod, container, Resources(shares=512)) == []
