"""Load test: pods of all kinds start and stop in random ways, and the driver is killed at random times.

The cgroups of the node are read continuously: two pods never own the same CPU, no container of the
shared pool runs on an owner's CPU, and everything is released at the end. All observations are
recorded, and the independent history checker must not find a violation.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.kubernetes import Manifest
from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import NotYetError
from tests.e2e.bed.watch import Watch, judged, record_file, watched, watching
from tests.e2e.cpu import BUSY, amount, claim, on_numa_node, pod_with, running, template

pytestmark = pytest.mark.groups

EVERYTHING = frozenset(range(1, 8))
AT_ONCE = 4
START_TIMEOUT = 45.0
"""Seconds after which a pod that does not start is deleted as it is: there may be no CPU for it."""


# Kinds of pods -----------------------------------------------------------------------------


def _plain(name: str, dice: random.Random) -> list[Manifest]:
    count = dice.randint(1, 3)
    where = [on_numa_node(dice.randint(0, 1))] if dice.random() < 0.5 else []
    return [claim(name, amount(count, *where)), watched(pod_with(name, name), "owner", count)]


def _whole_core(name: str, dice: random.Random) -> list[Manifest]:
    config_ = {"apiVersion": "v1alpha1", "cpuConfig": {"wholeCores": True}}
    return [claim(name, amount(2), config=config_), watched(pod_with(name, name), "owner", 2)]


def _spread(name: str, dice: random.Random) -> list[Manifest]:
    config_ = {"apiVersion": "v1alpha1", "cpuConfig": {"placement": "spread"}}
    return [claim(name, amount(2), config=config_), watched(pod_with(name, name), "owner", 2)]


def _named(name: str, dice: random.Random) -> list[Manifest]:
    config_ = {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": str(dice.randint(4, 7))}}
    one = claim(name, amount(1, on_numa_node(1)), config=config_)
    return [one, watched(pod_with(name, name), "owner", 1)]


def _two_requests(name: str, dice: random.Random) -> list[Manifest]:
    requests = [amount(1, on_numa_node(0), name="near"), amount(1, on_numa_node(1), name="far")]
    return [claim(name, *requests), watched(pod_with(name, name), "owner", 2)]


def _two_claims(name: str, dice: random.Random) -> list[Manifest]:
    names = [f"{name}-a", f"{name}-b"]
    claims = [claim(each, amount(1)) for each in names]
    return [*claims, watched(pod_with(name, *names), "owner", 2)]


def _from_template(name: str, dice: random.Random) -> list[Manifest]:
    reference = [{"name": "cpus", "resourceClaimTemplateName": name}]
    pod = busybox_pod(name, BUSY, claims=reference)
    return [template(name, amount(1)), watched(pod, "owner", 1)]


def _two_containers(name: str, dice: random.Random) -> list[Manifest]:
    pod = pod_with(name, name)
    (main,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [main, {**main, "name": "helper"}]
    return [claim(name, amount(2)), watched(pod, "owner", 2)]


def _crashing(name: str, dice: random.Random) -> list[Manifest]:
    pod = pod_with(name, name, command="sleep 1; exit 1", restartPolicy="Always")
    return [claim(name, amount(1)), watched(pod, "owner", 1)]


def _unclaimed(name: str, dice: random.Random) -> list[Manifest]:
    return [watched(busybox_pod(name, BUSY), "sharer")]


KINDS: tuple[Callable[[str, random.Random], list[Manifest]], ...] = (
    *(_plain, _plain, _whole_core, _spread, _named, _two_requests, _two_claims),
    *(_from_template, _two_containers, _crashing, _unclaimed),
)


# The storm ---------------------------------------------------------------------------------


class Storm:
    """A number of pods and of driver crashes, in random order."""

    def __init__(self, cluster: Cluster, driver: ChartDriver, namespace: str, seed: int) -> None:
        self._cluster, self._driver, self._namespace = cluster, driver, namespace
        self._dice = random.Random(seed)
        self._alive: dict[str, float] = {}
        """Pods that were created and not yet deleted, with the time of their creation."""
        self._made = 0

    def rage(self, pods: int, deaths: int, watch: Watch) -> None:
        """Create the pods and delete them all."""
        due = sorted(self._dice.sample(range(2, pods), deaths))
        while self._made < pods or self._alive:
            if self._made < pods and len(self._alive) < AT_ONCE:
                self._make()
            else:
                self._delete(self._settled())
            while due and self._made > due[0]:
                due.pop(0)
                with watch.driver_away():
                    self._disturb_driver()
            watch.report().check()

    def _make(self) -> None:
        name = f"p{self._made}"
        kind = self._dice.choice(KINDS)
        self._cluster.apply(kind(name, self._dice), self._namespace)
        self._alive[name] = time.monotonic()
        self._made += 1

    def _delete(self, name: str) -> None:
        grace = self._dice.choice((0, 1, 1))
        self._cluster.api.delete("v1", "Pod", name, self._namespace, grace=grace)
        del self._alive[name]

    def _settled(self) -> str:
        """A pod to be deleted: usually a running one, sometimes one that is starting."""
        if self._dice.random() < 0.15:
            return self._dice.choice(list(self._alive))

        def one() -> str:
            ready = [name for name, since in self._alive.items() if self._is_settled(name, since)]
            if not ready:
                raise NotYetError("no pod has started yet")
            return self._dice.choice(ready)

        return self._cluster.wait("a pod to start", one)

    def _is_settled(self, name: str, since: float) -> bool:
        if time.monotonic() - since > START_TIMEOUT:
            return True
        pod = self._cluster.api.get("v1", "Pod", name, self._namespace)
        statuses = pod["status"].get("containerStatuses", [])
        return any("running" in each["state"] or each["restartCount"] for each in statuses)

    def _disturb_driver(self) -> None:
        """Kill the driver while a pod starts and another one stops."""
        node = self._cluster.node
        self._make()
        if self._dice.random() < 0.5 or self._made < 20:
            self._driver.kill(node)
        else:  # the kubelet delays a container that died often; a new pod starts at once
            name = self._driver.pod(node)["metadata"]["name"]
            self._cluster.api.delete("v1", "Pod", name, self._driver.namespace, grace=0)
            self._cluster.wait_for_gone("v1", "Pod", name, self._driver.namespace)
            self._driver.wait_until_serving()


@pytest.mark.parametrize(
    ("pods", "deaths", "seed"),
    [
        pytest.param(12, 1, 7, id="short", marks=pytest.mark.full),
        pytest.param(200, 8, None, id="long", marks=[pytest.mark.full, pytest.mark.timeout(5400)]),
    ],
)
def test_no_cpu_is_owned_twice_at_any_time(
    cluster: Cluster,
    node: Node,
    cpu_driver: ChartDriver,
    namespace: str,
    pods: int,
    deaths: int,
    seed: int | None,
    request: pytest.FixtureRequest,
) -> None:
    record = record_file(request.node.name)
    cpu_driver.deploy(driverConfig={"reservedCPUs": "0"})
    seed = int(os.environ.get("DRAKIT_E2E_SEED", "0")) or seed or random.randrange(1, 1 << 32)
    print(f"the storm's seed: DRAKIT_E2E_SEED={seed}")
    cluster.apply(watched(busybox_pod("resident", BUSY), "sharer"), namespace)
    (resident,) = running(cluster, namespace, "resident")
    with watching(node, record=record) as watch:
        Storm(cluster, cpu_driver, namespace, seed).rage(pods, deaths, watch)
        cluster.wait("all CPUs to be given back", lambda: resident.cpus == EVERYTHING)
        report = watch.report()
    print(report, f"{len(report.owners)} containers owned CPUs")
    report.check()
    history = judged(record)
    print(f"{record}: {dict(history.seen)}, undecided: {dict(history.undecided)}")
    history.check()
    assert history.seen["containers"] >= len(report.owners)
    assert history.seen["ownerships"] >= pods // 3
    assert len(report.owners) >= pods // 3, "too few pods came to own CPUs: the load was too low"
    assert cpu_driver.checkpoint(node) == {}
