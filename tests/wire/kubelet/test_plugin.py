"""The plugin's life: service first, registration last, both sockets gone at the end."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import pytest
from grpclib.client import StreamUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from h2.connection import H2Connection

from drakit.wire.kubelet import (
    Health,
    KubeletPlugin,
    SocketInUseError,
    SocketPathError,
    dra_v1_pb2,
    request_id,
)
from drakit.wire.kubelet.values import ClaimError, HealthReport, KubeletDevice
from tests.wire.kubelet.conftest import Recorder, claim, client_of

NAME = "dra.example.com"
UID_A = "0a0a0a0a-0000-4000-8000-00000000000a"
UID_B = "0b0b0b0b-0000-4000-8000-00000000000b"


def plugin_at(root, handler=None, **options):
    return KubeletPlugin(NAME, handler or Recorder(), kubelet_root=root, **options)


@pytest.fixture
async def started(root):
    plugin = plugin_at(root)
    await plugin.start_service()
    await plugin.register()
    yield plugin
    await plugin.close()


async def test_the_service_works_before_the_registration_socket_exists(root):
    plugin = plugin_at(root)
    await plugin.start_service()
    assert not os.path.exists(plugin.registration_path)
    async with client_of(plugin.service_path) as client:
        assert set(await client.prepare(claim())) == {"uid-1"}
    await plugin.register()
    assert os.path.exists(plugin.registration_path)
    await plugin.close()
    assert not os.path.exists(plugin.registration_path)
    assert not os.path.exists(plugin.service_path)


@pytest.mark.parametrize("turns", range(8))
async def test_a_stop_during_the_registration_leaves_nothing_behind(root, turns):
    plugin = plugin_at(root)
    await plugin.start_service()
    registering = asyncio.create_task(plugin.register())
    for _ in range(turns):
        await asyncio.sleep(0)
    registering.cancel()
    await asyncio.gather(registering, return_exceptions=True)
    await plugin.close()
    assert not os.path.exists(plugin.registration_path)
    assert not os.path.exists(plugin.service_path)


async def test_registering_without_a_service_is_rejected(root):
    with pytest.raises(RuntimeError, match="start_service"):
        await plugin_at(root).register()


async def test_info_names_driver_endpoint_and_services_newest_first(started):
    async with client_of(started.registration_path) as client:
        info = await client.get_info()
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", NAME, started.service_path)
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]


async def test_acceptance_and_rejection_are_recorded(root):
    plugin = plugin_at(root)
    await plugin.start_service()
    await plugin.register()
    assert not plugin.registered.is_set()
    async with client_of(plugin.registration_path) as client:
        await client.notify(registered=False, error="no version in common")
        assert plugin.registration_error == "no version in common"
        assert not plugin.registered.is_set()
        await client.notify(registered=True)
        assert plugin.registration_error == ""
        assert plugin.registered.is_set()
    await plugin.close()
    assert not plugin.registered.is_set()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_devices_reach_the_kubelet_with_base_request_names(root, version):
    class Driver(Recorder):
        async def prepare(self, claim):
            names = ("main/small", "main/big", "other")
            return [
                KubeletDevice(names, "pool", "dev-0", ("v/c=0", "v/c=1"), share_id="share"),
                KubeletDevice((), "pool", "dev-1", ()),
            ]

    plugin = plugin_at(root, Driver())
    await plugin.start_service()
    async with client_of(plugin.service_path) as client:
        first, second = (await client.prepare(claim(), version=version))["uid-1"].devices
    assert list(first.request_names) == ["main", "other"]
    assert list(first.cdi_device_ids) == ["v/c=0", "v/c=1"]
    assert (first.pool_name, first.device_name) == ("pool", "dev-0")
    assert list(second.request_names) == []
    if version == "v1":
        assert first.HasField("share_id")
        assert first.share_id == "share"
        assert not second.HasField("share_id")
    await plugin.close()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_one_bad_claim_fails_alone(root, version):
    class Driver(Recorder):
        async def prepare(self, claim):
            if claim.uid == "refused":
                raise ClaimError("cpu 3 is held by claim default/other")
            if claim.uid == "broken":
                raise KeyError("bug")
            return await super().prepare(claim)

        async def unprepare(self, claim):
            if claim.uid == "broken":
                raise OSError("disk is full")

    plugin = plugin_at(root, Driver())
    await plugin.start_service()
    claims = [claim("good"), claim("refused"), claim("broken")]
    async with client_of(plugin.service_path) as client:
        prepared = await client.prepare(*claims, version=version)
        unprepared = await client.unprepare(*claims, version=version)
    assert set(prepared) == set(unprepared) == {"good", "refused", "broken"}
    assert prepared["good"].devices
    assert not prepared["good"].error
    assert prepared["refused"].error == "cpu 3 is held by claim default/other"
    assert "KeyError" in prepared["broken"].error
    assert not prepared["broken"].devices
    assert [bool(unprepared[uid].error) for uid in ("good", "refused", "broken")] == [False, False, True]
    await plugin.close()


async def test_calls_are_numbered_and_reported(root):
    numbers, records = [], []

    class Driver(Recorder):
        async def prepare(self, claim):
            numbers.append(request_id.get())
            return await super().prepare(claim)

    plugin = plugin_at(root, Driver(), on_call=records.append)
    await plugin.start_service()
    async with client_of(plugin.service_path) as client:
        await client.prepare(claim("a"), claim("b"))
        await client.unprepare(claim("a"), version="v1beta1")
    assert numbers[0] == numbers[1] == records[0].request_id < records[1].request_id
    assert (records[0].method, records[0].version, records[0].claims, records[0].failed) == (
        "NodePrepareResources",
        "v1",
        2,
        0,
    )
    assert (records[1].method, records[1].version) == ("NodeUnprepareResources", "v1beta1")
    await plugin.close()


async def test_a_hanging_claim_fails_alone_before_the_deadline(root):
    cancelled = asyncio.Event()

    class Driver(Recorder):
        async def prepare(self, claim):
            if claim.uid == "slow":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.set()
                    raise
            return await super().prepare(claim)

    plugin = plugin_at(root, Driver())
    await plugin.start_service()
    async with client_of(plugin.service_path) as client:
        answer = await client.prepare(claim("slow"), claim("quick"), timeout=6.0)
    assert answer["quick"].devices
    assert "not finished" in answer["slow"].error
    assert cancelled.is_set()
    await plugin.close()


async def test_a_disconnected_client_cancels_the_work(root):
    begun, cancelled = asyncio.Event(), asyncio.Event()

    class Driver(Recorder):
        async def prepare(self, claim):
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

    plugin = plugin_at(root, Driver())
    await plugin.start_service()
    async with client_of(plugin.service_path) as client:
        call = asyncio.create_task(client.prepare(claim()))
        await begun.wait()
        assert plugin.connections == 1
        call.cancel()
        await cancelled.wait()
    with pytest.raises(asyncio.CancelledError):
        await call
    await plugin.close()


async def test_closing_lets_a_running_call_finish(root):
    begun, release = asyncio.Event(), asyncio.Event()

    class Driver(Recorder):
        async def prepare(self, claim):
            begun.set()
            await release.wait()
            return await super().prepare(claim)

    plugin = plugin_at(root, Driver())
    await plugin.start_service()
    async with client_of(plugin.service_path) as client:
        call = asyncio.create_task(client.prepare(claim()))
        await begun.wait()
        closing = asyncio.create_task(plugin.close(grace=30))
        await asyncio.sleep(0)
        assert not os.path.exists(plugin.service_path)
        release.set()
        assert (await call)["uid-1"].devices
        await closing


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_health_is_sent_at_once_and_on_change(started, version):
    now = 1_700_000_000
    healthy = HealthReport("pool", "dev", Health.HEALTHY, now, 90)
    started.report_health([healthy])
    async with client_of(started.service_path) as client, client.health(version) as stream:
        (first,) = (await stream.recv_message()).devices
        assert (first.device.pool_name, first.device.device_name) == ("pool", "dev")
        assert (first.health, first.last_updated_time) == (Health.HEALTHY.value, now)
        assert first.health_check_timeout_seconds == 90
        started.report_health([HealthReport("pool", "dev", Health.UNHEALTHY, now, message="hot")])
        (second,) = (await stream.recv_message()).devices
        assert (second.health, second.message) == (Health.UNHEALTHY.value, "hot")


async def test_closing_ends_open_health_streams_and_connections(root):
    plugin = plugin_at(root)
    await plugin.start_service()
    async with client_of(plugin.service_path) as client:
        with pytest.raises(Exception, match=r"(?i)cancelled|lost|closed"):
            async with client.health() as stream:
                await stream.recv_initial_metadata()
                await plugin.close()
                assert await stream.recv_message() is None
    assert plugin.connections == 0
    await plugin.close()


async def test_a_second_instance_does_not_take_the_sockets_of_a_live_one(started, root):
    with pytest.raises(SocketInUseError, match="instance UID"):
        await plugin_at(root).start_service()
    async with client_of(started.service_path) as client:
        assert await client.prepare(claim())


async def test_two_instances_with_uids_serve_side_by_side(root):
    old, new = plugin_at(root, instance_uid=UID_A), plugin_at(root, instance_uid=UID_B)
    for plugin in (old, new):
        await plugin.start_service()
        await plugin.register()
    for plugin in (old, new):
        async with client_of(plugin.registration_path) as client:
            assert (await client.get_info()).endpoint == plugin.service_path
    await old.close()
    async with client_of(new.service_path) as client:
        assert await client.prepare(claim())
    await new.close()
    left = set(os.listdir(new.plugin_dir)) | set(os.listdir(new.registry_dir))
    assert not [name for name in left if name.endswith(".sock")]


DIES = """
import asyncio, os, sys
from drakit.wire.kubelet import KubeletPlugin

async def main():
    plugin = KubeletPlugin("dra.example.com", None, kubelet_root=sys.argv[1],
                           instance_uid=sys.argv[2] or None)
    await plugin.start_service()
    await plugin.register()
    print(plugin.service_path, plugin.registration_path)
    sys.stdout.flush()
    os._exit(9)

asyncio.run(main())
"""


@pytest.mark.parametrize("uid", ["", UID_A, "x" * 200])
async def test_sockets_of_a_killed_instance_are_removed(root, uid):
    done = subprocess.run(
        [sys.executable, "-c", DIES, root, uid], check=False, stdout=subprocess.PIPE, text=True
    )
    left = done.stdout.split()
    assert done.returncode == 9
    assert all(map(os.path.exists, left))
    plugin = plugin_at(root, instance_uid=UID_B)
    await plugin.start_service()
    assert not any(map(os.path.exists, left))
    await plugin.close()


async def test_dead_sockets_of_other_drivers_stay(root):
    plugin = plugin_at(root)
    names = [f"{NAME}-other-reg.sock", "else-reg.sock", f"x{NAME}-reg.sock"]
    paths = [os.path.join(plugin.registry_dir, name) for name in names]
    for path in paths:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
    await plugin.start_service()
    await plugin.close()
    assert all(map(os.path.exists, paths))


async def test_a_successor_at_the_same_path_keeps_its_socket(root):
    plugin = plugin_at(root)
    await plugin.start_service()
    os.unlink(plugin.service_path)
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(plugin.service_path)
        await plugin.close()
        assert os.path.exists(plugin.service_path)


async def test_something_else_at_the_path_is_not_removed(root):
    plugin = plugin_at(root)
    os.makedirs(plugin.plugin_dir)
    with open(plugin.service_path, "w") as file:
        file.write("precious")
    with pytest.raises(SocketPathError, match="not a socket"):
        await plugin.start_service()
    assert os.path.getsize(plugin.service_path)


async def test_removed_sockets_are_noticed_and_restored(started):
    assert started.missing_sockets() == []
    os.unlink(started.registration_path)
    os.unlink(started.service_path)
    assert started.missing_sockets() == [started.service_path, started.registration_path]
    await started.restore_sockets()
    assert started.missing_sockets() == []
    async with client_of(started.registration_path) as client:
        assert (await client.get_info()).name == NAME
    async with client_of(started.service_path) as client:
        assert await client.prepare(claim())


async def test_no_registration_directory_is_a_clear_error(root):
    os.rmdir(os.path.join(root, "plugins_registry"))
    with pytest.raises(FileNotFoundError, match="kubelet root"):
        await plugin_at(root).start_service()


async def test_too_long_a_path_is_an_error_before_anything_starts(root):
    with pytest.raises(SocketPathError, match="107"):
        plugin_at(os.path.join(root, "x" * 100))


@pytest.mark.parametrize("name", ["", "a" * 64, "-x", "a/b", "a b", "../a"])
async def test_a_bad_driver_name_is_rejected(root, name):
    with pytest.raises(ValueError, match="DNS subdomain"):
        KubeletPlugin(name, Recorder(), kubelet_root=root)


async def test_other_users_cannot_connect(started):
    assert os.stat(started.service_path).st_mode & 0o077 == 0
    assert os.stat(started.registration_path).st_mode & 0o077 == 0


async def test_finished_calls_are_not_kept_forever():
    assert H2Connection().MAX_CLOSED_STREAMS == 1024


async def test_starting_or_registering_twice_is_rejected(started):
    with pytest.raises(RuntimeError, match="already serves"):
        await started.start_service()
    with pytest.raises(RuntimeError, match="already has a registration socket"):
        await started.register()


@pytest.mark.parametrize("which", ["service_path", "registration_path"])
async def test_sockets_another_instance_took_are_not_taken_back(started, which):
    path = getattr(started, which)
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(path)
        successor.listen()
        assert started.missing_sockets() == [path]
        with pytest.raises(SocketInUseError, match="another instance already listens"):
            await started.restore_sockets()
        assert started.missing_sockets() == [path], "still known, so it can be closed"
    os.unlink(path)


async def test_a_call_without_a_message_is_an_error_of_the_caller(started):
    async with client_of(started.service_path) as client:
        method = StreamUnaryMethod(
            client.channel,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            dra_v1_pb2.NodePrepareResourcesRequest,
            dra_v1_pb2.NodePrepareResourcesResponse,
        )
        with pytest.raises(GRPCError) as caught:
            await method([], timeout=45)
        assert caught.value.status is Status.INVALID_ARGUMENT
