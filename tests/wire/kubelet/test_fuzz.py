"""Damaged messages of the kubelet: rejected by the decoder, or claims that are served one by one.

100 000 inputs for each kind of message, without a socket; over one see :mod:`test_garbage`.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest
from google.protobuf.message import DecodeError

from drakit.wire.kubelet import dra_v1_pb2, dra_v1beta1_pb2, health_v1_pb2, health_v1alpha1_pb2
from drakit.wire.kubelet import pluginregistration_pb2 as registration
from drakit.wire.kubelet.services import (
    CLAIM_APIS,
    HEALTH_APIS,
    ClaimService,
    HealthService,
    RegistrationService,
    claims_of,
)
from drakit.wire.kubelet.values import ClaimRef
from tests.wire.damage import damaged, survive
from tests.wire.kubelet.conftest import Recorder

INPUTS = 100_000
SERVED = 100
"""Of so many inputs one goes through the whole service."""


class Call:
    """As much of a gRPC stream as a unary call needs."""

    deadline = None

    def __init__(self, handler, data: bytes) -> None:
        self._request = handler.request_type.FromString(data)
        self.answers = []

    async def recv_message(self):
        return self._request

    async def send_message(self, message) -> None:
        self.answers.append(type(message).FromString(message.SerializeToString()))


def claims_request(pb, verb: str) -> list[bytes]:
    claims = [pb.Claim(namespace="ns", name=f"claim-{n}", uid=f"uid-{n}") for n in range(3)]
    request = getattr(pb, f"Node{verb}ResourcesRequest")
    return [request(claims=claims[:count]).SerializeToString() for count in (0, 1, 3)]


@pytest.mark.parametrize("verb", ["Prepare", "Unprepare"])
@pytest.mark.parametrize("api", CLAIM_APIS, ids=lambda api: api.advertised)
def test_claims(api, verb: str, scale: int) -> None:
    service = ClaimService(api, Recorder(), lambda record: None)
    handler = service.__mapping__()[f"/{api.service}/Node{verb}Resources"]
    samples = claims_request(api.messages, verb)
    numbers = itertools.count()

    def work(data: bytes) -> None:
        claims = claims_of(handler.request_type.FromString(data))
        assert all(isinstance(claim, ClaimRef) for claim in claims)
        if next(numbers) % SERVED == 0:
            call = Call(handler, data)
            asyncio.run(handler.func(call))
            (answer,) = call.answers
            assert set(answer.claims) == {claim.uid for claim in claims}

    inputs = damaged(samples, 11, INPUTS // 2 * scale)  # two methods in each version
    assert survive(work, DecodeError, inputs) > len(samples)


def test_registration(scale: int) -> None:
    heard = []
    service = RegistrationService("d", "/e", lambda *news: heard.append(news))
    handler = service.__mapping__()["/pluginregistration.Registration/NotifyRegistrationStatus"]
    sample = registration.RegistrationStatus(plugin_registered=True, error="why").SerializeToString()
    numbers = itertools.count()

    def work(data: bytes) -> None:
        status = handler.request_type.FromString(data)
        assert isinstance(status.error, str)
        if next(numbers) % SERVED == 0:
            asyncio.run(handler.func(Call(handler, data)))
            assert heard[-1] == (status.plugin_registered, status.error)

    assert survive(work, DecodeError, damaged([sample], 12, INPUTS * scale)) > 1
    assert heard


@pytest.mark.parametrize(
    "request_type",
    [
        registration.InfoRequest,
        health_v1_pb2.NodeWatchResourcesRequest,
        health_v1alpha1_pb2.NodeWatchResourcesRequest,
    ],
    ids=lambda kind: kind.DESCRIPTOR.full_name,
)
def test_requests_without_content(request_type, scale: int) -> None:
    """Nothing is expected in them, but newer kubelets may send something, and anybody anything."""
    samples = [b"", b"\x0a\x03abc\x10\x01", *claims_request(dra_v1_pb2, "Prepare")]
    survive(request_type.FromString, DecodeError, damaged(samples, 13, INPUTS // 3 * scale))


def test_every_service_is_covered() -> None:
    """A new method of the kubelet's needs a test here."""
    recorder = Recorder()
    paths = {
        *RegistrationService("d", "/e", lambda *_: None).__mapping__(),
        *(p for a in CLAIM_APIS for p in ClaimService(a, recorder, print).__mapping__()),
        *(p for a in HEALTH_APIS for p in HealthService(a, None).__mapping__()),
    }
    assert len(paths) == 2 + 2 * 2 + 2
    assert {api.messages for api in CLAIM_APIS} == {dra_v1_pb2, dra_v1beta1_pb2}
