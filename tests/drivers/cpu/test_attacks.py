"""What an audit did to the CPU driver to get two tenants onto one CPU, or everybody off the node.

The driver is the real one, on the fakes. What the fakes believe of runtimes is compared with the real
ones in ``tests/e2e``.
"""

from __future__ import annotations

import os
import time

import msgspec
import pytest

from drakit.core.cpuset import CpuSet
from drakit.core.objects import DeviceRequestAllocationResult
from drakit.drivers.models.cpus import CPU_NUMBERS as CPU
from drakit.testing.kubelet import PrepareError
from drakit.testing.node import SimulatedNode
from drakit.testing.runtime import FakeRuntimeError
from drakit.testing.runtime_releases import (
    CONTAINERD_2_0,
    CONTAINERD_2_2,
    CONTAINERD_2_4,
    CRIO_1_36,
    CRIO_1_37,
    FakeRuntimeRelease,
)
from drakit.wire.kubelet import ClaimError, ClaimRef
from drakit.wire.nri.values import Resources
from tests.drivers.cpu.test_defects import MACHINE, eventually, reconnect, serving, world

KIND = "dra.k8s.io/cpu"
ALL = MACHINE.online
EVERY_KIND = [CONTAINERD_2_2, CONTAINERD_2_4, CRIO_1_36, CRIO_1_37]
individual = {"cpu_device_mode": "individual"}


def cpu(number: int) -> DeviceRequestAllocationResult:
    return DeviceRequestAllocationResult(
        request="r", driver="dra.cpu", pool="node-1", device=f"cpudev{number:03d}"
    )


def ref(node: SimulatedNode, name: str) -> ClaimRef:
    claims = {each["metadata"]["name"]: each for each in node.api.objects("resourceclaims")}
    return ClaimRef("default", name, claims[name]["metadata"]["uid"])


@pytest.mark.parametrize("release", EVERY_KIND, ids=str)
async def test_a_claimed_container_is_pinned_on_every_runtime(release: FakeRuntimeRelease) -> None:
    """CRI-O 1.37 has NRI 0.12 but reports no CDI device names: all ran in the shared pool."""
    async with world(release) as node, serving(node, **individual) as host:
        node.allocate("a", [cpu(2), cpu(3)], consumers=["pa"])
        running = await node.run_pod("pa", {"main": ["a"]})
        assert running.containers["main"].cpus == "2-3"
        with pytest.raises(ClaimError, match="still in use by"):
            await host.preparer.unprepare(ref(node, "a"))


@pytest.mark.parametrize("release", EVERY_KIND, ids=str)
async def test_one_variable_and_a_restart_take_no_cpu_away(release: FakeRuntimeRelease) -> None:
    async with world(release) as node:
        evil = await node.runtime.run_pod("evil", namespace="attacker")
        forged = f"DRA_CLAIM_whatever_x={KIND}"
        limits = Resources(cpus=str(ALL))
        await node.runtime.run(evil.id, "main", env=[forged], resources=limits)
        async with serving(node, **individual) as host:
            assert host.checkpoint.prepared_claims.exclusive(CPU) == CpuSet()
            assert (await node.run_pod("innocent")).containers["main"].cpus == str(ALL)
            node.allocate("c", [cpu(2)], consumers=["p"])
            assert (await node.run_pod("p", {"main": ["c"]})).containers["main"].cpus == "2"


@pytest.mark.parametrize("release", EVERY_KIND, ids=str)
async def test_a_damaged_record_is_not_given_back_while_its_container_runs(
    release: FakeRuntimeRelease,
) -> None:
    async with world(release) as node:
        async with serving(node, **individual) as host:
            claim = node.allocate("a", [cpu(2)], consumers=["pa"])
            running = await node.run_pod("pa", {"main": ["a"]})
            path = host.checkpoint.path(claim.metadata.uid)
        with open(path, "r+b") as file:
            file.seek(200)
            file.write(b"~")
        async with serving(node, **individual) as host:
            with pytest.raises(ClaimError, match="still in use by"):
                await host.preparer.unprepare(ref(node, "a"))
            node.allocate("b", [cpu(2)], consumers=["pb"])
            with pytest.raises(PrepareError, match="held by claim"):
                await node.run_pod("pb", {"main": ["b"]})
            assert running.containers["main"].cpus == "2", "a running container keeps its CPUs"
            await node.runtime.stop(running.containers["main"].id)
            await host.preparer.unprepare(ref(node, "a"))
            await host.preparer.prepare(ref(node, "b"))


@pytest.mark.parametrize("release", EVERY_KIND, ids=str)
async def test_a_lost_record_is_held_until_its_last_container_ended(release: FakeRuntimeRelease) -> None:
    async with world(release) as node:
        async with serving(node, **individual) as host:
            claim = node.allocate("a", [cpu(2)], consumers=["pa"])
            running = await node.run_pod("pa", {"main": ["a"]})
            path = host.checkpoint.path(claim.metadata.uid)
        os.unlink(path)
        async with serving(node, **individual) as host:
            assert host.checkpoint.prepared_claims.exclusive(CPU) == CpuSet([2])
            assert running.containers["main"].cpus == "2"
            await reconnect(node)
            assert host.checkpoint.prepared_claims.exclusive(CPU) == CpuSet([2])
            await node.runtime.remove_pod(running.sandbox_id)
            assert host.checkpoint.prepared_claims.exclusive(CPU) == CpuSet(), "without any unprepare"


async def test_containers_of_the_go_driver_keep_their_cpus_through_the_swap() -> None:
    uid = "11111111-1111-4111-8111-111111111111"
    async with world() as node:
        pod = await node.runtime.run_pod("go", uid="uid-of-go")
        container = await node.runtime.create_unnoticed(
            pod.id, "main", env=[f"DRA_CPUSET_{uid}=0,8"], resources=Resources(cpus="0,8")
        )
        container.value = msgspec.structs.replace(container.value, cdi_devices=(f"{KIND}=claim-{uid}",))
        await node.runtime.start(container.id)
        async with serving(node, **individual) as host:
            assert host.checkpoint.prepared_claims.exclusive(CPU) == CpuSet([0, 8])
            assert container.cpus == "0,8"
            node.allocate("b", [cpu(0)], consumers=["pb"])
            with pytest.raises(PrepareError, match="held by claim"):
                await node.run_pod("pb", {"main": ["b"]})
            with pytest.raises(ClaimError, match="still in use by"):
                await host.preparer.unprepare(ClaimRef("default", "go", uid))
            await node.runtime.remove_pod(pod.id)
            assert (await node.run_pod("plain")).containers["main"].cpus == str(ALL)


@pytest.mark.parametrize("release", EVERY_KIND, ids=str)
async def test_a_running_pod_keeps_its_cpus_when_a_pod_reserved_earlier_comes(
    release: FakeRuntimeRelease,
) -> None:
    async with world(release) as node, serving(node, **individual) as host:
        node.allocate("a", [cpu(2)], consumers=["p1", "p2"])
        second = await node.run_pod("p2", {"main": ["a"]})
        with pytest.raises(FakeRuntimeError, match="belongs to pod default/p2"):
            await node.run_pod("p1", {"main": ["a"]})
        assert second.containers["main"].cpus == "2"
        assert not host.runtime.enforcer.conflicts()


async def test_updates_of_an_answer_that_came_too_late_are_sent_again() -> None:
    """On a runtime that takes no pushes and without cgroups to write, nothing else would heal it."""
    async with world(CONTAINERD_2_0) as node:
        node.runtime._plugins.request_timeout = 2.0
        async with serving(node, **individual, cgroup_root="") as host:
            shared = (await node.run_pod("shared")).containers["main"]
            other = (await node.run_pod("other")).containers["main"]
            node.allocate("b", [cpu(2)], consumers=["pb"])
            await host.preparer.prepare(ref(node, "b"))
            refresh, blocked = host.checkpoint.refresh, []

            def slow() -> bool:  # a slow disk, once
                if not blocked:
                    blocked.append(True)
                    time.sleep(1.8)
                return refresh()

            host.checkpoint.refresh = slow  # type: ignore[method-assign]
            await node.runtime.stop(other.id)
            assert blocked
            pinned = await node.run_pod("pb", {"main": ["b"]})
            assert pinned.containers["main"].cpus == "2"
            assert not CpuSet.parse(shared.cpus) & CpuSet([2])


async def test_a_forged_marker_costs_one_question_not_one_per_event() -> None:
    """Each question may take a second of the two that the runtime waits."""
    async with world(CONTAINERD_2_2) as node, serving(node, **individual) as host:
        claim = node.allocate("a", [cpu(2)], consumers=["pa"])
        await node.run_pod("pa", {"main": ["a"]})
        asked: list[str] = []
        source = host.runtime._reservations._source
        assert source is not None
        get = source.get

        async def counting(namespace: str, name: str) -> object:
            asked.append(name)
            return await get(namespace, name)

        source.get = counting  # type: ignore[method-assign, assignment]
        evil = await node.runtime.run_pod("evil", namespace="attacker")
        for _ in range(5):
            with pytest.raises(FakeRuntimeError, match="not reserved for its pod"):
                await node.runtime.create(evil.id, "main", env=[f"DRA_CLAIM_{claim.metadata.uid}_r={KIND}"])
        assert asked == ["a"]


async def test_crio_is_never_sent_an_unsolicited_update() -> None:
    """CRI-O's NRI 0.11 deadlocks when one meets an event; the kernel is written instead."""
    async with world(CRIO_1_36) as node, serving(node, **individual):
        shared = (await node.run_pod("shared")).containers["main"]
        node.allocate("a", [cpu(2)], consumers=["pa"])
        running = await node.run_pod("pa", {"main": ["a"]})
        assert shared.cpus == str(ALL - CpuSet([2]))
        await node.delete_pod(running)
        await reconnect(node)
        assert not node.runtime.wedged
        await eventually(lambda: shared.cpus == str(ALL))


async def test_after_a_restart_of_crio_the_kernel_counts_not_its_report() -> None:
    """It reports what containers were created with, whatever was updated since."""
    async with world(CRIO_1_36) as node, serving(node, **individual):
        node.allocate("a", [cpu(2)], consumers=["pa"])
        first = await node.run_pod("pa", {"main": ["a"]})
        shared = (await node.run_pod("shared")).containers["main"]  # created without CPU 2
        assert shared.resources.cpus == str(ALL - CpuSet([2]))
        await node.delete_pod(first)
        await node.run_pod("any")
        assert shared.cpus == str(ALL)
        node.runtime.disconnect_plugins()
        await node.runtime.down()
        shared.forget_updates()
        node.allocate("b", [cpu(2)], consumers=["pb"])
        await node.runtime.up()
        await node.runtime.plugin_ready()
        second = await node.run_pod("pb", {"main": ["b"]})
        assert second.containers["main"].cpus == "2"
        assert shared.cpus == str(ALL - CpuSet([2]))
