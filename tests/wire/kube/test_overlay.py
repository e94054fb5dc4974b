from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.objects import (
    Attribute,
    Device,
    ObjectMeta,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    from_builtins,
    to_builtins,
)
from drakit.wire.kube import SLICES, Object
from drakit.wire.kube.overlay import overlay

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=1), inner),
    max_leaves=10,
)


@given(JSON, JSON)
def test_no_difference_changes_nothing(raw: Any, same: Any) -> None:
    assert overlay(raw, same, same) == raw


@given(JSON, JSON)
def test_with_full_knowledge_the_result_is_what_is_wanted(before: Any, after: Any) -> None:
    assert overlay(before, before, after) == after


DEVICES = st.lists(
    st.builds(
        lambda name, value: Device(name=name, attributes={"a": Attribute(int_=value)}),
        st.sampled_from(["x", "y", "z"]),
        st.integers(0, 2),
    ),
    max_size=3,
    unique_by=lambda device: device.name,
).map(tuple)


def slice_with(devices: tuple[Device, ...]) -> ResourceSlice:
    return ResourceSlice(
        metadata=ObjectMeta(name="s"),
        spec=ResourceSliceSpec(driver="d", pool=ResourcePool(name="p"), devices=devices),
    )


@given(DEVICES, DEVICES)
def test_unknown_fields_survive_and_known_ones_are_as_typed(
    before: tuple[Device, ...], after: tuple[Device, ...]
) -> None:
    raw = to_builtins(slice_with(before))
    raw["spec"]["fromTheFuture"] = {"x": 1}
    raw["metadata"]["managedFields"] = [{"manager": "m"}]
    for device in raw["spec"].get("devices", []):
        device["color"] = f"of {device['name']}"
    result = Object(SLICES, raw).changed(slice_with(after))
    assert from_builtins(result, ResourceSlice) == slice_with(after)
    assert result["spec"]["fromTheFuture"] == {"x": 1}
    assert result["metadata"]["managedFields"] == [{"manager": "m"}]
    kept = {d.name for d in before} & {d.name for d in after}
    for device in result["spec"].get("devices", []):
        if device["name"] in kept:
            assert device["color"] == f"of {device['name']}"


def test_spelling_of_what_does_not_change_stays() -> None:
    raw = {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "d",
            "pool": {"name": "p", "generation": 0},
            "devices": [{"name": "x", "capacity": {"c": {"value": "1024Mi"}}}],
        },
    }
    item = Object(SLICES, raw)
    spec = msgspec.structs.replace(item.typed.spec, node_name="n")
    result = item.changed(msgspec.structs.replace(item.typed, spec=spec))
    assert result["spec"] == {**raw["spec"], "nodeName": "n"}
