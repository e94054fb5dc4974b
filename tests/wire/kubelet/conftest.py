"""A client that speaks to the plugin as the kubelet does, one call at a time."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from contextlib import asynccontextmanager

import pytest
from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod

from drakit.wire.kubelet import dra_v1_pb2, dra_v1beta1_pb2, health_v1_pb2, health_v1alpha1_pb2
from drakit.wire.kubelet import pluginregistration_pb2 as registration
from drakit.wire.kubelet.values import ClaimRef, KubeletDevice

CLAIMS = {
    "v1": (dra_v1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"),
    "v1beta1": (dra_v1beta1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"),
}
HEALTH = {
    "v1": (health_v1_pb2, "v1.DRAResourceHealth"),
    "v1alpha1": (health_v1alpha1_pb2, "v1alpha1.DRAResourceHealth"),
}


@pytest.fixture
def root():
    """A kubelet root with a short path: sockets live below it."""
    path = tempfile.mkdtemp(prefix="k")
    os.mkdir(os.path.join(path, "plugins_registry"))
    yield path
    shutil.rmtree(path)


class Recorder:
    """A driver that prepares whatever it is asked for and remembers the calls."""

    def __init__(self):
        self.prepared = []
        self.unprepared = []

    async def prepare(self, claim: ClaimRef):
        self.prepared.append(claim)
        return [KubeletDevice(("req",), "pool", "dev", (f"vendor/class={claim.uid}",))]

    async def unprepare(self, claim: ClaimRef):
        self.unprepared.append(claim)


class Client:
    def __init__(self, channel):
        self.channel = channel

    async def get_info(self, timeout=30.0):
        method = UnaryUnaryMethod(
            self.channel,
            "/pluginregistration.Registration/GetInfo",
            registration.InfoRequest,
            registration.PluginInfo,
        )
        return await method(registration.InfoRequest(), timeout=timeout)

    async def notify(self, registered, error=""):
        method = UnaryUnaryMethod(
            self.channel,
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            registration.RegistrationStatus,
            registration.RegistrationStatusResponse,
        )
        status = registration.RegistrationStatus(plugin_registered=registered, error=error)
        return await method(status, timeout=30.0)

    async def claims(self, verb, claims, version="v1", timeout=45.0):
        pb, service = CLAIMS[version]
        request = getattr(pb, f"Node{verb}ResourcesRequest")
        response = getattr(pb, f"Node{verb}ResourcesResponse")
        method = UnaryUnaryMethod(self.channel, f"/{service}/Node{verb}Resources", request, response)
        wanted = [pb.Claim(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims]
        return (await method(request(claims=wanted), timeout=timeout)).claims

    async def prepare(self, *claims, **options):
        return await self.claims("Prepare", claims, **options)

    async def unprepare(self, *claims, **options):
        return await self.claims("Unprepare", claims, **options)

    @asynccontextmanager
    async def health(self, version="v1"):
        pb, service = HEALTH[version]
        method = UnaryStreamMethod(
            self.channel,
            f"/{service}/NodeWatchResources",
            pb.NodeWatchResourcesRequest,
            pb.NodeWatchResourcesResponse,
        )
        async with method.open() as stream:
            await stream.send_message(pb.NodeWatchResourcesRequest(), end=True)
            yield stream
            await stream.cancel()


@asynccontextmanager
async def client_of(path):
    channel = Channel(path=path)
    try:
        yield Client(channel)
    finally:
        channel.close()
        await asyncio.sleep(0)


def claim(uid="uid-1", name="claim", namespace="default"):
    return ClaimRef(namespace, name, uid)
