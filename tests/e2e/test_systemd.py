"""Nodes with systemd as process 1, like nearly every production node.

The kubelet requests a slice per pod from systemd, the runtime a scope per container, and systemd keeps
its own record of their limits. Administrators change them with ``systemctl``.

The node: cores {0,1} {2,3} on NUMA node 0, {4,5} {6,7} on NUMA node 1; CPU 0 is reserved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.bed.cluster import Cluster, busybox_pod
from tests.e2e.bed.deploy import install_packages
from tests.e2e.bed.drivenode import DrivenNode, driven
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.node import Node
from tests.e2e.bed.pins import Pins
from tests.e2e.bed.watch import watched, watching
from tests.e2e.cpu import BUSY, Kernel, amount, claim, on_numa_node, pod_with, running

pytestmark = [pytest.mark.systemd, pytest.mark.groups]

EVERYTHING = frozenset(range(1, 8))
ALL_CPUS = frozenset(range(8))
OWNED = frozenset({2, 3})
SHARED = EVERYTHING - OWNED


class Systemd:
    """systemd of one node, used like an administrator."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def scope(self, container: str) -> str:
        """The unit of a container."""
        return Path(self._node.container_cgroup(container)).name

    def slices(self, container: str) -> list[str]:
        """The units above a container's, its pod's first."""
        above = Path(self._node.container_cgroup(container)).parents
        return [each.name for each in above if each.name.endswith(".slice")]

    def set(self, unit: str, *properties: str) -> None:
        """Change properties of a unit until the next boot."""
        self._node.run(["systemctl", "set-property", "--runtime", unit, *properties])

    def show(self, unit: str, key: str) -> str:
        """A property of a unit."""
        return self._node.run(["systemctl", "show", "--value", "--property", key, unit]).strip()


@dataclass(frozen=True)
class Residents:
    """Two pods that run through all tests: one owns 2-3, the other is in the shared pool."""

    namespace: str
    owner: Kernel
    sharer: Kernel

    def are_where_they_belong(self) -> None:
        """Assert cgroup, affinity and actual CPUs of both."""
        self.owner.runs_only_on(OWNED)
        self.sharer.runs_only_on(SHARED)

    def come_back(self, node: Node) -> None:
        """Wait until both have run with their new CPUs, then assert them."""
        for pod, cpus in ((self.owner, OWNED), (self.sharer, SHARED)):
            node.wait(
                "it to run where it belongs",
                lambda pod=pod, cpus=cpus: node.last_cpus(pod.pid) <= cpus,
                limit=30,
            )
        self.are_where_they_belong()


@pytest.fixture(scope="module")
def driver(cpu_driver: ChartDriver) -> ChartDriver:
    """The driver in its default mode, CPU 0 reserved, with frequent verification of cgroups."""
    cpu_driver.deploy(driverConfig={"reservedCPUs": "0", "verifySeconds": 2})
    return cpu_driver


@pytest.fixture(scope="module")
def residents(cluster: Cluster, driver: ChartDriver) -> Iterator[Residents]:
    with cluster.namespace("systemd") as namespace:
        cluster.apply(
            [
                claim("two", amount(2, on_numa_node(0))),
                watched(pod_with("owner", "two", restartPolicy="Always"), "owner", 2),
                watched(busybox_pod("sharer", BUSY, restartPolicy="Always"), "sharer"),
            ],
            namespace,
        )
        owner, sharer = running(cluster, namespace, "owner", "sharer")
        cluster.wait("the shared pool to shrink", lambda: sharer.cpus == SHARED)
        yield Residents(namespace, owner, sharer)


@pytest.fixture
def systemd(cluster: Cluster, node: Node) -> Systemd:
    return Systemd(node)


@contextmanager
def suspended(node: Node, driver: ChartDriver, cluster: Cluster) -> Iterator[None]:
    """Pause the driver's process: it notices changes only after the block."""
    pids = " ".join(map(str, node.pids(cluster.container_id(driver.pod(node)))))
    node.run(f"kill -STOP {pids}")
    try:
        yield
    finally:
        node.run(f"kill -CONT {pids}")


def test_pods_and_containers_are_slices_and_scopes_of_systemd(
    cluster: Cluster, node: Node, systemd: Systemd, residents: Residents, pins: Pins
) -> None:
    assert node.read("/proc/1/comm").strip() == "systemd"
    pod = cluster.api.get("v1", "Pod", "owner", residents.namespace)
    uid = pod["metadata"]["uid"].replace("-", "_")
    assert systemd.slices(residents.owner.container) == [
        f"kubepods-besteffort-pod{uid}.slice",
        "kubepods-besteffort.slice",
        "kubepods.slice",
    ]
    scope = systemd.scope(residents.owner.container)
    assert re.fullmatch(r"(cri-containerd|crio)-[0-9a-f]{64}\.scope", scope)
    assert systemd.show(scope, "AllowedCPUs") == "2-3"
    # An update of a running container reaches systemd's own record where the runtime does it; where it
    # takes no pushed updates, the driver writes the cgroup and systemd keeps what it had.
    if node.runtime.service == "containerd" and not pins.containerd_is_debians:
        assert systemd.show(systemd.scope(residents.sharer.container), "AllowedCPUs") == "1 4-7"


def test_reloading_and_reexecuting_systemd_changes_no_cpuset(
    node: Node, systemd: Systemd, residents: Residents
) -> None:
    with watching(node) as watch:
        for command in ("daemon-reload", "daemon-reexec"):
            node.run(["systemctl", command])
            node.wait("systemd to answer", lambda: systemd.show("init.scope", "Id") == "init.scope")
            looks = watch.report().looks
            node.wait("two looks", lambda before=looks: watch.report().looks > before + 2)
            residents.are_where_they_belong()
        watch.report().check()


def test_weights_and_memory_set_on_slices_and_scopes_change_no_cpuset(
    node: Node, systemd: Systemd, residents: Residents
) -> None:
    container = residents.owner.container
    with watching(node) as watch:
        for unit in (systemd.scope(container), *systemd.slices(container)):
            systemd.set(unit, "CPUWeight=70", "MemoryMin=4M")
            assert systemd.show(unit, "CPUWeight") == "70"
        assert node.cgroup_file(container, "cpu.weight") == "70"
        assert node.cgroup_file(container, "memory.min") == str(4 << 20)
        residents.are_where_they_belong()
        watch.report().check()


@pytest.mark.parametrize("who", ["owner", "sharer"])
def test_cpus_of_a_container_changed_by_systemctl_are_corrected(
    cluster: Cluster, node: Node, driver: ChartDriver, systemd: Systemd, residents: Residents, who: str
) -> None:
    changed: Kernel = getattr(residents, who)
    meant = {"owner": OWNED, "sharer": SHARED}[who]
    with suspended(node, driver, cluster):
        systemd.set(systemd.scope(changed.container), "AllowedCPUs=0-7")
        assert changed.cpus == ALL_CPUS
    node.wait("the driver to notice", lambda: changed.cpus == meant, limit=30)
    # systemd must not restore its old record.
    node.run(["systemctl", "daemon-reload"])
    residents.come_back(node)


def test_a_slice_that_withholds_claimed_cpus_is_reported(
    cluster: Cluster, node: Node, driver: ChartDriver, systemd: Systemd, residents: Residents
) -> None:
    pod_slice = systemd.slices(residents.owner.container)[0]
    systemd.set(pod_slice, "AllowedCPUs=4-5")
    try:
        # The kernel decides: CPUs that the slice does not allow are removed.
        assert residents.owner.cpus == {4, 5}
        node.wait("the driver to report it", lambda: pod_slice in driver.log(node), limit=30)
        reported = re.search(
            r'^dra_cpu_drift_total{result="reported"} (.+)$', driver.get(node, "/metrics"), re.MULTILINE
        )
        assert reported
        assert float(reported[1]) > 0
    finally:
        # Without a value systemd would forget its limit and leave the kernel's.
        systemd.set(pod_slice, "AllowedCPUs=0-7")
    residents.come_back(node)


def test_daemons_of_the_node_may_run_on_claimed_cpus_unless_their_slice_is_limited(
    node: Node, systemd: Systemd, residents: Residents
) -> None:
    daemon = "bed-daemon.service"
    node.run(["systemd-run", "--quiet", f"--unit={daemon}", "sh", "-c", "while :; do sleep 1; done"])
    try:
        pid = int(systemd.show(daemon, "MainPID"))
        assert systemd.show(daemon, "Slice") == "system.slice"
        assert node.allowed_cpus(pid) == ALL_CPUS, "exclusive is among pods: see docs/how-it-works.md"
        systemd.set("system.slice", "AllowedCPUs=0")
        assert node.allowed_cpus(pid) == {0}
        residents.are_where_they_belong()
    finally:
        systemd.set("system.slice", "AllowedCPUs=0-7")
        node.run(["systemctl", "stop", daemon])


def _crash(node: Node, systemd: Systemd) -> None:
    """Only its unit restarts it."""
    unit = f"{node.runtime.service}.service"
    before = int(systemd.show(unit, "NRestarts"))
    node.kill_service("runtime")
    node.wait("the unit to start it again", lambda: int(systemd.show(unit, "NRestarts")) > before)
    node.wait_for_runtime()


def _restart(node: Node, systemd: Systemd) -> None:
    node.restart_service("runtime")


@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(_crash, id="killed"),
        # In the default run, test_cpu_grouped_restarts.py restarts it together with the kubelet.
        pytest.param(_restart, id="restarted", marks=pytest.mark.full),
    ],
)
def test_a_runtime_restarted_by_its_unit_finds_every_pod_on_its_cpus(
    cluster: Cluster,
    node: Node,
    driver: ChartDriver,
    systemd: Systemd,
    residents: Residents,
    namespace: str,
    disturb: Callable[[Node, Systemd], None],
) -> None:
    processes = residents.owner.pid, residents.sharer.pid
    with watching(node) as watch:
        disturb(node, systemd)
        driver.wait_until_serving()
        residents.are_where_they_belong()
        new = watched(pod_with("newcomer", "new"), "owner", 2)
        cluster.apply([claim("new", amount(2, on_numa_node(1))), new], namespace)
        (newcomer,) = running(cluster, namespace, "newcomer")
        assert len(newcomer.cpus) == 2
        newcomer.runs_only_on(newcomer.cpus & {4, 5, 6, 7})
        left = SHARED - newcomer.cpus
        cluster.wait("the shared pool to follow", lambda: residents.sharer.cpus == left)
        residents.owner.runs_only_on(OWNED)
        watch.report().check()
    assert (residents.owner.pid, residents.sharer.pid) == processes, "containers were restarted"
    cluster.api.delete("v1", "Pod", "newcomer", namespace)
    cluster.wait("the shared pool to grow back", lambda: residents.sharer.cpus == SHARED)


def test_the_slice_of_a_terminated_pod_is_removed_and_its_cpus_are_released(
    cluster: Cluster, node: Node, systemd: Systemd, residents: Residents
) -> None:
    container = residents.owner.container
    pod_slice = systemd.slices(container)[0]
    directory = str(Path(node.container_cgroup(container)).parent)
    assert systemd.show(pod_slice, "ActiveState") == "active"
    cluster.api.delete("v1", "Pod", "owner", residents.namespace)
    cluster.wait("the shared pool to grow back", lambda: residents.sharer.cpus == EVERYTHING)
    node.wait("the slice to be gone", lambda: not node.exists(directory))
    assert systemd.show(pod_slice, "ActiveState") == "inactive"


# Node tier: drivers broken on purpose are caught ---------------------------------------------


def a_scope_changed_by_systemctl_is_put_right(node: DrivenNode) -> None:
    systemd = Systemd(node.node)
    container, _ = node.owner(2, numa=0)
    node.driver.process.signal("STOP")
    systemd.set(systemd.scope(container), "AllowedCPUs=0-7")
    assert node.cpus(container) == ALL_CPUS
    node.driver.process.signal("CONT")
    assert node.soon(lambda: node.cpus(container) == OWNED), "the change was not noticed"


def a_slice_that_withholds_cpus_is_reported(node: DrivenNode) -> None:
    systemd = Systemd(node.node)
    container, _ = node.owner(2, numa=0)
    pod_slice = systemd.slices(container)[0]
    systemd.set(pod_slice, "AllowedCPUs=4-5")
    assert node.cpus(container) == {4, 5}
    log = node.driver.process.log
    assert node.soon(lambda: pod_slice in log()), "the slice was not reported"


GUARANTEES: dict[Callable[[DrivenNode], None], tuple[str, str]] = {
    a_scope_changed_by_systemctl_is_put_right: ("believes_its_own_books", "was not noticed"),
    a_slice_that_withholds_cpus_is_reported: ("overlooks_slices", "was not reported"),
}
"""The mutant that each test detects, and its message."""


@pytest.mark.full
@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda guarantee: guarantee.__name__)
def test_a_guarantee_about_systemd_is_kept_and_its_mutant_detected(
    runtime: Node, packages: Path, guarantee: Callable[[DrivenNode], None]
) -> None:
    mutant, words = GUARANTEES[guarantee]
    install_packages(runtime, packages)
    for broken in ("", mutant):
        with driven(runtime, broken, reserved_cpus="0", verify_seconds="2") as node:
            try:
                if broken:
                    with pytest.raises(AssertionError, match=words):
                        guarantee(node)
                else:
                    guarantee(node)
            finally:
                node.clear()
