"""Kubernetes objects as immutable typed values.

Field names are Python's; on the wire they are the API's (``resource.k8s.io/v1`` as of 1.37).
Quantities are exact :class:`~drakit.core.quantity.Quantity` values. Fields left at their default
are not written, and unknown fields are dropped on reading: code that writes an object back keeps the
raw document too (see ``drakit.wire.kube``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from drakit.core.quantity import Quantity, QuantityError

T = TypeVar("T")


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", dict=False):
    """Base of all objects: immutable, camelCase on the wire, defaults left out."""


def _written(value: str) -> Any:
    """A default that is written too: an object must have apiVersion and kind."""
    return msgspec.field(default_factory=lambda: value)


class OwnerReference(Struct, frozen=True):
    """The owner of an object; the garbage collector removes the object with its owner."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Struct, frozen=True):
    """Metadata of every object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


# -- ResourceSlice ----------------------------------------------------------


class Attribute(Struct, frozen=True):
    """One attribute of a device; exactly one field is set."""

    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None

    def is_list(self) -> bool:
        """Whether the value is one of the list kinds (gate ``DRAListTypeAttributes``)."""
        return any(v is not None for v in (self.ints, self.bools, self.strings, self.versions))


def int_attribute(value: int) -> Attribute:
    """An integer attribute."""
    return Attribute(int_=value)


def bool_attribute(value: bool) -> Attribute:
    """A boolean attribute."""
    return Attribute(bool_=value)


def string_attribute(value: str) -> Attribute:
    """A text attribute (at most 64 bytes, checked by the publisher)."""
    return Attribute(string=value)


class CapacityRange(Struct, frozen=True):
    """Amounts a request may take: from ``min``, up to ``max``, in ``step``."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class RequestPolicy(Struct, frozen=True):
    """How the scheduler defaults, rounds and bounds requests for a capacity."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class Capacity(Struct, frozen=True):
    """An amount a device has, shared out when the device is multi-allocatable."""

    value: Quantity
    request_policy: RequestPolicy | None = None


class Taint(Struct, frozen=True):
    """Keeps claims without a matching toleration off a device."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class Counter(Struct, frozen=True):
    """An amount in a counter set."""

    value: Quantity


class CounterSet(Struct, frozen=True):
    """Counters that partitions of one device draw from."""

    name: str = ""
    counters: dict[str, Counter] = {}


class CounterConsumption(Struct, frozen=True):
    """What a device takes from a counter set while allocated."""

    counter_set: str = ""
    counters: dict[str, Counter] = {}
    compatibility_groups: tuple[str, ...] = ()


class NodeSelectorRequirement(Struct, frozen=True):
    """One condition on a node's labels or fields."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Struct, frozen=True):
    """Requirements that must all be met."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Struct, frozen=True):
    """Terms of which at least one must be met."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class Device(Struct, frozen=True):
    """One device of a pool."""

    name: str = ""
    attributes: dict[str, Attribute] = {}
    capacity: dict[str, Capacity] = {}
    allow_multiple_allocations: bool | None = None
    consumes_counters: tuple[CounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[Taint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    node_allocatable_resources: dict[str, Any] = {}


class ResourcePool(Struct, frozen=True):
    """The pool of a slice, and the number of slices of this generation."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Struct, frozen=True):
    """A part of a driver's pool of devices."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    partition_type_attribute: str | None = None
    skip_node_operations: tuple[str, ...] = ()


class ResourceSlice(Struct, frozen=True):
    """Devices of a driver, on one node or several."""

    api_version: str = _written("resource.k8s.io/v1")
    kind: str = _written("ResourceSlice")
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()


# -- ResourceClaim, DeviceClass ----------------------------------------------


class CelSelector(Struct, frozen=True):
    """A condition on ``device`` in the Common Expression Language."""

    expression: str = ""


class DeviceSelector(Struct, frozen=True):
    """A condition a device must meet."""

    cel: CelSelector | None = None


class Toleration(Struct, frozen=True):
    """Device taints that a request tolerates."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Struct, frozen=True):
    """Requested amount of each capacity, by the device's exact key."""

    requests: dict[str, Quantity] = {}


class ExactRequest(Struct, frozen=True):
    """Devices of one class: a count of them, or all."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequirements | None = None


class SubRequest(Struct, frozen=True):
    """One alternative of a prioritized list."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(Struct, frozen=True):
    """A named request: one exact request, or the first available of several."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[SubRequest, ...] = ()


class DeviceConstraint(Struct, frozen=True):
    """What the devices of several requests must have in common, or not."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfiguration(Struct, frozen=True):
    """Parameters for one driver, in a format that only the driver knows."""

    driver: str = ""
    parameters: Any = None


class ClaimConfiguration(Struct, frozen=True):
    """Configuration for some (or, when empty, all) requests of a claim."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueConfiguration | None = None


class DeviceClaim(Struct, frozen=True):
    """Requests, constraints and configuration of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[ClaimConfiguration, ...] = ()


class ResourceClaimSpec(Struct, frozen=True):
    """Spec of a claim, immutable after creation."""

    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(Struct, frozen=True):
    """One device the scheduler chose; ``request`` may be ``main/sub``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, Quantity] = {}
    skip_node_operations: tuple[str, ...] = ()


class AllocatedConfiguration(Struct, frozen=True):
    """Configuration that came with the allocation, from the class or from the claim."""

    source: Literal["FromClass", "FromClaim"] | str = ""  # noqa: PYI051 - the two known values
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfiguration | None = None


class DeviceAllocationResult(Struct, frozen=True):
    """The devices of an allocation and the configuration for them."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[AllocatedConfiguration, ...] = ()


class AllocationResult(Struct, frozen=True):
    """Allocation result of a claim."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ConsumerReference(Struct, frozen=True):
    """A consumer in ``reservedFor``; ``resource`` is ``pods`` for a pod."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Struct, frozen=True):
    """Status of a claim."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()
    devices: tuple[Any, ...] = ()


class ResourceClaim(Struct, frozen=True):
    """A request for devices, and its allocation."""

    api_version: str = _written("resource.k8s.io/v1")
    kind: str = _written("ResourceClaim")
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(Struct, frozen=True):
    """Metadata and spec of the claims made from a template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Struct, frozen=True):
    """A claim to be made for each pod."""

    api_version: str = _written("resource.k8s.io/v1")
    kind: str = _written("ResourceClaimTemplate")
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class ClassConfiguration(Struct, frozen=True):
    """Configuration every allocation of a class carries."""

    opaque: OpaqueConfiguration | None = None


class DeviceClassSpec(Struct, frozen=True):
    """Which devices belong to a class."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[ClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Struct, frozen=True):
    """A kind of device that claims can name."""

    api_version: str = _written("resource.k8s.io/v1")
    kind: str = _written("DeviceClass")
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaintSelector(Struct, frozen=True):
    """The devices of a taint rule; an unset field matches everything."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Struct, frozen=True):
    """Spec of a taint rule."""

    device_selector: DeviceTaintSelector | None = None
    taint: Taint = Taint()


class DeviceTaintRule(Struct, frozen=True):
    """Taints devices independently of their driver."""

    api_version: str = _written("resource.k8s.io/v1")
    kind: str = _written("DeviceTaintRule")
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


def true_conditions(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dict[str, str]:
    """True conditions of an allocated device, with messages (KEP-4817, KEP-5007); skips malformed entries."""
    wanted = [result.driver, result.pool, result.device, result.share_id or ""]
    keys = ("driver", "pool", "device", "shareID")
    for device in claim.status.devices:
        if isinstance(device, Mapping) and [str(device.get(key) or "") for key in keys] == wanted:
            conditions = device.get("conditions")
            return {
                str(each.get("type")): str(each.get("message") or "")
                for each in (conditions if isinstance(conditions, list) else ())
                if isinstance(each, Mapping) and each.get("status") == "True"
            }
    return {}


@functools.lru_cache(maxsize=4096)
def _quantity_of(value: str | int) -> Quantity:
    """Cached: dumps repeat a few quantities a hundred thousand times."""
    return Quantity(value)


def _decode(kind: type[Any], value: Any) -> Any:
    if kind is Quantity:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise QuantityError("a quantity is a text or a whole number", repr(value), 0)
        return _quantity_of(value)
    raise NotImplementedError(f"no decoder for {kind}")


def _encode(value: Any) -> Any:
    if isinstance(value, Quantity):
        return str(value)
    raise NotImplementedError(f"no encoder for {type(value)}")


def without_nulls(value: Any) -> Any:
    """Kubernetes treats ``null`` like an absent field; so do we, before strict typing."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value]
    return value


def from_builtins(document: Any, kind: type[T]) -> T:
    """Turn a parsed document into *kind*; raises ``msgspec.ValidationError`` with the field's path."""
    return msgspec.convert(without_nulls(document), kind, dec_hook=_decode, strict=True)


def from_json(data: bytes | str, kind: type[T]) -> T:
    """Turn JSON text into *kind*; raises ``msgspec.ValidationError`` or ``DecodeError``."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_decode)
    except msgspec.ValidationError:
        return from_builtins(msgspec.json.decode(data), kind)  # perhaps a null was in the way


def to_builtins(value: Any) -> Any:
    """Turn a value into plain dicts, lists and scalars as they stand in a manifest."""
    return msgspec.to_builtins(value, enc_hook=_encode)


def to_json(value: Any) -> bytes:
    """Turn a value into compact JSON with keys in a fixed order."""
    return msgspec.json.encode(value, enc_hook=_encode, order="deterministic")
