"""ResourceClaims from the API server, reduced to the devices of one driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from drakit.core.objects import (
    AllocatedConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from drakit.kit.driver import AllocatedDevice, Claim, OpaqueConfig, RejectedError
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.kube import CLAIMS, Client, KubeError, NotFoundError

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of claims made from a template: the name of the claim in the pod."""


class ClaimSourceError(Exception):
    """A claim could not be read; the text states why and whether retrying helps."""


class ClaimSource(Protocol):
    """Reads ResourceClaims; :class:`ApiClaimSource` from the API server."""

    async def get(self, namespace: str, name: str) -> ResourceClaim | None:
        """The current claim, None if it does not exist. Raises :class:`ClaimSourceError`."""


class ApiClaimSource:
    """Reads claims from the API server, without a cache: a stale copy could be another claim."""

    def __init__(self, client: Client, metrics: HostMetrics) -> None:
        self._client = client
        self._metrics = metrics

    async def get(self, namespace: str, name: str) -> ResourceClaim | None:
        """See :class:`ClaimSource`."""
        claim = None
        try:
            claim = (await self._client.get(CLAIMS, name, namespace=namespace)).typed
        except NotFoundError:
            pass
        except KubeError as error:
            raise ClaimSourceError(
                f"cannot read claim {namespace}/{name} from the API server: {error}"
            ) from error
        self._metrics.contact("apiserver")
        return claim


def claim_for(driver: str, document: ResourceClaim, expected_uid: str) -> Claim:
    """The devices of *driver* that *document* allocates.

    Raises :class:`RejectedError` if the claim was deleted and recreated under the same name, is not
    allocated, or has no device of this driver.
    """
    meta = document.metadata
    name = f"claim {meta.namespace}/{meta.name}"
    if meta.uid != expected_uid:
        raise RejectedError(
            f"{name} was replaced: its UID is {meta.uid}, the pod was started for {expected_uid}; "
            f"delete the pod so that it is created again with the new claim",
            reason="replaced",
        )
    allocation = document.status.allocation
    if allocation is None:
        raise RejectedError(
            f"{name} is not allocated; the scheduler has to allocate it before a pod can start",
            reason="unallocated",
        )
    devices = tuple(_allocated_devices(driver, allocation.devices))
    if not devices:
        raise RejectedError(f"{name} has no device of driver {driver} allocated", reason="unallocated")
    return Claim(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        devices=devices,
        consumers=tuple(
            consumer.uid
            for consumer in document.status.reserved_for
            if consumer.resource == "pods" and not consumer.api_group
        ),
        pod_claim_name=meta.annotations.get(POD_CLAIM_NAME),
    )


def _allocated_devices(driver: str, devices: DeviceAllocationResult) -> Iterable[AllocatedDevice]:
    for result in devices.results:
        if result.driver == driver:
            yield AllocatedDevice(
                request=result.request,
                pool=result.pool,
                device=result.device,
                share_id=result.share_id,
                consumed_capacity=result.consumed_capacity,
                admin_access=bool(result.admin_access),
                config=tuple(_configs(driver, result, devices.config)),
            )


def _configs(
    driver: str, result: DeviceRequestAllocationResult, entries: tuple[AllocatedConfiguration, ...]
) -> Iterable[OpaqueConfig]:
    """The configuration for one device: class before claim, because later entries override."""
    base = result.request.partition("/")[0]
    # The API documents this order; the stable sort makes sure of it.
    for entry in sorted(entries, key=lambda entry: entry.source != "FromClass"):
        if entry.opaque is None or entry.opaque.driver != driver:
            continue
        # No requests means all: before 1.34.2 class entries never named any, and since 1.37 the
        # list is emptied when it would cover every request.
        if not entry.requests or result.request in entry.requests or base in entry.requests:
            yield OpaqueConfig(source=entry.source, parameters=entry.opaque.parameters)
