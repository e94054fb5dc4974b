"""Random scheduling problems over all features, reproducible from a seed.

A problem is a dictionary of plain API objects: ``nodes``, ``slices``, ``classes``, ``claims`` (to
be allocated, in order) and ``allocated`` (claims that already hold devices). Drivers, pools and
devices are few and overlap, so that requests compete and constraints bite.
"""

from __future__ import annotations

import random
from typing import Any

Json = dict[str, Any]

DRIVERS = ("cpu.example.com", "gpu.example.com", "net.example.org")
SELECTORS = (
    'device.driver == "gpu.example.com"',
    'device.driver.startsWith("c")',
    'device.attributes["gpu.example.com"].?numa.orValue(0) == 0',
    "device.attributes[device.driver].?numa.orValue(1) >= 1",
    'has(device.attributes[device.driver].model) && device.attributes[device.driver].model == "a"',
    'device.attributes[device.driver].?model.orValue("") in ["a", "b"]',
    "device.attributes[device.driver].?healthy.orValue(true)",
    'device.capacity[device.driver].?memory.orValue(quantity("0")).isGreaterThan(quantity("2Gi"))',
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
    'device.attributes["common.io"].?zone.orValue("x") != "west"',
    '"numa" in device.attributes[device.driver]',
    "device.capacity[device.driver].exists(k, k == 'cores')",
    "true",
)
FRAGILE = (
    'device.attributes["gpu.example.com"].numa == 0',
    'device.attributes[device.driver].model == "a"',
    'device.capacity["cpu.example.com"].cores.compareTo(quantity("1")) >= 0',
    'device.attributes[device.driver].numa > 0 || device.driver == "cpu.example.com"',
)
ATTRIBUTES = ("numa", "model", "healthy", "uuid", "common.io/zone", "firmware")


class Generator:
    """Builds problems; every choice comes from one seeded source."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.nodes: list[Json] = []
        self.devices: list[tuple[str, str, Json]] = []

    def chance(self, percent: float) -> bool:
        return self.random.random() * 100 < percent

    def problem(self) -> Json:
        count = self.random.choice((1, 1, 2, 3))
        self.nodes = [self.node(i) for i in range(count)]
        slices = [s for _ in range(self.random.randint(2, 6)) for s in self.pool()]
        self.random.shuffle(slices)
        classes = self.classes()
        return {
            "seed": self.seed,
            "nodes": self.nodes,
            "slices": slices,
            "classes": classes,
            "claims": [self.claim(f"claim-{i}", classes) for i in range(self.random.choice((1, 1, 1, 2, 3)))],
            "allocated": self.allocated(),
        }

    def node(self, index: int) -> Json:
        labels = {"zone": self.random.choice(("east", "west")), "rank": str(index)}
        return {"metadata": {"name": f"node-{index}", "labels": labels}}

    # -- pools --------------------------------------------------------------------------------------

    def pool(self) -> list[Json]:
        driver = self.random.choice(DRIVERS)
        name = self.random.choice((*"pqrstuvwxyz", self.random.choice(self.nodes)["metadata"]["name"]))
        generation = 2 if self.chance(8) else 1
        where = self.selection()
        partitioned = self.chance(25)
        entries: list[Json] = []
        if partitioned:
            sets = [self.counter_set(i) for i in range(self.random.choice((1, 1, 2)))]
            entries.append({"sharedCounters": sets})
        for part in range(self.random.choice((1, 1, 2))):
            devices = [
                self.device(f"d{part}-{i}", entries if partitioned else [])
                for i in range(self.random.choice((0, 2, 3, 4, 6, 8)))
            ]
            if self.chance(1) and devices:
                devices.append({**devices[0]})
            entries.append({"devices": devices})
        total = len(entries) + (1 if self.chance(2) else 0)
        if self.chance(1):
            entries = entries[1:]
        out = []
        for part, entry in enumerate(entries):
            spec = {
                "driver": driver,
                "pool": {"name": name, "generation": generation, "resourceSliceCount": total},
                **self.placed(where, entry),
            }
            title = f"{driver[:3]}-{name}-{self.random.choice('abcdefgh')}{part}-{len(self.devices)}"
            out.append({"metadata": {"name": f"{title}-{self.random.randint(0, 999)}"}, "spec": spec})
            for device in spec.get("devices", ()):
                self.devices.append((driver, name, device))
        return out

    def selection(self) -> Json:
        kind = self.random.choice(("node", "node", "node", "all", "selector", "device"))
        if kind == "node":
            return {"nodeName": self.random.choice(self.nodes)["metadata"]["name"]}
        if kind == "all":
            return {"allNodes": True}
        if kind == "selector":
            return {"nodeSelector": self.node_selector()}
        return {"perDeviceNodeSelection": True}

    def node_selector(self) -> Json:
        key, values = self.random.choice((("zone", ["east"]), ("zone", ["west"]), ("rank", ["0", "1"])))
        operator = self.random.choice(("In", "In", "NotIn"))
        requirement = {"key": key, "operator": operator, "values": values}
        return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}

    def placed(self, where: Json, entry: Json) -> Json:
        if "perDeviceNodeSelection" not in where or "devices" not in entry:
            return {**(where if "perDeviceNodeSelection" not in where else {"allNodes": True}), **entry}
        devices = []
        for device in entry["devices"]:
            own = self.selection()
            if "perDeviceNodeSelection" in own:
                own = {"allNodes": True}
            devices.append({**device, **own})
        return {**where, "devices": devices}

    def counter_set(self, index: int) -> Json:
        counters = {
            name: {"value": str(self.random.randint(1, 8))}
            for name in ("slices", "mem")[: self.random.randint(1, 2)]
        }
        return {"name": f"set-{index}", "counters": counters}

    def device(self, name: str, counters: list[Json]) -> Json:
        device: Json = {"name": name, "attributes": self.attributes(name)}
        shared = self.chance(30)
        if self.chance(60) or shared:
            device["capacity"] = self.capacity(shared)
        if shared:
            device["allowMultipleAllocations"] = True
        if counters and self.chance(85):
            device["consumesCounters"] = self.consumption(counters[0]["sharedCounters"])
        if self.chance(12):
            effect = self.random.choice(("NoSchedule", "NoExecute", "None"))
            device["taints"] = [{"key": "broken", "value": self.random.choice("xy"), "effect": effect}]
        if self.chance(5):
            device["bindingConditions"] = ["ready.example.com"]
            device["bindingFailureConditions"] = ["failed.example.com"]
            device["bindsToNode"] = self.chance(50)
        return device

    def attributes(self, name: str) -> Json:
        choices: Json = {
            "numa": {"int": self.random.randint(0, 2)},
            "model": {"string": self.random.choice("ab")},
            "healthy": {"bool": self.chance(80)},
            "uuid": {"string": f"{name}-{self.random.randint(0, 3)}"},
            "common.io/zone": {"string": self.random.choice(("east", "west"))},
            "firmware": {"version": self.random.choice(("1.0.0", "1.2.0"))},
        }
        return {key: value for key, value in choices.items() if self.chance(93)}

    def capacity(self, shared: bool) -> Json:
        memory, cores = self.random.choice((1, 2, 4, 8)), self.random.choice((2, 4, 8, 16))
        found: Json = {"memory": {"value": f"{memory}Gi"}}
        if self.chance(60):
            found["cores"] = {"value": str(cores)}
        if not shared:
            return found
        if self.chance(60):
            found["memory"]["requestPolicy"] = self.random.choice(
                (
                    {"default": "1Gi", "validRange": {"min": "512Mi", "step": "512Mi"}},
                    {"default": "1Gi", "validRange": {"min": "256Mi", "max": f"{memory}Gi"}},
                    {"default": "1Gi", "validValues": ["512Mi", "1Gi", f"{memory}Gi"][: 2 + (memory > 1)]},
                )
            )
        if "cores" in found and self.chance(60):
            found["cores"]["requestPolicy"] = self.random.choice(
                (
                    {"default": "1", "validRange": {"min": "1", "step": "1"}},
                    {"default": "2", "validRange": {"min": "500m", "step": "250m", "max": str(cores)}},
                    {"default": "2", "validValues": ["1", "2", "8"][: 2 + (cores >= 8)]},
                )
            )
        return found

    def consumption(self, sets: list[Json]) -> list[Json]:
        used = self.random.sample(sets, self.random.randint(1, len(sets)))
        out = []
        for chosen in used:
            counters = {name: {"value": str(self.random.randint(1, 3))} for name in chosen["counters"]}
            if self.chance(2):
                counters["unknown"] = {"value": "1"}
            out.append({"counterSet": chosen["name"], "counters": counters})
        return out

    # -- claims ---------------------------------------------------------------------------------------

    def classes(self) -> list[Json]:
        found: list[Json] = [{"metadata": {"name": "any"}, "spec": {}}]
        for driver in DRIVERS:
            expression = f'device.driver == "{driver}"'
            spec = {"selectors": [{"cel": {"expression": expression}}]}
            found.append({"metadata": {"name": driver.split(".")[0]}, "spec": spec})
        return found

    def request_spec(self, classes: list[Json]) -> Json:
        chosen = self.random.choice(classes)["metadata"]["name"]
        request_spec: Json = {"deviceClassName": chosen, "allocationMode": "ExactCount"}
        selectors = self.random.sample(SELECTORS, self.random.choice((0, 0, 0, 1, 1, 2)))
        if self.chance(2):
            selectors.append(self.random.choice(FRAGILE))
        if selectors:
            request_spec["selectors"] = [{"cel": {"expression": e}} for e in selectors]
        if self.chance(10):
            request_spec["allocationMode"] = "All"
        else:
            request_spec["count"] = self.random.choice((1, 1, 1, 1, 2, 2, 3, 5))
            if self.chance(1):
                request_spec["count"] = 33
        if self.chance(20):
            request_spec["tolerations"] = [self.toleration()]
        if self.chance(18):
            amounts = {"memory": self.random.choice(("300Mi", "1Gi", "1Gi", "1.5Gi", "3Gi", "16Gi"))}
            if self.chance(40):
                amounts["cores"] = self.random.choice(("1", "1500m", "3", "100m"))
            if self.chance(4):
                amounts["gpu.example.com/memory"] = "1Gi"
            request_spec["capacity"] = {"requests": amounts}
        return request_spec

    def toleration(self) -> Json:
        return self.random.choice(
            (
                {"operator": "Exists"},
                {"key": "broken", "operator": "Exists"},
                {"key": "broken", "operator": "Equal", "value": "x"},
                {"key": "broken", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "other", "operator": "Exists"},
            )
        )

    def request(self, name: str, classes: list[Json]) -> Json:
        if self.chance(20):
            wishes = [
                {"name": f"sub-{i}", **self.request_spec(classes)} for i in range(self.random.randint(1, 3))
            ]
            return {"name": name, "firstAvailable": wishes}
        exactly = self.request_spec(classes)
        if self.chance(8):
            exactly["adminAccess"] = True
        return {"name": name, "exactly": exactly}

    def claim(self, name: str, classes: list[Json]) -> Json:
        requests = [self.request(f"req-{i}", classes) for i in range(self.random.choice((1, 1, 2, 2, 3)))]
        devices: Json = {"requests": requests}
        if self.chance(35):
            devices["constraints"] = [self.constraint(requests) for _ in range(self.random.choice((1, 1, 2)))]
        return {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"devices": devices},
        }

    def constraint(self, requests: list[Json]) -> Json:
        attribute = self.random.choice(ATTRIBUTES)
        if "/" not in attribute:
            attribute = f"{self.random.choice(DRIVERS)}/{attribute}"
        if self.chance(40):
            attribute = "common.io/zone"
        kind = "distinctAttribute" if self.chance(30) else "matchAttribute"
        found: Json = {kind: attribute}
        if self.chance(50):
            chosen = self.random.choice(requests)
            name = chosen["name"]
            if "firstAvailable" in chosen and self.chance(50):
                name = f"{name}/{self.random.choice(chosen['firstAvailable'])['name']}"
            found["requests"] = [name]
        return found

    def allocated(self) -> list[Json]:
        found = []
        for index in range(self.random.choice((0, 0, 1, 2, 4))):
            if not self.devices:
                break
            driver, pool, device = self.random.choice(self.devices)
            result: Json = {"request": "r", "driver": driver, "pool": pool, "device": device["name"]}
            if device.get("allowMultipleAllocations") and self.chance(90):
                result["shareID"] = f"00000000-0000-0000-0000-{index:012d}"
                if self.chance(85):
                    result["consumedCapacity"] = {
                        key: self.random.choice(("1", "2")) if key == "cores" else "1Gi"
                        for key in device.get("capacity", {})
                    }
            elif self.chance(10):
                result["adminAccess"] = True
            found.append(
                {
                    "metadata": {"name": f"held-{index}", "namespace": "other"},
                    "spec": {"devices": {"requests": []}},
                    "status": {"allocation": {"devices": {"results": [result]}}},
                }
            )
        return found


def problem(seed: int) -> Json:
    """The problem of this seed."""
    return Generator(seed).problem()
