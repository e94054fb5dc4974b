"""Random scheduling problems wider than :mod:`.problems`, which its golden files hold fixed.

More kinds of pools (replaced, left over, spread over nodes, large), node selectors with every
operator, DeviceTaintRules, rules of the pod and taints of nodes, claims of the pod that hold devices
already, odd amounts and policies, expressions that fail, and far more combinations of all that.
"""

from __future__ import annotations

import json
from typing import Any

from tests.scheduler.problems import ATTRIBUTES, DRIVERS, FRAGILE, SELECTORS, Generator, Json

DRA = "resource.k8s.io/v1"
MORE_SELECTORS = (
    'device.attributes[device.driver].?firmware.orValue(semver("0.1.0")).major() >= 1',
    "device.attributes[device.driver].?numa.hasValue()",
    "cel.bind(own, device.attributes[device.driver], has(own.numa) && own.numa != 1)",
    "device.attributes[device.driver].?uuid.orValue('').endsWith('-1') == false",
    "device.capacity[device.driver].?cores.orValue(quantity('4')).compareTo(quantity('4')) >= 0",
    "device.driver.matches('^[cg]')",
    "device.attributes[device.driver].?numa.orValue(0) < 1.5",
    "device.attributes.exists(d, d == 'common.io')",
    "device.driver in ['cpu.example.com', 'gpu.example.com']",
    "device.attributes['common.io'].?zone.orValue('') in ['east', 'west']",
    "sets.contains(['a', 'c'], [device.attributes[device.driver].?model.orValue('a')])",
    "device.capacity[device.driver].?memory.orValue(quantity('0')).sub(quantity('1Gi')).isInteger()",
    "!has(device.attributes[device.driver].healthy) || device.attributes[device.driver].healthy",
)
MORE_FRAGILE = (
    "device.attributes[device.driver].model > 1",
    "device.attributes[device.driver].uuid.startsWith('d0-1')",
    "device.capacity[device.driver].cores.isGreaterThan(quantity('0'))",
    "device.attributes['common.io'].zone == 'east'",
    "device.attributes[device.driver].healthy",
    "device.attributes[device.driver].numa == 0 ? true : device.attributes[device.driver].model == 'b'",
    "quantity(device.attributes[device.driver].?model.orValue('1')).isGreaterThan(quantity('0'))",
)


class WideGenerator(Generator):
    """Every choice comes from the seed, as in the parent. Half of the problems are gentle: without
    what makes most pods fail, so that the devices of those that fit are compared often enough."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.gentle = self.chance(65)
        self.pools = 0

    def problem(self) -> Json:
        posed = super().problem()
        posed["rules"] = [self.rule(i) for i in range(self.random.choice((0, 0, 0, 1, 2)))]
        posed["pod"] = self.pod()
        self.allocate_own(posed["claims"])
        return posed

    # -- nodes and pod -----------------------------------------------------------------------------

    def node(self, index: int) -> Json:
        labels = {"rank": str(index), "size": self.random.choice(("1", "10", "x"))}
        if self.chance(85):
            labels["zone"] = self.random.choice(("east", "west"))
        node: Json = {"metadata": {"name": f"node-{index}", "labels": labels}}
        if self.chance(6):
            effect = self.random.choice(("NoSchedule", "NoExecute", "PreferNoSchedule"))
            node["spec"] = {"taints": [{"key": "dedicated", "value": "x", "effect": effect}]}
        elif self.chance(3):
            node["spec"] = {"unschedulable": True}
        return node

    def pod(self) -> Json:
        """What the pod's spec says except its claims."""
        spec: Json = {}
        if self.chance(12):
            spec["tolerations"] = [
                self.random.choice(
                    (
                        {"operator": "Exists"},
                        {"key": "dedicated", "operator": "Equal", "value": "x"},
                        {"key": "dedicated", "operator": "Exists", "effect": "NoExecute"},
                    )
                )
            ]
        if self.chance(8):
            required = self.node_selector()
            kind = "requiredDuringSchedulingIgnoredDuringExecution"
            spec["affinity"] = {"nodeAffinity": {kind: required}}
        if self.chance(5):
            spec["cpu"] = self.random.choice(("1", "63", "65"))
        return spec

    def node_selector(self) -> Json:
        requirements = []
        for _ in range(self.random.choice((1, 1, 1, 2))):
            key = self.random.choice(("zone", "zone", "rank", "size"))
            operator = self.random.choice(("In", "In", "NotIn", "Exists", "DoesNotExist"))
            if key in ("rank", "size"):
                operator = self.random.choice(("In", "NotIn", "Gt", "Lt", "Exists"))
            found: Json = {"key": key, "operator": operator}
            if operator in ("Gt", "Lt"):
                found["values"] = [self.random.choice(("0", "1", "5"))]
            elif operator in ("In", "NotIn"):
                options = {"zone": ("east", "west"), "rank": ("0", "1", "2"), "size": ("1", "x")}
                values = options[key]
                found["values"] = self.random.sample(values, self.random.randint(1, len(values)))
            requirements.append(found)
        term: Json = {"matchExpressions": requirements}
        if self.chance(15):
            name = self.random.choice(self.nodes)["metadata"]["name"]
            operator = self.random.choice(("In", "In", "NotIn"))
            field = {"key": "metadata.name", "operator": operator, "values": [name]}
            term = {"matchFields": [field], **(term if self.chance(50) else {})}
        return {"nodeSelectorTerms": [term]}

    # -- pools -------------------------------------------------------------------------------------

    def pool(self) -> list[Json]:
        entries = super().pool()
        if self.gentle:  # pools of their own, and mostly devices for everybody
            self.pools += 1
            for entry in entries:
                entry["spec"]["pool"]["name"] = f"{self.pools}-{entry['spec']['pool']['name']}"
                entry["spec"]["pool"]["resourceSliceCount"] = len(entries)
                if "nodeName" not in entry["spec"] and self.chance(50):
                    entry["spec"].pop("nodeSelector", None)
                    if not entry["spec"].get("perDeviceNodeSelection"):
                        entry["spec"]["allNodes"] = True
            known = {id(d) for e in entries for d in e["spec"].get("devices", ())}
            self.devices = [
                (driver, f"{self.pools}-{name}" if id(device) in known else name, device)
                for driver, name, device in self.devices
            ]
        for entry in entries:  # the API server rejects a name twice in one slice, not in two
            named = {d["name"]: d for d in entry["spec"].get("devices", ())}
            if "devices" in entry["spec"]:
                entry["spec"]["devices"] = list(named.values())
        if not entries or (self.gentle and self.chance(60)):
            return entries
        kind = self.random.random() * 100
        if kind < 6:  # left over from the generation before
            old = json.loads(json.dumps(self.random.choice(entries)))
            old["metadata"]["name"] = f"a-{old['metadata']['name']}"
            old["spec"]["pool"]["generation"] -= 1
            entries.append(old)
        elif kind < 11:  # being replaced, perhaps only elsewhere
            new = json.loads(json.dumps(self.random.choice(entries)))
            new["metadata"]["name"] = f"z-{new['metadata']['name']}"
            new["spec"]["pool"]["generation"] += 1
            new["spec"]["pool"]["resourceSliceCount"] = self.random.choice((1, 2))
            if self.chance(60) and "nodeName" in new["spec"]:
                new["spec"]["nodeName"] = self.random.choice(self.nodes)["metadata"]["name"]
            entries.append(new)
        elif kind < 22:  # one pool, slices for several nodes
            for entry in entries:
                if "nodeName" in entry["spec"]:
                    entry["spec"]["nodeName"] = self.random.choice(self.nodes)["metadata"]["name"]
        elif kind < 27 and len(entries) > 1:  # a slice is missing
            entries.pop(self.random.randrange(len(entries)))
        elif kind < 32:
            self.enlarge(entries)
        elif kind < 35 and entries[0]["spec"].get("devices"):
            twice = entries[-1]["spec"].setdefault("devices", [])
            if twice is not entries[0]["spec"]["devices"]:
                twice.append(entries[0]["spec"]["devices"][0])
        return entries

    def enlarge(self, entries: list[Json]) -> None:
        """Many devices, so that the limit of 32 results matters."""
        spec = self.random.choice(entries)["spec"]
        if "devices" not in spec or spec.get("perDeviceNodeSelection"):
            return
        for index in range(self.random.choice((12, 20, 34))):
            device = {"name": f"many-{index}", "attributes": self.attributes(f"many-{index}")}
            spec["devices"].append(device)
            self.devices.append((spec["driver"], spec["pool"]["name"], device))

    def device(self, name: str, counters: list[Json]) -> Json:
        device = super().device(name, counters)
        if self.chance(4):
            device["taints"] = [
                {"key": "broken", "value": "x", "effect": "NoSchedule"},
                {"key": "old", "effect": self.random.choice(("NoSchedule", "NoExecute", "None"))},
            ]
        return device

    def attributes(self, name: str) -> Json:
        found = super().attributes(name)
        if self.chance(5) and "numa" in found:
            found["numa"] = {"string": str(found["numa"]["int"])}
        if self.chance(5) and "model" in found:
            found[f"{self.random.choice(DRIVERS)}/model"] = found.pop("model")
        if self.chance(4):
            found["common.io/numa"] = {"int": self.random.randint(0, 1)}
        return found

    def capacity(self, shared: bool) -> Json:
        found = super().capacity(shared)
        if self.chance(15):
            found["bandwidth"] = {"value": self.random.choice(("0", "10G", "2500m", "1e3", "7"))}
            if shared and self.chance(70):
                found["bandwidth"]["requestPolicy"] = self.policy()
                found["bandwidth"]["value"] = self.random.choice(("10", "10G", "9500m", "64Ki"))
        if self.chance(5):
            found[f"{self.random.choice(DRIVERS)}/memory"] = {"value": "4Gi"}
        return found

    def policy(self) -> Json:
        return self.random.choice(
            (
                {"default": "1"},
                {"default": "0", "validRange": {"min": "0"}},
                {"default": "2", "validRange": {"min": "1", "max": "4", "step": "1"}},
                {"default": "1500m", "validRange": {"min": "500m", "step": "500m"}},
                {"default": "1", "validRange": {"min": "1", "max": "3"}},
                {"default": "2", "validValues": ["1", "2", "4"]},
                {"default": "2", "validValues": ["2"]},
                {"default": "1500m", "validValues": ["500m", "1500m"]},
                {"default": "3", "validRange": {"min": "3", "step": "2", "max": "9"}},
            )
        )

    def counter_set(self, index: int) -> Json:
        found = super().counter_set(index)
        if self.chance(20):
            found["counters"]["slices"] = {"value": self.random.choice(("2500m", "4", "0"))}
        return found

    def consumption(self, sets: list[Json]) -> list[Json]:
        found = super().consumption(sets)
        for entry in found:
            for counter in entry["counters"].values():
                if self.chance(8):
                    counter["value"] = self.random.choice(("0", "500m", "1500m"))
        return found

    def rule(self, index: int) -> Json:
        """A DeviceTaintRule."""
        selector: Json = {}
        if self.devices:
            driver, pool, device = self.random.choice(self.devices)
            if self.chance(85):
                selector["driver"] = driver
            if self.chance(50):
                selector["pool"] = pool
            if self.chance(50):
                selector["device"] = device["name"]
        effect = self.random.choice(("NoSchedule", "NoSchedule", "NoExecute", "None"))
        taint: Json = {"key": self.random.choice(("broken", "ruled")), "effect": effect}
        if self.chance(50):
            taint["value"] = "x"
        spec: Json = {"taint": taint}
        if selector or self.chance(50):
            spec["deviceSelector"] = selector
        return {"metadata": {"name": f"rule-{index}"}, "spec": spec}

    # -- claims ------------------------------------------------------------------------------------

    def classes(self) -> list[Json]:
        found = super().classes()

        def add(name: str, *expressions: str) -> None:
            spec = {"selectors": [{"cel": {"expression": e}} for e in expressions]}
            found.append({"metadata": {"name": name}, "spec": spec})

        add("picky", *self.random.sample((*SELECTORS, *MORE_SELECTORS), 2))
        if self.chance(10):
            add("fragile", self.random.choice((*FRAGILE, *MORE_FRAGILE)))
        return found

    def request_spec(self, classes: list[Json]) -> Json:
        request_spec = super().request_spec(classes)
        if self.gentle:
            request_spec["selectors"] = [
                s for s in request_spec.get("selectors", ()) if s["cel"]["expression"] not in FRAGILE
            ][:1]
            if "count" in request_spec:
                request_spec["count"] = min(request_spec["count"], 2)
            if self.chance(70):
                request_spec.pop("capacity", None)
            if self.chance(50):
                request_spec["deviceClassName"] = "any"
            return request_spec
        expressions = []
        if self.chance(25):
            expressions.append(self.random.choice(MORE_SELECTORS))
        if self.chance(4):
            expressions.append(self.random.choice((*FRAGILE, *MORE_FRAGILE)))
        if expressions:
            more = [{"cel": {"expression": e}} for e in expressions]
            request_spec["selectors"] = [*request_spec.get("selectors", ()), *more]
        if self.chance(1):
            request_spec["deviceClassName"] = "absent"
        if "count" in request_spec and self.chance(5):
            request_spec["count"] = self.random.choice((4, 8, 12, 20, 32))
        if self.chance(8):
            amount = self.random.choice(("0", "1", "1500m", "2", "2750m", "5", "64Ki", "1k"))
            requests = request_spec.setdefault("capacity", {}).setdefault("requests", {})
            requests["bandwidth"] = amount
        if "tolerations" in request_spec and self.chance(30):
            request_spec["tolerations"].append({"key": "ruled", "operator": "Exists"})
        return request_spec

    def request(self, name: str, classes: list[Json]) -> Json:
        found = super().request(name, classes)
        if "firstAvailable" in found and self.chance(25):
            wishes = found["firstAvailable"]
            while len(wishes) < self.random.choice((3, 4, 6)):
                wishes.append({"name": f"sub-{len(wishes)}", **self.request_spec(classes)})
        return found

    def claim(self, name: str, classes: list[Json]) -> Json:
        found = super().claim(name, classes)
        devices = found["spec"]["devices"]
        if self.gentle and self.chance(50):
            devices.pop("constraints", None)
            return found
        if self.chance(6):
            extra = self.request(f"req-{len(devices['requests'])}", classes)
            devices["requests"].append(extra)
        if self.chance(8):
            devices["constraints"] = [
                *devices.get("constraints", ()), self.constraint(devices["requests"])
            ]  # fmt: skip
        return found

    def constraint(self, requests: list[Json]) -> Json:
        found = super().constraint(requests)
        if len(requests) > 1 and self.chance(40):
            chosen = self.random.sample(requests, self.random.randint(1, len(requests)))
            found["requests"] = [r["name"] for r in chosen]
        if self.chance(10):
            kind = next(k for k in found if k.endswith("Attribute"))
            found[kind] = f"{self.random.choice(DRIVERS)}/{self.random.choice(ATTRIBUTES[:4])}"
        return found

    def allocated(self) -> list[Json]:
        found = super().allocated()
        if found and self.chance(30):  # several devices in one claim
            first = found[0]["status"]["allocation"]["devices"]["results"]
            for other in found[1:]:
                first += other["status"]["allocation"]["devices"]["results"]
            del found[1:]
        if self.devices and self.chance(25):
            driver, pool, _ = self.random.choice(self.devices)
            gone = {"request": "r", "driver": driver, "pool": pool, "device": "gone"}
            found.append(_holder(len(found), [gone]))
        for index in range(self.random.choice((0, 0, 0, 3, 6)) if self.devices else 0):
            driver, pool, device = self.random.choice(self.devices)
            result = {"request": "r", "driver": driver, "pool": pool, "device": device["name"]}
            if device.get("allowMultipleAllocations"):
                result["shareID"] = f"00000000-0000-0000-0001-{index:012d}"
                result["consumedCapacity"] = {
                    key: self.random.choice(("1", "500m", "1Gi")) for key in device["capacity"]
                }
            found.append(_holder(len(found), [result]))
        return found

    def allocate_own(self, claims: list[Json]) -> None:
        """One of several claims of the pod has its devices already, perhaps on one node only."""
        if len(claims) < 2 or not self.devices or not self.chance(25):
            return
        driver, pool, device = self.random.choice(self.devices)
        claim = self.random.choice(claims)
        first = claim["spec"]["devices"]["requests"][0]
        name = first["name"]
        if "firstAvailable" in first:
            name = f"{name}/{first['firstAvailable'][0]['name']}"
        result = {"request": name, "driver": driver, "pool": pool, "device": device["name"]}
        allocation: Json = {"devices": {"results": [result]}}
        allocation["allocationTimestamp"] = "2026-01-01T00:00:00Z"
        if self.chance(60):
            node = self.random.choice(self.nodes)["metadata"]["name"]
            field = {"key": "metadata.name", "operator": "In", "values": [node]}
            allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        # Reserved by another pod: a claim reserved by nobody would be taken back and moved.
        user = {"resource": "pods", "name": "somebody", "uid": f"uid-{self.seed}"}
        claim["status"] = {"allocation": allocation, "reservedFor": [user]}
        claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]


def _holder(index: int, results: list[Json]) -> Json:
    return {
        "metadata": {"name": f"held-{index}", "namespace": "other"},
        "spec": {"devices": {"requests": []}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def wide_problem(seed: int) -> Json:
    """The problem of this seed."""
    return WideGenerator(seed).problem()


# -- as API objects ----------------------------------------------------------------------------------


def private(posed: Json) -> Json:
    """The problem with names of its own, so that problems in one cluster do not see each other."""
    seed = posed["seed"]
    text = json.dumps(posed)
    for driver in DRIVERS:
        text = text.replace(driver, driver.replace(".", f"-{seed}.", 1))
    changed: Json = json.loads(text.replace("node-", f"n{seed}-"))
    for node in changed["nodes"]:
        node["metadata"]["labels"]["problem"] = str(seed)
    for kind in ("slices", "classes", "claims", "allocated", "rules"):
        for item in changed.get(kind, ()):
            item["metadata"]["name"] += f"-{seed}"
    for claim in changed["claims"]:
        claim["metadata"].pop("uid", None)
        for request in claim["spec"]["devices"]["requests"]:
            for request_spec in (request.get("exactly"), *request.get("firstAvailable", ())):
                if request_spec is not None:
                    request_spec["deviceClassName"] += f"-{seed}"
    return changed


def cluster_objects(posed: Json) -> list[Json]:
    """Everything but the pod and its claims, complete enough for the API server."""
    resources = {"cpu": "64", "memory": "256Gi", "pods": "500"}
    holder = {"name": "r", "exactly": {"deviceClassName": posed["classes"][0]["metadata"]["name"]}}
    found = [
        {"apiVersion": "v1", "kind": "Node", **n, "status": {"allocatable": resources}}
        for n in posed["nodes"]
    ]
    found += [{"apiVersion": DRA, "kind": "ResourceSlice", **s} for s in posed["slices"]]
    found += [{"apiVersion": DRA, "kind": "DeviceClass", **c} for c in posed["classes"]]
    found += [{"apiVersion": DRA, "kind": "DeviceTaintRule", **r} for r in posed.get("rules", ())]
    for claim in posed["allocated"]:
        held = {**claim, "spec": {"devices": {"requests": [holder]}}}
        found.append({"apiVersion": DRA, "kind": "ResourceClaim", **held})
    return found


def claim_objects(posed: Json) -> list[Json]:
    """The claims of the pod, in its order."""
    return [{"apiVersion": DRA, "kind": "ResourceClaim", **c} for c in posed["claims"]]


def pod_object(posed: Json) -> Json:
    """The pod; it goes only to nodes of its own problem."""
    extra: dict[str, Any] = dict(posed.get("pod", {}))
    cpu = extra.pop("cpu", None)
    names = [c["metadata"]["name"] for c in posed["claims"]]
    container: Json = {"name": "main", "image": "none"}
    container["resources"] = {"claims": [{"name": name} for name in names]}
    if cpu:
        container["resources"]["requests"] = {"cpu": cpu}
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
        **extra,
    }
    seed = str(posed["seed"])
    if any("problem" in n["metadata"].get("labels", {}) for n in posed["nodes"]):
        spec["nodeSelector"] = {"problem": seed}
    metadata = {"name": f"pod-{seed}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
