"""Opaque configuration: strict, versioned, the claim's over the class's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.drivers.models.cpu_policy import CorePlacement, CpuPolicy, Distribute, SameL3, cpu_policy
from drakit.kit.driver import OpaqueConfig, RejectedError
from tests.drivers.cpu.claims import policy_config


def test_nothing_said_is_the_default():
    assert cpu_policy(()) == CpuPolicy()
    assert cpu_policy([OpaqueConfig("FromClaim", {"apiVersion": "v1alpha1"})]) == CpuPolicy()


def test_the_go_drivers_parameters():
    parameters = {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-5"}}
    assert cpu_policy([OpaqueConfig("FromClaim", parameters)]).cpuset == CpuSet.parse("2-5")


def test_every_field():
    asked = cpu_policy(policy_config(placement="spread", distribute="numa", sameL3="preferred"))
    assert asked == CpuPolicy(
        placement=CorePlacement.SPREAD, distribute=Distribute.NUMA, same_l3=SameL3.PREFERRED
    )
    assert cpu_policy(policy_config(wholeCores=True, sameL3="required")) == CpuPolicy(
        whole_cores=True, same_l3=SameL3.REQUIRED
    )


def test_the_claim_overrides_its_class_field_by_field():
    of_class = policy_config("FromClass", wholeCores=True, sameL3="required")
    asked = cpu_policy([*of_class, *policy_config(sameL3="preferred")])
    assert asked == CpuPolicy(whole_cores=True)


def test_named_cpus_override_the_policy_of_the_class():
    of_class = policy_config("FromClass", wholeCores=True)
    assert cpu_policy([*of_class, *policy_config(cpuset="1")]) == CpuPolicy(cpuset=CpuSet([1]))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("text", "expected an object"),
        (None, "expected an object"),
        ({}, "apiVersion None is not known"),
        ({"apiVersion": "v1", "cpuConfig": {}}, "apiVersion 'v1' is not known, only 'v1alpha1'"),
        ({"apiVersion": "v1alpha1", "cpuconfig": {}}, "unknown field 'cpuconfig'; did you mean"),
        (
            {"apiVersion": "v1alpha1", "cpuConfig": {"wholecore": True}},
            "unknown field 'wholecore'; did you mean 'wholeCores'",
        ),
        ({"apiVersion": "v1alpha1", "cpuConfig": {"wholeCores": "yes"}}, "wholeCores"),
        ({"apiVersion": "v1alpha1", "cpuConfig": {"placement": "wide"}}, "placement"),
        ({"apiVersion": "v1alpha1", "cpuConfig": []}, "cpuConfig"),
        ({"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "5-2"}}, "runs backwards"),
        ({"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": ""}}, "cpuset is empty"),
        ({"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "1", "wholeCores": True}}, "nothing to choose"),
        (
            {"apiVersion": "v1alpha1", "cpuConfig": {"wholeCores": True, "placement": "spread"}},
            "wholeCores: true takes every thread",
        ),
    ],
)
def test_mistakes_are_rejected_and_named(parameters: Any, text: str):
    with pytest.raises(RejectedError, match=text) as no:
        cpu_policy([OpaqueConfig("FromClaim", parameters)])
    assert no.value.reason == "policy"


def test_a_class_cannot_name_cpus():
    with pytest.raises(RejectedError, match="a class cannot name a cpuset"):
        cpu_policy(policy_config("FromClass", cpuset="0"))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["apiVersion", "cpuConfig", "cpuset", "placement", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(_JSON)
def test_any_json_is_understood_or_rejected(parameters: Any):
    try:
        cpu_policy([OpaqueConfig("FromClaim", parameters)])
    except RejectedError as no:
        assert "dra.cpu" in str(no)
