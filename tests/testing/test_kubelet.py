"""The fake kubelet is as strict as the real one: against plugins that do it wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from dataclasses import replace

import msgspec
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from drakit.core.objects import (
    AllocationResult,
    ConsumerReference,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ObjectMeta,
    OwnerReference,
    ResourceClaim,
    ResourceClaimStatus,
)
from drakit.testing.kubelet import (
    QUICK,
    ContainerClaim,
    FakeKubelet,
    FakePod,
    PodClaim,
    PrepareError,
    UnprepareError,
)
from drakit.wire.kubelet import Health, HealthReport, KubeletDevice, KubeletPlugin
from drakit.wire.kubelet import plugin as plugin_module
from drakit.wire.kubelet.services import ClaimService, HealthService, RegistrationService

NAME = "dra.example.com"
POD = FakePod(
    "web",
    claims=(PodClaim("devices", "claim"),),
    containers={"app": (ContainerClaim("devices"),), "side": (ContainerClaim("devices", "b"),), "none": ()},
)


@pytest.fixture
def root():
    path = tempfile.mkdtemp(prefix="k")
    os.mkdir(os.path.join(path, "plugins_registry"))
    yield path
    shutil.rmtree(path)


def claim(name="claim", uid=None, drivers=(NAME,), pods=(POD,), **meta):
    results = tuple(
        DeviceRequestAllocationResult(request="a", driver=d, pool="p", device="x") for d in drivers
    )
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=uid or f"uid-{name}", **meta),
        status=ResourceClaimStatus(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=results)),
            reserved_for=tuple(ConsumerReference(resource="pods", uid=pod.uid) for pod in pods),
        ),
    )


class Driver:
    """Gives two devices, one for request a and one for b."""

    def __init__(self, name="x"):
        self.name = name

    async def prepare(self, claim):
        return [
            KubeletDevice(("a",), "p", "x", (f"v/c={self.name}-a",)),
            KubeletDevice(("b/sub",), "p", "y", (f"v/c={self.name}-b",)),
        ]

    async def unprepare(self, claim):
        pass


async def start(root, driver=None, name=NAME, **options):
    plugin = KubeletPlugin(name, driver or Driver(), kubelet_root=root, **options)
    await plugin.start_service()
    await plugin.register()
    return plugin


async def test_finds_calls_and_loses_a_driver(root):
    async with FakeKubelet(root) as kubelet:
        plugin = await start(root)
        (endpoint,) = await kubelet.registered(NAME)
        assert endpoint.api == "v1.DRAPlugin"
        await plugin.registered.wait()
        running = await kubelet.run_pod(POD, [claim()])
        assert running.cdi_devices == {"app": ("v/c=x-a", "v/c=x-b"), "side": ("v/c=x-b",), "none": ()}
        await kubelet.stop_pod(POD.uid)
        assert [call.method for call in kubelet.calls] == ["NodePrepareResources", "NodeUnprepareResources"]
        assert not kubelet.knows("uid-claim")
        await plugin.close()
        await kubelet.unregistered(NAME)


@pytest.mark.parametrize(("version", "api"), [("1.33", "v1beta1.DRAPlugin"), ("1.34", "v1.DRAPlugin")])
async def test_speaks_the_versions_of_its_release(root, version, api):
    plugin = await start(root)
    async with FakeKubelet(root, version=version) as kubelet:
        (endpoint,) = await kubelet.registered(NAME)
        assert endpoint.api == api
        await kubelet.run_pod(POD, [claim()])
    await plugin.close()


async def test_takes_the_first_version_of_the_plugins_list(root, monkeypatch):
    turned = ("v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin")
    monkeypatch.setattr("drakit.wire.kubelet.services.SUPPORTED", turned)
    plugin = await start(root)
    async with FakeKubelet(root) as kubelet:
        (endpoint,) = await kubelet.registered(NAME)
        assert endpoint.api == "v1beta1.DRAPlugin"
    await plugin.close()


async def test_a_plugin_without_a_common_version_is_rejected(root, monkeypatch):
    monkeypatch.setattr("drakit.wire.kubelet.services.SUPPORTED", ("v9.DRAPlugin",))
    plugin = await start(root)
    async with FakeKubelet(root) as kubelet, asyncio.timeout(60):
        while not plugin.registration_error:
            await asyncio.sleep(0.01)
        assert "v9.DRAPlugin" in plugin.registration_error
        assert "v1.DRAPlugin" in plugin.registration_error
        assert kubelet.plugins.instances(NAME) == []
    await plugin.close()


class FailsFirst(RegistrationService):
    """Fails the first two GetInfo and the first two notifications."""

    infos = statuses = 0

    async def get_info(self, stream):
        type(self).infos += 1
        if self.infos <= 2:
            raise GRPCError(Status.INTERNAL, "not yet")
        await super().get_info(stream)

    async def notify_status(self, stream):
        type(self).statuses += 1
        if self.statuses <= 2:
            raise GRPCError(Status.INTERNAL, "not yet")
        await super().notify_status(stream)


async def test_retries_a_failing_registration_and_drops_what_fails_the_notification(root, monkeypatch):
    monkeypatch.setattr(plugin_module, "RegistrationService", FailsFirst)
    plugin = await start(root)
    async with FakeKubelet(root, timing=replace(QUICK, dial=30.0)) as kubelet:
        await plugin.registered.wait()
        await kubelet.registered(NAME)
        assert (FailsFirst.infos, FailsFirst.statuses) == (5, 3)
        assert kubelet.plugins.attempts == {plugin.registration_path: 5}
    await plugin.close()


class Slow(RegistrationService):
    async def get_info(self, stream):
        await asyncio.sleep(60)


async def test_get_info_has_a_time_limit(root, monkeypatch):
    monkeypatch.setattr(plugin_module, "RegistrationService", Slow)
    plugin = await start(root)
    async with FakeKubelet(root, timing=replace(QUICK, get_info=0.05)) as kubelet:
        await kubelet.plugins.changed.until(
            lambda: "imeout" in kubelet.plugins.error(plugin.registration_path), "the time-out"
        )
    await plugin.close(grace=0)


async def test_the_same_endpoint_is_not_registered_twice(root):
    plugin = await start(root)
    async with FakeKubelet(root) as kubelet:
        await kubelet.registered(NAME)
        second = KubeletPlugin(NAME, Driver(), kubelet_root=root, instance_uid="other")
        await second.start_service()
        second.service_path = plugin.service_path  # claims the first one's socket
        await second.register()
        await kubelet.plugins.changed.until(
            lambda: "already registered" in kubelet.plugins.error(second.registration_path), "the refusal"
        )
        assert [e.socket for e in kubelet.plugins.instances(NAME)] == [plugin.registration_path]
        await second.close()
    await plugin.close()


async def test_hidden_sockets_and_other_files_are_ignored(root):
    async with FakeKubelet(root) as kubelet:
        registry = os.path.join(root, "plugins_registry")
        os.mkdir(os.path.join(registry, "below"))
        with open(os.path.join(registry, "file-reg.sock"), "w"):
            pass
        with socket.socket(socket.AF_UNIX) as hidden, socket.socket(socket.AF_UNIX) as dead:
            hidden.bind(os.path.join(registry, ".hidden-reg.sock"))
            dead.bind(os.path.join(registry, "below", "dead.sock"))
            path = os.path.join(registry, "below", "dead.sock")
            await kubelet.plugins.changed.until(
                lambda: kubelet.plugins.attempts.get(path, 0) >= 2, "two attempts"
            )
        assert set(kubelet.plugins.attempts) == {path}


async def test_the_newest_connected_instance_is_called(root):
    uids = ("00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b")
    old = await start(root, Driver("old"), instance_uid=uids[0])
    async with FakeKubelet(root) as kubelet:
        await kubelet.registered(NAME)
        new = await start(root, Driver("new"), instance_uid=uids[1])
        await kubelet.registered(NAME, instances=2)
        running = await kubelet.run_pod(POD, [claim()])
        assert running.cdi_devices["app"] == ("v/c=new-a", "v/c=new-b")
        await new.close()
        await kubelet.registered(NAME, instances=1)
        await kubelet.stop_pod(POD.uid)
        assert [call.service for call in kubelet.calls] == [new.service_path, old.service_path]
    await old.close()


class Answers(ClaimService):
    """Answers what the test says instead of the truth."""

    uids: tuple[str, ...] = ()

    async def prepare(self, stream):
        await stream.recv_message()
        response = self._api.messages.NodePrepareResourcesResponse()
        for uid in self.uids:
            response.claims[uid].error = ""
        await stream.send_message(response)

    async def unprepare(self, stream):
        await stream.recv_message()
        response = self._api.messages.NodeUnprepareResourcesResponse()
        for uid in self.uids:
            response.claims[uid].error = ""
        await stream.send_message(response)


async def test_answers_without_an_entry_or_with_an_unknown_one_are_errors(root, monkeypatch):
    monkeypatch.setattr(plugin_module, "ClaimService", Answers)
    plugin = await start(root)
    async with FakeKubelet(root) as kubelet:
        await kubelet.registered(NAME)
        with pytest.raises(PrepareError, match="skipped 1 ResourceClaims"):
            await kubelet.run_pod(POD, [claim()])
        monkeypatch.setattr(Answers, "uids", ("uid-claim", "else"))
        with pytest.raises(PrepareError, match="unknown claim UID else"):
            await kubelet.sync_pod(POD.uid, [claim()])
        monkeypatch.setattr(Answers, "uids", ("uid-claim",))
        await kubelet.sync_pod(POD.uid, [claim()])
        monkeypatch.setattr(Answers, "uids", ())
        with pytest.raises(UnprepareError, match="skipped 1 ResourceClaims"):
            await kubelet.stop_pod(POD.uid)
        monkeypatch.setattr(Answers, "uids", ("uid-claim", "else"))
        with pytest.raises(UnprepareError, match="unknown claim UID else"):
            await kubelet.stop_pod(POD.uid)
        monkeypatch.setattr(Answers, "uids", ("uid-claim",))
        await kubelet.stop_pod(POD.uid)
    await plugin.close()


async def test_checks_before_a_driver_is_called(root):
    plugin = await start(root)
    async with FakeKubelet(root) as kubelet:
        await kubelet.registered(NAME)
        unallocated = msgspec.structs.replace(
            claim(), status=ResourceClaimStatus(reserved_for=claim().status.reserved_for)
        )
        annotations = {"resource.kubernetes.io/pod-claim-name": "devices"}
        cases = {
            "not found": [],
            "not allowed to use": [claim(pods=())],
            "not allocated": [unallocated],
            "not owned by pod": [claim(annotations=annotations)],
            "other.example.com is not registered": [claim(drivers=(NAME, "other.example.com"))],
        }
        for text, claims in cases.items():
            with pytest.raises(PrepareError, match=text):
                await kubelet.run_pod(POD, claims)
        assert kubelet.calls == []
        assert not kubelet.knows("uid-claim")
        owner = (OwnerReference(kind="Pod", uid=POD.uid),)
        await kubelet.run_pod(POD, [claim(annotations=annotations, owner_references=owner)])
    await plugin.close()


async def test_a_claim_of_the_same_name_waits_for_its_predecessor(root):
    plugin = await start(root)
    async with FakeKubelet(root) as kubelet:
        await kubelet.registered(NAME)
        await kubelet.run_pod(POD, [claim(uid="old")])
        kubelet.forget_pod(POD.uid)
        again = replace(POD, name="again", uid="again")
        with pytest.raises(PrepareError, match="previous pod force-deleted"):
            await kubelet.run_pod(again, [claim(uid="new", pods=(again,))])
        await kubelet.reconcile()
        await kubelet.sync_pod(again.uid, [claim(uid="new", pods=(again,))])
    await plugin.close()


async def test_the_checkpoint_survives_but_the_prepared_flag_does_not(root):
    plugin = await start(root)
    other = replace(POD, name="other", uid="other")
    shared = claim(pods=(POD, other))
    async with FakeKubelet(root) as kubelet:
        await kubelet.registered(NAME)
        first = await kubelet.run_pod(POD, [shared])
        await kubelet.run_pod(other, [shared])
        assert len(kubelet.calls) == 1
        await kubelet.restart()
        await kubelet.registered(NAME)
        assert kubelet.cdi_devices(POD.uid) == first.cdi_devices
        assert len(kubelet.calls) == 1
        await kubelet.sync_pod(other.uid, [shared])
        assert len(kubelet.calls) == 2
        await kubelet.stop_pod(other.uid)
        assert len(kubelet.calls) == 2
        await kubelet.stop_pod(POD.uid)
        assert kubelet.calls[-1].method == "NodeUnprepareResources"
    await plugin.close()


async def test_a_damaged_checkpoint_stops_the_kubelet(root):
    with open(os.path.join(root, "dra_manager_state"), "w") as file:
        file.write('{"Data": "{}", "Checksum": 1}')
    with pytest.raises(ValueError, match="damaged"):
        await FakeKubelet(root).start()


async def test_slices_are_deleted_at_start_and_without_a_connection(root):
    wiped = []
    plugin = await start(root)
    timing = replace(QUICK, wipe=0.05)
    kubelet = FakeKubelet(root, timing=timing, wipe=lambda node, driver: wiped.append(driver))
    async with kubelet:
        assert wiped == [None]
        await kubelet.registered(NAME)
        await plugin.close()
        await kubelet.plugins.changed.until(lambda: len(wiped) == 2, "the removal of slices")
        assert wiped == [None, NAME]


async def test_a_reconnect_in_time_keeps_the_slices(root):
    wiped = []
    plugin = await start(root)
    timing = replace(QUICK, wipe=3600)
    kubelet = FakeKubelet(root, timing=timing, wipe=lambda node, driver: wiped.append(driver))
    async with kubelet:
        (endpoint,) = await kubelet.registered(NAME)
        os.unlink(plugin.service_path)
        await plugin.restore_sockets()
        await kubelet.plugins.changed.until(lambda: endpoint.connection.connects > 1, "the second connection")
        assert kubelet.plugins._timers == {}
    await plugin.close()
    assert wiped == [None]


async def test_two_drivers_the_first_error_stops_the_rest(root):
    class Failing(Driver):
        async def prepare(self, claim):
            raise RuntimeError("broken")

    other = "other.example.com"
    plugins = [await start(root, Failing()), await start(root, name=other)]
    async with FakeKubelet(root) as kubelet:
        await kubelet.registered(NAME)
        await kubelet.registered(other)
        with pytest.raises(PrepareError, match="failed for ResourceClaim claim: RuntimeError"):
            await kubelet.run_pod(POD, [claim(drivers=(NAME, other))])
        assert [call.driver for call in kubelet.calls] == [NAME]
        await kubelet.stop_pod(POD.uid)
        assert [call.driver for call in kubelet.calls[1:]] == [NAME, other]
    for plugin in plugins:
        await plugin.close()


@pytest.mark.parametrize("version", ["1.36", "1.37"])
async def test_health_is_received_expires_and_is_cleared(root, version):
    plugin = await start(root)
    plugin.report_health([HealthReport("p", "x", Health.UNHEALTHY, 0, 30, "m" * 2000)])
    async with FakeKubelet(root, version=version) as kubelet:
        await kubelet.registered(NAME)
        await kubelet.plugins.changed.until(
            lambda: kubelet.health(NAME, "p", "x")[0] == "Unhealthy", "the report"
        )
        assert kubelet.health(NAME, "p", "x")[1] == "m" * 1021 + "..."
        assert kubelet.health(NAME, "p", "y") == ("Unknown", "")
        await plugin.close()
        await kubelet.plugins.changed.until(
            lambda: kubelet.health(NAME, "p", "x")[0] == "Unknown", "the end of the stream"
        )


async def test_stale_health_is_unknown(root):
    plugin = await start(root)
    plugin.report_health([HealthReport("p", "x", Health.HEALTHY, 0)])
    async with FakeKubelet(root, timing=replace(QUICK, health_seconds=0.0)) as kubelet:
        (endpoint,) = await kubelet.registered(NAME)
        await kubelet.plugins.changed.until(lambda: endpoint.health_reports > 0, "a report")
        assert kubelet.health(NAME, "p", "x") == ("Unknown", "")
    await plugin.close()


class NoHealth(HealthService):
    async def watch(self, stream):
        raise GRPCError(Status.UNIMPLEMENTED)


async def test_a_plugin_without_health_is_left_alone_by_new_kubelets(root, monkeypatch):
    monkeypatch.setattr(plugin_module, "HealthService", NoHealth)
    plugin = await start(root)
    async with FakeKubelet(root) as kubelet:
        (endpoint,) = await kubelet.registered(NAME)
        await asyncio.wait_for(endpoint.listener, 60)
    await plugin.close()


async def test_operations_every_device_skips_are_not_called(root):
    plugin = await start(root)
    plain = claim()
    (one,) = plain.status.allocation.devices.results
    skipping = msgspec.structs.replace(one, skip_node_operations=("*",))

    def with_results(*results):
        allocation = AllocationResult(devices=DeviceAllocationResult(results=results))
        status = msgspec.structs.replace(plain.status, allocation=allocation)
        return msgspec.structs.replace(plain, status=status)

    async with FakeKubelet(root) as kubelet:
        await kubelet.registered(NAME)
        await kubelet.run_pod(POD, [with_results(skipping)])
        await kubelet.stop_pod(POD.uid)
        assert kubelet.calls == []
        await kubelet.run_pod(POD, [with_results(skipping, one)])
        assert len(kubelet.calls) == 1
    await plugin.close()
