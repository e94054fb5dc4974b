"""Claims of a pod as a list of requests with their alternatives and device classes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from drakit.core.objects import DeviceClass, DeviceRequest, ExactRequest, ResourceClaim, SubRequest
from drakit.scheduler.allocator.constraints import RequestName
from drakit.scheduler.errors import FatalError

RequestSpec: TypeAlias = ExactRequest | SubRequest
MAX_ALLOCATION_RESULTS: Final = 32
"""AllocationResultsMaxSize: the number of devices in a claim."""


def request_specs(request: DeviceRequest) -> Iterator[tuple[str, RequestSpec]]:
    """The request or its alternatives, with their full names."""
    if request.exactly is not None:
        yield request.name, request.exactly
    for alternative in request.first_available:
        yield f"{request.name}/{alternative.name}", alternative


@dataclass(frozen=True, slots=True)
class Variant:
    """A request without alternatives, or one alternative of a request."""

    claim: ResourceClaim
    name: RequestName
    spec: RequestSpec
    device_class: DeviceClass
    number: int
    """Identifies the variant within the pod."""

    @property
    def admin(self) -> bool:
        """Whether the request has admin access: devices may be in use and are not reserved."""
        return isinstance(self.spec, ExactRequest) and bool(self.spec.admin_access)

    @property
    def wants_all(self) -> bool:
        """Whether the request is for all matching devices."""
        return self.spec.allocation_mode == "All"


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A request: one variant, or alternatives in order of preference."""

    request: DeviceRequest
    variants: tuple[Variant, ...]

    @property
    def is_list(self) -> bool:
        """Whether there are alternatives."""
        return bool(self.request.first_available)


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """A claim to be allocated."""

    claim: ResourceClaim
    requests: tuple[RequestPlan, ...]


def claim_name(claim: ResourceClaim) -> str:
    """``namespace/name``, as in the messages of kube-scheduler."""
    meta = claim.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def plan_claims(claims: Iterable[ResourceClaim], classes: Mapping[str, DeviceClass]) -> tuple[ClaimPlan, ...]:
    """Resolve the requests of all claims. Raises :class:`FatalError` if one is not supported."""
    numbers = itertools.count()

    def planned(claim: ResourceClaim, request: DeviceRequest) -> RequestPlan:
        specs = request.first_available or (request.exactly or ExactRequest(),)
        variants = (_variant(claim, request, spec, classes, next(numbers)) for spec in specs)
        return RequestPlan(request, tuple(variants))

    return tuple(
        ClaimPlan(claim, tuple(planned(claim, request) for request in claim.spec.devices.requests))
        for claim in claims
    )


def _variant(
    claim: ResourceClaim,
    request: DeviceRequest,
    spec: RequestSpec,
    classes: Mapping[str, DeviceClass],
    number: int,
) -> Variant:
    where = f"claim {claim_name(claim)}, request {request.name}"
    name = RequestName(request.name, spec.name if isinstance(spec, SubRequest) else "")
    for index, selector in enumerate(spec.selectors):
        if selector.cel is None:
            raise FatalError(f"{where}, selector #{index}: CEL expression empty "
                             "(unsupported selector type?)")  # fmt: skip
    if not spec.device_class_name:
        raise FatalError(f"{where}: missing device class name (unsupported request type?)")
    found = classes.get(spec.device_class_name)
    if found is None:
        raise FatalError(f"{where}: could not retrieve device class {spec.device_class_name}: "
                         "it does not exist")  # fmt: skip
    if spec.allocation_mode not in ("ExactCount", "All"):
        raise FatalError(f"{where}: unsupported count mode {spec.allocation_mode}")
    return Variant(claim, name, spec, found, number)
