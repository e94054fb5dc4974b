"""Validation of an offer against the API's limits, before the API server rejects it.

The server rejects a whole slice for one invalid device and names only its index. Here every problem
names the device, the field, the limit and a remedy. The limits are those of the latest release.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from typing import Final

from drakit.core.kubernetes_releases import LATEST
from drakit.core.objects import Attribute, Capacity, CapacityRange, CounterSet, Device, RequestPolicy, Taint
from drakit.core.quantity import ZERO, Quantity
from drakit.kit.driver import Offer, PoolOffer

_LIMITS: Final = LATEST.slice_limits
_INT64: Final = range(-(2**63), 2**63)
_EFFECTS: Final = ("None", "NoSchedule", "NoExecute")
_NODE_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VERSION: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(\.(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)
_SHOWN: Final = 5

Problems = Iterator[str]


class OfferError(ValueError):
    """An offer that the API server would reject; ``problems`` lists all reasons."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        shown = "; ".join(self.problems[:_SHOWN])
        more = len(self.problems) - _SHOWN
        super().__init__(f"cannot publish: {shown}" + (f"; and {more} more" if more > 0 else ""))


def check_offer(driver: str, offer: Offer) -> None:
    """Raise :class:`OfferError` unless the API server would accept *offer*, whose pools are named."""
    problems = list(_driver(driver))
    names = Tally(pool.name for pool in offer.pools)
    problems += [
        f"pool {name!r} is offered {count} times: merge them or name them differently"
        for name, count in names.items()
        if count > 1
    ]
    for pool in offer.pools:
        problems += _pool(pool)
    if problems:
        raise OfferError(problems)


def _driver(name: str) -> Problems:
    if len(name) > 63 or not _SUBDOMAIN.fullmatch(name):
        yield f"driver name {name!r} is not a DNS subdomain of at most 63 characters"


def _pool(pool: PoolOffer) -> Problems:
    name = pool.name
    if len(name) > 253 or not all(_SUBDOMAIN.fullmatch(part) for part in name.split("/")):
        yield (
            f"pool name {name!r} must be DNS subdomains joined by '/', at most 253 characters "
            "(for example the node's name)"
        )
    for repeated, count in Tally(device.name for device in pool.devices).items():
        if count > 1:
            yield f"pool {name}: {count} devices are named {repeated!r}; names are unique in a pool"
    yield from (f"pool {name}: {text}" for text in _counter_sets(pool.shared_counters))
    sets = {counters.name: counters for counters in pool.shared_counters}
    for device in pool.devices:
        where = f"device {device.name!r} of pool {name}"
        yield from (f"{where}: {text}" for text in _device(device, sets))


def _counter_sets(sets: tuple[CounterSet, ...]) -> Problems:
    for name, count in Tally(counters.name for counters in sets).items():
        if count > 1:
            yield f"{count} counter sets are named {name!r}; names are unique in a pool"
    for counters in sets:
        yield from _label(counters.name, "counter set name")
        yield from _counter_names(counters.counters, f"counter set {counters.name!r}")


def _counter_names(counters: Iterable[str], where: str) -> Problems:
    names = list(counters)
    if not 1 <= len(names) <= _LIMITS.counters_per_set:
        yield f"{where} has {len(names)} counters; 1 to {_LIMITS.counters_per_set} are allowed"
    for name in names:
        yield from _label(name, f"{where}: counter name")


def _label(name: str, what: str) -> Problems:
    if not _LABEL.fullmatch(name):
        yield (
            f"{what} {name!r} is not a DNS label: at most 63 of a-z, 0-9 and '-', "
            "starting and ending with a letter or digit"
        )


def _device(device: Device, sets: dict[str, CounterSet]) -> Problems:
    yield from _label(device.name, "its name")
    total = len(device.attributes) + len(device.capacity)
    if total > _LIMITS.attributes_and_capacities:
        yield (
            f"{total} attributes and capacities, at most {_LIMITS.attributes_and_capacities} are allowed: "
            "remove the least useful attributes"
        )
    for key, attribute in device.attributes.items():
        yield from _attribute(key, attribute)
    values = sum(len(_values(attribute)) for attribute in device.attributes.values())
    if values > _LIMITS.attribute_values:
        yield f"{values} attribute values (each list item counts), at most {_LIMITS.attribute_values}"
    shared = device.allow_multiple_allocations is True
    for key, capacity in device.capacity.items():
        yield from _key(key, "capacity")
        yield from (f"capacity {key!r}: {text}" for text in _capacity(capacity, shared=shared))
    yield from _taints(device.taints)
    yield from _consumption(device, sets)
    yield from _placement(device)


def _key(key: str, what: str) -> Problems:
    domain, slash, identifier = key.rpartition("/")
    # The API accepts upper case in the domain of a key, but in no other DNS name.
    if slash and (len(domain) > 63 or not _SUBDOMAIN.fullmatch(domain.lower())):
        yield f"{what} {key!r}: the part before '/' is not a DNS subdomain of at most 63 characters"
    if not _IDENTIFIER.fullmatch(identifier):
        yield (
            f"{what} {key!r}: {identifier!r} is not an identifier of at most 32 letters, digits and '_' "
            "that does not start with a digit"
        )


def _values(attribute: Attribute) -> tuple[object, ...]:
    """All values of an attribute."""
    single = (attribute.int_, attribute.bool_, attribute.string, attribute.version)
    several = (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    return (
        *(value for value in single if value is not None),
        *(item for items in several for item in items or ()),
    )


def _attribute(key: str, attribute: Attribute) -> Problems:
    yield from _key(key, "attribute")
    kinds = [field for field in attribute.__struct_fields__ if getattr(attribute, field) is not None]
    if len(kinds) != 1:
        yield f"attribute {key!r} has {len(kinds)} types of values: exactly one is required"
        return
    values = _values(attribute)
    if not values:
        yield f"attribute {key!r} is an empty list: remove the attribute instead"
    for value in values:
        if isinstance(value, str) and len(value.encode()) > _LIMITS.text_bytes:
            yield (
                f"attribute {key!r}: {value!r} has {len(value.encode())} bytes, "
                f"at most {_LIMITS.text_bytes} are allowed: shorten it"
            )
        if kinds[0] in ("version", "versions") and not _VERSION.fullmatch(str(value)):
            yield f"attribute {key!r}: {value!r} is not a semantic version such as 1.2.3"
        if isinstance(value, int) and value not in _INT64:
            yield f"attribute {key!r}: {value} does not fit into 64 bits"


def _capacity(capacity: Capacity, *, shared: bool) -> Problems:
    policy = capacity.request_policy
    if policy is None:
        return
    if not shared:
        yield "a request policy needs allow_multiple_allocations=True on the device"
    if policy.valid_values and policy.valid_range is not None:
        yield "a request policy has either valid values or a valid range, not both"
    elif (policy.valid_values or policy.valid_range is not None) and policy.default is None:
        yield "a request policy with valid values or a valid range needs a default"
    elif policy.default is not None:
        yield from _valid_values(policy, policy.default, capacity.value)
        if policy.valid_range is not None:
            yield from _valid_range(policy.valid_range, policy.default, capacity.value)


def _valid_values(policy: RequestPolicy, default: Quantity, value: Quantity) -> Problems:
    values = policy.valid_values
    if not values:
        return
    if len(values) > _LIMITS.valid_values:
        yield f"{len(values)} valid values, at most {_LIMITS.valid_values} are allowed: use a valid range"
    if list(values) != sorted(set(values)):
        yield "valid values must be ascending and unique"
    if max(values) > value:
        yield f"valid value {max(values)} is more than the capacity of {value}"
    if default not in values:
        yield f"the default {default} is not one of the valid values"


def _valid_range(limits: CapacityRange, default: Quantity, value: Quantity) -> Problems:
    if limits.min is None:
        yield "a valid range needs a minimum"
        return
    lowest, highest = limits.min, limits.max if limits.max is not None else value
    if lowest > value:
        yield f"the minimum {lowest} is more than the capacity of {value}"
    if highest > value:
        yield f"the maximum {highest} is more than the capacity of {value}"
    if lowest > highest:
        yield f"the minimum {lowest} is more than the maximum {highest}"
    if not lowest <= default <= highest:
        yield f"the default {default} is not within {lowest} and {highest}"
    if limits.step is not None:
        yield from _step(limits, limits.step, lowest, default, value)


def _step(
    limits: CapacityRange, step: Quantity, lowest: Quantity, default: Quantity, value: Quantity
) -> Problems:
    if step <= ZERO:
        yield f"the step {step} must be positive"
        return
    if lowest + step > value:
        yield f"minimum plus one step is {lowest + step}, more than the capacity of {value}"
    for name, amount in (("default", default), ("maximum", limits.max)):
        if amount is not None and (amount - lowest).nanos % step.nanos:
            yield f"the {name} {amount} is not {lowest} plus a multiple of {step}"


def _taints(taints: tuple[Taint, ...]) -> Problems:
    if len(taints) > _LIMITS.taints:
        yield f"{len(taints)} taints, at most {_LIMITS.taints} are allowed"
    for taint in taints:
        prefix, slash, name = taint.key.rpartition("/")
        if (slash and not (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix))) or (
            not _LABEL_NAME.fullmatch(name)
        ):
            yield f"taint key {taint.key!r} must have the format of a label key"
        if taint.value and not _LABEL_NAME.fullmatch(taint.value):
            yield f"taint {taint.key!r}: value {taint.value!r} must have the format of a label value"
        if taint.effect not in _EFFECTS:
            yield f"taint {taint.key!r}: effect {taint.effect!r} is not one of {', '.join(_EFFECTS)}"


def _consumption(device: Device, sets: dict[str, CounterSet]) -> Problems:
    consumed = device.consumes_counters
    most = _LIMITS.consumed_counter_sets
    if most is not None and len(consumed) > most:
        yield f"consumes {len(consumed)} counter sets, at most {most} are allowed"
    for name, count in Tally(entry.counter_set for entry in consumed).items():
        if count > 1:
            yield f"names counter set {name!r} {count} times"
    for entry in consumed:
        known = sets.get(entry.counter_set)
        if known is None:
            yield f"consumes counter set {entry.counter_set!r}, which this pool does not have"
            continue
        yield from _counter_names(entry.counters, f"its use of {entry.counter_set!r}")
        missing = sorted(set(entry.counters) - set(known.counters))
        if missing:
            yield f"consumes counters {', '.join(missing)} that {entry.counter_set!r} does not have"
        if len(set(entry.compatibility_groups)) != len(entry.compatibility_groups):
            yield f"names a compatibility group of {entry.counter_set!r} twice"
        if len(entry.compatibility_groups) > _LIMITS.compatibility_groups:
            yield f"has more than {_LIMITS.compatibility_groups} compatibility groups"


def _placement(device: Device) -> Problems:
    if device.node_name or device.node_selector or device.all_nodes:
        yield "sets node fields, but a driver on a node publishes only devices of its node"
    for what, conditions in (
        ("binding conditions", device.binding_conditions),
        ("binding failure conditions", device.binding_failure_conditions),
    ):
        if len(conditions) > _LIMITS.binding_conditions:
            yield f"{len(conditions)} {what}, at most {_LIMITS.binding_conditions} are allowed"
    for resource in device.node_allocatable_resources:
        if resource not in _NODE_RESOURCES and not resource.startswith("hugepages-"):
            yield f"node-allocatable resource {resource!r} is not cpu, memory, ephemeral-storage or hugepages"
