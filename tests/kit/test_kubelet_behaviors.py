"""What the kubelet does to a DRA driver, each as a promise of the host.

The list is the upstream node tests' (``test/e2e_node/dra_test.go``, ``test/e2e/dra/dra.go``): here
against the fake kubelet with the whole host, runtime and API server included; against the real
kubelet in the test bed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Device, DeviceRequestAllocationResult, Taint, Toleration, int_attribute
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import (
    Assignment,
    DesiredResources,
    Offer,
    PoolOffer,
    PreparedDevice,
    RejectedError,
    UnhealthyDevice,
)
from drakit.testing.kubelet import QUICK, ContainerClaim, FakePod, PodClaim, PrepareError, UnprepareError
from drakit.testing.node import SimulatedNode
from drakit.wire.kubelet import plugin as plugin_module
from drakit.wire.kubelet.services import RegistrationService

NAME = "seats.example.org"
KIND = "example.org/seat"
TAINT = Taint(key="example.org/broken", effect="NoSchedule")
UID_A = "0a0a0a0a-0000-4000-8000-00000000000a"
UID_B = "0b0b0b0b-0000-4000-8000-00000000000b"


@dataclass(frozen=True)
class Seats:
    """Numbered seats, each for one claim; ``closed`` ones are rejected."""

    name: str = NAME
    cdi_kind: str = KIND
    cpuset_kinds: ClassVar[frozenset[str]] = frozenset({"cpu"})
    closed: CpuSet = CpuSet()
    broken: CpuSet = CpuSet()

    def offer(self):
        devices = tuple(
            Device(name=f"seat-{n}", taints=(TAINT,) if n in self.broken else ()) for n in range(4)
        )
        health = tuple(UnhealthyDevice(f"seat-{n}", "wobbles") for n in self.broken)
        return Offer((PoolOffer(devices),), may_taint=True, unhealthy=health)

    def assign(self, claim, prepared_claims):
        prepared_devices = []
        for one in claim.devices:
            number = int(one.device.removeprefix("seat-"))
            if number in self.closed:
                raise RejectedError(f"{one.device} is closed", reason="policy")
            wishes = ",".join(str(c.parameters["wish"]) for c in one.config)
            prepared_devices.append(
                PreparedDevice(
                    request=one.base_request,
                    pool=one.pool,
                    device=one.device,
                    exclusive={"seat": CpuSet([number])},
                    env={f"SEAT_{one.base_request}": f"{number}{wishes}"},
                    attributes={"number": int_attribute(number)},
                )
            )
        return Assignment(tuple(prepared_devices))

    def enforce(self, container, prepared_claims):
        return DesiredResources()


def seat(number, request="r", driver=NAME, **more):
    return DeviceRequestAllocationResult(
        request=request, driver=driver, pool="node-1", device=f"seat-{number}", **more
    )


PATIENT = replace(QUICK, dial=30.0)


@contextlib.asynccontextmanager
async def a_node(**options):
    options.setdefault("timing", PATIENT)
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        async with SimulatedNode(directory, **options) as node:
            yield node


class Driver:
    """A host at work, whose driver a test can exchange."""

    def __init__(self, node, driver=None, **settings):
        self.driver = driver or Seats()
        settings = {"bind_address": "", "cgroup_root": "", **settings}
        self.host = node.host(lambda: self.driver, HostOptions(**{**node.settings(), **settings}))
        self.task = asyncio.create_task(self.host.run())

    def become(self, driver):
        self.driver = self.host.driver = driver

    async def published(self):
        waiting = asyncio.create_task(self.host.publisher.published.wait())
        await asyncio.wait({self.task, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        waiting.cancel()
        if self.task.done():
            self.task.result()

    async def stop(self):
        self.host.stop()
        await asyncio.wait_for(self.task, 60)

    def held(self):
        return {entry.name for entry in self.host.checkpoint.prepared_claims}


@contextlib.asynccontextmanager
async def serving(node, driver=None, **settings):
    running = Driver(node, driver, **settings)
    try:
        await running.published()
        await node.kubelet.registered(running.driver.name)
        yield running
    finally:
        await running.stop()


def pod_with(claim="claim", name="pod", request=""):
    return FakePod(
        name, claims=(PodClaim("seats", claim),), containers={"main": (ContainerClaim("seats", request),)}
    )


async def slices(node, present, seconds=60.0):
    """Wait until the API server has slices, or none."""
    async with asyncio.timeout(seconds):
        while bool(node.api.objects("resourceslices")) != present:
            await asyncio.sleep(0.01)


def calls(node, method="NodePrepareResources"):
    return [call for call in node.kubelet.calls if call.method == method]


# -- registration ----------------------------------------------------------------------------------


async def test_registers_again_after_the_kubelet_restarts():
    async with a_node() as node, serving(node):
        await node.kubelet.restart()
        await node.kubelet.registered(NAME)
        node.allocate("claim", [seat(1)], consumers=["pod"])
        await node.run_pod("pod", {"main": ["claim"]})


async def test_registers_again_after_the_plugin_restarts():
    async with a_node() as node:
        async with serving(node):
            pass
        await node.kubelet.unregistered(NAME)
        async with serving(node):
            node.allocate("claim", [seat(1)], consumers=["pod"])
            await node.run_pod("pod", {"main": ["claim"]})


class FlakyInfo(RegistrationService):
    left = 3

    async def get_info(self, stream):
        type(self).left -= 1
        if self.left >= 0:
            raise GRPCError(Status.INTERNAL, "injected")
        await super().get_info(stream)


async def test_registers_after_get_info_failed(monkeypatch):
    monkeypatch.setattr(plugin_module, "RegistrationService", FlakyInfo)
    async with a_node() as node, serving(node) as driver:
        assert node.kubelet.plugins.attempts[driver.host.plugin.registration_path] == 4


class FlakyStatus(RegistrationService):
    left = 2

    async def notify_status(self, stream):
        type(self).left -= 1
        if self.left >= 0:
            raise GRPCError(Status.INTERNAL, "injected")
        await super().notify_status(stream)


async def test_registers_after_the_status_notification_failed(monkeypatch):
    monkeypatch.setattr(plugin_module, "RegistrationService", FlakyStatus)
    async with a_node() as node, serving(node) as driver:
        await driver.host.plugin.registered.wait()
        assert node.kubelet.plugins.attempts[driver.host.plugin.registration_path] == 3


async def test_the_service_answers_before_registration_is_offered(monkeypatch):
    answered = []

    class Watching(RegistrationService):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            answered.append(os.path.exists(self._info.endpoint))

    monkeypatch.setattr(plugin_module, "RegistrationService", Watching)
    async with a_node() as node, serving(node):
        assert answered == [True]


async def test_the_service_restarts_without_a_new_registration():
    async with a_node() as node, serving(node) as driver:
        plugin = driver.host.plugin
        (endpoint,) = await node.kubelet.registered(NAME)
        os.unlink(plugin.service_path)
        await plugin.restore_sockets()
        await node.kubelet.plugins.changed.until(lambda: endpoint.connection.connects > 1, "reconnecting")
        node.allocate("claim", [seat(1)], consumers=["pod"])
        await node.run_pod("pod", {"main": ["claim"]})
        assert node.kubelet.plugins.attempts[plugin.registration_path] == 1


async def test_one_connection_serves_all_calls():
    async with a_node() as node, serving(node) as driver:
        (endpoint,) = await node.kubelet.registered(NAME)
        for number in range(4):
            node.allocate(f"claim-{number}", [seat(number)], consumers=[f"pod-{number}"])
            running = await node.run_pod(f"pod-{number}", {"main": [f"claim-{number}"]})
            await node.delete_pod(running)
        assert endpoint.connection.connects == 1
        assert driver.host.plugin.connections == 1
        assert len(node.kubelet.calls) == 8


@pytest.mark.parametrize(
    ("version", "api"), [("1.33", "v1beta1.DRAPlugin"), ("1.34", "v1.DRAPlugin"), ("1.37", "v1.DRAPlugin")]
)
async def test_kubelets_of_all_versions_are_served(version, api):
    async with a_node() as node:
        node.kubelet._version = version
        await node.kubelet.restart()
        async with serving(node):
            node.allocate("claim", [seat(1)], consumers=["pod"])
            await node.run_pod("pod", {"main": ["claim"]})
            assert [call.api for call in node.kubelet.calls] == [api]


# -- prepare and unprepare -------------------------------------------------------------------------


async def test_a_pod_created_while_the_kubelet_is_down_starts_later():
    async with a_node() as node, serving(node):
        await node.kubelet.stop()
        node.allocate("claim", [seat(1)], consumers=["pod"])
        await node.kubelet.start()
        await node.kubelet.registered(NAME)
        await node.run_pod("pod", {"main": ["claim"]})


async def test_prepare_that_takes_too_long_leaves_the_pod_pending(monkeypatch):
    async with a_node(timing=replace(QUICK, call=0.5)) as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        source, hanging = driver.host.preparer._source, asyncio.Event()

        class Hanging:
            async def get(self, namespace, name):
                await hanging.wait()
                return await source.get(namespace, name)

        monkeypatch.setattr(driver.host.preparer, "_source", Hanging())
        with pytest.raises(PrepareError, match=r"not finished within|Deadline|Timeout"):
            await node.kubelet.run_pod(pod_with())
        assert driver.held() == set()
        hanging.set()
        node.kubelet._timing = QUICK
        await node.kubelet.sync_pod("uid-of-pod")
        assert driver.held() == {"claim"}


async def test_prepare_fails_then_succeeds():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        driver.become(Seats(closed=CpuSet([1])))
        with pytest.raises(PrepareError, match="ResourceClaim claim: seat-1 is closed"):
            await node.kubelet.run_pod(pod_with())
        driver.become(Seats())
        await node.kubelet.sync_pod("uid-of-pod")
        assert len(calls(node)) == 2


async def test_unprepare_fails_then_succeeds(monkeypatch):
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        await node.kubelet.run_pod(pod_with())
        with monkeypatch.context() as broken:
            break_cdi_removal(broken, driver)
            with pytest.raises(UnprepareError, match="read-only"):
                await node.kubelet.stop_pod("uid-of-pod")
            assert driver.held() == {"claim"}, "nothing is given away that may still be in use"
        await node.kubelet.stop_pod("uid-of-pod")
        assert driver.held() == set()


def break_cdi_removal(monkeypatch, driver):
    def reject(uid):
        raise OSError("read-only file system")

    monkeypatch.setattr(driver.host.preparer._cdi, "remove", reject)


async def test_prepare_is_tried_again_across_a_kubelet_restart():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        driver.become(Seats(closed=CpuSet([1])))
        with pytest.raises(PrepareError):
            await node.kubelet.run_pod(pod_with())
        await node.kubelet.restart()
        await node.kubelet.registered(NAME)
        driver.become(Seats())
        await node.kubelet.sync_pod("uid-of-pod")
        assert driver.held() == {"claim"}


async def test_unprepare_is_tried_again_across_a_kubelet_restart(monkeypatch):
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        await node.kubelet.run_pod(pod_with())
        with monkeypatch.context() as broken:
            break_cdi_removal(broken, driver)
            with pytest.raises(UnprepareError):
                await node.kubelet.stop_pod("uid-of-pod")
        await node.kubelet.restart()
        await node.kubelet.registered(NAME)
        await node.kubelet.stop_pod("uid-of-pod")
        assert driver.held() == set()


async def test_claims_of_a_pod_deleted_by_force_are_unprepared():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        await node.kubelet.run_pod(pod_with())
        node.kubelet.forget_pod("uid-of-pod")
        node.api.remove("resourceclaims", "claim", namespace="default")
        await node.kubelet.reconcile()
        assert driver.held() == set()
        assert os.listdir(node.cdi_dir) == []


async def test_claims_of_a_pod_deleted_while_the_kubelet_was_down_are_unprepared():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        await node.kubelet.run_pod(pod_with())
        await node.kubelet.stop()
        node.kubelet.forget_pod("uid-of-pod")
        await node.kubelet.start()
        await node.kubelet.registered(NAME)
        await node.kubelet.reconcile()
        assert driver.held() == set()


async def test_nothing_is_prepared_for_a_pod_deleted_while_the_kubelet_was_down():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        driver.become(Seats(closed=CpuSet([1])))
        with pytest.raises(PrepareError):
            await node.kubelet.run_pod(pod_with())
        await node.kubelet.stop()
        node.kubelet.forget_pod("uid-of-pod")
        driver.become(Seats())
        await node.kubelet.start()
        await node.kubelet.registered(NAME)
        before = len(calls(node))
        await node.kubelet.reconcile()
        assert len(calls(node)) == before
        assert len(calls(node, "NodeUnprepareResources")) == 1, "though it never was prepared"
        assert driver.held() == set()


async def test_claims_no_container_uses_are_prepared_all_the_same():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        pod = FakePod("pod", claims=(PodClaim("seats", "claim"),), containers={"main": ()})
        running = await node.kubelet.run_pod(pod)
        assert running.cdi_devices == {"main": ()}
        assert driver.held() == {"claim"}


async def test_devices_and_configurations_reach_the_right_containers():
    async with a_node() as node, serving(node):
        config = [
            {"source": "FromClaim", "requests": ["window"], "opaque": _wish("view")},
            {"source": "FromClass", "requests": [], "opaque": _wish("all")},
            {"source": "FromClaim", "requests": ["aisle"], "opaque": _wish("x", "else.example")},
        ]
        results = [seat(1, "aisle"), seat(2, "window/front")]
        node.allocate("claim", results, config=config, consumers=["pod"])
        uses = {"one": [("claim", "aisle")], "other": [("claim", "window")], "both": ["claim"], "none": []}
        containers = (await node.run_pod("pod", uses)).containers
        seats = {
            name: {k: v for k, v in container.env.items() if k.startswith("SEAT")}
            for name, container in containers.items()
        }
        assert seats == {
            "one": {"SEAT_aisle": "1all"},
            "other": {"SEAT_window": "2all,view"},
            "both": {"SEAT_aisle": "1all", "SEAT_window": "2all,view"},
            "none": {},
        }


def _wish(text, driver=NAME):
    return {"driver": driver, "parameters": {"wish": text}}


async def test_one_bad_claim_does_not_fail_the_others_of_a_pod():
    async with a_node() as node, serving(node) as driver:
        driver.become(Seats(closed=CpuSet([2])))
        node.allocate("good", [seat(1)], consumers=["pod"])
        node.allocate("bad", [seat(2)], consumers=["pod"])
        with pytest.raises(PrepareError, match="ResourceClaim bad: seat-2 is closed"):
            await node.run_pod("pod", {"main": ["good", "bad"]})
        assert driver.held() == {"good"}
        assert len(calls(node)) == 1, "all claims of a pod in one call"


async def test_two_plugins_of_which_one_fails():
    other = "other.example.org"
    async with a_node() as node, serving(node) as driver:
        broken = Seats(other, "example.org/other", closed=CpuSet([2]))
        async with serving(node, broken, nri="off") as failing:
            node.allocate("claim", [seat(1), seat(2, driver=other)], consumers=["pod"])
            with pytest.raises(PrepareError, match="seat-2 is closed"):
                await node.kubelet.run_pod(pod_with())
            assert driver.held() == {"claim"}
            assert failing.held() == set()
            node.allocate("own", [seat(3)], consumers=["alone"])
            await node.run_pod("alone", {"main": ["own"]})
            failing.become(Seats(other, "example.org/other"))
            running = await node.kubelet.sync_pod("uid-of-pod")
            assert len(running.cdi_devices["main"]) == 2
            await node.kubelet.stop_pod("uid-of-pod")
            assert (driver.held(), failing.held()) == ({"own"}, set())


async def test_a_new_pod_waits_until_a_force_deleted_one_has_ended():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        await node.kubelet.run_pod(pod_with())
        # The old container still runs, but scheduler and API server have forgotten it.
        node.kubelet.forget_pod("uid-of-pod")
        node.api.remove("resourceclaims", "claim", namespace="default")
        node.allocate("successor", [seat(1)], consumers=["next"])
        with pytest.raises(PrepareError, match="held by claim default/claim"):
            await node.kubelet.run_pod(pod_with("successor", "next"))
        node.allocate("claim", [seat(2)], consumers=["namesake"])
        with pytest.raises(PrepareError, match="previous pod force-deleted"):
            await node.kubelet.run_pod(pod_with("claim", "namesake"))
        await node.kubelet.reconcile()
        await node.kubelet.sync_pod("uid-of-next")
        await node.kubelet.sync_pod("uid-of-namesake")
        assert driver.held() == {"successor", "claim"}


async def test_a_shared_claim_is_prepared_once_and_ends_with_its_last_pod():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["one", "two"])
        first = await node.run_pod("one", {"main": ["claim"]})
        second = await node.run_pod("two", {"main": ["claim"]})
        assert len(calls(node)) == 1
        await node.delete_pod(first)
        assert driver.held() == {"claim"}
        await node.delete_pod(second)
        assert driver.held() == set()


async def test_a_container_restart_asks_nobody_and_finds_its_devices():
    async with a_node() as node:
        async with serving(node):
            node.allocate("claim", [seat(1)], consumers=["pod"])
            running = await node.run_pod("pod", {"main": ["claim"]})
        async with serving(node):
            again = await node.restart_container(running, "main")
            assert again.env["SEAT_r"] == "1"
            assert len(calls(node)) == 1


async def test_everything_is_made_anew_after_a_reboot():
    def empty_run():
        for name in os.listdir(node.cdi_dir):
            os.unlink(os.path.join(node.cdi_dir, name))

    async with a_node() as node:
        async with serving(node):
            node.allocate("claim", [seat(1)], consumers=["pod"])
            before = await node.kubelet.run_pod(pod_with())
        await node.kubelet.reboot(empty_run)
        async with serving(node) as driver:
            driver.host.checkpoint.boot = "another"  # what a boot changes
            empty_run()
            after = await node.kubelet.sync_pod("uid-of-pod")
            assert after.cdi_devices == before.cdi_devices
            assert len(os.listdir(node.cdi_dir)) == 1
            assert len(calls(node)) == 2


async def test_operations_that_slices_skip_are_not_called():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1, skip_node_operations=("*",))], consumers=["pod"])
        await node.kubelet.run_pod(pod_with())
        await node.kubelet.stop_pod("uid-of-pod")
        assert node.kubelet.calls == []
        assert driver.held() == set()


async def test_an_implicit_claim_of_an_extended_resource_is_a_claim_like_any_other():
    async with a_node() as node, serving(node) as driver:
        results = [seat(1, "container-0-request-0")]
        node.allocate("pod-extended-resources-x7", results, consumers=["pod"])
        pod = FakePod(
            "pod",
            claims=(PodClaim("extended", "pod-extended-resources-x7"),),
            containers={"main": (ContainerClaim("extended", "container-0-request-0"),), "side": ()},
        )
        running = await node.kubelet.run_pod(pod)
        assert len(running.cdi_devices["main"]) == 1
        assert driver.held() == {"pod-extended-resources-x7"}


async def test_metadata_is_mounted_for_both_kinds_of_claims_and_for_each_driver_of_a_request():
    other = "other.example.org"
    async with a_node() as node, serving(node), serving(node, Seats(other, KIND + "2"), nri="off"):
        node.allocate("direct", [seat(1), seat(1, driver=other)], consumers=["pod"])
        annotations = {"resource.kubernetes.io/pod-claim-name": "mine"}
        node.allocate("made-x7", [seat(2)], consumers=["owner"], annotations=annotations)
        owner = [{"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": "uid-of-owner"}]
        change = {"metadata": {"ownerReferences": owner}}
        node.api.change("resourceclaims", "made-x7", change, namespace="default")
        await node.kubelet.run_pod(pod_with("direct"))
        await node.kubelet.run_pod(pod_with("made-x7", "owner"))
        root = "/var/run/kubernetes.io/dra-device-attributes"
        mounted = mounts(node.cdi_dir)
        assert set(mounted) == {
            f"{root}/resourceclaims/direct/r/{NAME}-metadata.json",
            f"{root}/resourceclaims/direct/r/{other}-metadata.json",
            f"{root}/resourceclaimtemplates/mine/r/{NAME}-metadata.json",
        }
        with open(mounted[f"{root}/resourceclaimtemplates/mine/r/{NAME}-metadata.json"]) as file:
            newest = json.loads(file.readline())
        assert newest["podClaimName"] == "mine"
        (device,) = newest["requests"][0]["devices"]
        assert device["attributes"] == {"number": {"int": 2}}


def mounts(cdi_dir):
    found = {}
    for name in os.listdir(cdi_dir):
        with open(os.path.join(cdi_dir, name)) as file:
            for device in json.load(file)["devices"]:
                for mount in device["containerEdits"].get("mounts", ()):
                    assert mount["options"] == ["ro", "bind"]
                    found[mount["containerPath"]] = mount["hostPath"]
    return found


# -- slices ----------------------------------------------------------------------------------------


async def test_slices_removed_at_kubelet_start_come_back():
    async with a_node() as node, serving(node):
        (before,) = node.api.objects("resourceslices")
        await node.kubelet.restart()
        await slices(node, present=True)
        (after,) = node.api.objects("resourceslices")
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["spec"]["devices"] == before["spec"]["devices"]


async def test_slices_deleted_by_hand_come_back():
    async with a_node() as node, serving(node):
        node.api.wipe_slices("node-1")
        await slices(node, present=True)


async def test_slices_are_removed_when_the_driver_is_gone_for_good():
    async with a_node(timing=replace(QUICK, wipe=0.1)) as node:
        async with serving(node):
            await slices(node, present=True)
        await slices(node, present=False)


async def test_slices_stay_while_the_driver_restarts_in_time():
    async with a_node(timing=replace(QUICK, wipe=3600)) as node:
        async with serving(node):
            (before,) = node.api.objects("resourceslices")
        await node.kubelet.unregistered(NAME)
        async with serving(node):
            (after,) = node.api.objects("resourceslices")
            assert after["metadata"]["uid"] == before["metadata"]["uid"]


DIES = """
import asyncio, os, sys
from drakit.wire.kubelet import KubeletPlugin

class Nothing:
    async def prepare(self, claim): return []
    async def unprepare(self, claim): pass

async def main():
    name, root, uid = sys.argv[1:]
    plugin = KubeletPlugin(name, Nothing(), kubelet_root=root, instance_uid=uid or None)
    await plugin.start_service()
    await plugin.register()
    print("serving", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    os._exit(9)

asyncio.run(main())
"""


@contextlib.contextmanager
def doomed(node, uid=""):
    """An instance in another process that dies without a word when told to."""
    child = subprocess.Popen(
        [sys.executable, "-c", DIES, NAME, node.kubelet_root, uid],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def kill(child):
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.wait(60) == 9


async def test_slices_are_removed_when_a_driver_no_longer_answers():
    async with a_node(timing=replace(QUICK, wipe=0.1)) as node:
        with doomed(node) as child:
            await node.kubelet.registered(NAME)
            spec = {"driver": NAME, "nodeName": "node-1", "pool": {"name": "p", "generation": 1}}
            spec["pool"]["resourceSliceCount"] = 1
            node.api.add("resourceslices", {"metadata": {"name": "s"}, "spec": spec})
            kill(child)
            await slices(node, present=False)
            assert os.path.exists(os.path.join(node.kubelet_root, "plugins_registry"))


# -- rolling update --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, "n" * 50 + ".example"], ids=["short name", "long name"])
async def test_a_rolling_update_serves_all_the_time(name):
    async with a_node() as node, serving(node, Seats(name), pod_uid=UID_A) as old:
        node.allocate("first", [seat(1, driver=name)], consumers=["one"])
        one = await node.run_pod("one", {"main": ["first"]})
        new = Driver(node, Seats(name), pod_uid=UID_B)
        await node.kubelet.registered(name, instances=2)
        node.allocate("second", [seat(2, driver=name)], consumers=["two"])
        two = await node.run_pod("two", {"main": ["second"]})
        node.allocate("again", [seat(1, driver=name)], consumers=["three"])
        with pytest.raises(PrepareError, match="held by claim default/first"):
            await node.run_pod("three", {"main": ["again"]})
        await old.stop()
        await node.kubelet.registered(name, instances=1)
        await node.delete_pod(one)
        await node.delete_pod(two)
        await node.kubelet.sync_pod("uid-of-three")
        assert new.held() == {"again"}
        assert len({call.service for call in node.kubelet.calls}) == 2
        await new.stop()


async def test_a_failed_update_leaves_the_old_instance_serving():
    async with a_node() as node, serving(node, pod_uid=UID_A):
        with doomed(node, UID_B) as child:
            await node.kubelet.registered(NAME, instances=2)
            kill(child)
            await node.kubelet.plugins.changed.until(
                lambda: node.kubelet.plugins.pick(NAME).order == 1, "falling back"
            )
            node.allocate("claim", [seat(1)], consumers=["pod"])
            running = await node.run_pod("pod", {"main": ["claim"]})
            assert running.containers["main"].env["SEAT_r"] == "1"
            registry = os.path.join(node.kubelet_root, "plugins_registry")
            assert len(os.listdir(registry)) == 2, "the dead one's socket is still there"
            third = Driver(node, pod_uid="0c0c0c0c-0000-4000-8000-00000000000c")
            await third.published()
            await node.kubelet.registered(NAME, instances=2)
            assert len(os.listdir(registry)) == 2, "and is cleaned up by the next"
            await third.stop()


async def test_a_sequential_update_keeps_claims():
    async with a_node() as node:
        async with serving(node, pod_uid=UID_A):
            node.allocate("claim", [seat(1)], consumers=["pod"])
            running = await node.run_pod("pod", {"main": ["claim"]})
        await node.kubelet.unregistered(NAME)
        with pytest.raises(PrepareError, match="not registered"):
            node.allocate("next", [seat(2)], consumers=["next"])
            await node.run_pod("next", {"main": ["next"]})
        async with serving(node, pod_uid=UID_B) as driver:
            assert driver.held() == {"claim"}
            await node.kubelet.sync_pod("uid-of-next")
            await node.delete_pod(running)
            assert driver.held() == {"next"}


# -- health ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.36", "1.37"])
async def test_health_reaches_the_kubelet(version):
    async with a_node() as node:
        node.kubelet._version = version
        await node.kubelet.restart()
        async with serving(node):
            await node.kubelet.plugins.changed.until(
                lambda: node.kubelet.health(NAME, "node-1", "seat-0")[0] == "Healthy", "a report"
            )


def taints(node):
    """The devices of the slices with the keys of their taints."""
    return {
        device["name"]: [taint["key"] for taint in device.get("taints", ())]
        for each in node.api.objects("resourceslices")
        for device in each["spec"]["devices"]
    }


async def test_a_device_that_breaks_is_tainted_told_of_and_stays_with_its_pod():
    async with a_node() as node, serving(node) as driver:
        node.allocate("claim", [seat(1)], consumers=["pod"])
        running = await node.run_pod("pod", {"main": ["claim"]})
        driver.become(Seats(broken=CpuSet([1, 2])))
        await driver.host.rediscover()
        await driver.published()
        assert taints(node) == {
            "seat-0": [], "seat-1": [TAINT.key], "seat-2": [TAINT.key], "seat-3": []
        }  # fmt: skip
        await health_of(node, "seat-1", "Unhealthy", "wobbles")
        await health_of(node, "seat-0", "Healthy", "")
        assert driver.held() == {"claim"}, "who has it keeps it: eviction is not the driver's job"
        await node.restart_container(running, "main")
        tolerant = Toleration(key=TAINT.key, operator="Exists")
        node.allocate("tolerant", [seat(2, tolerations=(tolerant,))], consumers=["other"])
        await node.run_pod("other", {"main": ["tolerant"]})
        driver.become(Seats())
        await driver.host.rediscover()
        await driver.published()
        assert not any(taints(node).values())
        await health_of(node, "seat-1", "Healthy", "")
        assert driver.held() == {"claim", "tolerant"}


async def health_of(node, device, state, message):
    await node.kubelet.plugins.changed.until(
        lambda: node.kubelet.health(NAME, "node-1", device) == (state, message), f"{device} becoming {state}"
    )
