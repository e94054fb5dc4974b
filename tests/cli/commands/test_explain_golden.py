"""Complete output of ``drakit explain`` for pods that stay pending in real clusters.

Each text must let somebody act who has never read the API: what is missing, who has it, what to
change. The cluster is small and of the usual kind: GPU nodes and a CPU node.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drakit.cli import main
from tests.cli.golden import HERE, check_golden

Json = dict[str, Any]
GPU = "gpu.example.com"
NIC = "nic.example.com"


def cluster_class(name: str, driver: str) -> Json:
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}


def offer(node: str, driver: str, *devices: Json, count: int = 1, **more: Any) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices), **more}
    name = f"{node}-{driver.partition('.')[0]}-{'counters' if more else 'devices'}"
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def gpu(index: int, model: str = "H100", numa: int = 0, **more: Any) -> Json:
    attributes = {"model": {"string": model}, "numaNode": {"int": numa}}
    capacity = {"memory": {"value": "80Gi"}}
    return {"name": f"gpu-{index}", "attributes": attributes, "capacity": capacity, **more}


def nic(index: int, numa: int) -> Json:
    return {"name": f"nic-{index}", "attributes": {"numaNode": {"int": numa}}}


def numa_cpus(numa: int, count: int) -> Json:
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    return {
        "name": f"cpudevnuma{numa:03d}",
        "allowMultipleAllocations": True,
        "attributes": {"dra.cpu/numaNodeID": {"int": numa}},
        "capacity": {"dra.cpu/cpu": {"value": str(count), "requestPolicy": policy}},
    }


def held(name: str, pod: str, *results: Json) -> Json:
    user = {"resource": "pods", "name": pod, "uid": pod}
    status = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": [user]}
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "research"},
        "spec": {"devices": {"requests": []}},
        "status": status,
    }


def result(node: str, driver: str, device: str, **more: Any) -> Json:
    return {"request": "r", "driver": driver, "pool": node, "device": device, **more}


def share(node: str, device: str, cpus: int) -> Json:
    share_id = f"00000000-0000-0000-0000-{cpus:012d}"
    return result(node, "dra.cpu", device, shareID=share_id, consumedCapacity={"dra.cpu/cpu": str(cpus)})


def pod(*requests: Json, constraints: list[Json] | None = None) -> list[Json]:
    """A pod with one claim."""
    devices: Json = {"requests": list(requests)}
    if constraints:
        devices["constraints"] = constraints
    claim = {"metadata": {"name": "training-devices"}, "spec": {"devices": devices}}
    uses = [{"name": "devices", "resourceClaimName": "training-devices"}]
    spec = {"resourceClaims": uses, "containers": [{"name": "main"}]}
    return [
        {"kind": "ResourceClaim", **claim},
        {"kind": "Pod", "metadata": {"name": "training"}, "spec": spec},
    ]


def request(name: str, device_class: str, *expressions: str, **more: Any) -> Json:
    selectors = [{"cel": {"expression": e}} for e in expressions]
    exactly = {"deviceClassName": device_class, **({"selectors": selectors} if selectors else {})}
    return {"name": name, "exactly": {**exactly, **more}}


def counters(size: str) -> dict[str, Any]:
    return {"consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": size}}}]}


MODEL = f'device.attributes["{GPU}"].model == "A100"'
SITUATIONS: dict[str, list[Json]] = {
    "devices-in-use": [
        offer("gpu-node-1", GPU, gpu(0), gpu(1)),
        offer("gpu-node-2", GPU, gpu(0)),
        held("llm", "llm-0", result("gpu-node-1", GPU, "gpu-0"), result("gpu-node-1", GPU, "gpu-1")),
        held("eval", "eval-7", result("gpu-node-2", GPU, "gpu-0")),
        *pod(request("gpu", "gpu")),
    ],
    "wrong-model": [
        offer("gpu-node-1", GPU, gpu(0), gpu(1)),
        offer("gpu-node-2", GPU, gpu(0, "L4")),
        *pod(request("gpu", "gpu", MODEL)),
    ],
    "attribute-missing": [
        offer("gpu-node-1", GPU, {"name": "gpu-0", "attributes": {"model": {"string": "H100"}}},
              {"name": "gpu-1", "attributes": {"index": {"int": 1}}}),
        *pod(request("gpu", "gpu", f'device.attributes["{GPU}"].index == 1')),
    ],
    "class-missing": [
        offer("gpu-node-1", GPU, gpu(0)),
        *pod(request("channel", "imex.example.com")),
    ],
    "tainted": [
        offer("gpu-node-1", GPU, gpu(0, taints=[
            {"key": "gpu.example.com/maintenance", "value": "firmware", "effect": "NoSchedule"}])),
        *pod(request("gpu", "gpu")),
    ],
    "cpus-short": [
        offer("cpu-node-1", "dra.cpu", numa_cpus(0, 24), numa_cpus(1, 24)),
        held("database", "postgres-0", share("cpu-node-1", "cpudevnuma000", 16)),
        held("cache", "redis-0", share("cpu-node-1", "cpudevnuma001", 10)),
        *pod(request("cpus", "cpu", capacity={"requests": {"dra.cpu/cpu": "20"}})),
    ],
    "wrong-capacity-key": [
        offer("cpu-node-1", "dra.cpu", numa_cpus(0, 24), numa_cpus(1, 24)),
        *pod(request("cpus", "cpu", capacity={"requests": {"cpu": "4"}})),
    ],
    "not-on-one-numa-node": [
        offer("gpu-node-1", GPU, gpu(0, numa=0), gpu(1, numa=0)),
        offer("gpu-node-1", NIC, nic(0, 1)),
        *pod(request("gpu", "gpu"), request("nic", "nic"),
             constraints=[{"matchAttribute": "example.com/numaNode"}]),
    ],
    "pool-incomplete": [
        offer("gpu-node-1", GPU, gpu(0), count=2),
        *pod(request("gpu", "gpu")),
    ],
    "partitions-used-up": [
        offer("gpu-node-1", GPU, gpu(0, **counters("80Gi")), gpu(1, **counters("40Gi")),
              gpu(2, **counters("40Gi")), count=2),
        offer("gpu-node-1", GPU, count=2,
              sharedCounters=[{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]),
        held("notebook", "jupyter-3", result("gpu-node-1", GPU, "gpu-1")),
        *pod(request("whole-gpu", "gpu", f'device.capacity["{GPU}"].memory == quantity("80Gi")',
                     count=2)),
    ],
    "one-cpu-too-many": [
        offer("cpu-node-1", "dra.cpu", *({"name": f"cpudev{i:03d}"} for i in range(31))),
        *pod(request("cpus", "cpu", count=32)),
    ],
    "held-on-another-node": [
        offer("gpu-node-1", GPU, gpu(0)),
        offer("gpu-node-2", GPU, gpu(0)),
        *pod(request("gpu", "gpu")),
    ],
}  # fmt: skip


def dump(name: str, directory: Path) -> str:
    objects = json.loads(json.dumps(SITUATIONS[name]))
    nodes = sorted({o["spec"]["nodeName"] for o in objects if o["kind"] == "ResourceSlice"})
    items = [{"kind": "Node", "metadata": {"name": n}} for n in nodes]
    items += [cluster_class(n, d) for n, d in (("gpu", GPU), ("nic", NIC), ("cpu", "dra.cpu"))]
    for item in objects:
        if name == "not-on-one-numa-node" and item["kind"] == "ResourceSlice":
            for device in item["spec"]["devices"]:
                device["attributes"]["example.com/numaNode"] = device["attributes"].pop("numaNode")
        if name == "held-on-another-node":
            _hold(item)
        items.append(item)
    file = directory / "dump.json"
    file.write_text(json.dumps({"kind": "List", "items": items}))
    return str(file)


def _hold(item: Json) -> None:
    """The claim has its GPU on the first node; the pod may only go to the second."""
    if item["kind"] == "ResourceClaim":
        field = {"key": "metadata.name", "operator": "In", "values": ["gpu-node-1"]}
        allocation = {
            "devices": {"results": [result("gpu-node-1", GPU, "gpu-0")]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        }
        item["status"] = {"allocation": allocation}
    if item["kind"] == "Pod":
        names = {"key": "metadata.name", "operator": "In", "values": ["gpu-node-2"]}
        required = {"nodeSelectorTerms": [{"matchFields": [names]}]}
        kind = "requiredDuringSchedulingIgnoredDuringExecution"
        item["spec"]["affinity"] = {"nodeAffinity": {kind: required}}


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_explanation_is_the_agreed_one(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "training", "--from", dump(name, tmp_path)]) == 1
    check_golden(f"explain-{name}", capsys.readouterr().out)


def test_no_golden_text_is_left_over() -> None:
    assert {f.stem for f in HERE.glob("explain-*.txt")} == {f"explain-{n}" for n in SITUATIONS}
