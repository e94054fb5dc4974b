"""gRPC services of a DRA driver: registration, claims and health, in all supported versions.

``__mapping__`` is grpclib's interface, as in generated service code. The messages of the versions
differ only in ``share_id``, so one class serves both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from drakit.core.log import get_logger
from drakit.wire.kubelet import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    pluginregistration_pb2,
)
from drakit.wire.kubelet.batch import ClaimOutcome, Work, next_request, serve_claims
from drakit.wire.kubelet.health import HealthFeed
from drakit.wire.kubelet.values import (
    CALL_SECONDS,
    ClaimRef,
    DraHandler,
    HealthReport,
    KubeletCall,
    KubeletDevice,
)

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Api:
    """One version of a service: generated messages, gRPC name, advertised name.

    The advertised name equals the gRPC name for the health services only; the kubelet compares it
    literally.
    """

    messages: Any  # a generated module; message names are the same in all versions
    service: str
    advertised: str

    def handler(
        self, method: str, function: Any, cardinality: Cardinality = Cardinality.UNARY_UNARY
    ) -> dict[str, Handler]:
        """The entry of *method* in grpclib's mapping."""
        request = getattr(self.messages, f"{method}Request")
        response = getattr(self.messages, f"{method}Response")
        return {f"/{self.service}/{method}": Handler(function, cardinality, request, response)}


CLAIM_APIS: Final = (
    Api(dra_v1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "v1.DRAPlugin"),
    Api(dra_v1beta1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", "v1beta1.DRAPlugin"),
)
HEALTH_APIS: Final = (
    Api(health_v1_pb2, "v1.DRAResourceHealth", "v1.DRAResourceHealth"),
    Api(health_v1alpha1_pb2, "v1alpha1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"),
)
SUPPORTED: Final = tuple(api.advertised for api in (*CLAIM_APIS, *HEALTH_APIS))
"""Advertised services; the kubelet takes the first that it knows, so the newest comes first."""


class RegistrationService:
    """Identifies the plugin to the kubelet and receives the result of the registration."""

    def __init__(self, driver: str, endpoint: str, notified: Callable[[bool, str], None]) -> None:
        # Created here and not in the call: GetInfo has a deadline of one second.
        self._info = pluginregistration_pb2.PluginInfo(
            type="DRAPlugin", name=driver, endpoint=endpoint, supported_versions=SUPPORTED
        )
        self._notified = notified

    async def get_info(self, stream: Stream[Any, Any]) -> None:
        """Return the plugin's identity."""
        await stream.recv_message()
        await stream.send_message(self._info)

    async def notify_status(self, stream: Stream[Any, Any]) -> None:
        """Record the result. Never fails: the kubelet would drop a plugin it has just accepted."""
        status = await _received(stream)
        self._notified(status.plugin_registered, status.error)
        await stream.send_message(pluginregistration_pb2.RegistrationStatusResponse())

    def __mapping__(self) -> dict[str, Handler]:
        pb, unary = pluginregistration_pb2, Cardinality.UNARY_UNARY
        info = Handler(self.get_info, unary, pb.InfoRequest, pb.PluginInfo)
        status = Handler(self.notify_status, unary, pb.RegistrationStatus, pb.RegistrationStatusResponse)
        service = "/pluginregistration.Registration"
        return {f"{service}/GetInfo": info, f"{service}/NotifyRegistrationStatus": status}


class ClaimService:
    """NodePrepareResources and NodeUnprepareResources in one version."""

    def __init__(self, api: Api, handler: DraHandler, finished: Callable[[KubeletCall], None]) -> None:
        self._api = api
        self._handler = handler
        self._finished = finished

    async def prepare(self, stream: Stream[Any, Any]) -> None:
        """Prepare the claims of the request; one entry for each."""
        response = self._api.messages.NodePrepareResourcesResponse()
        outcomes = await self._serve(stream, "NodePrepareResources", self._handler.prepare)
        for uid, outcome in outcomes.items():
            entry = response.claims[uid]  # creates the entry, even if it stays empty
            entry.error = outcome.error
            entry.devices.extend(self._device(device) for device in outcome.devices)
        await stream.send_message(response)

    async def unprepare(self, stream: Stream[Any, Any]) -> None:
        """Unprepare the claims of the request; one entry for each."""
        response = self._api.messages.NodeUnprepareResourcesResponse()
        outcomes = await self._serve(stream, "NodeUnprepareResources", self._unprepare)
        for uid, outcome in outcomes.items():
            response.claims[uid].error = outcome.error
        await stream.send_message(response)

    async def _unprepare(self, claim: ClaimRef) -> None:
        await self._handler.unprepare(claim)

    async def _serve(self, stream: Stream[Any, Any], method: str, work: Work) -> dict[str, ClaimOutcome]:
        started = time.monotonic()
        number = next_request()
        request = await _received(stream)
        claims = claims_of(request)
        log.info("call started", request=number, method=method, claims=", ".join(map(str, claims)))
        seconds = CALL_SECONDS
        if stream.deadline is not None:
            seconds = min(seconds, stream.deadline.time_remaining())
        outcomes: dict[str, ClaimOutcome] = {}
        try:
            outcomes = await serve_claims(claims, work, seconds)
        finally:
            failed = sum(1 for c in claims if c.uid not in outcomes or outcomes[c.uid].error)
            taken = time.monotonic() - started
            counts = {"count": len(claims), "failed": failed, "seconds": round(taken, 3)}
            log.info("call finished", request=number, method=method, **counts)
            version = self._api.advertised.partition(".")[0]
            self._finished(KubeletCall(number, method, version, len(claims), failed, taken))
        return outcomes

    def _device(self, device: KubeletDevice) -> Any:
        message = self._api.messages.Device(
            request_names=base_names(device.request_names),
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_device_ids,
        )
        if device.share_id is not None and "share_id" in message.DESCRIPTOR.fields_by_name:
            message.share_id = device.share_id
        return message

    def __mapping__(self) -> dict[str, Handler]:
        return {
            **self._api.handler("NodePrepareResources", self.prepare),
            **self._api.handler("NodeUnprepareResources", self.unprepare),
        }


def claims_of(request: Any) -> list[ClaimRef]:
    """The claims of a request, in order."""
    return [ClaimRef(c.namespace, c.name, c.uid) for c in request.claims]


class HealthService:
    """The stream of device health.

    Served even when the driver reports no health: kubelets 1.34 to 1.36 open a stream on every
    plugin and retry forever without it, and an open stream keeps the connection from going idle,
    which hung kubelet 1.34.0 and 1.34.1.
    """

    def __init__(self, api: Api, feed: HealthFeed) -> None:
        self._api = api
        self._feed = feed

    async def watch(self, stream: Stream[Any, Any]) -> None:
        """Send the health of all devices now, on every change, and before a report expires."""
        pb = self._api.messages
        await stream.recv_message()
        await stream.send_initial_metadata()  # a Go client considers the stream open only then
        async for devices in self._feed.reports():
            await stream.send_message(
                pb.NodeWatchResourcesResponse(devices=[_health(pb, one) for one in devices])
            )

    def __mapping__(self) -> dict[str, Handler]:
        return self._api.handler("NodeWatchResources", self.watch, Cardinality.UNARY_STREAM)


async def _received(stream: Stream[Any, Any]) -> Any:
    message = await stream.recv_message()
    if message is None:
        raise GRPCError(Status.INVALID_ARGUMENT, "the call has no message")
    return message


def base_names(requests: Iterable[str]) -> list[str]:
    """Request names without subrequests, each once, as in the pod."""
    return list(dict.fromkeys(name.partition("/")[0] for name in requests))


def _health(pb: Any, one: HealthReport) -> Any:
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
        health=one.health.value,
        last_updated_time=one.updated,
        health_check_timeout_seconds=one.timeout_seconds,
        message=one.message,
    )
