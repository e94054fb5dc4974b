"""Helpers for CPU tests: claims, pods that use them, and their kernel state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.bed.node import Node

CLASS = "dra.cpu"
CAPACITY = "dra.cpu/cpu"
# Wakes up often on any allowed CPU and leaves time for the emulator: a loop without a pause takes a
# core of the host, and a pause by a separate process (``sleep``) costs four times as much as this one.
BUSY = (
    "mkfifo /pause; exec 3<>/pause; "
    "while :; do i=0; while [ $i -lt 100 ]; do i=$((i+1)); done; read -t 0.2 x <&3; done"
)


def on_numa_node(number: int) -> str:
    """A CEL selector for devices of one NUMA node."""
    return f'device.attributes["dra.cpu"].numaNodeID == {number}'


def amount(count: int, *selectors: str, name: str = "cpus") -> Manifest:
    """A request for an amount of CPUs of one grouped device."""
    exactly: Manifest = {"deviceClassName": CLASS, "capacity": {"requests": {CAPACITY: str(count)}}}
    return {"name": name, "exactly": {**exactly, **_selecting(selectors)}}


def devices(count: int, *selectors: str, name: str = "cpus") -> Manifest:
    """A request for a number of individual CPUs."""
    exactly = {"deviceClassName": CLASS, "count": count}
    return {"name": name, "exactly": {**exactly, **_selecting(selectors)}}


def _selecting(selectors: Iterable[str]) -> Manifest:
    chosen = [{"cel": {"expression": expression}} for expression in selectors]
    return {"selectors": chosen} if chosen else {}


def claim_spec(
    *requests: Manifest, config: Mapping[str, Any] | None = None, constraints: Iterable[Manifest] = ()
) -> Manifest:
    """``spec.devices`` of a claim; ``config`` is its opaque configuration."""
    spec: Manifest = {"requests": list(requests)}
    if config is not None:
        spec["config"] = [{"opaque": {"driver": CLASS, "parameters": dict(config)}}]
    if constraints:
        spec["constraints"] = list(constraints)
    return {"devices": spec}


def claim(name: str, *requests: Manifest, **options: Any) -> Manifest:
    """A ResourceClaim, used by name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": claim_spec(*requests, **options),
    }


def template(name: str, *requests: Manifest, **options: Any) -> Manifest:
    """A ResourceClaimTemplate: one claim per pod."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": claim_spec(*requests, **options)},
    }


def pod_with(name: str, *claims: str, command: str = BUSY, **spec: Any) -> Manifest:
    """A busy pod whose container uses these claims."""
    references = [{"name": each, "resourceClaimName": each} for each in claims]
    return busybox_pod(name, command, claims=references, **spec)


def assert_individual_slices_match(cluster: Cluster, node: Node, reserved: Iterable[int]) -> None:
    """Compare the published devices of individual mode with the machine's shape, CPU by CPU."""
    shape, hidden = node.shape, frozenset(reserved)
    published = {
        device["attributes"]["dra.cpu/cpuID"]["int"]: device["attributes"]
        for entry in cluster.slices("dra.cpu", node.name)
        for device in entry["spec"]["devices"]
    }
    assert published.keys() == set(range(shape.cpu_count)) - hidden
    numa_of = {cpu: number for number, numa in enumerate(shape.numa) for cpu in numa.cpus}
    for cpu, attributes in published.items():
        assert attributes["dra.cpu/numaNodeID"]["int"] == numa_of[cpu]
        assert attributes["resource.kubernetes.io/numaNode"]["int"] == numa_of[cpu]
        assert attributes["dra.cpu/socketID"]["int"] == shape.cpu_places()[cpu][0]
        assert attributes["dra.cpu/smtEnabled"]["bool"] is (shape.threads > 1)

    def groups(key: str) -> set[frozenset[int]]:
        found: dict[int, set[int]] = {}
        for cpu, attributes in published.items():
            found.setdefault(attributes[f"dra.cpu/{key}"]["int"], set()).add(cpu)
        return {frozenset(group) for group in found.values()}

    assert groups("coreID") == {shape.siblings(cpu) - hidden for cpu in published}
    assert groups("cacheL3ID") == {shape.l3_mates(cpu) - hidden for cpu in published}


class Kernel:
    """Kernel state of a pod's container; every claim is checked in four ways."""

    def __init__(self, cluster: Cluster, pod: Manifest, container: str = "") -> None:
        self._node = cluster.node_of(pod)
        self.container = cluster.container_id(pod, container)

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs of the cgroup."""
        return self._node.effective_cpus(self.container)

    @property
    def mems(self) -> frozenset[int]:
        """The NUMA nodes of the cgroup."""
        return self._node.effective_mems(self.container)

    @property
    def pid(self) -> int:
        """The container's first process."""
        return self._node.pids(self.container)[0]

    def runs_only_on(self, cpus: Iterable[int]) -> None:
        """Assert the cgroup, the affinity and the CPUs on which the busy loop runs."""
        expected = frozenset(cpus)
        assert self.cpus == expected
        assert self._node.allowed_cpus(self.pid) == expected
        assert self._node.last_cpus(self.pid) <= expected

    def environment(self) -> dict[str, str]:
        """The first process's environment."""
        text = self._node.read(f"/proc/{self.pid}/environ")
        return dict(entry.split("=", 1) for entry in text.split("\0") if entry)


def running(cluster: Cluster, namespace: str, *names: str) -> list[Kernel]:
    """Wait for pods and return the kernel state of each."""
    return [Kernel(cluster, cluster.wait_for_pod(name, namespace)) for name in names]
