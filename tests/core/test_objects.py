"""The API objects: what goes in comes out, and nothing odd gets in."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core import objects
from drakit.core.objects import (
    Attribute,
    Capacity,
    CapacityRange,
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceClass,
    DeviceTaintRule,
    ObjectMeta,
    OwnerReference,
    RequestPolicy,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    Taint,
    from_builtins,
    from_json,
    to_builtins,
    to_json,
)
from drakit.core.pods import Node
from drakit.core.quantity import Quantity

KINDS = [ResourceSlice, ResourceClaim, ResourceClaimTemplate, DeviceClass, DeviceTaintRule, Node]

NAMES = st.text("abc-", min_size=1, max_size=5)
QUANTITIES = st.builds(
    lambda number, suffix: Quantity(f"{number}{suffix}"),
    st.integers(0, 5000),
    st.sampled_from(["", "m", "Ki", "Gi", "k", "e3"]),
)
ATTRIBUTES = st.one_of(
    st.builds(Attribute, int_=st.integers(-(2**63), 2**63 - 1)),
    st.builds(Attribute, bool_=st.booleans()),
    st.builds(Attribute, string=st.text(max_size=5)),
    st.builds(Attribute, version=st.just("1.2.3")),
    st.builds(Attribute, ints=st.lists(st.integers(0, 9), max_size=3).map(tuple)),
    st.builds(Attribute, strings=st.lists(NAMES, max_size=3).map(tuple)),
)
POLICIES = st.builds(
    RequestPolicy,
    default=st.none() | QUANTITIES,
    valid_values=st.lists(QUANTITIES, max_size=3).map(tuple),
    valid_range=st.none() | st.builds(CapacityRange, min=QUANTITIES, max=st.none() | QUANTITIES),
)
COUNTERS = st.dictionaries(NAMES, st.builds(Counter, value=QUANTITIES), max_size=2)
DEVICES = st.builds(
    Device,
    name=NAMES,
    attributes=st.dictionaries(NAMES, ATTRIBUTES, max_size=3),
    capacity=st.dictionaries(
        NAMES, st.builds(Capacity, value=QUANTITIES, request_policy=st.none() | POLICIES), max_size=2
    ),
    allow_multiple_allocations=st.none() | st.booleans(),
    consumes_counters=st.lists(
        st.builds(CounterConsumption, counter_set=NAMES, counters=COUNTERS), max_size=2
    ).map(tuple),
    taints=st.lists(st.builds(Taint, key=NAMES, effect=NAMES), max_size=2).map(tuple),
    binds_to_node=st.none() | st.booleans(),
)
SLICES = st.builds(
    ResourceSlice,
    metadata=st.builds(
        ObjectMeta,
        name=NAMES,
        labels=st.dictionaries(NAMES, NAMES, max_size=2),
        owner_references=st.lists(
            st.builds(OwnerReference, name=NAMES, controller=st.booleans()), max_size=1
        ).map(tuple),
    ),
    spec=st.builds(
        ResourceSliceSpec,
        driver=NAMES,
        pool=st.builds(ResourcePool, name=NAMES, generation=st.integers(0, 9)),
        node_name=st.none() | NAMES,
        devices=st.lists(DEVICES, max_size=3).map(tuple),
        shared_counters=st.lists(st.builds(CounterSet, name=NAMES, counters=COUNTERS), max_size=2).map(tuple),
    ),
)


@given(SLICES)
def test_what_goes_out_comes_back(item: ResourceSlice) -> None:
    assert from_json(to_json(item), ResourceSlice) == item
    assert from_builtins(json.loads(to_json(item)), ResourceSlice) == item
    assert from_builtins(to_builtins(item), ResourceSlice) == item


@given(SLICES)
def test_writing_is_the_same_every_time(item: ResourceSlice) -> None:
    again = from_json(to_json(item), ResourceSlice)
    assert to_json(again) == to_json(item)


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_says_what_it_is_and_nothing_else(kind: type[Any]) -> None:
    document = to_builtins(kind())
    assert document["kind"] == kind.__name__
    assert document["apiVersion"] == ("v1" if kind is Node else "resource.k8s.io/v1")
    written = {key: value for key, value in document.items() if key not in ("kind", "apiVersion")}
    assert not any(written.values())


@pytest.mark.parametrize("kind", KINDS)
def test_field_names_are_the_apis(kind: type[Any]) -> None:
    """Camel case throughout, also in everything below."""
    seen: set[type[Any]] = set()

    def look(struct: type[Any]) -> None:
        if struct in seen:
            return
        seen.add(struct)
        for info in msgspec.inspect.type_info(struct).fields:  # type: ignore[attr-defined]
            assert "_" not in info.encode_name
            assert info.encode_name[0].islower()
            walk(info.type)

    def walk(info: Any) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            look(info.cls)
        for part in ("item_type", "value_type"):
            if hasattr(info, part):
                walk(getattr(info, part))
        for part in getattr(info, "types", ()):
            walk(part)

    look(kind)
    assert len(seen) >= 3


CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {
        "name": "c",
        "namespace": "ns",
        "uid": "u",
        "creationTimestamp": None,
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "cpu",
                    "exactly": {
                        "deviceClassName": "dra.cpu",
                        "capacity": {"requests": {"dra.cpu/cpu": "2"}},
                        "selectors": [{"cel": {"expression": "true"}}],
                    },
                },
                {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "x"}]},
            ],
            "constraints": [{"requests": ["cpu"], "matchAttribute": "a/b"}],
            "config": [{"opaque": {"driver": "d", "parameters": {"kind": "X"}}}],
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": "any/a",
                        "driver": "dra.cpu",
                        "pool": "n",
                        "device": "d0",
                        "shareID": "s",
                        "consumedCapacity": {"dra.cpu/cpu": "1500m"},
                        "adminAccess": None,
                    }
                ],
                "config": [{"source": "FromClass", "requests": None}],
            },
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": []}]},
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "pu"}],
    },
}


@pytest.mark.parametrize("read", [from_builtins, lambda d, k: from_json(json.dumps(d), k)])
def test_a_claim_as_the_server_sends_it(read: Any) -> None:
    claim = read(CLAIM, ResourceClaim)
    first, second = claim.spec.devices.requests
    assert first.exactly.count == 1
    assert first.exactly.allocation_mode == "ExactCount"
    assert first.exactly.capacity.requests == {"dra.cpu/cpu": Quantity(2)}
    assert second.first_available[0].device_class_name == "x"
    (result,) = claim.status.allocation.devices.results
    assert result.share_id == "s"
    assert result.admin_access is None
    assert result.consumed_capacity["dra.cpu/cpu"] == Quantity("1500m")
    assert claim.status.allocation.devices.config[0].requests == ()
    assert claim.status.reserved_for[0].uid == "pu"
    assert to_builtins(result)["shareID"] == "s"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"spec": {"devices": [{"name": 5}]}}, "$.spec.devices[0].name"),
        (
            {"spec": {"devices": [{"capacity": {"c": {"value": "1Q"}}}]}},
            "$.spec.devices[0].capacity[...].value",
        ),
        ({"spec": {"devices": [{"capacity": {"c": {"value": True}}}]}}, "value"),
        ({"spec": {"devices": [{"capacity": {"c": {}}}]}}, "value"),
        ({"spec": {"pool": {"generation": "1"}}}, "$.spec.pool.generation"),
        ([], "Expected `object`"),
    ],
)
def test_errors_name_the_field(document: Any, path: str) -> None:
    for read in (from_builtins, lambda d, k: from_json(json.dumps(d), k)):
        with pytest.raises(msgspec.ValidationError) as caught:
            read(document, ResourceSlice)
        assert path in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "metadata", "devices", "name", "pool", "capacity", "value"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(KINDS))
def test_any_document_is_an_object_or_a_validation_error(document: Any, kind: type[Any]) -> None:
    try:
        item = from_builtins(document, kind)
    except msgspec.ValidationError:
        with pytest.raises(msgspec.ValidationError):
            from_json(json.dumps(document), kind)
        return
    assert from_json(json.dumps(document), kind) == item
    assert from_builtins(to_builtins(item), kind) == item


def test_fuzz_of_damaged_documents(scale: int) -> None:
    """A hundred thousand claims with flipped bytes: a claim, or an error of msgspec."""
    rng = random.Random(11)
    good = json.dumps(CLAIM).encode()
    outcomes: dict[str, int] = {}
    for _ in range(100_000 * scale):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(32, 127)
        try:
            outcome = type(from_json(bytes(data), ResourceClaim)).__name__
        except msgspec.DecodeError as error:
            outcome = type(error).__name__
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert set(outcomes) == {"ResourceClaim", "ValidationError", "DecodeError"}


def test_a_node_as_far_as_we_look_at_it() -> None:
    node = from_builtins(
        {
            "metadata": {"name": "n", "labels": {"a": "b"}},
            "spec": {"unschedulable": True},
            "status": {
                "nodeInfo": {"kubeletVersion": "v1.37.1", "osImage": "x"},
                "allocatable": {"cpu": "3500m", "memory": "1Gi"},
                "conditions": [{"type": "Ready"}],
            },
        },
        Node,
    )
    assert node.status.node_info.kubelet_version == "v1.37.1"
    assert node.status.allocatable["cpu"] == Quantity("3500m")


def test_attribute_makers() -> None:
    assert to_builtins(objects.int_attribute(0)) == {"int": 0}
    assert to_builtins(objects.bool_attribute(False)) == {"bool": False}
    assert to_builtins(objects.string_attribute("")) == {"string": ""}
    assert not objects.int_attribute(1).is_list()
    assert Attribute(ints=()).is_list()


def test_objects_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Device(name="d").name = "e"  # type: ignore[misc]
