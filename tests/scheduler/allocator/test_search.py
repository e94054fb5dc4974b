"""Exponential cases of kube-scheduler are decided at once, with its step count."""

from __future__ import annotations

from typing import Any

import pytest

from drakit.core.objects import DeviceClass, ResourceClaim, ResourceSlice, from_builtins
from drakit.core.pods import Node, Pod
from drakit.scheduler.placement import ClusterSnapshot, SchedulingResult, place


def cluster(devices: list[dict[str, Any]], claim: dict[str, Any]) -> ClusterSnapshot:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.io", "nodeName": "n", "pool": pool, "devices": devices}
    return ClusterSnapshot(
        nodes=(from_builtins({"metadata": {"name": "n"}}, Node),),
        slices=(from_builtins({"metadata": {"name": "s"}, "spec": spec}, ResourceSlice),),
        classes=(from_builtins({"metadata": {"name": "c"}}, DeviceClass),),
        claims=(
            from_builtins(
                {"metadata": {"name": "x", "namespace": "default"}, "spec": {"devices": claim}}, ResourceClaim
            ),
        ),
    )


def answer(devices: list[dict[str, Any]], claim: dict[str, Any]) -> SchedulingResult:
    use = [{"name": "x", "resourceClaimName": "x"}]
    pod = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"resourceClaims": use}}
    return place(cluster(devices, claim), from_builtins(pod, Pod))


def request_spec(count: int, *selectors: str) -> dict[str, Any]:
    return {
        "deviceClassName": "c",
        "count": count,
        "selectors": [{"cel": {"expression": s}} for s in selectors],
    }


@pytest.mark.parametrize("free", [4, 12, 24, 31])
def test_one_device_too_few_takes_two_to_the_n_steps(free: int) -> None:
    devices = [{"name": f"d{i}"} for i in range(free)]
    placement = answer(devices, {"requests": [{"name": "r", "exactly": request_spec(free + 1)}]})
    assert not placement.feasible
    assert placement.nodes[0].steps == 2**free
    assert placement.nodes[0].would_time_out == (2**free > 10_000_000)


def test_a_satisfiable_request_before_an_impossible_one() -> None:
    devices = [{"name": f"d{i}"} for i in range(64)]
    requests = [
        {"name": "cpus", "exactly": request_spec(4)},
        {"name": "gpu", "exactly": request_spec(1, 'device.driver == "gpu.io"')},
    ]
    placement = answer(devices, {"requests": requests})
    assert not placement.feasible
    # sum of the combinations of 0 to 4 out of 64, and one look at the second request for each of 4
    assert placement.nodes[0].steps == 1 + 64 + 2016 + 41664 + 635376 * 2


def test_no_numa_node_has_enough() -> None:
    devices = [{"name": f"d{i}", "attributes": {"numa": {"int": i % 2}}} for i in range(40)]
    claim = {
        "requests": [{"name": "r", "exactly": request_spec(21)}],
        "constraints": [{"matchAttribute": "d.io/numa"}],
    }
    placement = answer(devices, claim)
    assert not placement.feasible
    assert placement.nodes[0].would_time_out is False
    assert placement.nodes[0].steps > 2**20


def test_many_different_devices_with_shares_are_decided() -> None:
    devices = [
        {
            "name": f"d{i}",
            "allowMultipleAllocations": True,
            "capacity": {"cpu": {"value": str(4 + i), "requestPolicy": {"default": "1"}}},
        }
        for i in range(5)
    ]
    request = {**request_spec(1), "capacity": {"requests": {"cpu": "5"}}}
    requests = [{"name": f"r{i}", "exactly": request} for i in range(5)]
    placement = answer(devices, {"requests": requests})
    assert not placement.feasible  # only four devices have 5 or more, none has 10
