"""The gRPC services of a DRA driver: registration, claims, health, in every version spoken.

Each class hands grpclib its methods through ``__mapping__``, which is all that generated service
code would do. The messages of the versions differ in ``share_id`` alone, so one class serves both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Api:
    """A service in one version: its generated messages, its gRPC name, what to advertise.

    The string a plugin advertises is not the gRPC name for the claim services, but is it for the
    health services; the kubelet compares both literally.
    """

    messages: Any  # a generated module; those of two versions have the same message names
    service: str
    advertised: str


CLAIM_APIS: Final = (
    Api(dra_v1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "v1.DRAPlugin"),
    Api(dra_v1beta1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", "v1beta1.DRAPlugin"),
)
HEALTH_APIS: Final = (
    Api(health_v1_pb2, "v1.DRAResourceHealth", "v1.DRAResourceHealth"),
    Api(health_v1alpha1_pb2, "v1alpha1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"),
)
REGISTRATION_SERVICE: Final = "pluginregistration.Registration"
PLUGIN_TYPE: Final = "DRAPlugin"
SUPPORTED: Final = tuple(api.advertised for api in (*CLAIM_APIS, *HEALTH_APIS))
"""What the plugin advertises. The kubelet takes the first it knows, so the newest comes first."""


class RegistrationService:
    """Says who the plugin is, and hears what the kubelet made of it."""

    def __init__(
        self,
        driver: str,
        endpoint: str,
        heard: Callable[[bool, str], None],
        seen: Callable[[], None],
    ) -> None:
        # Made here and not in the call: the kubelet gives GetInfo one second, on a loaded node.
        self._info = pluginregistration_pb2.PluginInfo(
            type=PLUGIN_TYPE, name=driver, endpoint=endpoint, supported_versions=SUPPORTED
        )
        self._heard = heard
        self._seen = seen

    async def get_info(self, stream: Stream[Any, Any]) -> None:
        """Answer with the identity made beforehand; no I/O."""
        await stream.recv_message()
        self._seen()
        await stream.send_message(self._info)

    async def notify_status(self, stream: Stream[Any, Any]) -> None:
        """Take note. Never an error: the kubelet would drop a plugin it has just accepted."""
        status = await _received(stream)
        self._seen()
        self._heard(status.plugin_registered, status.error)
        await stream.send_message(pluginregistration_pb2.RegistrationStatusResponse())

    def __mapping__(self) -> dict[str, Handler]:
        pb = pluginregistration_pb2
        return {
            f"/{REGISTRATION_SERVICE}/GetInfo": Handler(
                self.get_info, Cardinality.UNARY_UNARY, pb.InfoRequest, pb.PluginInfo
            ),
            f"/{REGISTRATION_SERVICE}/NotifyRegistrationStatus": Handler(
                self.notify_status,
                Cardinality.UNARY_UNARY,
                pb.RegistrationStatus,
                pb.RegistrationStatusResponse,
            ),
        }


class ClaimService:
    """NodePrepareResources and NodeUnprepareResources in one version."""

    def __init__(
        self,
        api: Api,
        handler: DraHandler,
        seen: Callable[[], None],
        finished: Callable[[KubeletCall], None],
    ) -> None:
        self._api = api
        self._handler = handler
        self._seen = seen
        self._finished = finished

    async def prepare(self, stream: Stream[Any, Any]) -> None:
        """Prepare the claims of the request; one entry for each."""
        pb = self._api.messages
        response = pb.NodePrepareResourcesResponse()
        outcomes = await self._serve(stream, "NodePrepareResources", self._handler.prepare)
        for uid, outcome in outcomes.items():
            entry = response.claims[uid]  # makes the entry, also when nothing is put into it
            entry.error = outcome.error
            entry.devices.extend(self._device(device) for device in outcome.devices)
        await stream.send_message(response)

    async def unprepare(self, stream: Stream[Any, Any]) -> None:
        """Unprepare the claims of the request; one entry for each."""
        pb = self._api.messages
        response = pb.NodeUnprepareResourcesResponse()
        outcomes = await self._serve(stream, "NodeUnprepareResources", self._unprepare)
        for uid, outcome in outcomes.items():
            response.claims[uid].error = outcome.error
        await stream.send_message(response)

    async def _unprepare(self, claim: ClaimRef) -> None:
        await self._handler.unprepare(claim)

    async def _serve(
        self, stream: Stream[Any, Any], method: str, work: Work
    ) -> dict[str, ClaimOutcome]:
        started = time.monotonic()
        number = next_request()
        request = await _received(stream)
        self._seen()
        claims = claims_of(request)
        log.info("request %d: %s for %s", number, method, _listed(claims))
        seconds = CALL_SECONDS
        if stream.deadline is not None:
            seconds = min(seconds, stream.deadline.time_remaining())
        outcomes: dict[str, ClaimOutcome] = {}
        try:
            outcomes = await serve_claims(claims, work, seconds)
        finally:
            failed = sum(1 for claim in claims if _has_failed(outcomes.get(claim.uid)))
            taken = time.monotonic() - started
            log.info("request %d: %d of %d failed, %.3f s", number, failed, len(claims), taken)
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
        pb, service = self._api.messages, self._api.service
        return {
            f"/{service}/NodePrepareResources": Handler(
                self.prepare,
                Cardinality.UNARY_UNARY,
                pb.NodePrepareResourcesRequest,
                pb.NodePrepareResourcesResponse,
            ),
            f"/{service}/NodeUnprepareResources": Handler(
                self.unprepare,
                Cardinality.UNARY_UNARY,
                pb.NodeUnprepareResourcesRequest,
                pb.NodeUnprepareResourcesResponse,
            ),
        }


def claims_of(request: Any) -> list[ClaimRef]:
    """The claims a request is about, in its order, with whatever names it has for them."""
    return [ClaimRef(c.namespace, c.name, c.uid) for c in request.claims]


class HealthService:
    """The stream of device health in one version.

    Served even when the driver has nothing to report: kubelets 1.34 to 1.36 open a stream on every
    plugin and retry for ever when there is none, and an open stream keeps the connection from
    going idle, which hung kubelet 1.34.0 and 1.34.1.
    """

    def __init__(self, api: Api, feed: HealthFeed, seen: Callable[[], None]) -> None:
        self._api = api
        self._feed = feed
        self._seen = seen

    async def watch(self, stream: Stream[Any, Any]) -> None:
        """Send the health of all devices at once, on every change, and again before it ages."""
        pb = self._api.messages
        await stream.recv_message()
        self._seen()
        await stream.send_initial_metadata()  # a Go client counts a stream as open only then
        async for devices in self._feed.reports():
            await stream.send_message(
                pb.NodeWatchResourcesResponse(devices=[_health(pb, one) for one in devices])
            )

    def __mapping__(self) -> dict[str, Handler]:
        pb = self._api.messages
        return {
            f"/{self._api.service}/NodeWatchResources": Handler(
                self.watch,
                Cardinality.UNARY_STREAM,
                pb.NodeWatchResourcesRequest,
                pb.NodeWatchResourcesResponse,
            )
        }


async def _received(stream: Stream[Any, Any]) -> Any:
    message = await stream.recv_message()
    if message is None:
        raise GRPCError(Status.INVALID_ARGUMENT, "the call carried no message")
    return message


def base_names(requests: Iterable[str]) -> list[str]:
    """Request names without subrequests, each once: the kubelet compares them with the pod's."""
    return list(dict.fromkeys(name.partition("/")[0] for name in requests))


def _health(pb: Any, one: HealthReport) -> Any:
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
        health=one.health.value,
        last_updated_time=one.updated,
        health_check_timeout_seconds=one.timeout_seconds,
        message=one.message,
    )


def _has_failed(outcome: ClaimOutcome | None) -> bool:
    return outcome is None or bool(outcome.error)


def _listed(claims: list[ClaimRef]) -> str:
    return ", ".join(map(str, claims)) or "no claim"
