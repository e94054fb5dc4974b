"""The whole host against the fakes: what a node's operator sees."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Device, DeviceRequestAllocationResult
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import (
    Assignment,
    Claim,
    ContainerView,
    DesiredResources,
    Offer,
    PoolOffer,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
)
from drakit.kit.host import Host
from drakit.testing.kubelet import ContainerClaim, FakePod, PodClaim, PrepareError
from drakit.testing.node import SimulatedNode
from drakit.testing.runtime import FakeRuntimeError
from drakit.testing.runtime_releases import CONTAINERD_1_7, CONTAINERD_2_4, FakeRuntimeRelease
from drakit.wire.nri.values import ContainerUpdate

ALL = CpuSet.range(0, 8)


@dataclass(frozen=True)
class Pairs:
    """Hands out pairs of CPUs: device ``pair-1`` is CPUs 2-3. Everybody else shares the rest."""

    count: int = 4
    name: str = "pairs.example.org"
    cdi_kind: str = "example.org/pair"
    cpuset_kinds: frozenset[str] = frozenset({"cpu"})

    def offer(self) -> Offer:
        return Offer((PoolOffer(tuple(Device(name=f"pair-{n}") for n in range(self.count))),))

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        prepared_devices = []
        for one in claim.devices:
            number = int(one.device.removeprefix("pair-"))
            if number >= self.count:
                raise RejectedError(f"no {one.device} here", reason="unknown-device")
            cpus = CpuSet([2 * number, 2 * number + 1])
            prepared_devices.append(
                PreparedDevice(
                    request=one.base_request,
                    pool=one.pool,
                    device=one.device,
                    exclusive={"cpu": cpus},
                    env={f"PAIR_{number}": str(cpus)},
                )
            )
        return Assignment(tuple(prepared_devices))

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        mine = CpuSet.union(g.exclusive["cpu"] for use in container.uses for g in use.devices)
        return DesiredResources(cpus=mine or ALL - prepared_claims.exclusive("cpu"))


def pair(number: int, request: str = "r") -> DeviceRequestAllocationResult:
    return DeviceRequestAllocationResult(
        request=request, driver="pairs.example.org", pool="node-1", device=f"pair-{number}"
    )


@contextlib.asynccontextmanager
async def world(release: FakeRuntimeRelease = CONTAINERD_2_4) -> AsyncIterator[SimulatedNode]:
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        async with SimulatedNode(directory, release=release, online_cpus="0-7") as node:
            yield node


@contextlib.asynccontextmanager
async def serving(node: SimulatedNode, driver: Pairs | None = None, **changes: object) -> AsyncIterator[Host]:
    options = HostOptions(**{**node.settings(), **changes})  # type: ignore[arg-type]
    chosen = driver or Pairs()
    host = node.host(lambda: chosen, options)
    task = asyncio.create_task(host.run())
    try:
        ready = asyncio.create_task(host.publisher.published.wait())
        done, _ = await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        ready.cancel()
        if task in done:
            task.result()
        await node.kubelet.registered(chosen.name)
        yield host
    finally:
        host.stop()
        await asyncio.wait_for(task, 60)


@contextlib.asynccontextmanager
async def at_work(host: Host) -> AsyncIterator[Host]:
    """The host runs, however far it gets, and is stopped also when the test fails."""
    task = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        host.stop()
        await asyncio.wait_for(task, 60)


async def eventually(look, what: str, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not look():
            await asyncio.sleep(0.01)
    assert look(), what


@pytest.mark.parametrize("release", [CONTAINERD_2_4, CONTAINERD_1_7], ids=str)
async def test_a_claim_from_kubelet_to_container_and_back(release: FakeRuntimeRelease) -> None:
    async with world(release) as node, serving(node) as host:
        shared = await node.run_pod("shared")
        assert shared.containers["main"].cpus == "0-7"
        node.allocate("c", [pair(1)], consumers=["p"])
        running = await node.run_pod("p", {"main": ["c"]})
        assert running.containers["main"].cpus == "2-3"
        assert running.containers["main"].env["PAIR_1"] == "2-3"
        assert shared.containers["main"].cpus == "0-1,4-7"
        again = await node.restart_container(running, "main")
        assert again.cpus == "2-3"
        await node.delete_pod(running)
        assert len(host.checkpoint.prepared_claims) == 0
        if release.nri >= (0, 12, 1):
            await eventually(lambda: shared.containers["main"].cpus == "0-7", "grown back")
        else:  # goes with the next answer
            await node.run_pod("next")
            assert shared.containers["main"].cpus == "0-7"
        assert os.listdir(node.cdi_dir) == []


async def test_slices_are_published_and_come_back_after_a_wipe() -> None:
    async with world() as node, serving(node):
        (first,) = node.api.objects("resourceslices")
        assert [d["name"] for d in first["spec"]["devices"]] == [f"pair-{n}" for n in range(4)]
        assert first["metadata"]["ownerReferences"][0]["kind"] == "Node"
        node.api.wipe_slices("node-1")
        await eventually(lambda: node.api.objects("resourceslices") != [], "slices back")


async def test_readiness_tells_the_truth() -> None:
    async with world() as node, serving(node) as host:
        await eventually(lambda: set(host.conditions().values()) == {None}, "ready")
        await node.runtime.down()
        await eventually(lambda: host.conditions()["runtime"] is not None, "not ready")
        await node.runtime.up()
        await eventually(lambda: host.conditions()["runtime"] is None, "ready again")
        metrics = host.metrics.exposition().decode()
        assert 'pairs_example_org_ready{condition="runtime"} 1.0' in metrics


async def test_not_registered_before_the_runtime_is_synchronized() -> None:
    async with world() as node:
        await node.runtime.down()
        options = HostOptions(**node.settings())
        host = node.host(Pairs, options)
        async with at_work(host):
            await host.publisher.published.wait()
            assert not host.plugin.registered.is_set()
            assert not [n for n in os.listdir(f"{node.kubelet_root}/plugins_registry") if "reg" in n]
            await node.runtime.up()
            await node.kubelet.registered("pairs.example.org")
        assert os.listdir(f"{node.kubelet_root}/plugins_registry") == []


async def test_nri_may_be_off_when_configured_so() -> None:
    async with world() as node:
        await node.runtime.down()
        os.unlink(node.nri_socket)
        async with serving(node, nri="optional") as host:
            assert host.runtime.problem is None
        async with serving(node, nri="off") as host:
            assert host.runtime.status.state == "off"


async def test_a_restart_loses_nothing_and_corrects_what_happened_meanwhile() -> None:
    async with world() as node:
        async with serving(node):
            node.allocate("c", [pair(0)], consumers=["p"])
            running = await node.run_pod("p", {"main": ["c"]})
        stranger = await node.run_pod("meanwhile")
        assert stranger.containers["main"].cpus == "", "nobody confined it"
        for name in os.listdir(node.cdi_dir):
            os.unlink(f"{node.cdi_dir}/{name}")
        async with serving(node):
            assert running.containers["main"].cpus == "0-1"
            await eventually(lambda: stranger.containers["main"].cpus == "2-7", "confined")
            assert len(os.listdir(node.cdi_dir)) == 1, "CDI spec rebuilt"
            with pytest.raises(PrepareError, match="is held by claim default/c"):
                node.allocate("d", [pair(0)], consumers=["q"])
                await node.run_pod("q", {"main": ["d"]})


async def test_two_instances_hand_over() -> None:
    async with world() as node, serving(node, pod_uid="one") as first:
        options = HostOptions(**{**node.settings(), "pod_uid": "two"})
        second = node.host(Pairs, options)
        async with at_work(second):
            await node.kubelet.registered("pairs.example.org", instances=2)
            assert (first.runtime.status.state, second.runtime.status.state) == ("synchronized", "standby")
            await eventually(lambda: set(second.conditions().values()) == {None}, "standby is ready")
            shared = await node.run_pod("shared")
            node.allocate("c", [pair(1)], consumers=["p"])
            running = await node.run_pod("p", {"main": ["c"]})  # the newest instance prepares
            assert running.containers["main"].cpus == "2-3"
            assert shared.containers["main"].cpus == "0-1,4-7"
            first.stop()
            await eventually(lambda: second.runtime.status.state == "synchronized", "taken over")
            await node.kubelet.registered("pairs.example.org", instances=1)
            await node.delete_pod(running)
            await eventually(lambda: shared.containers["main"].cpus == "0-7", "grown back")


async def test_a_claim_is_prepared_when_others_have_left_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an older update, which gives the CPUs to others, has been carried out by then."""
    async with world() as node, serving(node) as host:
        shared = (await node.run_pod("shared", {"main": []})).containers["main"]
        node.allocate("old", [pair(1)], consumers=["p"])
        running = await node.run_pod("p", {"main": ["old"]})
        reached, go = asyncio.Event(), asyncio.Event()
        push = host.runtime.plugin.push

        async def slow(updates: Sequence[ContainerUpdate]) -> None:
            reached.set()
            await go.wait()  # as if the runtime held its lock
            await push(updates)

        monkeypatch.setattr(host.runtime.plugin, "push", slow)
        await node.delete_pod(running)
        await reached.wait()  # the update that gives all CPUs back is on its way
        node.allocate("new", [pair(1)], consumers=["q"])
        starting = asyncio.create_task(node.run_pod("q", {"main": ["new"]}))
        await eventually(
            lambda: [entry.name for entry in host.checkpoint.prepared_claims] == ["new"], "assigned"
        )
        await asyncio.sleep(0.2)  # that nothing happens can only be seen by waiting
        assert not starting.done()
        assert "q" not in {pod.name for pod in node.runtime.pods.values()}
        go.set()
        pinned = (await starting).containers["main"]
        assert (pinned.cpus, shared.cpus) == ("2-3", "0-1,4-7")


async def test_a_runtime_that_hangs_does_not_keep_claims_from_being_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as node, serving(node) as host:
        await node.run_pod("shared", {"main": []})
        go = asyncio.Event()

        async def hang(updates: Sequence[ContainerUpdate]) -> None:
            await go.wait()

        monkeypatch.setattr(host.runtime.plugin, "push", hang)
        node.allocate("c", [pair(1)], consumers=["p"])
        running = await node.run_pod("p", {"main": ["c"]})
        assert running.containers["main"].cpus == "2-3"
        go.set()


async def test_a_rejection_reaches_the_pod_in_words() -> None:
    async with world() as node, serving(node) as host:
        node.allocate("c", [pair(9)], consumers=["p"])
        with pytest.raises(PrepareError, match="no pair-9 here"):
            await node.run_pod("p", {"main": ["c"]})
        sandbox = await node.runtime.run_pod("forger", uid="uid-of-forger")
        unknown = "example.org/pair=claim-nobody_r"
        with pytest.raises(FakeRuntimeError, match="unresolvable CDI devices"):
            await node.runtime.run(sandbox.id, "main", cdi_devices=[unknown])
        metrics = host.metrics.exposition().decode()
        assert 'pairs_example_org_prepare_claims_total{result="error"} 1.0' in metrics


async def test_drift_in_a_cgroup_is_found_and_corrected() -> None:
    async with world() as node, serving(node, verify_seconds=0.0) as host:
        node.allocate("c", [pair(1)], consumers=["p"])
        running = await node.run_pod("p", {"main": ["c"]})
        path = Path(node.cgroup_root) / running.containers["main"].value.cgroups_path.strip("/")
        assert (path / "cpuset.cpus").read_text().strip() == "2-3"
        (path / "cpuset.cpus").write_text("0-7\n")
        await host.verify()
        assert (path / "cpuset.cpus").read_text().strip() == "2-3"
        assert 'drift_total{result="found"} 1.0' in host.metrics.exposition().decode()


async def test_hotplug_publishes_anew() -> None:
    size = [4]
    async with world() as node:
        host = node.host(lambda: Pairs(size[0]), HostOptions(**node.settings()))
        async with at_work(host):
            await host.publisher.published.wait()
            size[0] = 2
            await host.rediscover()
            await host.publisher.published.wait()
            (only,) = node.api.objects("resourceslices")
            assert len(only["spec"]["devices"]) == 2


def toy_source() -> str:
    text = (Path(__file__).parents[2] / "docs/developers/writing-a-driver.md").read_text()
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    return found[1]


def test_the_toy_driver_of_the_docs_is_short() -> None:
    lines = [line for line in toy_source().splitlines() if line.strip()]
    assert len(lines) <= 60


async def test_the_toy_driver_of_the_docs_serves(tmp_path: Path) -> None:
    toy = tmp_path / "toy.py"
    toy.write_text(toy_source())
    preview = subprocess.run(
        [sys.executable, str(toy), "--seats", "2", "--hostname-override", "node-1", "--dry-run"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert preview.stdout.count("name: seat-") == 2
    async with world() as node:
        program = await asyncio.create_subprocess_exec(
            sys.executable, str(toy), *node.arguments(), stderr=asyncio.subprocess.PIPE
        )
        try:
            await node.kubelet.registered("seats.example.org")
            result = DeviceRequestAllocationResult(
                request="r", driver="seats.example.org", pool="node-1", device="seat-2"
            )
            node.allocate("c", [result], consumers=["p"])
            running = await node.run_pod("p", {"main": ["c"]})
            assert running.containers["main"].env["SEAT_2"] == "yours"
            await node.delete_pod(running)
        finally:
            program.terminate()
            _, log = await program.communicate()
        assert program.returncode == 0, log.decode()
        assert b"stopped" in log


# -- claims that end before their containers ----------------------------------------------------------


@pytest.mark.parametrize("release", [CONTAINERD_2_4, CONTAINERD_1_7], ids=str)
async def test_a_claim_is_not_given_back_while_a_container_runs_on_it(release: FakeRuntimeRelease) -> None:
    async with world(release) as node, serving(node) as host:
        shared = await node.run_pod("shared")
        node.allocate("c", [pair(1)], consumers=["p"])
        running = await node.run_pod("p", {"main": ["c"]})
        node.kubelet.forget_pod(running.uid)  # deleted by force: its containers go on
        await node.kubelet.reconcile()
        assert len(host.checkpoint.prepared_claims) == 1
        assert shared.containers["main"].cpus == "0-1,4-7"
        node.allocate("d", [pair(1)], consumers=["q"])
        with pytest.raises(PrepareError, match=r"default/c"):
            await node.run_pod("q", {"main": ["d"]})
        await node.runtime.stop(running.containers["main"].id)
        await node.kubelet.reconcile()
        assert len(host.checkpoint.prepared_claims) == 0
        await node.run_pod("later")
        assert shared.containers["main"].cpus == "0-7"
        assert host.metrics.rejections.labels("release", "in-use").value == 1


async def test_a_claim_is_not_given_back_while_its_container_is_being_started() -> None:
    async with world() as node, serving(node) as host:
        node.allocate("c", [pair(1)], consumers=["p"])
        wanted = {"main": (ContainerClaim("c"),)}
        pod = FakePod(name="p", claims=(PodClaim("c", "c"),), containers=wanted)
        prepared = await node.kubelet.run_pod(pod)
        sandbox = await node.runtime.run_pod("p", uid=pod.uid)
        devices = prepared.cdi_devices["main"]
        created = await node.runtime.create(sandbox.id, "main", cdi_devices=devices)
        node.kubelet.forget_pod(pod.uid)
        await node.kubelet.reconcile()
        assert len(host.checkpoint.prepared_claims) == 1
        await node.runtime.start(created.id)
        assert created.cpus == "2-3"
        await node.kubelet.reconcile()
        assert len(host.checkpoint.prepared_claims) == 1
        await node.runtime.remove_pod(sandbox.id)
        await node.kubelet.reconcile()
        assert len(host.checkpoint.prepared_claims) == 0


async def test_nobody_keeps_the_claim_of_another_by_naming_it() -> None:
    async with world(CONTAINERD_1_7) as node, serving(node) as host:
        claim = node.allocate("c", [pair(1)], consumers=["p"])
        running = await node.run_pod("p", {"main": ["c"]})
        marker = next(
            f"{name}={value}"
            for name, value in running.containers["main"].env.items()
            if claim.metadata.uid in name and value == Pairs.cdi_kind
        )
        sandbox = await node.runtime.run_pod("thief", uid="uid-of-thief")
        await node.runtime.create_unnoticed(sandbox.id, "main", env=[marker])
        await node.runtime.restart()
        await node.runtime.plugin_ready()
        await node.delete_pod(running)
        assert len(host.checkpoint.prepared_claims) == 0


async def test_an_end_that_was_never_told_keeps_no_claim() -> None:
    async with world() as node, serving(node) as host:
        node.allocate("c", [pair(1)], consumers=["p"])
        running = await node.run_pod("p", {"main": ["c"]})
        running.containers["main"].remove_cgroup()  # the kernel knows better than the runtime told
        await node.kubelet.stop_pod(running.uid)
        assert len(host.checkpoint.prepared_claims) == 0


async def test_an_instance_that_stands_by_asks_the_kernel_who_runs_on_a_claim() -> None:
    async with world() as node, serving(node, pod_uid="one"):
        second = node.host(Pairs, HostOptions(**{**node.settings(), "pod_uid": "two"}))
        async with at_work(second):
            await node.kubelet.registered("pairs.example.org", instances=2)
            node.allocate("c", [pair(1)], consumers=["p"])
            running = await node.run_pod("p", {"main": ["c"]})
            node.kubelet.forget_pod(running.uid)
            await node.kubelet.reconcile()  # the newest instance is asked, which stands by
            assert second.runtime.status.state == "standby"
            assert len(second.checkpoint.prepared_claims) == 1
            await node.runtime.stop(running.containers["main"].id)
            await node.kubelet.reconcile()
            assert len(second.checkpoint.prepared_claims) == 0


IDLE_CLIENTS = """
import socket, sys
clients = []
for _ in range(1000):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", int(sys.argv[1])))
    clients.append(client)
print("connected", flush=True)
sys.stdin.read()
"""


async def test_a_thousand_idle_http_clients_keep_no_claim_from_being_prepared() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))  # for the clients
    clients: asyncio.subprocess.Process | None = None
    try:
        async with world() as node, serving(node, Pairs()) as host:
            clients = await asyncio.create_subprocess_exec(
                sys.executable, "-c", IDLE_CLIENTS, str(host.port),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))
            assert clients.stdout is not None
            assert await clients.stdout.readline() == b"connected\n"
            node.allocate("c", [pair(1)], consumers=["p"])
            running = await node.run_pod("p", {"main": ["c"]})
            assert running is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" in await reader.readline()
            writer.close()
            assert host._web.connections <= 64
            assert b"http_connections_dropped_total" in host.metrics.exposition()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        if clients is not None:
            clients.kill()
            await clients.communicate()


@pytest.mark.parametrize("name", ["rediscover", "verify", "_restore_sockets"])
async def test_a_defect_in_periodic_work_does_not_end_the_host(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drakit.kit.host._SOCKET_CHECK_SECONDS", 0.01)
    looks = []

    async def broken(self: Host) -> None:
        looks.append(name)
        raise KeyError("defect")

    monkeypatch.setattr(Host, name, broken)
    often = {"rediscover_seconds": 0.01, "verify_seconds": 0.01}
    async with world() as node, serving(node, **often) as host:
        await eventually(lambda: "defect" in (host.conditions()["tasks"] or ""), "it is reported")
        before = len(looks)
        await eventually(lambda: len(looks) > before, "it is tried again")
        node.allocate("c", [pair(1)], consumers=["p"])
        assert (await node.run_pod("p", {"main": ["c"]})).containers["main"].cpus == "2-3"


async def test_a_defect_while_containers_are_brought_in_line_does_not_end_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as node, serving(node) as host:
        broken, plain = [ValueError("one"), KeyError("two")], host.runtime.checkpoint_changed

        async def checkpoint_changed() -> None:
            if broken:
                raise broken.pop()
            await plain()

        monkeypatch.setattr(host.runtime, "checkpoint_changed", checkpoint_changed)
        host.claims_changed(host.checkpoint.prepared_claims, update_containers=True)
        await eventually(lambda: not broken, "it is tried again until it succeeds")
        await eventually(lambda: host.conditions()["tasks"] is None, "and then all is well")
        assert b'task_failures_total{task="containers"} 2.0' in host.metrics.exposition()


@pytest.mark.parametrize("part", ["runtime", "publisher"])
@pytest.mark.parametrize("problem", [KeyError("defect"), None], ids=["fails", "returns"])
async def test_the_host_ends_when_what_it_cannot_serve_without_ends(
    part: str, problem: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(*_: object) -> None:
        if problem is not None:
            raise problem

    async with world() as node:
        host = node.host(Pairs, HostOptions(**node.settings()))
        monkeypatch.setattr(getattr(host, part), "run", ends)
        with pytest.raises(KeyError if problem else RuntimeError, match=r"defect|without a reason"):
            await asyncio.wait_for(host.run(), 60)
