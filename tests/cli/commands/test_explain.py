"""``drakit explain`` on ten situations in which pods stay pending in real clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drakit.cli import main

Json = dict[str, Any]


def node(name: str = "n1") -> Json:
    return {"kind": "Node", "metadata": {"name": name}}


def device_class(*selectors: str) -> Json:
    spec = {"selectors": [{"cel": {"expression": s}} for s in selectors]}
    return {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": spec}


def device_slice(*devices: Json, count: int = 1, **more: Any) -> Json:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": count}
    spec = {"driver": "gpu.io", "nodeName": "n1", "pool": pool, "devices": list(devices), **more}
    name = f"slice-{len(devices)}-{'counters' if more else 'devices'}"
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def gpu(name: str, model: str = "a100", **fields: Any) -> Json:
    return {"name": name, "attributes": {"model": {"string": model}}, **fields}


def claim(*wishes: Json, constraints: tuple[Json, ...] = ()) -> Json:
    requests = [{"name": f"r{i}", "exactly": {"deviceClassName": "gpu", **w}} for i, w in enumerate(wishes)]
    devices: Json = {"requests": requests}
    if constraints:
        devices["constraints"] = list(constraints)
    return {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": devices}}


def selecting(expression: str) -> Json:
    return {"selectors": [{"cel": {"expression": expression}}]}


def holding(device: str, **fields: Any) -> Json:
    result = {"request": "r", "driver": "gpu.io", "pool": "n1", "device": device, **fields}
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": "training", "namespace": "ml"},
        "spec": {"devices": {}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "trainer-0", "uid": "u"}],
        },
    }


def shared(name: str, capacity: str, key: str = "memory") -> Json:
    policy = {"default": "1Gi"}
    return gpu(
        name, allowMultipleAllocations=True, capacity={key: {"value": capacity, "requestPolicy": policy}}
    )


SITUATIONS: dict[str, tuple[list[Json], list[str]]] = {
    "all devices are in use": (
        [device_slice(gpu("g0")), holding("g0"), claim({})],
        ["in use by claim ml/training (pod trainer-0)", "free the devices of claim ml/training"],
    ),
    "no device has the wanted model": (
        [device_slice(gpu("g0", "t4")),
         claim(selecting('device.attributes["gpu.io"].model == "a100"'))],
        ["selector 1 of the request is false", "it has model = t4",
         "change or drop selector 1 of request r0"],
    ),
    "an attribute is missing and the expression fails": (
        [device_slice(gpu("g0")), claim(selecting('device.attributes["gpu.io"].memory == 1'))],
        ["CEL error: scheduling fails on all nodes", "no such key: memory"],
    ),
    "the device is tainted": (
        [device_slice(gpu("g0", taints=[{"key": "broken", "effect": "NoSchedule"}])), claim({})],
        ["tainted broken:NoSchedule, which is not tolerated",
         "let request r0 tolerate the taint broken:NoSchedule"],
    ),
    "too little of a shared capacity is left": (
        [device_slice(shared("g0", "8Gi")),
         holding("g0", shareID="11111111-1111-1111-1111-111111111111",
                 consumedCapacity={"memory": "6Gi"}),
         claim({"capacity": {"requests": {"memory": "4Gi"}}})],
        ["2Gi of 8Gi memory is free, but 4Gi is needed", "used by claim ml/training (pod trainer-0)",
         "ask for at most 2Gi memory in request r0"],
    ),
    "the capacity key is spelled with the wrong domain": (
        [device_slice(shared("g0", "8Gi")),
         claim({"capacity": {"requests": {"gpu.io/memory": "4Gi"}}})],
        ["the device has no capacity 'gpu.io/memory' (it has: memory)",
         "write the capacity 'gpu.io/memory' as 'memory'"],
    ),
    "no NUMA node has enough devices": (
        [device_slice(*(gpu(f"g{i}", attributes={"numa": {"int": i % 2}}) for i in range(4))),
         claim({"count": 3}, constraints=({"matchAttribute": "gpu.io/numa"},))],
        ["the same gpu.io/numa: r0 finds 2 with 0, 2 with 1", "ask for 2 instead of 3 devices"],
    ),
    "the pool is incomplete": (
        [device_slice(gpu("g0"), count=2), claim({})],
        ["pool gpu.io/n1 is incomplete: 1 of 2 slices of generation 1 exist",
         "the node has no devices (no complete ResourceSlice pool)"],
    ),
    "the counters of a partitioned device are used up": (
        [device_slice(
            gpu("half-0", consumesCounters=[{"counterSet": "mem", "counters": {"gb": {"value": "5"}}}]),
            gpu("half-1", consumesCounters=[{"counterSet": "mem", "counters": {"gb": {"value": "5"}}}]),
            count=2),
         device_slice(count=2, sharedCounters=[{"name": "mem", "counters": {"gb": {"value": "8"}}}]),
         holding("half-0"), claim({})],
        ["needs 5 of counter mem/gb, 3 is free", "free the devices of claim ml/training"],
    ),
    "more devices are wanted than there are": (
        [device_slice(*(gpu(f"g{i}") for i in range(30))), claim({"count": 31})],
        ["wants 31 devices, only 30 on this node qualify: there are no others",
         "kube-scheduler needs about 2^30 steps here and gives up after 10 s",
         "ask for 30 instead of 31 devices in request r0"],
    ),
}  # fmt: skip


def explain(tmp_path: Path, objects: list[Json], *options: str) -> int:
    everything = [node(), device_class(), *objects]
    (tmp_path / "dump.json").write_text(json.dumps({"kind": "List", "items": everything}))
    return main(["explain", "claim/c", "--from", str(tmp_path / "dump.json"), *options])


@pytest.mark.parametrize("title", SITUATIONS)
def test_the_situation_is_explained(title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects, expected = SITUATIONS[title]
    assert explain(tmp_path, objects) == 1
    out = capsys.readouterr().out
    for text in expected:
        assert text in out, f"{text!r} is missing from:\n{out}"


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects, _ = SITUATIONS["all devices are in use"]
    assert explain(tmp_path, objects, "--output", "json") == 1
    document = json.loads(capsys.readouterr().out)
    (only,) = document["nodes"]
    assert only["requests"][0]["rejected"] == [
        {"kind": "in-use", "reason": "in use by claim ml/training (pod trainer-0)", "devices": ["n1/g0"]}
    ]
    assert only["remedies"] == ["free the devices of claim ml/training (pod trainer-0)"]


def test_a_pod_that_fits_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(tmp_path, [device_slice(gpu("g0")), claim({})]) == 0
    assert "fits on 1 of 1 nodes" in capsys.readouterr().out


def test_an_allocated_claim_shows_its_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = holding("g0")
    held["metadata"] = {"name": "c"}
    assert explain(tmp_path, [device_slice(gpu("g0")), held]) == 0
    assert "r: gpu.io/n1/g0" in capsys.readouterr().out


def waiting(*conditions: tuple[str, str]) -> Json:
    """A claim whose device is allocated but must still be agreed to; these conditions are true."""
    held = holding("g0", bindingConditions=["gpu.io/On"], bindingFailureConditions=["gpu.io/Broken"])
    held["metadata"] = {"name": "c"}
    held["status"]["devices"] = [
        {
            "driver": "gpu.io",
            "pool": "n1",
            "device": "g0",
            "conditions": [
                {"type": name, "status": "True", "message": message} for name, message in conditions
            ],
        },
        "nonsense of another driver",
    ]
    return held


@pytest.mark.parametrize(
    ("true", "code", "printed"),
    [
        ((), 1, "waits for gpu.io/On: the driver has not set the condition yet"),
        ((("gpu.io/Broken", "no power"),), 1, "failed: gpu.io/Broken: no power\n      the scheduler"),
        ((("gpu.io/On", ""),), 0, "r: gpu.io/n1/g0\n"),
    ],
)
def test_unmet_binding_conditions_are_explained(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    true: tuple[tuple[str, str], ...],
    code: int,
    printed: str,
) -> None:
    assert explain(tmp_path, [device_slice(gpu("g0")), waiting(*true)]) == code
    assert printed in capsys.readouterr().out


def test_an_unknown_name_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(tmp_path, []) == 2
    assert "no pod or claim 'c'" in capsys.readouterr().err
