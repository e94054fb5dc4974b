"""The known defects of CPU drivers on a whole node: the real driver, one test per defect.

Their numbers are those of the other named tests (``test_w…``) beside this file. A simulated node –
kubelet, runtime and API server – runs around the host in this process; the machine is synthetic.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from drakit.core.cpuset import CpuSet
from drakit.core.objects import DeviceRequestAllocationResult, ResourceClaim
from drakit.core.quantity import Quantity
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.cpu.program import program as cpu_program
from drakit.kit.config import settings as configuration
from drakit.kit.host import Host
from drakit.testing.kubelet import ContainerClaim, FakePod, PodClaim, PrepareError, UnprepareError
from drakit.testing.node import SimulatedNode
from drakit.testing.runtime import FakeContainer, FakeRuntimeError
from drakit.testing.runtime_releases import CONTAINERD_1_7, CONTAINERD_2_4, FakeRuntimeRelease
from drakit.testing.stream_server import serving_unix
from drakit.testing.synthetic import build
from drakit.wire.kube import Client

MACHINE = build(sockets=2, cores=4, threads=2)  # nodes 0-3,8-11 and 4-7,12-15
DRIVER = "dra.cpu"
PATIENCE = 60.0

both_releases = pytest.mark.parametrize("release", [CONTAINERD_2_4, CONTAINERD_1_7], ids=str)


# -- the node and its driver -------------------------------------------------------------------


@contextlib.asynccontextmanager
async def world(
    release: FakeRuntimeRelease = CONTAINERD_2_4, name: str = "node-1"
) -> AsyncIterator[SimulatedNode]:
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        node = SimulatedNode(
            directory,
            name=name,
            release=release,
            online_cpus=str(MACHINE.online),
            request_timeout=PATIENCE,  # a busy machine must not look like a dead driver
        )
        async with node:
            yield node


@contextlib.asynccontextmanager
async def running(host: Host) -> AsyncIterator[Host]:
    """The host runs; nothing is said about how far it got. Fails if it ended by itself."""
    task = asyncio.create_task(host.run())
    try:
        yield host
        if task.done():
            task.result()
            pytest.fail("the driver ended by itself")
    finally:
        host.stop()
        await asyncio.wait_for(task, PATIENCE)


@contextlib.asynccontextmanager
async def serving(node: SimulatedNode, **changes: Any) -> AsyncIterator[Host]:
    """The CPU driver on *node*, ready; looking at cgroups only when told to."""
    settings = {**node.settings(), "verify_seconds": 0.0, **changes}
    async with running(host_of(node, CpuConfig(**settings))) as host:
        await ready(host)
        await node.kubelet.registered(DRIVER, seconds=PATIENCE)
        yield host
    await node.kubelet.unregistered(DRIVER, seconds=PATIENCE)


def host_of(node: SimulatedNode, config: CpuConfig) -> Host:
    return node.host(lambda: cpu_driver(config, MACHINE), config)


async def ready(host: Host) -> None:
    await eventually(lambda: set(host.conditions().values()) == {None})


async def eventually(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not look():
            await asyncio.sleep(0.01)


def synchronizations(node: SimulatedNode) -> int:
    return sum(call.method == "Synchronize" and not call.error for call in node.runtime.calls)


async def reconnect(node: SimulatedNode) -> None:
    """The runtime cuts the connection; returns when the driver is synchronized anew."""
    before = synchronizations(node)
    node.runtime.disconnect_plugins()
    await eventually(lambda: synchronizations(node) > before)


# -- claims and containers ---------------------------------------------------------------------


def share(numa_node: int, count: int, pool: str = "node-1") -> DeviceRequestAllocationResult:
    return DeviceRequestAllocationResult(
        request="cpus",
        driver=DRIVER,
        pool=pool,
        device=f"cpudevnuma{numa_node:03d}",
        share_id=str(uuid.uuid4()),
        consumed_capacity={"dra.cpu/cpu": Quantity(count)},
    )


def pod_with(name: str, claim: str) -> FakePod:
    return FakePod(name, claims=(PodClaim(claim, claim),), containers={"main": (ContainerClaim(claim),)})


async def start(
    node: SimulatedNode, pod: str, devices: Sequence[str] = (), env: Sequence[str] = ()
) -> FakeContainer:
    """A pod's sandbox and container; the kubelet asks no driver for it (any more)."""
    sandbox = await node.runtime.run_pod(pod, uid=f"uid-of-{pod}")
    return await node.runtime.run(sandbox.id, "main", cdi_devices=devices, env=env)


def devices_of(node: SimulatedNode, pod: str) -> Sequence[str]:
    return node.kubelet.cdi_devices(f"uid-of-{pod}")["main"]


def held(host: Host, claim: ResourceClaim) -> CpuSet:
    entry = host.checkpoint.prepared_claims.get(claim.metadata.uid)
    assert entry is not None, f"{claim.metadata.name} is forgotten"
    return entry.exclusive("cpu")


def cpus(container: FakeContainer) -> CpuSet:
    return CpuSet.parse(container.cpus)


# -- the defects -------------------------------------------------------------------------------


@both_releases
async def test_w02_a_claim_whose_container_never_ran_survives_restart_and_reconnect(
    release: FakeRuntimeRelease,
) -> None:
    """A driver that rebuilds its state from running containers forgets a prepared claim without one."""
    async with world(release) as node:
        mine = node.allocate("mine", [share(0, 2)], consumers=["p"])
        async with serving(node) as host:
            await node.kubelet.run_pod(pod_with("p", "mine"))
            given = held(host, mine)
            assert len(given) == 2
        async with serving(node) as host:
            assert held(host, mine) == given
            await reconnect(node)
            assert held(host, mine) == given
            other = node.allocate("other", [share(0, 6)], consumers=["q"])
            await node.kubelet.run_pod(pod_with("q", "other"))
            assert held(host, other).isdisjoint(given)
            node.allocate("more", [share(0, 1)], consumers=["r"])
            with pytest.raises(PrepareError):  # all eight CPUs of the device are somebody's
                await node.kubelet.run_pod(pod_with("r", "more"))
            container = await start(node, "p", devices_of(node, "p"))
            assert cpus(container) == given
            asked = [c for c in node.kubelet.calls if mine.metadata.uid in c.uids]
            assert len(asked) == 1, "nobody prepared it again"


@both_releases
async def test_w03_shared_containers_grow_back_when_a_claim_ends(release: FakeRuntimeRelease) -> None:
    """Containers without claims stay squeezed after a claim ended, until some other claim comes."""
    async with world(release) as node, serving(node) as host:
        shared = await start(node, "shared")
        assert cpus(shared) == MACHINE.online
        mine = node.allocate("mine", [share(1, 4)], consumers=["p"])
        pod = await node.run_pod("p", {"main": ["mine"]})
        given = held(host, mine)
        assert cpus(shared) == MACHINE.online - given
        await node.delete_pod(pod)
        if release is CONTAINERD_1_7:  # a push could wedge it: it goes with the next answer
            await start(node, "next")
            assert cpus(shared) == MACHINE.online
            assert not node.runtime.wedged
        else:
            await eventually(lambda: cpus(shared) == MACHINE.online)


async def test_w04_no_claim_is_taken_before_the_runtime_is_synchronized() -> None:
    """A driver registered before it knows the runtime's containers hands out CPUs that are in use."""
    async with world() as node:
        async with serving(node) as host:
            mine = node.allocate("mine", [share(0, 4)], consumers=["p"])
            await node.run_pod("p", {"main": ["mine"]})
            given = held(host, mine)
        await node.runtime.down()
        os.unlink(node.nri_socket)
        connected = asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            await writer.wait_closed()

        config = CpuConfig(**node.settings())
        async with serving_unix(node.nri_socket, mute) as server, running(host_of(node, config)) as host:
            async with asyncio.timeout(PATIENCE):
                await host.publisher.published.wait()
                await connected.wait()  # which alone is not enough
            assert os.listdir(f"{node.kubelet_root}/plugins_registry") == []
            assert host.conditions()["runtime"] is not None
            other = node.allocate("other", [share(0, 4)], consumers=["q"])
            with pytest.raises(PrepareError, match="not registered"):
                await node.kubelet.run_pod(pod_with("q", "other"))
            await server.close()
            await node.runtime.up()
            await node.kubelet.registered(DRIVER, seconds=60.0)
            assert host.conditions()["runtime"] is None
            await eventually(lambda: synchronizations(node) >= 2)  # recorded when the answer arrived
            await node.kubelet.run_pod(pod_with("q", "other"))
            assert held(host, other).isdisjoint(given)


@both_releases
async def test_w05_bad_containers_leave_the_others_served(release: FakeRuntimeRelease) -> None:
    """One container of an unknown claim, or two pods on one claim, keep the driver from starting."""
    async with world(release) as node:
        async with serving(node) as host:
            good = node.allocate("good", [share(0, 2)], consumers=["good"])
            twice = node.allocate("twice", [share(0, 2)], consumers=["first", "second"])
            lost = node.allocate("lost", [share(1, 2)], consumers=["lost"])
            pods = {
                pod: (await node.run_pod(pod, {"main": [claim]})).containers["main"]
                for pod, claim in {"good": "good", "first": "twice", "lost": "lost"}.items()
            }
            given, shared_claim = held(host, good), held(host, twice)
            record = host.checkpoint.path(lost.metadata.uid)
        os.unlink(record)
        second = await start(node, "second", devices_of(node, "first"))
        plain = await start(node, "plain")
        async with serving(node, reserved_cpus=str(given)) as host:  # taken from under the claim
            assert host.runtime.enforcer.conflicts().keys() == {pods["lost"].id, second.id}
            assert cpus(pods["good"]) == given == held(host, good)
            assert cpus(pods["first"]) == shared_claim == held(host, twice)
            kept = cpus(pods["lost"])
            assert len(kept) == 2, "its record is lost, its CPUs are not"
            pool = MACHINE.online - given - shared_claim - kept
            assert cpus(plain) == pool
            assert cpus(second) == pool, "in conflict, and confined all the same"
            new = node.allocate("new", [share(0, 2)], consumers=["new"])
            pod = await node.run_pod("new", {"main": ["new"]})
            assert cpus(pod.containers["main"]) == held(host, new)
            assert held(host, new).isdisjoint(given | shared_claim | kept)
            assert cpus(plain) == pool - held(host, new)
            for count in (6, 1):  # node 1 has eight CPUs, two of them are held for the lost claim
                node.allocate(f"rest-{count}", [share(1, count)], consumers=[f"rest-{count}"])
            rest = await node.run_pod("rest-6", {"main": ["rest-6"]})
            assert cpus(rest.containers["main"]).isdisjoint(kept)
            with pytest.raises(PrepareError):
                await node.run_pod("rest-1", {"main": ["rest-1"]})


@both_releases
async def test_w07_containers_started_while_the_driver_was_away_are_corrected(
    release: FakeRuntimeRelease,
) -> None:
    """What starts without the driver stays unconfined, and a claim's container unpinned, for good."""
    async with world(release) as node:
        async with serving(node) as host:
            mine = node.allocate("mine", [share(1, 4)], consumers=["p"])
            await node.kubelet.run_pod(pod_with("p", "mine"))
            given = held(host, mine)
        claimed = await start(node, "p", devices_of(node, "p"))
        plain = await start(node, "plain")
        assert (claimed.cpus, plain.cpus) == ("", ""), "nobody confined them"
        async with serving(node):
            await eventually(lambda: cpus(claimed) == given)
            await eventually(lambda: cpus(plain) == MACHINE.online - given)
            assert CpuSet.parse(claimed.mems) == CpuSet([1])


async def test_w08_ten_restarts_of_the_runtime_cost_nothing() -> None:
    """A lifetime budget of connection attempts ends the driver after a few runtime restarts."""
    async with world() as node, serving(node) as host:
        mine = node.allocate("mine", [share(0, 2)], consumers=["p"])
        pod = await node.run_pod("p", {"main": ["mine"]})
        given = held(host, mine)
        for _ in range(10):
            before = synchronizations(node)
            await node.runtime.restart()
            await eventually(lambda seen=before: synchronizations(node) > seen)
        for _ in range(10):  # also faster than anybody can synchronize
            before = synchronizations(node)
            await node.runtime.restart()
        await eventually(lambda: synchronizations(node) > before)
        await ready(host)
        assert cpus(pod.containers["main"]) == given
        other = node.allocate("other", [share(0, 2)], consumers=["q"])
        second = await node.run_pod("q", {"main": ["other"]})
        assert cpus(second.containers["main"]) == held(host, other)
        assert held(host, other).isdisjoint(given)
        assert cpus(await start(node, "plain")) == MACHINE.online - given - held(host, other)


async def until_answered(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call as the kubelet does: none is answered while the runtime is not synchronized."""
    while True:
        try:
            await call()
        except (PrepareError, UnprepareError) as error:
            assert "the kubelet retries" in str(error)
            await asyncio.sleep(0.01)
        else:
            return


async def test_w09_prepares_while_the_runtime_synchronizes_lose_nothing() -> None:
    """A state that synchronizing replaces while claims are being prepared loses those claims."""
    async with world() as node, serving(node) as host:
        steady = node.allocate("steady", [share(0, 2)], consumers=["steady"])
        pod = await node.run_pod("steady", {"main": ["steady"]})
        given = held(host, steady)
        enough = asyncio.Event()
        claims = [node.allocate(f"c{n}", [share(n % 2, 2)], consumers=[f"p{n}"]) for n in range(4)]

        async def churn(number: int) -> None:
            mine = pod_with(f"p{number}", f"c{number}")
            while True:
                await until_answered(lambda: node.kubelet.run_pod(mine))
                assert held(host, claims[number]).isdisjoint(given)
                if enough.is_set():
                    return
                await until_answered(lambda: node.kubelet.stop_pod(mine.uid))
                assert host.checkpoint.prepared_claims.get(claims[number].metadata.uid) is None

        async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(churn(number))
            for _ in range(5):
                await reconnect(node)
            enough.set()
        owned = [given, *(held(host, claim) for claim in claims)]
        assert sum(map(len, owned)) == len(CpuSet.union(owned)) == 10, "each CPU is one claim's"
        for number, claim in enumerate(claims):
            container = await start(node, f"p{number}", devices_of(node, f"p{number}"))
            assert cpus(container) == held(host, claim)
        assert cpus(pod.containers["main"]) == given
        assert cpus(await start(node, "plain")) == MACHINE.online - CpuSet.union(owned)


@both_releases
async def test_w10_a_cgroup_changed_by_hand_is_found_and_corrected(release: FakeRuntimeRelease) -> None:
    """Nobody compares cgroups with intent, so what was changed behind the driver's back stays."""
    async with world(release) as node, serving(node) as host:
        shared = await start(node, "shared")
        mine = node.allocate("mine", [share(0, 2)], consumers=["p"])
        pod = await node.run_pod("p", {"main": ["mine"]})
        given = held(host, mine)
        for container in (shared, pod.containers["main"]):
            path = Path(node.cgroup_root) / container.value.cgroups_path.strip("/")
            # No longer than what must be there: unlike the kernel's, this file keeps a longer rest.
            (path / "cpuset.cpus").write_text("0-9\n")
            assert cpus(container) == CpuSet.range(0, 10)
        await host.verify()
        assert cpus(pod.containers["main"]) == given
        assert cpus(shared) == MACHINE.online - given
        assert 'dra_cpu_drift_total{result="found"} 2.0' in host.metrics.exposition().decode()


@both_releases
async def test_w10_an_update_the_runtime_failed_to_make_is_found_and_made(
    release: FakeRuntimeRelease,
) -> None:
    """Runtimes log a failed update and go on: a driver that trusts its answer never learns of it."""
    async with world(release) as node, serving(node) as host:
        shared = await start(node, "shared")
        mine = node.allocate("mine", [share(0, 2)], consumers=["p"])
        node.runtime.online_cpus = CpuSet.range(0, 12)  # what the kernel takes for a moment
        await node.run_pod("p", {"main": ["mine"]})
        assert {container for container, _ in node.runtime.failed_updates} == {shared.id}
        assert cpus(shared) == MACHINE.online - held(host, mine), "two tenants on one core"
        node.runtime.online_cpus = MACHINE.online
        await host.verify()
        assert cpus(shared) == MACHINE.online - held(host, mine)


@both_releases
async def test_w12_variables_of_anothers_claim_give_nothing(release: FakeRuntimeRelease) -> None:
    """Ownership read from a variable lets any pod take a claim that is prepared and not yet started."""
    async with world(release) as node, serving(node) as host:
        mine = node.allocate("mine", [share(0, 2)], consumers=["victim"])
        await node.kubelet.run_pod(pod_with("victim", "mine"))
        given, uid = held(host, mine), mine.metadata.uid
        told = [f"DRA_CPUSET={given}", f"DRA_CPUSET_{uid}={given}"]
        marker = f"DRA_CLAIM_{uid}_cpus=dra.k8s.io/cpu"
        forger = await start(node, "forger", env=told)
        assert cpus(forger) == MACHINE.online - given
        if release is CONTAINERD_1_7:  # the marker is all it tells of claims: it must be rejected
            with pytest.raises(FakeRuntimeError, match="not reserved for its pod default/marked"):
                await start(node, "marked", env=[*told, marker])
        else:
            marked = await start(node, "marked", env=[*told, marker])
            assert cpus(marked) == MACHINE.online - given
        victim = await start(node, "victim", devices_of(node, "victim"))
        assert cpus(victim) == given
        assert victim.env["DRA_CPUSET"] == victim.env[f"DRA_CPUSET_{uid}"] == str(given)


@both_releases
async def test_w12_variables_set_while_the_driver_was_away_give_nothing(release: FakeRuntimeRelease) -> None:
    """A pod that forged a claim's variables while nobody looked is taken for its owner afterwards."""
    async with world(release) as node:
        async with serving(node) as host:
            mine = node.allocate("mine", [share(0, 2)], consumers=["victim"])
            await node.kubelet.run_pod(pod_with("victim", "mine"))
            given, uid = held(host, mine), mine.metadata.uid
        marker = f"DRA_CLAIM_{uid}_cpus=dra.k8s.io/cpu"
        forger = await start(node, "forger", env=[f"DRA_CPUSET_{uid}={given}", marker])
        async with serving(node):
            victim = await start(node, "victim", devices_of(node, "victim"))
            assert cpus(victim) == given
            await eventually(lambda: forger.cpus and cpus(forger) == MACHINE.online - given)


async def test_w14_each_node_has_its_own_configuration(tmp_path: Path) -> None:
    """One configuration for all nodes: reserved CPUs and the mode cannot differ between machines."""
    file = tmp_path / "node-1.yaml"
    file.write_text("reservedCPUs: 0,8\ngroupBy: numanode\n")
    environ = {"DRA_CPU_RESERVED_CPUS": "4-7", "DRA_CPU_CPU_DEVICE_MODE": "individual"}
    async with world() as one, world(name="node-2") as two:
        one.api.add("nodes", {"metadata": {"name": "node-2"}})  # the two are one cluster's
        first = _configured(one, ["--config", str(file)], {})
        second = _configured(two, [], environ)
        other_host = Host(
            lambda: cpu_driver(second, MACHINE), second, node="node-2", client=Client(one.api.cluster())
        )
        async with running(host_of(one, first)) as host, running(other_host):
            await ready(host)
            await ready(other_host)
            slices = {s["spec"]["nodeName"]: s["spec"] for s in one.api.objects("resourceslices")}
            names = {n: sorted(d["name"] for d in s["devices"]) for n, s in slices.items()}
            offered = MACHINE.online - CpuSet.range(4, 8)
            assert names["node-1"] == ["cpudevnuma000", "cpudevnuma001"]
            assert names["node-2"] == [f"cpudev{cpu:03d}" for cpu in offered]
            assert {s["pool"]["name"] for s in slices.values()} == {"node-1", "node-2"}
            assert cpus(await start(one, "plain")) == MACHINE.online - CpuSet([0, 8])
            assert cpus(await start(two, "plain")) == offered
            mine = one.allocate("mine", [share(0, 6)], consumers=["p"])
            pod = await one.run_pod("p", {"main": ["mine"]})
            assert cpus(pod.containers["main"]) == CpuSet.parse("1-3,9-11") == held(host, mine)
            result = DeviceRequestAllocationResult(
                request="cpus", driver=DRIVER, pool="node-2", device="cpudev008"
            )
            theirs = one.allocate("theirs", [result], consumers=["q"])
            await two.kubelet.run_pod(pod_with("q", "theirs"), [theirs])
            assert cpus(await start(two, "q", devices_of(two, "q"))) == CpuSet([8])


def _configured(node: SimulatedNode, arguments: Sequence[str], environ: dict[str, str]) -> CpuConfig:
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in node.settings().items()]
    parser = argparse.ArgumentParser()
    loaded = configuration.load(CpuConfig, parser, [*flags, *arguments], environ, prefix=cpu_program().prefix)
    return loaded.config


async def test_w15_without_the_runtime_the_driver_is_alive_and_not_ready() -> None:
    """Liveness that waits for registration kills the driver, and readiness never turns bad again."""
    async with world() as node:
        await node.runtime.down()
        async with running(host_of(node, CpuConfig(**node.settings()))) as host:
            await eventually(lambda: host.port is not None)
            async with asyncio.timeout(PATIENCE):
                await host.publisher.published.wait()
            assert await _statuses(host) == {"/livez": 200, "/readyz": 503, "/healthz": 503}
            await node.runtime.up()
            await ready(host)
            assert await _statuses(host) == {"/livez": 200, "/readyz": 200, "/healthz": 200}
            await node.runtime.down()
            await eventually(lambda: host.conditions()["runtime"] is not None)
            assert await _statuses(host) == {"/livez": 200, "/readyz": 503, "/healthz": 503}


async def _statuses(host: Host) -> dict[str, int]:
    return {path: await _status(host, path) for path in ("/livez", "/readyz", "/healthz")}


async def _status(host: Host, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    return int(answer.split(b" ", 2)[1])
