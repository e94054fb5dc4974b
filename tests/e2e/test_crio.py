"""Node tier, CRI-O only: the differences between CRI-O and containerd, and how the driver handles them.

The first part verifies our assumptions with CRI-O itself, so that a release that behaves differently is
detected. The second part verifies the guarantees of the CPU driver that a difference could violate. Tests
that work with a fake are in ``tests/kit/runtime/test_crio_traps.py``.

The node: cores {0,1} {2,3} on NUMA node 0, {4,5} {6,7} on NUMA node 1; CPU 0 is reserved.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from grpclib.exceptions import GRPCError

from drakit.wire.nri.values import Adjustment, ContainerUpdate, NriContainer, PodSandbox, Resources
from tests.e2e.bed.cri import Cri, cri_of, cri_of_second_client
from tests.e2e.bed.deploy import install_packages
from tests.e2e.bed.drivenode import ClaimRejectedError, DrivenNode, driven
from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import NotYetError
from tests.e2e.nri import PluginThread, RecordingPlugin, connected, cpus, restart_runtime, wait_until

pytestmark = pytest.mark.crio

ALL = frozenset(range(8))
POOL = frozenset(range(1, 8))
MI = 1 << 20
_PUSHED = "Unsolicited container update from NRI"
"""CRI-O's log message for a pushed update."""
_VALIDATOR = """
[crio.nri.default_validator]
nri_enable_default_validator = true
nri_validator_required_plugins = ["bed"]
nri_validator_tolerate_missing_plugins_annotation = "drakit.test/may-run-unpinned"
"""


class Racing(RecordingPlugin):
    """Plugin that moves the container ``first`` when ``second`` is created; may reject starts."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = threading.Event()
        self.first = ""

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        answer = await super().create(pod, container)
        if container.name == "first":
            self.first = container.id
            self.answered.set()
        elif container.name == "second":
            away = ContainerUpdate(container_id=self.first, resources=Resources(cpus="4-5"))
            answer = Adjustment(updates=(away,))
        return answer


@pytest.fixture
def recorder() -> Racing:
    return Racing()


@pytest.fixture
def connection(runtime: Node, recorder: Racing) -> Iterator[PluginThread]:
    """Our plugin, synchronized with the runtime."""
    with connected(runtime, recorder) as made:
        wait_until("our plugin is synchronized", lambda: recorder.synchronized, runtime)
        yield made


def _pushes(node: Node) -> int:
    return node.read("/var/log/crio.log").count(_PUSHED)


# What CRI-O does -----------------------------------------------------------------------------


def test_a_pushed_update_is_applied_and_logged(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Racing
) -> None:
    """Control for ``the_driver_never_pushes``: a forced push is detected."""
    recorder.answers["main"] = cpus("2-3")
    container = cri.run_container(cri.run_pod())
    before = _pushes(runtime)
    session = connection.plugin._current
    assert session is not None
    assert session.runtime is not None
    features = msgspec.structs.replace(session.runtime.features, unsolicited_updates=True)
    session.runtime = msgspec.structs.replace(session.runtime, features=features)
    connection.push([ContainerUpdate(container_id=container, resources=Resources(cpus="4-5"))])
    assert runtime.effective_cpus(container) == {4, 5}
    assert _pushes(runtime) == before + 1


def test_a_pods_annotations_are_copied_to_its_containers(
    cri: Cri, connection: PluginThread, recorder: Racing
) -> None:
    pod = cri.run_pod(annotations={"drakit.dev/wanted": '{"memory_added":1}'})
    container = cri.run_container(pod)
    assert recorder.seen[container].annotations["drakit.dev/wanted"] == '{"memory_added":1}'


def test_after_a_restart_containers_are_reported_as_created_not_as_updated(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Racing
) -> None:
    recorder.answers["main"] = cpus("2-3")
    pod = cri.run_pod()
    container = cri.run_container(pod)
    away = ContainerUpdate(container_id=container, resources=Resources(cpus="4-5"))
    recorder.answers["other"] = Adjustment(updates=(away,))
    cri.run_container(pod, "other")
    assert runtime.effective_cpus(container) == {4, 5}
    (reported,) = [each for each in restart_runtime(runtime, recorder) if each.id == container]
    assert runtime.effective_cpus(container) == {4, 5}
    assert reported.resources.cpus == "2-3"


def test_an_update_during_a_creation_is_lost_and_reported_as_done(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Racing
) -> None:
    recorder.answers["first"] = cpus("2-3")
    pods = [cri.run_pod(), cri.run_pod()]
    with cri_of_second_client(runtime) as other, ThreadPoolExecutor(1) as thread:
        first = thread.submit(cri.create, pods[0], "first")
        assert recorder.answered.wait(60)
        other.create(pods[1], "second")
        container = first.result()
    cri.start(container)
    assert recorder.ends == []
    assert runtime.effective_cpus(container) == {2, 3}, "the update was applied after all"


def test_an_error_at_its_start_does_not_prevent_a_container_from_running(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Racing
) -> None:
    """containerd fails the start; with CRI-O only the creation can be rejected."""
    recorder.rejected_starts.add("main")
    container = cri.run_container(cri.run_pod())
    assert ("starting", "main") in recorder.events
    assert cri.state(container) == "CONTAINER_RUNNING"
    assert recorder.ends == []


def test_a_rejected_creation_is_not_followed_by_a_stop_and_a_removal(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Racing
) -> None:
    recorder.rejected["bad"] = "it must not be created"
    pod = cri.run_pod()
    with pytest.raises(GRPCError, match="it must not be created"):
        cri.create(pod, "bad")
    cri.remove(cri.create(pod, "good"))
    wait_until("the removal is reported", lambda: ("removed", "good") in recorder.events, runtime)
    assert [kind for kind, name in recorder.events if name == "bad"] == ["create"]


def test_a_container_that_died_while_cri_o_was_down_is_not_reported(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Racing
) -> None:
    pod = cri.run_pod()
    dead, alive = cri.run_container(pod, "dead"), cri.run_container(pod, "alive")
    (pid,) = runtime.pids(dead)
    before = len(recorder.synchronized)
    runtime.stop_service("runtime")
    runtime.run(f"kill -9 {pid}")
    runtime.start_service("runtime")
    wait_until("our plugin is back", lambda: len(recorder.synchronized) > before, runtime)
    assert {each.id for each in recorder.synchronized[-1]} & {dead, alive} == {alive}
    assert ("stop", "dead") not in recorder.events


def test_hugepage_limits_are_dropped_from_updates(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Racing
) -> None:
    recorder.answers["main"] = Adjustment(resources=Resources(hugepage_limits={"2MB": 4 * MI}))
    pod = cri.run_pod()
    container = cri.run_container(pod)
    file = "hugetlb.2MB.max"
    assert runtime.cgroup_file(container, file) == str(4 * MI)
    more = Resources(cpus="2-3", hugepage_limits={"2MB": 8 * MI})
    recorder.update_answers["main"] = more
    cri.update(container, cpu_shares=512)
    assert runtime.effective_cpus(container) == {2, 3}, "the rest of the update is applied"
    assert runtime.cgroup_file(container, file) == str(4 * MI)
    moved = ContainerUpdate(container_id=container, resources=msgspec.structs.replace(more, cpus="4-5"))
    recorder.answers["other"] = Adjustment(updates=(moved,))
    cri.run_container(pod, "other")
    assert runtime.effective_cpus(container) == {4, 5}, "the rest of the update is applied"
    assert runtime.cgroup_file(container, file) == str(4 * MI)


def test_a_memory_limit_below_the_configured_minimum_is_rejected(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Racing
) -> None:
    """Also limits set by a plugin; the test cluster lowers CRI-O's minimum of 12 MiB to 500 KiB."""
    pod = cri.run_pod()
    recorder.answers["small"] = Adjustment(resources=Resources(memory_limit=11 * MI))
    small = cri.create(pod, "small")
    assert small in cri.containers()
    recorder.answers["tiny"] = Adjustment(resources=Resources(memory_limit=100 << 10))
    with pytest.raises(GRPCError, match="memory limit"):
        cri.create(pod, "tiny")


def test_a_sandbox_without_a_process_leaves_an_empty_cgroup(runtime: Node, cri: Cri) -> None:
    pod = cri.run_pod()
    container = cri.run_container(pod)
    cgroup = Path(runtime.container_cgroup(container))
    assert cgroup.name.removesuffix(".scope") == f"crio-{container}"
    directory = cgroup.parent
    inside = set(runtime.run(f"ls -d {directory}/*/").split())
    empty = {each for each in inside if pod.id in each}
    assert empty
    assert inside - empty
    for each in empty:
        assert runtime.read(f"{each}cgroup.procs") == ""


@contextmanager
def _required_plugin(node: Node) -> Iterator[None]:
    """CRI-O with the configuration of docs/install.md that rejects containers without the plugin."""
    file = "/etc/crio/crio.conf.d/90-required.conf"
    node.put(file, _VALIDATOR)
    node.restart_service("runtime")
    try:
        yield
    finally:
        node.run(f"rm {file}")
        node.restart_service("runtime")


def test_cri_o_rejects_containers_without_its_required_plugin(
    runtime: Node, cri: Cri, recorder: Racing
) -> None:
    unguarded = cri.run_container(cri.run_pod())
    assert runtime.effective_cpus(unguarded) == ALL, "CRI-O fails open"
    with _required_plugin(runtime), cri_of(runtime) as guarded:
        pod = guarded.run_pod()
        with pytest.raises(GRPCError, match='required plugin "bed" not present'):
            guarded.create(pod, "main")
        excused = guarded.run_pod(annotations={"drakit.test/may-run-unpinned": "true"})
        guarded.run_container(excused)
        recorder.answers["pinned"] = cpus("2-3")
        with runtime.forward("/var/run/nri/nri.sock") as path:
            connection = PluginThread(str(path), recorder)
            connection.start()
            try:
                wait_until("our plugin is synchronized", lambda: recorder.synchronized, runtime)
                container = guarded.run_container(pod, "pinned")
                assert runtime.effective_cpus(container) == {2, 3}
            finally:
                connection.close()


# What the driver makes of it -------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine(runtime: Node, packages: Path) -> Node:
    """The node with drakit on its disk."""
    install_packages(runtime, packages)
    return runtime


@pytest.fixture(scope="module")
def shared_driver(machine: Node) -> Iterator[DrivenNode]:
    """The CPU driver without periodic verification: results depend only on events."""
    with driven(machine, reserved_cpus="0", verify_seconds="86400") as node:
        yield node


@pytest.fixture
def driver(shared_driver: DrivenNode) -> Iterator[DrivenNode]:
    """The same; pods and claims of a test are removed."""
    try:
        yield shared_driver
    finally:
        shared_driver.clear()


def test_the_driver_never_pushes(machine: Node, driver: DrivenNode) -> None:
    before = _pushes(machine)
    sharer = driver.run(driver.pod())
    container, claim = driver.owner(2, numa=0)
    assert driver.cpus(sharer) == POOL - {2, 3}
    driver.end(container, claim)
    driver.owner(1, numa=1)  # the response to its creation contains the pending updates
    assert driver.soon(lambda: {2, 3} < driver.cpus(sharer))
    assert _pushes(machine) == before


def test_a_claim_is_found_without_cdi_device_names(driver: DrivenNode) -> None:
    container, _ = driver.owner(2, numa=0)
    assert driver.cpus(container) == {2, 3}


def test_the_value_of_a_claim_replaces_the_pods_own(driver: DrivenNode) -> None:
    pod = driver.pod()
    claim = driver.claim(pod, 2, numa=0)
    forged = {f"DRA_CLAIM_{claim.uid}_cpus": "none", "DRA_CPUSET": "0-7"}
    container = driver.run(pod, driver.prepare(claim), forged)
    assert driver.cpus(container) == {2, 3}, "the claim was hidden"
    (pid,) = driver.node.pids(container)
    variables = driver.node.read(f"/proc/{pid}/environ").split("\0")
    assert [each for each in variables if each.startswith("DRA_CPUSET=")] == ["DRA_CPUSET=2-3"]


def test_a_forged_marker_is_rejected_without_affecting_others(driver: DrivenNode) -> None:
    container, claim = driver.owner(2, numa=0)
    marker = f"DRA_CLAIM_{claim.uid}_cpus"
    with pytest.raises(GRPCError, match=f"remove {marker}"):
        driver.run(driver.pod(), environment={marker: "dra.k8s.io/cpu"})
    with pytest.raises(GRPCError, match="has not prepared"):
        unknown = "DRA_CLAIM_11111111-2222-3333-4444-555555555555_cpus"
        driver.run(driver.pod(), environment={unknown: "dra.k8s.io/cpu"})
    assert driver.cpus(driver.run(driver.pod())) == POOL - {2, 3}
    assert driver.cpus(container) == {2, 3}


def test_after_a_restart_of_cri_o_every_container_gets_its_cpus_again(
    machine: Node, driver: DrivenNode
) -> None:
    """CRI-O reports the sharer as created, which equals the desired state but not the actual one."""
    container, claim = driver.owner(2, numa=0)
    sharer = driver.run(driver.pod())
    assert driver.cpus(sharer) == POOL - {2, 3}
    driver.end(container, claim)
    driver.run(driver.pod())  # the response to its creation contains the pending updates
    assert driver.soon(lambda: driver.cpus(sharer) == POOL)
    pod = driver.pod()
    devices = driver.prepare(driver.claim(pod, 2, numa=0))
    machine.kill_service("runtime")
    machine.start_service("runtime")
    machine.wait_for_runtime()
    assert driver.soon(lambda: driver.cpus(sharer) == POOL - {2, 3}, limit=60), "CRI-O's report was believed"
    assert driver.cpus(driver.run(pod, devices)) == {2, 3}


def test_the_claim_of_a_container_that_died_while_cri_o_was_down_can_be_released(
    machine: Node, driver: DrivenNode
) -> None:
    sharer = driver.run(driver.pod())
    container, claim = driver.owner(2, numa=0)
    (pid,) = machine.pids(container)
    machine.stop_service("runtime")
    machine.run(f"kill -9 {pid}")
    machine.start_service("runtime")
    machine.wait_for_runtime()

    def released() -> bool:
        try:
            driver.unprepare(claim)
        except (ClaimRejectedError, GRPCError) as error:
            raise NotYetError(str(error)) from error
        return True

    machine.wait("the claim to be released", released)
    driver.run(driver.pod())
    assert driver.soon(lambda: driver.cpus(sharer) == POOL)


def test_containers_created_at_the_same_time_never_share_a_cpu(machine: Node, driver: DrivenNode) -> None:
    """An update during the creation of a container is lost; it is sent again when the container starts."""
    pods = [driver.pod() for _ in range(4)]
    devices = [driver.prepare(driver.claim(pods[numa], 2, numa)) for numa in (0, 1)]
    with ThreadPoolExecutor(4) as threads:
        sharers = [threads.submit(driver.run, pod) for pod in pods[2:]]
        owners = [threads.submit(driver.run, pod, devices[place]) for place, pod in enumerate(pods[:2])]
        mine = [driver.cpus(each.result()) for each in owners]
        others = [each.result() for each in sharers]
    assert mine[0] == {2, 3}
    assert len(mine[1]) == 2
    left = POOL - mine[0] - mine[1]
    assert driver.soon(lambda: all(driver.cpus(each) == left for each in others))
