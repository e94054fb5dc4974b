"""The plugin against another gRPC implementation: the C core's HTTP/2, as Go's is not at hand."""

from __future__ import annotations

import pytest

from drakit.wire.kubelet import KubeletPlugin
from drakit.wire.kubelet import dra_v1_pb2 as dra
from drakit.wire.kubelet import pluginregistration_pb2 as registration
from tests.wire.kubelet.conftest import Recorder

grpc = pytest.importorskip("grpc", reason="grpcio comes with the development tools")


async def test_grpcio_works_with_both_sockets(root):
    plugin = KubeletPlugin("dra.example.com", Recorder(), kubelet_root=root)
    await plugin.start_service()
    await plugin.register()
    # The kubelet's registration dial sends the percent-encoded path as the authority.
    options = [("grpc.default_authority", plugin.registration_path.replace("/", "%2F"))]
    async with grpc.aio.insecure_channel(f"unix:{plugin.registration_path}", options) as channel:
        get_info = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            registration.InfoRequest.SerializeToString,
            registration.PluginInfo.FromString,
        )
        info = await get_info(registration.InfoRequest(), timeout=30)
    async with grpc.aio.insecure_channel(f"unix:{info.endpoint}") as channel:
        prepare = channel.unary_unary(
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            dra.NodePrepareResourcesRequest.SerializeToString,
            dra.NodePrepareResourcesResponse.FromString,
        )
        claims = [dra.Claim(namespace="ns", name=f"c{n}", uid=f"u{n}") for n in range(50)]
        answer = await prepare(dra.NodePrepareResourcesRequest(claims=claims), timeout=45)
        assert set(answer.claims) == {f"u{n}" for n in range(50)}
        unknown = channel.unary_unary("/v1.Nothing/Here")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unknown(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await plugin.close()
