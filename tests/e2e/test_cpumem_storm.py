"""Load test with pods that claim CPUs, memory and hugepages, and random crashes of the driver.

The cgroups and ``/sys/devices/system/node`` are read continuously: no CPU has two owners, no NUMA node
has more guaranteed memory or hugepages than it has, and everything is released at the end. The
history checker verifies the record of all CPUs.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.holder import hold, install_holder, with_holder
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.bed.memorywatch import watching_memory
from tests.e2e.bed.node import Node
from tests.e2e.bed.watch import judged, record_file, watched, watching
from tests.e2e.cpu import BUSY, claim, pod_with, running
from tests.e2e.cpumem import MI, MemoryKernel, holding_pod, on_numa_node, wanting
from tests.e2e.test_cpu_grouped_storm import Storm

pytestmark = pytest.mark.groups

EVERYTHING = frozenset(range(1, 8))
TOUCHED = 8 * MI
"""Share of the claimed memory that is touched; touching all of it would only take time."""


# Kinds of pods -----------------------------------------------------------------------------


def _somewhere(dice: random.Random) -> list[str]:
    return [on_numa_node(dice.randint(0, 1))] if dice.random() < 0.5 else []


def _all(name: str, dice: random.Random) -> list[Manifest]:
    cpus, pages, memory = dice.randint(1, 2), dice.randint(1, 24), dice.randint(32, 512) * MI
    request = wanting(*_somewhere(dice), cpus=cpus, memory=memory, pages=pages)
    pod = holding_pod(name, name, memory=TOUCHED, pages=pages, more=1)
    return [claim(name, request), watched(pod, "owner", cpus)]


def _memory(name: str, dice: random.Random) -> list[Manifest]:
    request = wanting(*_somewhere(dice), memory=dice.randint(256, 900) * MI)
    return [claim(name, request), watched(holding_pod(name, name, memory=TOUCHED), "sharer")]


def _pages(name: str, dice: random.Random) -> list[Manifest]:
    pages = dice.randint(8, 48)
    pod = holding_pod(name, name, pages=pages, more=1)
    return [claim(name, wanting(*_somewhere(dice), pages=pages)), watched(pod, "sharer")]


def _both_nodes(name: str, dice: random.Random) -> list[Manifest]:
    pages = [dice.randint(1, 16), dice.randint(1, 16)]
    requests = [
        wanting(on_numa_node(node), cpus=1, memory=128 * MI, pages=pages[node], name=f"node{node}")
        for node in (0, 1)
    ]
    pod = holding_pod(name, name, memory=TOUCHED, pages=sum(pages), more=1)
    return [claim(name, *requests), watched(pod, "owner", 2)]


def _two_claims(name: str, dice: random.Random) -> list[Manifest]:
    names = [f"{name}-a", f"{name}-b"]
    claims = [claim(each, wanting(cpus=1, memory=64 * MI, pages=4)) for each in names]
    return [*claims, watched(holding_pod(name, *names, pages=8, more=1), "owner", 2)]


def _two_containers(name: str, dice: random.Random) -> list[Manifest]:
    pod = pod_with(name, name, command=hold(TOUCHED, 4, 0))
    (main,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [main, {**main, "name": "helper"}]
    request = wanting(cpus=1, memory=64 * MI, pages=8)
    return [claim(name, request), watched(with_holder(pod), "owner", 1)]


def _crashing(name: str, dice: random.Random) -> list[Manifest]:
    pod = pod_with(name, name, command="sleep 1; exit 1", restartPolicy="Always")
    return [claim(name, wanting(cpus=1, memory=64 * MI, pages=4)), watched(pod, "owner", 1)]


def _unclaimed(name: str, dice: random.Random) -> list[Manifest]:
    return [watched(busybox_pod(name, BUSY), "sharer")]


KINDS: tuple[Callable[[str, random.Random], list[Manifest]], ...] = (
    *(_all, _all, _all, _memory, _pages, _pages, _both_nodes, _two_claims),
    *(_two_containers, _crashing, _unclaimed),
)


class MemoryStorm(Storm):
    """The load test of the CPU driver with other pods."""

    def _make(self) -> None:
        name = f"p{self._made}"
        kind = self._dice.choice(KINDS)
        self._cluster.apply(kind(name, self._dice), self._namespace)
        self._alive[name] = time.monotonic()
        self._made += 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("pods", "deaths", "seed"),
    [
        pytest.param(14, 1, 7, id="short"),
        pytest.param(200, 8, None, id="long", marks=pytest.mark.timeout(5400)),
    ],
)
def test_nothing_is_guaranteed_twice_at_any_time(
    cluster: Cluster,
    node: Node,
    cpumem_driver: ChartDriver,
    namespace: str,
    pods: int,
    deaths: int,
    seed: int | None,
    request: pytest.FixtureRequest,
) -> None:
    record = record_file(request.node.name)
    config = {"reservedCPUs": "0", "memoryQoS": "claims"}
    cpumem_driver.deploy(driverConfig=config, kubeletConfig="/bed-node/kubelet.json")
    install_holder(node)
    seed = int(os.environ.get("DRAKIT_E2E_SEED", "0")) or seed or random.randrange(1, 1 << 32)
    print(f"the storm's seed: DRAKIT_E2E_SEED={seed}")
    cluster.apply(watched(busybox_pod("resident", BUSY), "sharer"), namespace)
    (resident,) = running(cluster, namespace, "resident")
    with watching(node, record=record) as cpus, watching_memory(node) as memory:
        MemoryStorm(cluster, cpumem_driver, namespace, seed).rage(pods, deaths, cpus)
        cluster.wait("all CPUs to be given back", lambda: resident.cpus == EVERYTHING)
        seen, guaranteed = cpus.report(), memory.report()
    print(seen, guaranteed)
    seen.check()
    guaranteed.check()
    history = judged(record)
    print(f"{record}: {dict(history.seen)}, undecided: {dict(history.undecided)}")
    history.check()
    assert history.seen["containers"] >= len(seen.owners)
    assert guaranteed.pods >= pods // 2, "too few pods had guaranteed memory: the load was too low"
    assert cpumem_driver.checkpoint(node) == {}
    pod = cluster.api.get("v1", "Pod", "resident", namespace)
    cluster.wait(
        "all protection to be given back", lambda: MemoryKernel(cluster, pod).chain("memory.min") == ["0"] * 4
    )
