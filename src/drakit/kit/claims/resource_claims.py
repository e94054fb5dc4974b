"""From a ResourceClaim of the API server to what concerns one driver. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from drakit.core.objects import (
    AllocatedConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from drakit.kit.driver import AllocatedDevice, Claim, OpaqueConfig, RejectedError

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of claims made from a template: the name the pod knows the claim by."""


def claim_for(driver: str, document: ResourceClaim, expected_uid: str) -> Claim:
    """What *document* gives of the devices of *driver*.

    Raises :class:`RejectedError` when the object is another one than the kubelet means (deleted and
    created again under the same name), is not allocated, or holds nothing of this driver.
    """
    meta = document.metadata
    name = f"claim {meta.namespace}/{meta.name}"
    if meta.uid != expected_uid:
        raise RejectedError(
            f"{name} got replaced: its UID is {meta.uid}, the pod was started for {expected_uid}; "
            f"delete the pod so that it is created again with the new claim",
            reason="replaced",
        )
    allocation = document.status.allocation
    if allocation is None:
        raise RejectedError(
            f"{name} is not allocated; the scheduler has to allocate it before a pod can start",
            reason="unallocated",
        )
    allocated_devices = tuple(allocated_devices_of(driver, allocation.devices))
    if not allocated_devices:
        raise RejectedError(
            f"{name} has no device of driver {driver} allocated", reason="unallocated"
        )
    return Claim(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        devices=allocated_devices,
        consumers=tuple(
            consumer.uid
            for consumer in document.status.reserved_for
            if consumer.resource == "pods" and not consumer.api_group
        ),
        pod_claim_name=meta.annotations.get(POD_CLAIM_NAME),
    )


def allocated_devices_of(driver: str, devices: DeviceAllocationResult) -> Iterable[AllocatedDevice]:
    """The devices of *driver* in an allocation, each with the configuration meant for it."""
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
    """Class entries before claim entries, as the API lists them; drivers let later ones win."""
    base = result.request.partition("/")[0]
    # The list is documented in this order; sorting (stably) makes sure nothing else can win.
    for entry in sorted(entries, key=lambda entry: entry.source != "FromClass"):
        if entry.opaque is None or entry.opaque.driver != driver:
            continue
        # No requests means all: before 1.34.2 class entries never named any, and since 1.37 the
        # list is emptied when it would cover every request.
        if not entry.requests or result.request in entry.requests or base in entry.requests:
            yield OpaqueConfig(source=entry.source, parameters=entry.opaque.parameters)
