"""Small API objects for unit tests of the scheduler."""

from __future__ import annotations

from typing import Any

from drakit.core.kubernetes_releases import LATEST, KubernetesRelease
from drakit.core.objects import DeviceClass, ResourceClaim, ResourceSlice, from_builtins
from drakit.core.pods import Node, Pod
from drakit.scheduler.allocator.node_devices import InUse, NodeDevices
from drakit.scheduler.placement import ClusterSnapshot
from drakit.scheduler.pools import SliceIndex
from drakit.scheduler.requests import ClaimPlan, plan_claims
from tests.scheduler.problems import Json

DRIVER = "d.io"
CLASSES = {"c": from_builtins({"metadata": {"name": "c"}}, DeviceClass)}


def node(name: str = "n", labels: Json | None = None, **more: Any) -> Node:
    return from_builtins({"metadata": {"name": name, "labels": labels or {}}, **more}, Node)


def device(name: str, **fields: Any) -> Json:
    return {"name": name, **fields}


def resource_slice(*devices: Json, name: str = "s", **spec: Any) -> ResourceSlice:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1, **spec.pop("pool", {})}
    where = {} if {"nodeSelector", "allNodes", "perDeviceNodeSelection"} & set(spec) else {"nodeName": "n"}
    fields = {"driver": DRIVER, "pool": pool, "devices": list(devices), **where, **spec}
    return from_builtins({"metadata": {"name": name}, "spec": fields}, ResourceSlice)


def exactly(name: str = "r", *selectors: str, **fields: Any) -> Json:
    cel = [{"cel": {"expression": s}} for s in selectors]
    return {"name": name, "exactly": {"deviceClassName": "c", "selectors": cel, **fields}}


def claim(*requests: Json, name: str = "x", constraints: Any = (), **status: Any) -> ResourceClaim:
    devices = {"requests": list(requests), "constraints": list(constraints)}
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return from_builtins({"metadata": meta, "spec": {"devices": devices}, "status": status}, ResourceClaim)


def allocated(*devices: str, name: str = "held", **result: Any) -> ResourceClaim:
    results = [{"request": "r", "driver": DRIVER, "pool": "p", "device": d, **result} for d in devices]
    return claim(exactly(), name=name, allocation={"devices": {"results": results}})


def node_devices(
    *slices: ResourceSlice, held: tuple[ResourceClaim, ...] = (), release: KubernetesRelease = LATEST
) -> NodeDevices:
    return NodeDevices(node(), SliceIndex(slices, release), InUse.of(held, release))


def plans(*claims: ResourceClaim) -> tuple[ClaimPlan, ...]:
    return plan_claims(claims, CLASSES)


def snapshot(*slices: ResourceSlice, claims: tuple[ResourceClaim, ...] = (), **more: Any) -> ClusterSnapshot:
    return ClusterSnapshot(
        nodes=more.pop("nodes", (node(),)), slices=slices, classes=tuple(CLASSES.values()),
        claims=claims, **more,
    )  # fmt: skip


def pod(*claims: str, **spec: Any) -> Pod:
    entries = [{"name": c, "resourceClaimName": c} for c in claims]
    meta = {"name": "pod", "namespace": "default", "uid": "uid-pod"}
    return from_builtins({"metadata": meta, "spec": {"resourceClaims": entries, **spec}}, Pod)
