"""Pods, containers and adjustments cross the wire unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given

from drakit.wire.nri import nri_pb2
from drakit.wire.nri.values import (
    NOTHING,
    Adjustment,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    Resources,
    State,
    adjustment_from,
    adjustment_to,
    container_from,
    container_to,
    pod_from,
    pod_to,
    resources_from,
    resources_to,
    update_from,
    update_to,
)
from tests.wire.nri import wire


@given(wire.resources)
def test_resources_round_trip(value: Resources) -> None:
    data = resources_to(value).SerializeToString()
    assert resources_from(nri_pb2.LinuxResources.FromString(data)) == value


@given(wire.pods)
def test_pods_round_trip(value: PodSandbox) -> None:
    assert pod_from(nri_pb2.PodSandbox.FromString(pod_to(value).SerializeToString())) == value


@given(wire.containers)
def test_containers_round_trip(value: NriContainer) -> None:
    data = container_to(value).SerializeToString()
    assert container_from(nri_pb2.Container.FromString(data)) == value


@given(wire.updates)
def test_updates_round_trip(value: ContainerUpdate) -> None:
    data = update_to(value).SerializeToString()
    assert update_from(nri_pb2.ContainerUpdate.FromString(data)) == value


@given(wire.adjustments)
def test_adjustments_round_trip(value: Adjustment) -> None:
    data = adjustment_to(value).SerializeToString()
    assert adjustment_from(nri_pb2.CreateContainerResponse.FromString(data)) == value


@given(wire.resources, wire.resources)
def test_over_replaces_set_fields_and_keeps_the_others(one: Resources, other: Resources) -> None:
    merged = one.over(other)
    assert one.over(merged) == merged
    assert NOTHING.over(other) == other
    assert merged.cpus == (one.cpus or other.cpus)
    assert merged.shares == (other.shares if one.shares is None else one.shares)
    assert {**other.unified, **one.unified} == merged.unified


def test_nothing_set_is_nothing_sent() -> None:
    assert resources_to(NOTHING).SerializeToString() == b""
    assert adjustment_to(Adjustment()).adjust.ByteSize() == 0


def test_zero_is_a_value_and_not_nothing() -> None:
    value = Resources(shares=0, quota=0, period=0, memory_limit=0)
    message = resources_to(value)
    assert message.cpu.HasField("shares")
    assert resources_from(message) == value


def test_field_numbers_are_those_of_the_wire() -> None:
    cpus = nri_pb2.LinuxCPU(cpus="2", mems="1").SerializeToString()
    assert cpus == b"\x32\x012\x3a\x011"  # 6 and 7, length-delimited
    assert nri_pb2.ConfigureResponse(events=1).SerializeToString() == b"\x10\x01"
    device = nri_pb2.Container(cdi_devices=[{"name": "a"}]).SerializeToString()
    assert device == b"\xa2\x01\x03\x0a\x01a"  # 20
    linux = nri_pb2.ContainerAdjustment(linux={"memory_policy": {"mode": 2}})
    assert linux.SerializeToString() == b"\x32\x04\x62\x02\x08\x02"  # 6, 12, 1


def test_a_container_without_a_name_has_the_kubelets_label() -> None:
    message = nri_pb2.Container(labels={"io.kubernetes.container.name": "app"})
    assert container_from(message).name == "app"


@pytest.mark.parametrize(("number", "state"), [(3, State.RUNNING), (99, State.UNKNOWN)])
def test_states_of_the_future_are_unknown(number: int, state: State) -> None:
    assert container_from(nri_pb2.Container(state=number)).state is state


def test_the_last_of_equal_variables_counts() -> None:
    container = NriContainer(id="c", env=("A=1", "AB=2", "A=3", "B"))
    assert container.variable("A") == "3"
    assert container.variable("B") is None


def test_only_variables_asked_for_are_kept() -> None:
    message = nri_pb2.Container(env=["DRA_A=1", "PATH=/", "DRAB=2", "X=DRA_"])
    assert container_from(message, ("DRA_",)).env == ("DRA_A=1",)
    assert container_from(message, ("X", "DRA")).env == ("DRA_A=1", "DRAB=2", "X=DRA_")
    assert len(container_from(message).env) == 4


def test_values_introduce_themselves() -> None:
    assert str(PodSandbox(id="1", name="p", namespace="n", uid="u")) == "pod n/p (u)"
    assert str(NriContainer(id="1", name="c")) == "container c (1)"
