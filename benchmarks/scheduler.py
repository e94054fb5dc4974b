"""How long the offline scheduler takes: CEL per device, and a large cluster."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import msgspec

from drakit.core.objects import Device, from_builtins
from drakit.scheduler.cel.selector import compile_selector, device_value

DRA = "resource.k8s.io/v1"
WANTED = 'device.attributes["gpu.io"].model == "h100"'
EXPRESSIONS = (
    'device.attributes["gpu.io"].model == "a100"',
    'has(device.attributes["gpu.io"].numa) && device.attributes["gpu.io"].numa == 1',
    'device.capacity["gpu.io"].memory.isGreaterThan(quantity("20Gi"))',
    'device.attributes["gpu.io"].firmware.compareTo(semver("1.2.0")) >= 0',
)


def plain_device(index: int) -> dict[str, Any]:
    return {
        "name": f"d{index}",
        "attributes": {
            "model": {"string": "a100" if index % 3 else "t4"},
            "numa": {"int": index % 2},
            "firmware": {"version": "1.2.3"},
            "uuid": {"string": f"gpu-{index}"},
        },
        "capacity": {"memory": {"value": "40Gi"}},
    }


def cel() -> None:
    values = [device_value("gpu.io", from_builtins(plain_device(i), Device)) for i in range(1000)]
    for expression in EXPRESSIONS:
        selector = compile_selector(expression)
        begin = time.process_time()
        matched = sum(selector.matches(value) for value in values)
        took = time.process_time() - begin
        print(f"{took * 1000:7.2f} ms  1000 devices ({matched} match)  {expression}")


def write_dump(path: str, nodes: int, devices: int) -> None:
    """A cluster with this many nodes and devices each, as ``kubectl get -o json`` writes it."""
    items: list[dict[str, Any]] = []
    for n in range(nodes):
        pool = {"name": f"n{n}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.io", "nodeName": f"n{n}", "pool": pool,
                "devices": [plain_device(i) for i in range(devices)]}  # fmt: skip
        items.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{n}"}})
        items.append(
            {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": f"s{n}"}, "spec": spec}
        )
    of_driver = {"selectors": [{"cel": {"expression": 'device.driver == "gpu.io"'}}]}
    items.append({"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": of_driver})
    spec = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": WANTED}}]}
    devices_wanted = {"devices": {"requests": [{"name": "r", "exactly": spec}]}}
    items.append(
        {"apiVersion": DRA, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": devices_wanted}
    )  # fmt: skip
    with open(path, "wb") as file:
        file.write(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}))


def explain(nodes: int = 1000, devices: int = 128) -> None:
    """The whole command on a large dump, in a process of its own; the goal is 5 s."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "cluster.json")
        write_dump(path, nodes, devices)
        size = os.path.getsize(path) >> 20
        command = [sys.executable, "-m", "drakit", "explain", "claim/c", "--from", path]
        begin = time.monotonic()
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        wall = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{nodes} nodes × {devices} devices: {size} MiB JSON explained in {wall:.1f} s "
          f"({used.ru_utime + used.ru_stime:.1f} s of CPU), {used.ru_maxrss // 1024} MiB")  # fmt: skip


def main() -> None:
    """Measure both."""
    cel()
    explain()


if __name__ == "__main__":
    main()
