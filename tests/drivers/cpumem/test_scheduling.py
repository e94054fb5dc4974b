"""The scheduler allocates from our slices what is meant: classes, defaults, alignment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from drakit.core.objects import ResourceClaim, from_builtins, to_builtins
from drakit.core.pods import Node, Pod
from drakit.drivers.cpumem.driver import CpuMemDriver
from drakit.drivers.cpumem.layouts import PAGE_SIZES, combined_classes, split_classes
from drakit.kit.slices.limits import _SUBDOMAIN
from drakit.kit.slices.preview import preview_slices
from drakit.scheduler.cel.selector import rejection
from drakit.scheduler.placement import ClusterSnapshot, SchedulingResult, place
from tests.drivers.cpumem.amounts import NODE, driver

NUMA = "resource.kubernetes.io/numaNode"


def scheduled(one: CpuMemDriver, *requests: Mapping[str, Any], constraints: Any = ()) -> SchedulingResult:
    """A pod with one claim of these requests (name, class, amounts) on one node."""
    claim = {
        "metadata": {"name": "mine", "namespace": "default", "uid": "c"},
        "spec": {"devices": {"requests": list(requests), "constraints": list(constraints)}},
    }
    pod = {
        "metadata": {"name": "pod", "namespace": "default", "uid": "p"},
        "spec": {
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": "mine", "resourceClaimName": "mine"}],
        },
    }
    cluster = ClusterSnapshot(
        nodes=(from_builtins({"metadata": {"name": NODE}}, Node),),
        slices=tuple(preview_slices(one, NODE)),
        classes=(*combined_classes(), *split_classes()),
        claims=(from_builtins(claim, ResourceClaim),),
    )
    return place(cluster, from_builtins(pod, Pod))


def request(name: str, device_class: str, **amounts: str) -> dict[str, Any]:
    requests = {f"dra.cpumem/{key}": value for key, value in amounts.items()}
    return {"name": name, "exactly": {"deviceClassName": device_class, "capacity": {"requests": requests}}}


def picks(placement: SchedulingResult) -> list[tuple[str, dict[str, str]]]:
    """Device and consumed amounts of each pick."""
    assert placement.feasible, placement.reason
    (allocation,) = placement.allocations
    return [
        (pick.device.device, {key.removeprefix("dra.cpumem/"): str(n) for key, n in pick.consumed.items()})
        for pick in allocation.picks
    ]


NOTHING = {"cpu": "0", "memory": "0", "hugepages2Mi": "0", "hugepages1Gi": "0"}


def test_vector_11_what_is_not_asked_for_is_not_consumed():
    found = picks(scheduled(driver(), request("r", "dra.cpumem", cpu="2")))
    assert found == [("numa0", {**NOTHING, "cpu": "2"})]


def test_amounts_are_rounded_up_to_whole_steps():
    wanted = request("r", "dra.cpumem", cpu="1500m", memory="3Mi", hugepages1Gi="1Mi")
    assert picks(scheduled(driver(), wanted)) == [
        ("numa0", {"cpu": "2", "memory": "4Mi", "hugepages2Mi": "0", "hugepages1Gi": "1Gi"})
    ]


def test_a_request_is_met_by_one_node_or_not_at_all():
    assert not scheduled(driver(), request("r", "dra.cpumem", cpu="9")).feasible
    assert not scheduled(driver(), request("r", "dra.cpumem", memory="14Gi")).feasible
    found = picks(scheduled(driver(group_by="socket"), request("r", "dra.cpumem", cpu="9")))
    assert found[0][0] == "socket0"


def test_a_misspelt_key_fits_nowhere():
    assert not scheduled(driver(), request("r", "dra.cpumem", hugepages2mi="2Mi")).feasible


def test_two_nodes_in_one_claim():
    distinct = {"distinctAttribute": NUMA, "requests": ["a", "b"]}
    found = picks(
        scheduled(
            driver(),
            request("a", "dra.cpumem", cpu="2", memory="1Gi"),
            request("b", "dra.cpumem", cpu="2", memory="2Gi"),
            constraints=[distinct],
        )
    )
    assert [device for device, _ in found] == ["numa0", "numa1"]


def test_memory_without_cpus_is_given_only_to_who_asks_for_it():
    one = driver(reserved_memory=";".join(f"{node}:memory=13Gi" for node in range(4)))
    assert not scheduled(one, request("r", "dra.cpumem", memory="1Gi")).feasible
    found = picks(scheduled(one, request("r", "dra.cpumem-memory-only", memory="1Gi")))
    assert found[0][0] == "numa4"


def test_split_is_tied_together_by_the_numa_node():
    one = driver(layout="split", reserved_cpus="0-3,16-19")  # none left on node 0
    found = picks(
        scheduled(
            one,
            request("memory", "dra.cpumem-memory", memory="1Gi"),
            request("pages", "dra.cpumem-hugepages-1gi", hugepages1Gi="1Gi"),
            request("cpus", "dra.cpumem-cpu", cpu="4"),
            constraints=[{"matchAttribute": NUMA}],
        )
    )
    assert found == [
        ("memory-numa1", {"memory": "1Gi"}),
        ("hugepages-1gi-numa1", {"hugepages1Gi": "1Gi"}),
        ("cpu-numa1", {"cpu": "4"}),
    ]


def test_split_can_give_memory_of_a_node_without_cpus():
    found = picks(scheduled(driver(layout="split"), request("m", "dra.cpumem-memory-only", memory="2Gi")))
    assert found == [("memory-numa4", {"memory": "2Gi"})]


@pytest.mark.parametrize("name", ["dra.cpumem-cpu", "dra.cpumem-memory", "dra.cpumem-hugepages-2mi"])
def test_classes_of_kinds_match_nothing_in_the_other_layout(name: str):
    """And do so without an error, which would stop the whole allocation."""
    key = name.rpartition("-")[2]
    amounts = {"hugepages2Mi" if key == "2mi" else key: "1"}
    placement = scheduled(driver(), request("r", name, **amounts))
    assert not placement.feasible
    assert not any(answer.fatal for answer in placement.nodes)


def test_classes_are_valid_objects():
    found = {each.metadata.name: each for each in (*combined_classes(), *split_classes())}
    assert set(found) == {
        "dra.cpumem",
        "dra.cpumem-memory-only",
        "dra.cpumem-cpu",
        "dra.cpumem-memory",
        *(
            f"dra.cpumem-hugepages-{size}"
            for size in ("64ki", "1mi", "2mi", "16mi", "32mi", "512mi", "1gi", "2gi", "16gi")
        ),
    }
    assert len(PAGE_SIZES) == 9
    for name, each in found.items():
        assert _SUBDOMAIN.fullmatch(name)
        document = to_builtins(each)
        assert (document["apiVersion"], document["kind"]) == ("resource.k8s.io/v1", "DeviceClass")
        for selector in each.spec.selectors:
            assert selector.cel is not None
            assert rejection(selector.cel.expression) is None
